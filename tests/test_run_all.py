"""What run_all.py counts in the output of CTest."""

from __future__ import annotations

from run_all import Count, count_ctest

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
