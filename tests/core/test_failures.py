# SPDX-License-Identifier: Apache-2.0
"""What other processes get when one of them makes an error, leaves or dies: soon, a typed error
that names it, on every rank."""

import re
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import Finished, Run

# Each rank prints the error that it caught, and waits, so that the others do not see its own end
# instead.
PROGRAM = """
import os, signal, sys, time
import numpy as np
import ddl_core
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ddlrun would end the others first
comm = ddl_core.init(ddl_core.Config(timeout=20, operation_timeout=20))
ones = np.ones(1000, np.float32)
comm.allreduce(ones)
started = time.monotonic()
try:
{body}
    print("nothing was raised")
except ddl_core.DdlError as error:
    print(f"{{type(error).__name__}} after {{time.monotonic() - started:.1f}} s: {{error}}")
    again = comm.error
    print(type(again).__name__, str(again) == str(error))
    time.sleep({linger})
"""


def program(body: str, linger: float = 0.5) -> str:
    return PROGRAM.format(
        body=textwrap.indent(textwrap.dedent(body).strip(), "    "), linger=linger
    )


def caught(ended: Finished, rank: int) -> tuple[str, float, str]:
    lines = ended.lines(rank)
    assert lines, f"rank {rank} printed nothing\n{ended.out}\n{ended.err}"
    found = re.fullmatch(r"(\w+) after ([\d.]+) s: (.*)", lines[0])
    assert found, lines
    assert lines[1] == f"{found[1]} True"
    return found[1], float(found[2]), found[3]


