# SPDX-License-Identifier: Apache-2.0
"""ddlrun: the ranks' environment, their output, signals and failures."""

import fcntl
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, clean_environment

import ddl_launch.cli as launch_cli
from ddl_launch.arguments import parse
from ddl_launch.errors import LaunchError

LAUNCH = [sys.executable, "-m", "ddl_launch"]

# For a rank that must fail only after another rank has reached a point.
JOIN = """
import os, signal, sys, time
def arrive():
    open("arrived", "w").close()
def wait_for_the_other():
    while not os.path.exists("arrived"):
        time.sleep(0.01)
"""


@pytest.fixture
def cli(run_program: Run, tmp_path: Path) -> Run:
    def run(*arguments: Any, **options: Any) -> Any:
        return run_program([*LAUNCH, *arguments], cwd=tmp_path, **options)

    return run


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ddlrun with a program that prints "ready" and runs on; it is ended with the test."""
    processes = []

    def start(size: int, text: str, *options: str) -> subprocess.Popen[str]:
        program = tmp_path / "program.py"
        program.write_text(text)
        command = [*LAUNCH, "-n", str(size), *options, str(program)]
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # else ignored, where nohup runs this
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        signal.signal(signal.SIGHUP, before)
        processes.append(process)
        assert process.stdout
        for _ in range(size):
            line = process.stdout.readline()
            assert line.endswith("ready\n"), (line, process.stderr)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()  # its ranks die with it
        process.communicate()


def finish(process: subprocess.Popen[str], limit: float = 30) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=limit)
    return process.returncode, out, err


def wait_until(true: Callable[[], bool], limit: float = 10) -> bool:
    deadline = time.monotonic() + limit
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_environment_of_the_ranks(ddlrun: Run) -> None:
    text = """
import json, os
print(json.dumps({n: v for n, v in os.environ.items() if n.split("_")[0] in
    ("DDL", "RANK", "WORLD", "LOCAL", "MASTER", "OMP", "PYTHONUNBUFFERED")}))
"""
    import json

    ended = ddlrun(3, text).expect_success()
    ranks = [json.loads(ended.lines(rank)[0]) for rank in range(3)]
    for rank, env in enumerate(ranks):
        own = {"DDL_RANK", "DDL_LOCAL_RANK", "RANK", "LOCAL_RANK"}
        assert {env[name] for name in own} == {str(rank)}
        sizes = {"DDL_SIZE", "DDL_LOCAL_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
        assert {env[name] for name in sizes} == {"3"}
        assert re.fullmatch(r"tcp://127.0.0.1:\d+", env["DDL_RENDEZVOUS"])
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert env["MASTER_PORT"] != env["DDL_RENDEZVOUS"].rpartition(":")[2]
        assert len(env["DDL_SECRET"]) == 64
        assert env["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 3))
        assert env["PYTHONUNBUFFERED"] == "1"
    shared = [{n: v for n, v in env.items() if n not in own} for env in ranks]
    assert shared[0] == shared[1] == shared[2]
    assert "OMP_NUM_THREADS=" in ended.err
    again = json.loads(ddlrun(1, text).lines(0)[0])
    assert again["DDL_SECRET"] != ranks[0]["DDL_SECRET"]


def test_omp_num_threads_of_the_user_is_kept(ddlrun: Run) -> None:
    text = "import os; print(os.environ['OMP_NUM_THREADS'])"
    ended = ddlrun(2, text, env={"OMP_NUM_THREADS": "7"}).expect_success()
    assert (ended.lines(0), ended.err) == (["7"], "")


def test_arguments_and_folder_are_passed_on(ddlrun: Run, tmp_path: Path) -> None:
    text = "import os, sys; print(sys.argv[1:], os.getcwd())"
    ended = ddlrun(1, text, "-n", "5", "--help", "a b", "").expect_success()
    assert ended.lines(0) == [f"['-n', '5', '--help', 'a b', ''] {tmp_path}"]


def test_other_programs_are_run_as_they_are(cli: Run, tmp_path: Path) -> None:
    assert cli("-n", "1", "sh", "-c", "echo $0 $DDL_SIZE", "x").out == "[0] x 1\n"
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho it is $DDL_RANK\n")
    script.chmod(0o755)
    assert cli("-n", "1", "./script").out == "[0] it is 0\n"
    assert cli("-n", "1", "--", "./script").out == "[0] it is 0\n"


def test_only_rank_0_reads_the_input(ddlrun: Run) -> None:
    text = "import sys; print(sys.stdin.read())"
    ended = ddlrun(2, text, stdin=b"hello").expect_success()
    assert (ended.lines(0), ended.lines(1)) == (["hello"], [""])


def test_ranks_share_a_session_but_no_terminal(tmp_path: Path) -> None:
    """The scheduler groups processes by session: a rank's yield reaches only ranks in its own."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "try:\n    os.open('/dev/tty', os.O_RDWR)\n    terminal = True\n"
        "except OSError:\n    terminal = False\n"
        "print(os.getsid(0), os.getpgrp() == os.getpid(), terminal)\n"
    )
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs) as terminal:
        process = subprocess.Popen(
            ["setsid", "--ctty", *LAUNCH, "-n", "2", "--no-prefix", program],
            stdin=terminal,
            stdout=subprocess.PIPE,
            cwd=tmp_path,
        )
        shown = process.communicate(timeout=60)[0].decode()
        assert process.returncode == 0
    assert shown.splitlines() == [f"{process.pid} True False"] * 2


