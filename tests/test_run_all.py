# SPDX-License-Identifier: Apache-2.0
"""The counts that run_all.py reads from the output of CTest and pytest, and its exit code."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import conftest
import pytest
import run_all
from run_all import Count, Stage, count_ctest, count_pytest
from waits import wait_until

RESULTS = """\
Test project /some/where
    Start 1: good
1/6 Test #1: good .......................   Passed    0.01 sec
    Start 2: bad
2/6 Test #2: bad ........................***Failed    0.00 sec
test_bad.c:12: value == 3: 1 tests failed out of 7

    Start 3: elsewhere
3/6 Test #3: elsewhere ..................***Skipped   0.00 sec
    Start 4: slow
4/6 Test #4: slow .......................***Timeout 300.02 sec

    Start 5: broken
5/6 Test #5: broken .....................***Exception: SegFault  0.10 sec

    Start 6: a_name_that_leaves_no_room_for_dots
6/6 Test #6: a_name_that_leaves_no_room_for_dots ...   Passed    2.00 sec
"""

SUMMARY = """
60% tests passed, 3 tests failed out of 6

Total Test time (real) = 302.13 sec

The following tests FAILED:
\t  2 - bad (Failed)
\t  4 - slow (Timeout)
\t  5 - broken (SEGFAULT)
"""

RESULTS_COUNT = Count(passed=2, failed=3, skipped=1)


def test_whole_run_is_counted() -> None:
    assert count_ctest(RESULTS + SUMMARY) == RESULTS_COUNT


def test_killed_run_is_counted() -> None:
    stopped = RESULTS + "      Start  7: hangs\nkilled after 900 s\n"
    assert count_ctest(RESULTS) == RESULTS_COUNT
    assert count_ctest(stopped) == Count(passed=2, failed=4, skipped=1)


def test_tests_that_run_side_by_side_are_counted() -> None:
    output = """\
Test project /some/where
      Start  1: one
      Start 12: twelve
 1/12 Test #12: twelve ...................   Passed    0.01 sec
 2/12 Test  #1: one ......................***Not Run   0.01 sec
"""
    assert count_ctest(output) == Count(passed=1, failed=1)


def test_several_runs_are_summed() -> None:
    assert count_ctest(RESULTS + SUMMARY + RESULTS) == Count(passed=4, failed=6, skipped=2)


def test_no_run_counts_nothing() -> None:
    assert count_ctest("CMake Error: no such folder\n") == Count()


def test_pytest_of_several_workers_is_counted() -> None:
    output = """\
bringing up nodes...
...s.F [100%]
FAILED tests/a.py::test_two - worker 'gw1' crashed while running 'tests/a.py::test_two'
1 failed, 4 passed, 1 skipped in 4.02s
"""
    assert count_pytest(output) == Count(passed=4, failed=1, skipped=1)
    assert (
        count_pytest("ERROR gw0 - Different tests were collected\n1 error in 3.86s\n").failed == 1
    )


@pytest.mark.parametrize("lanes", [(("first",), ("absent",)), (("absent",), ("first", "next"))])
@pytest.mark.parametrize("code", [0, 1, 77])
def test_failed_stage_fails_the_run_and_not_the_next_stage(
    code: int,
    lanes: tuple[tuple[str, ...], ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    everything = {
        "first": Stage("ends with a code", [["sh", "-c", f"exit {code}"]]),
        "next": Stage("passes", [["true"]]),
        "absent": Stage("needs a program", [["true"]], needs="no-such-program"),
    }
    monkeypatch.setattr(run_all, "LOGS", tmp_path)
    monkeypatch.setattr(run_all, "stages", lambda: everything)
    monkeypatch.setattr(run_all, "BESIDE", lanes)
    assert run_all.main([]) == (code == 1)
    last = capsys.readouterr().out.splitlines()[-2:]
    passed, failed, skipped = 1 + (code == 0), int(code == 1), 1 + (code == 77)
    assert last == [f"{skipped} skipped", f"{passed} passed, {failed} failed"]


# A file of tests without the mark `pure` has one of these: a process, a framework, many threads.
IMPURE = (
    r"subprocess|Popen|fork|multiprocessing|importorskip|ddlrun|run_program|run_here|popen|cuda_standin"
    r"|(?:import|from) (?:torch|jax|tensorflow|keras|sphinx|sklearn|bench|starter|clients)\b"
    r"|\b(?:members|Members|jobs|mpi|lab|Lab|server|serving|browser|Run|release_files|snippets)\b"
)
ROOT = run_all.ROOT


def test_file_of_tests_is_pure_or_has_a_reason() -> None:
    """A new file of tests is in `make check`, unless it cannot be."""
    pure = set(run_all.pure_tests())
    assert len(pure) > 30
    files = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")]
    silent = [f for f in files if f not in pure and not re.search(IMPURE, (ROOT / f).read_text())]
    assert silent == [], f"mark them: {run_all.PURE}"


def test_pure_test_that_starts_a_process_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "pure_tests_running", ["test_x"])
    with pytest.raises(RuntimeError, match="test_x starts a process"):
        subprocess.run(["true"], check=True)


def test_quick_stages_are_there_and_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {name for lane in run_all.QUICK + run_all.BESIDE for name in lane} <= set(
        run_all.stages()
    )
    everything = {name: Stage("passes", [["true"]]) for lane in run_all.QUICK for name in lane}
    everything["mypy"] = Stage("fails", [["false"]])
    monkeypatch.setattr(run_all, "LOGS", tmp_path)
    monkeypatch.setattr(run_all, "stages", lambda: everything)
    assert run_all.main(["--quick"]) == 1
    shown = capsys.readouterr().out
    assert f"{len(everything) - 1} passed, 1 failed" in shown
    assert "tests/run_all.py mypy" in shown


INTERRUPTED = """
import pathlib, signal, sys, run_all
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background
run_all.LOGS = pathlib.Path(sys.argv[1])
waits = ["sh", "-c", "sleep 300 & echo $! >$0.new; mv $0.new $0; wait"]
everything = {name: run_all.Stage("waits", [[*waits, sys.argv[1] + "/" + name]]) for name in "abc"}
run_all.run_lanes([["a", "c"], ["b"]], everything)
"""


def test_interrupt_ends_stages_that_run_at_the_same_time(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT / "tests", start_new_session=True)
    wait_until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    for name in "ab":
        started = int((tmp_path / name).read_text())
        wait_until(lambda pid=started: not Path(f"/proc/{pid}").exists())
    assert not (tmp_path / "c").exists()