@pytest.mark.parametrize(
    ("size", "links"), [(2, "shm"), pytest.param(3, "shm", marks=pytest.mark.slow), (3, "tcp")]
)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("comm.allreduce(ones[: 1000 - (comm.rank == 1)])", ["999", "1000"]),
        (
            "comm.allreduce(ones.astype(np.float64 if comm.rank == 1 else np.float32))",
            ["f64", "f32"],
        ),
        ("comm.allreduce(ones, op='max' if comm.rank == 1 else 'sum')", ["max", "sum"]),
        # Each root is complete when it has sent: the next call detects the mismatch.
        ("comm.broadcast(ones, root=int(comm.rank == 1)); comm.barrier()", ["broadcast", "root"]),
        ("comm.barrier() if comm.rank == 1 else comm.allreduce(ones)", ["barrier", "all-reduce"]),
    ],
    ids=["count", "dtype", "op", "root", "kind"],
)
def test_mismatch_is_seen_by_all(
    ddlrun: Run, body: str, words: list[str], size: int, links: str
) -> None:
    ended = ddlrun(size, program(body), env={"DDL_LINKS": links}, limit=40)
    for rank in range(size):
        name, seconds, message = caught(ended, rank)
        assert name == "Mismatch", message
        assert seconds < 10
        assert "rank 1" in message
        assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("size", "links"), [(2, "tcp"), (4, "shm"), pytest.param(4, "tcp", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("end", "call"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "comm.allreduce(ones)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "comm.barrier()"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "comm.allreduce_async(ones).wait()"),
        ("raise SystemExit(7)", "comm.allreduce(ones)"),
    ],
    ids=["allreduce", "barrier", "asynchronous", "raises"],
)
def test_lost_rank_is_named_to_the_others(
    ddlrun: Run, size: int, links: str, end: str, call: str
) -> None:
    body = f"""
    if comm.rank == 1:
        time.sleep(0.5)
        {end}
    {call}
    """
    ended = ddlrun(size, program(body), env={"DDL_LINKS": links}, limit=40)
    code, how = (7, "ended with exit code 7") if "7" in end else (137, "was killed by SIGKILL")
    assert ended.code == code
    assert re.search(rf"ddlrun: rank 1 on \S+ \(pid \d+\) {how}", ended.err), ended.err
    for rank in set(range(size)) - {1}:
        name, seconds, message = caught(ended, rank)
        assert name == "PeerLost", message
        assert seconds < 5
        assert "rank 1" in message


def test_abort_reaches_other_processes(ddlrun: Run) -> None:
    body = """
    if comm.rank == 0:
        time.sleep(0.3)
        comm.abort("loss is not a number")
    comm.allreduce(ones)
    """
    ended = ddlrun(3, program(body), limit=40)
    for rank in range(3):
        name, seconds, message = caught(ended, rank)
        assert name == "Aborted"
        assert seconds < 5
        assert "loss is not a number" in message


def test_leaving_after_the_last_operation_is_no_failure(ddlrun: Run) -> None:
    text = """
import time
import numpy as np
import ddl_core
comm = ddl_core.init()
ones = np.ones(100_000, np.float32)
for _ in range(20):
    comm.allreduce(ones, op="max")
if comm.rank != 1:
    time.sleep(0.3)
    print("error", comm.error)
"""
    ended = ddlrun(3, text).expect_success()
    assert ended.lines(0) == ended.lines(2) == ["error None"]


@pytest.mark.parametrize("links", ["shm,tcp", "tcp"])
@pytest.mark.parametrize("dead", [0, 1, 2])
def test_rank_dead_before_a_creation_ends_it(
    dead: int, links: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank has exited after it gave its address, and no launcher or parent knows."""
    monkeypatch.setenv("DDL_LINKS", links)
    text = """
import os, sys, time
from pathlib import Path
import ddl_core
rank = int(sys.argv[1])
endpoint = ddl_core.Endpoint()
Path(f"new{rank}").write_bytes(endpoint.address)
os.rename(f"new{rank}", f"address{rank}")
addresses = []
for each in range(3):
    while not os.path.exists(f"address{each}"):
        time.sleep(0.01)
    addresses.append(Path(f"address{each}").read_bytes())
print("ready", flush=True)
sys.stdin.readline()
try:
    endpoint.connect(addresses, rank, ddl_core.Config(timeout=60.0))
except ddl_core.DdlError as error:
    print(type(error).__name__, error)
"""
    file = tmp_path / "program.py"
    file.write_text(text)
    command = [sys.executable, file]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        ranks = []
        for rank in range(3):
            process = subprocess.Popen([*command, str(rank)], cwd=tmp_path, text=True, **pipes)
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in ranks:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        ranks[dead].kill()
        ranks[dead].wait()
        started = time.monotonic()
        survivors = [process for process in ranks if process is not ranks[dead]]
        for process in survivors:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in survivors:
            out, _ = process.communicate(timeout=100)
            assert re.search(rf"Unreachable .*rank {dead} on .*Connection refused", out), out
        assert time.monotonic() - started < 50, "they waited for the limit of the creation"


def test_ranks_that_do_not_come_are_waited_for_only_so_long(ddlrun: Run) -> None:
    text = """
import os, time
import ddl_core
if os.environ["DDL_RANK"] == "1":
    while not (os.path.exists("gave up 0") and os.path.exists("gave up 2")):
        time.sleep(0.01)
    raise SystemExit
started = time.monotonic()
try:
    ddl_core.init(ddl_core.Config(timeout=1.5))
except ddl_core.DdlError as error:
    print(type(error).__name__, time.monotonic() - started < 10, error)
open("gave up " + os.environ["DDL_RANK"], "w").close()
"""
    ended = ddlrun(3, text).expect_success()
    assert re.match("(TimedOut|Unreachable) True .*waiting for 1", ended.lines(0)[0])
    assert re.match("(TimedOut|Unreachable|Refused) True ", ended.lines(2)[0])


@pytest.mark.parametrize("call", ["ddl_core.init()", "comm.allreduce_async(np.ones(3)).wait()"])
def test_interrupted_call_ends_at_once(ddlrun: Run, call: str) -> None:
    text = f"""
import os, signal, threading, time
import numpy as np
import ddl_core
if "comm." in {call!r}:
    comm = ddl_core.init()
    comm.barrier()
if os.environ["DDL_RANK"] == "1":
    time.sleep(5)
    raise SystemExit
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
started = time.monotonic()
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - started < 3)
"""
    started = time.monotonic()
    ended = ddlrun(2, text).expect_success()
    assert ended.lines(0) == ["interrupted True"]
    assert time.monotonic() - started < 30