def test_signals_that_python_ignores_are_restored(cli: Run) -> None:
    ended = cli("-n", "1", "grep", "SigIgn", "/proc/self/status").expect_success()
    ignored = int(ended.out.split()[-1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1)


def test_lines_are_whole(ddlrun: Run) -> None:
    text = """
import os, sys
rank = os.environ["RANK"]
for i in range(300):
    for part in ("begin ", rank * 50, f" {i} ", rank * 50, " end\\n"):
        (sys.stderr if i % 2 else sys.stdout).write(part)
"""
    ended = ddlrun(4, text).expect_success()
    for rank in range(4):
        wanted = [f"begin {str(rank) * 50} {i} {str(rank) * 50} end" for i in range(0, 300, 2)]
        assert ended.lines(rank) == wanted
    assert len(re.findall(r"(?m)^\[(\d)\] begin \1{50} \d+ \1{50} end$", ended.err)) == 600


def test_output_without_a_last_newline(ddlrun: Run) -> None:
    ended = ddlrun(2, "import sys; sys.stdout.write('no end')").expect_success()
    assert sorted(ended.out.splitlines()) == ["[0] no end", "[1] no end"]


def test_no_prefix(ddlrun: Run) -> None:
    ended = ddlrun(2, "print('same')", options=["--no-prefix"]).expect_success()
    assert ended.out == "same\nsame\n"


def test_bytes_without_prefix_arrive_unchanged(tmp_path: Path) -> None:
    """Progress bars have carriage returns, and no newline at their end."""
    data = random.Random(1).randbytes(200_000) + b"end"
    (tmp_path / "data").write_bytes(data)
    command = [sys.executable, "-m", "ddl_launch", "-n", "1", "--no-prefix", "cat", "data"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout == data


def test_output_is_complete_if_a_signal_interrupts_its_write(tmp_path: Path) -> None:
    """SIGCHLD arrives while ddlrun waits for the reader of its stdout."""
    data = b"a line of 32 bytes for a pipe \n" * 1000
    (tmp_path / "data").write_bytes(data)
    command = [*LAUNCH, "-n", "1", "--no-prefix", "sh", "-c", "cat data; touch ended"]
    environment = clean_environment({"PYTHONUNBUFFERED": "1"})
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        while not (tmp_path / "ended").exists():
            time.sleep(0.01)
        time.sleep(0.3)  # the signal follows
        shown, _ = process.communicate(timeout=60)
    assert shown == data


@pytest.mark.skipif(os.geteuid() != 0, reason="a new PID namespace needs root")
def test_process_1_reaps_orphans_and_forwards_signals(tmp_path: Path) -> None:
    text = """
import os, signal, sys, time
for _ in range(5):
    if os.fork() == 0:
        os.fork()  # the grandchild becomes an orphan
        os._exit(0)
    os.wait()
def zombies():
    states = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            states.append(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0])
        except OSError:
            pass
    return states.count("Z")
deadline = time.monotonic() + 20
while zombies() and time.monotonic() < deadline:
    time.sleep(0.05)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("zombies", zombies(), flush=True)
time.sleep(60)
"""
    (tmp_path / "program.py").write_text(text)
    space = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*space, sys.executable, "-m", "ddl_launch", "-n", "1", "program.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and process.stdout.readline() == "[0] zombies 0\n"
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)  # the process with id 1 there
        assert process.wait(timeout=30) == 7
    finally:
        process.kill()
        process.communicate()


def test_output_dir(ddlrun: Run, tmp_path: Path) -> None:
    text = f"""{JOIN}
print("out", os.environ["RANK"]); print("err", os.environ["RANK"], file=sys.stderr)
if os.environ["RANK"] == "0":
    sys.exit(arrive())
wait_for_the_other()
sys.exit(1)
"""
    ended = ddlrun(2, text, options=["--output-dir", "logs/run"])
    assert (ended.code, ended.out) == (1, "")
    assert "its output is in logs/run/rank.1.err" in ended.err
    files = {path.name: path.read_text() for path in (tmp_path / "logs/run").iterdir()}
    assert files == {
        f"rank.{rank}.{kind}": f"{kind} {rank}\n" for rank in range(2) for kind in ("out", "err")
    }


def test_of_a_progress_bar_the_last_state_is_kept(ddlrun: Run) -> None:
    text = """
import sys
for i in range(0, 101, 10):
    sys.stderr.write(f"\\r{i:3}%")
sys.stderr.write("\\n")
"""
    ended = ddlrun(1, text).expect_success()
    assert ended.err == "[0] 100%\n"


def test_on_a_terminal_the_progress_bar_stays_at_the_bottom(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import os, sys, time
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
if os.environ["RANK"] == "0":
    sys.stderr.write("\\r0 of 5")
    wait_for("line shown")
    sys.stderr.write("\\r5 of 5\\n")
    print(os.environ["COLUMNS"])
else:
    wait_for("bar shown")
    print("from rank 1")
""")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*LAUNCH, "-n", "2", program],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "60"},
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
            if b"0 of 5" in shown:
                (tmp_path / "bar shown").touch()
            if b"from rank 1" in shown:
                (tmp_path / "line shown").touch()
    except OSError:  # the signals when a terminal is closed
        pass
    finally:
        os.close(ours)
        assert process.wait(30) == 0
    text = shown.decode().replace("\r\n", "\n")
    bar = r"\r\x1b\[K\[0\] 0 of 5"
    # The bar is cleared, the line is written, the bar is drawn again below it.
    assert re.search(bar + r"\r\x1b\[K\[1\] from rank 1\n" + bar, text), repr(text)
    assert "\r\x1b[K[0] 5 of 5\n" in text
    assert "[0] 56\n" in text  # the number of columns, without the prefix


def test_reader_that_goes_away_ends_the_job(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("while True: print('again')")
    launch = " ".join([*LAUNCH, "-n", "2", str(program)])
    command = f"{launch} | head -3; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=30, cwd=tmp_path
    )
    *lines, code = ended.stdout.splitlines()
    assert [line[3:] for line in lines] == [" again"] * 3
    assert code != "0"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "the following arguments are required: -n"),
        (["-n", "2"], 2, "PROGRAM is missing"),
        (
            ["-n", "0", "true"],
            2,
            "argument -n: '0' is not a number of ranks; must be an integer >= 1",
        ),
        (["-n", "-1", "true"], 2, "argument -n: '-1' is not a number of ranks"),
        (["-n", "two", "true"], 2, "argument -n: 'two' is not a number of ranks"),
        (["-n", "1.5", "true"], 2, "argument -n: '1.5' is not a number of ranks"),
        (["-n"], 2, "argument -n: expected one argument"),
        (["--nproc-per-node", "all", "true"], 2, "'all' is not a number of ranks; must be an"),
        (["--nproc-per-node=auto", "-H", "a,b", "true"], 2, "auto counts on this machine only"),
        (["--nproc-per-node=auto", "--submit", "lsf", "true"], 2, "auto counts on this machine"),
        (["-n", "1", "--grace", "long", "true"], 2, "argument --grace: 'long' is not"),
        (["-n", "1", "--grace", "-1", "true"], 2, "argument --grace: '-1' is not"),
        (["-n", "1", "--output-dir", "/dev/null/x", "true"], 2, "--output-dir /dev/null/x: "),
        (["-n", "1", "--typo", "true"], 2, "--typo"),
        (["-n", "1", "no-such-program"], 127, "the program no-such-program is not in PATH"),
        (["-n", "1", "./no-such-file"], 127, "the file ./no-such-file does not exist"),
        (["-n", "1", "missing.py"], 127, "the file missing.py does not exist"),
        (["-n", "1", "/dev"], 126, "/dev is a folder"),
        (["-n", "1", "/proc/version"], 126, "/proc/version is not executable"),
    ],
)
def test_bad_usage_is_one_clear_line(
    cli: Run, arguments: list[str], code: int, message: str
) -> None:
    ended = cli(*arguments)
    assert (ended.code, ended.out) == (code, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("ddlrun: ")
    assert message in line


PROGRAM_WITH_OPTIONS = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--verbose", action="store_true")
parser.add_argument("--code", type=int, default=0)
sys.exit(parser.parse_args().code)
"""
MISPLACED = "stands after the program"


@pytest.mark.parametrize("option", ["--output-dir=logs", "--no-prefix", "--grace"])
def test_option_after_the_program_is_explained(cli: Run, tmp_path: Path, option: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM_WITH_OPTIONS)
    ended = cli("-n", "2", "program.py", option)
    assert ended.code == 2
    name = option.partition("=")[0]
    assert ended.err.splitlines()[-1].startswith(
        f"ddlrun: ddlrun passed {name} to the program, because it {MISPLACED}"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--verbose", "--code", "2"],  # an option of both, and the program's own exit code
        ["--frobnicate"],  # an option of neither
        ["--code", "--no-prefix-at-all"],
    ],
)
def test_own_options_of_the_program_give_no_false_alarm(
    cli: Run, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM_WITH_OPTIONS)
    ended = cli("-n", "2", "program.py", *words)
    assert ended.code == 2 and MISPLACED not in ended.err


def test_number_after_the_program_is_explained(cli: Run) -> None:
    ended = cli("train.py", "--lr", "1", "-np", "4")
    assert ended.code == 2
    assert "required: -n, or -H for other hosts; -np 4 stands after the program" in ended.err
    assert MISPLACED not in cli("train.py", "-n").err


@pytest.mark.parametrize(
    ("word", "gpus", "ranks"),
    [("cpu", 4, 2), ("auto", 0, 2), ("auto", 4, 4), ("gpu", 4, 4)],
)
def test_word_of_torchrun_counts_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, word: str, gpus: int, ranks: int
) -> None:
    monkeypatch.setattr(launch_cli.glob, "glob", lambda _: ["gpu"] * gpus)
    monkeypatch.setattr(launch_cli.placement, "look", lambda: ([[0, 1, 2, 3]], 2.5))
    arguments = parse(["--nproc-per-node", word, "train.py"])
    launch_cli._count_ranks(arguments)
    assert arguments.accelerators == ranks


