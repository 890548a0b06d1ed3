# SPDX-License-Identifier: Apache-2.0
"""The rank that ddlrun names when one fails first, and others because of its loss."""

import re
import signal
import socket

import pytest
from conftest import Run

from ddl_launch.jobs import root_cause
from ddl_launch.jobs.failure import Failure
from ddl_launch.jobs.root_cause import RankState

HOST = socket.gethostname()

# Rank 1 leaves the comm at once but ends slowly, so the others end before it.
LATE = """
import atexit, os, signal, sys, time
own = os.environ["DDL_RANK"] == "1"
if own:
    atexit.register(time.sleep, 0.7)
if "silent" in sys.argv:
    del os.environ["DDL_LAUNCHER"]  # as a program without ddl_core's report
import numpy as np, ddl_core
def fail():
    if "raise" in sys.argv:
        raise ValueError("boom")
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(sys.argv[1]))
comm = ddl_core.init()
x = np.ones(1000, np.float32)
for step in range(1_000_000):
    if own and step == int(sys.argv[-1]):
        fail()
    comm.allreduce(x)
"""


def named(err: str) -> list[str]:
    return re.findall(r"^ddlrun: (rank .*)", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "code", "how"),
    [
        ("raise 0", 1, r"ended with exit code 1: ValueError: boom"),
        ("raise 2000", 1, r"ended with exit code 1: ValueError: boom"),
        ("raise silent 50", 1, r"ended with exit code 1: ValueError: boom"),
        ("3 50", 3, r"ended with exit code 3"),
        ("kill 50", 137, r"was killed by SIGKILL"),
        (
            "0 50",
            1,
            r"has ended with exit code 0, but ranks? [-\d, ]+ lost it: .*PeerLost: rank 1 on",
        ),
    ],
)
def test_the_rank_that_others_lost_is_named(
    ddlrun: Run, arguments: str, code: int, how: str
) -> None:
    ended = ddlrun(4, LATE, *arguments.split())
    (line,) = named(ended.err)
    assert re.match(rf"rank 1 on {HOST} \(pid \d+\) {how}", line), ended.err
    if code != 1 or "raise" in arguments:  # a survivor may end with any error
        assert ended.code == code, ended.err


def test_errors_in_output_files_are_read(ddlrun: Run) -> None:
    ended = ddlrun(3, LATE, "raise", "silent", "50", options=["--output-dir", "logs"])
    (line,) = named(ended.err)
    assert re.match(rf"rank 1 on {HOST} \(pid \d+\) ended with .*: ValueError: boom", line)
    assert "logs/rank.1.err" in line


def test_a_rank_that_has_left_and_goes_on_is_named(ddlrun: Run) -> None:
    text = """
import time, ddl_core
comm = ddl_core.init()
if comm.rank == 1:
    comm.close()
    time.sleep(60)
comm.barrier()
"""
    ended = ddlrun(3, text)
    (line,) = named(ended.err)
    said = rf"rank 1 on {HOST} \(pid \d+\) is still running, but rank.* 0.* lost it: "
    assert re.match(said, line), ended.err


def test_of_unrelated_errors_the_first_is_named(ddlrun: Run) -> None:
    text = """
import os, sys, time
if os.environ["DDL_RANK"] == "0":
    open("fails", "w").close()
else:
    while not os.path.exists("fails"):
        time.sleep(0.01)
    time.sleep(0.6)
raise KeyError(os.environ["DDL_RANK"])
"""
    ended = ddlrun(2, text, options=["--grace", "1"])
    (line,) = named(ended.err)
    assert re.match(rf"rank 0 on {HOST} \(pid \d+\) ended with exit code 1: KeyError: '0'", line)


def ended(rank: int, code: int = 1, at: float = 0.0, **more: object) -> RankState:
    by_signal = bool(more.pop("by_signal", False))
    failure = Failure(rank, 100 + rank, code, by_signal)
    return RankState(failure, at, **more)  # type: ignore[arg-type]


def lost(rank: int) -> str:
    return f"ddl_core.errors.PeerLost: rank {rank} on a left the comm while rank 0 on a called"


def found(*all_of_them: RankState) -> int:
    return root_cause.find(dict(enumerate(all_of_them)))[0]


def test_killed_ranks_are_causes() -> None:
    killed = ended(2, signal.SIGKILL, 0.1, by_signal=True)
    assert found(ended(0), ended(1), killed) == 2
    assert found(ended(0, tail=[lost(2)]), RankState(), killed) == 2


def test_survivors_that_crash_do_not_hide_what_was_raised() -> None:
    crashed = ended(0, signal.SIGSEGV, 1.0, by_signal=True)
    raised = ended(1, at=1.3, raised="ValueError: boom", raised_at=0.9)
    assert found(crashed, raised, ended(2, at=1.1, tail=[lost(1)])) == 1
    assert found(crashed, raised, ended(2, at=1.1, tail=["libddl: rank 0 on a is dead: its"])) == 1


