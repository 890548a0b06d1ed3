# SPDX-License-Identifier: Apache-2.0
"""`ddl lab`: hosts that are separate in everything that could bypass the wire."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import clean_environment

from ddl_launch.lab import Lab, LabError, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a lab")

LAB = [sys.executable, "-m", "ddl_launch.commands", "lab", "--name", f"test{os.getpid()}"]
REACH = """
import socket, sys
probe = socket.socket()
probe.settimeout(1)
print(probe.connect_ex((sys.argv[1], 9)))
"""
REFUSED = "111\n"  # the host exists, and has no such port


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(3, nics=2) as lab:
        yield lab


def test_each_host_has_all_of_its_own(lab: Lab) -> None:
    text = """
import os, socket
print(socket.gethostname(), os.listdir("/dev/shm"), sorted(os.listdir("/sys/class/net")))
open("/dev/shm/mine", "w").close()
"""
    for name in ("h1", "h2"):
        said = lab.run(name, [sys.executable, "-c", text]).stdout
        assert said == f"{name} [] ['eth0', 'eth1', 'lo']\n"
    processes = lab.run("h1", ["ps", "-e"]).stdout.splitlines()[1:]
    assert 2 <= len(processes) <= 5  # process 1, this ps, and little else
    spaces = [
        {os.readlink(f"/proc/{process}/ns/{kind}") for process in (h.process for h in lab.hosts)}
        for kind in ("net", "uts", "ipc", "mnt", "pid")
    ]
    assert [len(space) for space in spaces] == [3] * 5


def test_each_host_has_a_folder_for_temporary_files(lab: Lab) -> None:
    """Otherwise daemons of Open MPI on hosts with the same name, in two labs, would share folders
    in /tmp."""
    with Lab(1) as other:
        hosts = [(lab, "h1"), (lab, "h2"), (other, "h1")]
        said = [at.run(name, ["sh", "-c", "cd $TMPDIR; >mine; pwd; ls"]) for at, name in hosts]
    folders = {each.stdout.removesuffix("\nmine\n") for each in said}
    assert len(folders) == 3, said


def test_hosts_know_each_other_by_name(lab: Lab) -> None:
    for target in ("h2", "h2-eth1", lab.hosts[1].addresses[1]):
        assert lab.run("h1", [sys.executable, "-c", REACH, target]).stdout == REFUSED


def test_plug_is_pulled_and_put_back(lab: Lab) -> None:
    lab.connect("h2", False, nic=1)
    try:
        assert lab.run("h1", [sys.executable, "-c", REACH, "h2-eth1"]).stdout != REFUSED
        assert lab.run("h1", [sys.executable, "-c", REACH, "h2"]).stdout == REFUSED
    finally:
        lab.connect("h2", True, nic=1)
    assert lab.run("h1", [sys.executable, "-c", REACH, "h2-eth1"]).stdout == REFUSED
    with pytest.raises(LabError, match="h2 has no interface eth2"):
        lab.connect("h2", False, nic=2)


def test_a_host_stays_when_all_of_its_processes_are_killed(lab: Lab) -> None:
    """The host keeps its address, and the next program reaches other hosts."""
    ended = lab.run("h1", ["sh", "-c", "kill -9 -1"], timeout=10)
    assert ended.returncode in (0, 137)
    again = lab.run("h1", ["hostname"], timeout=10)
    assert (again.returncode, again.stdout) == (0, "h1\n")
    assert lab.run("h1", [sys.executable, "-c", REACH, "h2"]).stdout == REFUSED


def test_what_is_sent_is_counted(lab: Lab) -> None:
    before = lab.sent("h1"), lab.sent("h1", 1)
    lab.run("h1", [sys.executable, "-c", REACH, "h2-eth1"])
    assert lab.sent("h1", 1) > before[1]


def test_commands_are_as_if_run_here(lab: Lab, tmp_path: Path) -> None:
    command = ["sh", "-c", 'pwd; echo $WORD "$1"; cat; exit 7', "x", "a b"]
    ended = subprocess.run(
        lab.at("h3", *command),
        env={**os.environ, "WORD": "given"},
        cwd=tmp_path,
        input="typed",
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ended.returncode, ended.stdout) == (7, f"{tmp_path}\ngiven a b\ntyped")
    assert lab.run("h1", ["sh", "-c", "kill -9 $$"]).returncode == 128 + signal.SIGKILL
    assert lab.run("h1", ["no-such-program"]).returncode == 127
    assert "the host h9 does not exist" in lab.run("h9", ["true"]).stderr


def test_signals_and_the_end_of_the_caller_end_the_command(lab: Lab) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        text = "import os, time; print('ready', flush=True); time.sleep(60)"
        process = subprocess.Popen(
            lab.at("h1", sys.executable, "-c", text), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(10) != 0
        deadline = time.monotonic() + 10
        while "time.sleep(60)" in lab.run("h1", ["ps", "-ewwo", "args"]).stdout:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.stdout.close()


def test_remote_shell_is_as_ssh(lab: Lab) -> None:
    """From host to host, with a shell, in a separate environment."""
    command = 'echo "$HIDDEN"; $DDL_RSH -x -o Option=1 h2 hostname \\; echo "\\$HIDDEN" \\; exit 3'
    ended = lab.run("h1", ["sh", "-c", command], env={"HIDDEN": "here"})
    assert (ended.returncode, ended.stdout) == (3, "here\nh2\n\n")


def test_nothing_is_left_when_the_maker_is_killed(tmp_path: Path) -> None:
    text = "from ddl_launch.lab import Lab; import time; lab = Lab(2, name='{}')\n"
    name = f"left{os.getpid()}"
    text = text.format(name) + "print(lab.hosts[0].process, flush=True); time.sleep(60)"
    command = [sys.executable, "-c", text]
    process = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True)
    assert process.stdout
    first = process.stdout.readline().strip()
    assert Path(f"/proc/{first}").exists()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{first}").exists() or Path(f"/run/ddl-lab/{name}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_of_those_made_at_once_by_one_name_one_stays() -> None:
    name = f"race{os.getpid()}"

    def make(_: int) -> Lab | None:
        try:
            return Lab(1, name=name)
        except LabError as error:
            assert "already exists" in str(error)
            return None

    for _ in range(2):  # the name is free at once when `down` returns
        with ThreadPoolExecutor(4) as threads:
            made = [lab for lab in threads.map(make, range(4)) if lab]
        try:
            assert len(made) == 1
            assert made[0].run("h1", ["hostname"]).stdout == "h1\n"
        finally:
            for lab in made:
                lab.down()
    assert not list(Path("/run/ddl-lab").glob(f"{name}*"))


def test_caller_that_dies_within_its_request(lab: Lab) -> None:
    assert lab._daemon
    threads = Path(f"/proc/{lab._daemon.pid}/task")

    def settle(limit: float) -> int:
        """Return the number of the daemon's threads when it has not changed for 0.2 s."""
        end = time.monotonic() + limit
        last, since = len(list(threads.iterdir())), time.monotonic()
        while time.monotonic() < min(end, since + 0.2):
            if len(list(threads.iterdir())) != last:
                last, since = len(list(threads.iterdir())), time.monotonic()
            time.sleep(0.01)
        return last

    before = settle(5)
    for text in (b"", b"\0\0", b"\0\0\0\x09{"):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(lab._folder / "socket"))
            caller.sendall(text)
    assert settle(5) <= before