def test_word_gpu_without_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cli.glob, "glob", lambda _: [])
    with pytest.raises(LaunchError, match="this machine has no NVIDIA GPU; write cpu or a number"):
        launch_cli._count_ranks(parse(["--nproc-per-node", "gpu", "train.py"]))


def test_program_in_this_folder_is_suggested(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert "did you mean ./mine?" in cli("-n", "1", "mine").err


def test_help_has_examples(cli: Run) -> None:
    ended = cli("--help").expect_success()
    for word in ("examples:", "ddlrun -n 2 train.py", "--grace", "exit code", "DDL_RENDEZVOUS"):
        assert word in ended.out


def test_program_that_crashes_at_once(ddlrun: Run) -> None:
    ended = ddlrun(3, "import os; os.abort()", options=["--no-prefix"])
    assert ended.code == 128 + signal.SIGABRT
    (line,) = [line for line in ended.err.splitlines() if "SIGABRT" in line]
    assert re.match(r"ddlrun: rank \d on \S+ \(pid \d+\) was killed by SIGABRT", line)


def test_file_that_cannot_be_executed(cli: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    ended = cli("-n", "1", "./broken")
    assert ended.code == 127
    assert "cannot run ./broken" in ended.err


def test_first_failure_is_reported_and_ends_the_others(ddlrun: Run) -> None:
    text = """
import os, sys, time
if os.environ["RANK"] == "1":
    time.sleep(0.3)
    sys.exit(42)
time.sleep(60)
"""
    begun = time.monotonic()
    ended = ddlrun(3, text)
    assert time.monotonic() - begun < 15
    assert ended.code == 42
    assert re.search(
        r"ddlrun: rank 1 on \S+ \(pid \d+\) ended with exit code 42; ending the other 2\n",
        ended.err,
    )


SHRINKS = f"""{JOIN}
import ddl_core
comm = ddl_core.init()
comm.barrier()
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.barrier()
except ddl_core.errors.CommDead:
    comm = comm.shrink()
time.sleep(0.5)  # ddlrun has noticed the death
comm.barrier()
print(comm.rank, "of", comm.size)
"""


def test_others_go_on_if_asked(ddlrun: Run) -> None:
    ended = ddlrun(3, SHRINKS, options=["--keep-going"])
    assert ended.code == 0
    assert sorted(ended.out.split("\n")) == ["", "[0] 0 of 2", "[2] 1 of 2"]
    assert re.search(
        r"ddlrun: rank 1 on \S+ \(pid \d+\) was killed by SIGKILL; 2 of 3 ranks are still"
        r" running\n",
        ended.err,
    )


def test_job_fails_if_no_rank_succeeds(ddlrun: Run) -> None:
    text = "import os, sys; sys.exit(3 + int(os.environ['RANK']))"
    ended = ddlrun(2, text, options=["--keep-going"])
    assert ended.code in (3, 4)
    assert "; 0 of 2 ranks are still running\n" in ended.err


def test_rank_that_ignores_sigterm_is_killed_after_the_grace(ddlrun: Run) -> None:
    text = f"""{JOIN}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    wait_for_the_other()
    sys.exit(3)
arrive()
time.sleep(60)
"""
    begun = time.monotonic()
    ended = ddlrun(2, text, options=["--grace", "0.7"])
    assert 0.7 < time.monotonic() - begun < 15
    assert ended.code == 3
    assert re.search(r"rank 1 on \S+ \(pid \d+\) has not exited within 0.7 s of SIGTERM", ended.err)


def test_ranks_may_clean_up_during_the_grace(ddlrun: Run) -> None:
    text = f"""{JOIN}
if os.environ["RANK"] == "0":
    wait_for_the_other()
    sys.exit(3)
def save(*_):
    time.sleep(0.5)
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
arrive()
time.sleep(60)
"""
    ended = ddlrun(2, text)
    assert ended.code == 3
    assert ended.lines(1) == ["saved"]


def test_children_of_a_failed_job_end_too(ddlrun: Run) -> None:
    text = """
import os, subprocess, sys, time
if os.environ["RANK"] == "0":
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid)
    sys.exit(5)
time.sleep(60)
"""
    begun = time.monotonic()
    ended = ddlrun(2, text)
    assert time.monotonic() - begun < 15
    assert ended.code == 5
    pid = int(ended.lines(0)[0])
    assert wait_until(lambda: not runs(pid))


def test_output_that_a_child_holds_open_is_not_waited_for(ddlrun: Run) -> None:
    text = """
import subprocess
child = subprocess.Popen(["sleep", "60"])
print(child.pid)
"""
    begun = time.monotonic()
    ended = ddlrun(1, text).expect_success()
    assert time.monotonic() - begun < 30
    pid = int(ended.lines(0)[0])
    assert runs(pid)  # the job succeeded, so this process continues
    os.kill(pid, signal.SIGKILL)


REPORT = """
import os, signal, sys, time
def report(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        sys.exit(0)
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), report)
print("ready", flush=True)
for _ in range(600):
    time.sleep(0.1)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ending_signals_are_forwarded(started: Any, name: str) -> None:
    process = started(2, REPORT)
    process.send_signal(getattr(signal, name))
    code, out, _ = finish(process)
    assert code == 0  # the ranks' own exit codes
    assert sorted(out.splitlines()) == [f"[0] {name}", f"[1] {name}"]


def test_other_signals_are_forwarded(started: Any) -> None:
    process = started(2, REPORT)
    seen = []
    for name in ("SIGUSR1", "SIGUSR2"):
        process.send_signal(getattr(signal, name))
        seen += sorted(process.stdout.readline() for _ in range(2))
    assert seen == [f"[{r}] {name}\n" for name in ("SIGUSR1", "SIGUSR2") for r in range(2)]
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 0


@pytest.mark.parametrize(
    ("size", "handler", "name", "code", "said"),
    [
        (2, "signal.SIG_DFL", "SIGTERM", 128 + signal.SIGTERM, "was killed by SIGTERM"),
        (2, "signal.default_int_handler", "SIGINT", 130, "ddlrun: interrupted"),
        (1, "lambda *_: sys.exit(7)", "SIGINT", 7, "ended with exit code 7"),
    ],
)
def test_exit_code_after_a_signal(
    started: Any, size: int, handler: str, name: str, code: int, said: str
) -> None:
    text = f"""
import signal, sys, time
signal.signal(signal.{name}, {handler})
print("ready", flush=True)
time.sleep(60)
"""
    process = started(size, text)
    process.send_signal(getattr(signal, name))
    found, _, err = finish(process)
    assert found == code and said in err
    if code == 130:
        ours = [line for line in err.splitlines() if line.startswith("ddlrun:")]
        assert re.fullmatch("ddlrun: interrupted(; ending the other 1)?", ours[-1]), err
        assert len([line for line in ours if "interrupted" in line]) == 1


def test_traceback_of_the_rank_at_fault_is_last(ddlrun: Run) -> None:
    text = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    raise ValueError("boom")
def end(*_):
    raise ConnectionError("a rank is lost")
signal.signal(signal.SIGTERM, end)
time.sleep(60)
"""
    ended = ddlrun(3, text, options=["--grace", "20"])
    assert ended.code == 1
    lines = ended.err.splitlines()
    head = lines.index("ddlrun: the last lines of rank 1, which failed first:")
    lost = [n for n, line in enumerate(lines) if line.endswith("ConnectionError: a rank is lost")]
    assert len(lost) == 2 and max(lost) < head  # all output is kept
    assert lines[-1] == "  | ValueError: boom"
    assert all(line.startswith("  | ") for line in lines[head + 1 :])


def test_traceback_in_sight_is_not_repeated(ddlrun: Run) -> None:
    text = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("boom")
time.sleep(60)
"""
    ended = ddlrun(3, text)
    assert ended.code == 1
    assert "last lines" not in ended.err
    assert "ended with exit code 1: ValueError: boom" in ended.err.splitlines()[-1]


def test_second_interrupt_kills_ranks_that_ignore_the_first(started: Any) -> None:
    text = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
    process = started(2, text, "--grace", "0.5")
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert "SIGINT again: ending all ranks" in err


def test_ranks_die_with_ddlrun(started: Any) -> None:
    text = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, f"{os.getpid()} ready\\n".encode())
time.sleep(60)
"""
    process = started(1, text)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (pid,) = map(int, children)
    assert runs(pid)
    process.kill()
    process.wait(10)
    assert wait_until(lambda: not runs(pid))