def test_end_of_a_blamed_rank_is_waited_for() -> None:
    blames = [ended(rank, raised=lost(1), raised_at=0.0) for rank in (0, 2)]
    ranks = {0: blames[0], 1: RankState(), 2: blames[1]}
    assert root_cause.find(ranks) == (1, True)
    ranks[1].raised = "ValueError: boom"  # and has not exited yet
    assert (
        str(root_cause.describe(1, ranks, "rank 1 on b")) == "rank 1 on b raised ValueError: boom"
    )
    ranks[1] = ended(1, 7, 1.5)
    assert root_cause.find(ranks) == (1, False)
    assert str(root_cause.describe(1, ranks, "")) == "rank 1 (pid 101) ended with exit code 7"


def test_ranks_that_blame_each_other() -> None:
    assert found(ended(0, at=2.0, tail=[lost(1)]), ended(1, at=3.0, tail=[lost(0)])) in (0, 1)
    assert found(ended(0, tail=[lost(0)]), RankState()) == 0  # a rank does not lose itself
    assert found(ended(0, tail=[lost(9)]), RankState()) == 0  # of another comm


def test_survived_losses_are_ignored() -> None:
    later = ended(0, at=9.0, raised="ValueError: late", raised_at=8.9, tail=[lost(2)])
    assert found(later, RankState(), ended(2, 0)) == 0


def test_failure_messages() -> None:
    killed = Failure(2, 102, signal.SIGSEGV, by_signal=True)
    assert killed.exit_code == 128 + signal.SIGSEGV
    assert str(killed) == "rank 2 (pid 102) was killed by SIGSEGV"
    assert str(Failure(2, 102, 64, by_signal=True)) == "rank 2 (pid 102) was killed by SIGRTMAX"
    assert str(Failure(2, 102, 40, by_signal=True)) == "rank 2 (pid 102) was killed by signal 40"
    said = Failure(2, 102, 1, by_signal=False, host="a", said="ValueError: boom")
    assert str(said) == "rank 2 on a (pid 102) ended with exit code 1: ValueError: boom"
    assert root_cause.list_ranks([3, 0, 1, 5]) == "ranks 0-1, 3, 5"
    assert root_cause.list_ranks([3]) == "rank 3"


def test_find_absent() -> None:
    waits = RankState(waits=True, joinings=2, joined=1)
    met_once, met_twice = (ended(1, 0, joinings=2, joined=joined) for joined in (1, 2))
    absent = root_cause.find_absent({0: waits, 1: met_once, 2: RankState()})
    assert absent is not None and absent.rank == 1
    assert "rank 0 waits for it" in str(absent)
    assert root_cause.find_absent({0: waits, 1: met_twice}) is None
    gone = ended(0, 0, waits=True, joinings=1)
    assert root_cause.find_absent({0: gone, 1: ended(1, 0)}) is None


@pytest.mark.parametrize("before", [True, False])
def test_a_rank_that_ends_before_the_rendezvous(ddlrun: Run, before: bool) -> None:
    text = f"""
import os, sys, time
own = os.environ["DDL_RANK"] == "1"
time.sleep(1.0 if own == {not before} else 0)
if own:
    sys.exit(0)
import ddl_core
ddl_core.init()
"""
    ended = ddlrun(3, text, limit=50)
    assert ended.code == 1
    (line,) = named(ended.err)
    said = r"has ended with exit code 0 before it joined the others: rank.*[02] waits? for it"
    assert re.match(rf"rank 1 on {HOST} \(pid \d+\) {said}", line), ended.err


def test_ranks_that_join_twice_and_end_one_after_the_other(ddlrun: Run) -> None:
    text = """
import time, ddl_core
for _ in range(2):
    comm = ddl_core.init()
    comm.barrier()
    ddl_core.finalize()
time.sleep(0.4 * comm.rank)
"""
    ddlrun(3, text).expect_success()


def test_ranks_without_a_rendezvous(ddlrun: Run) -> None:
    text = "import os, time, ddl_core; time.sleep(0.5 * int(os.environ['DDL_RANK']))"
    ended = ddlrun(3, text).expect_success()
    assert not named(ended.err)


def test_pairs_of_ranks_with_rendezvous_of_their_own(ddlrun: Run) -> None:
    text = """
import os, sys, time, ddl_core
rank = int(os.environ["DDL_RANK"])
if rank == 2:
    sys.exit(0)
host, _, port = os.environ["DDL_RENDEZVOUS"].rpartition(":")
time.sleep(0.7 * rank)
with ddl_core.Endpoint() as endpoint:
    endpoint.rendezvous(f"{host}:{int(port) - 8000}", rank, 2).close()
"""
    ddlrun(3, text).expect_success()