def test_command_line() -> None:
    def ddl(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LAB, *words],
            cwd="/",
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )

    up = ddl("up", "2", "--nics", "2", "--rate", "100mbit")
    try:
        assert (up.returncode, up.stderr) == (0, "")
        hosts = "h1 10.77.0.2 10.78.0.2\nh2 10.77.0.3 10.78.0.3\n"
        assert up.stdout == ddl("show").stdout == hosts
        again = ddl("up", "2")
        assert again.returncode == 2
        assert "already exists" in again.stderr
        assert ddl("exec", "h2", "sh", "-c", "exit 5").returncode == 5
        assert "rate 100Mbit" in ddl("exec", "h1", "tc", "qdisc", "show", "dev", "eth1").stdout
        assert [ddl(word, "h2", "--nic", "1").returncode for word in ("cut", "mend")] == [0, 0]
    finally:
        down = ddl("down")
    assert down.returncode == 0
    assert "does not exist: ddl lab up N creates one" in ddl("exec", "h1", "true").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["up", "0"], "'0' is not an integer >= 1"),
        (["up", "2", "--rate", "fast"], "'fast' is not a rate"),
        (["up", "1000"], "must be 1 to 128 hosts"),
        (["exec", "h1"], "COMMAND is missing"),
        (["cut", "h1"], "does not exist"),
    ],
)
def test_bad_usage_is_one_clear_line(words: list[str], message: str) -> None:
    ended = subprocess.run([*LAB, *words], cwd="/", capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert message in line
