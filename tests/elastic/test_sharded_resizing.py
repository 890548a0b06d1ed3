# SPDX-License-Identifier: Apache-2.0
"""Workers join and leave jobs whose optimizer is sharded. The final state is that of one worker
without shards."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "sharded.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run"]
LIMIT = 240  # seconds, on a busy machine


class Runs:
    def __init__(self, run: Any, folder: Path) -> None:
        self._run, self._folder = run, folder
        self.expected = self.final(1, "--whole")[0]

    def final(self, workers: int | str, *words: str) -> tuple[str, list[Any]]:
        """Return the digest of a job's final state, and its events."""
        report = self._folder / "report"
        for each in self._folder.glob("killed *"):  # of a storm before
            each.unlink()
        size, env = ["-n", str(workers), "--name", "sharded"], {"XDG_RUNTIME_DIR": self._folder}
        command = [*DDL, *size, "--quiet", "--report", report, PROGRAM, *words]
        done = self._run(command, cwd=self._folder, env=env, limit=LIMIT).expect_success()
        found = re.findall(r"final (\w{64})", done.out)
        assert len(found) == 1, done.out + done.err
        return str(found[0]), json.loads(report.read_text())["events"]

    def check(self, workers: int | str, *words: str, **counts: int) -> list[str]:
        """Check a job's final state and its events. Return the kinds of these."""
        digest, events = self.final(workers, *words)
        kinds = [each["kind"] for each in events]
        for kind, count in counts.items():
            assert kinds.count(kind) >= count, events
        assert digest == self.expected, events
        return kinds


@pytest.fixture(scope="module")
def runs(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(run_program, tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("more", [[], ["--blocks"]])
def test_twenty_deaths_in_all_phases_of_a_step(runs: Runs, more: list[str]) -> None:
    steps = ["--steps", "200"]
    expected, _ = runs.final(1, "--whole", *steps)
    digest, events = runs.final(4, *steps, *more, "--storm", "20")
    kinds = [each["kind"] for each in events]
    assert digest == expected, events
    assert kinds.count("died") == 20 and kinds.count("joined") >= 10, events


@pytest.mark.parametrize("more", [[], ["--blocks"]])
def test_worker_joins_after_a_death(runs: Runs, more: list[str]) -> None:
    runs.check(3, *more, "--kill", "5:1", joined=1, died=1)


def test_worker_joins_in_a_later_call(runs: Runs) -> None:
    runs.check(3, "--kill", "65:0", joined=1, died=1)


@pytest.mark.parametrize("more", [[], ["--blocks"]])
def test_program_of_a_joining_worker_reads_the_state(runs: Runs, more: list[str]) -> None:
    runs.check(3, *more, "--kill", "65:0", "--look", joined=1, died=1)


def test_workers_join_and_leave_while_others_evaluate_before_each_step(runs: Runs) -> None:
    steps = ["--calls", "1", "--steps", "120"]
    expected, _ = runs.final(1, "--whole", *steps)
    digest, events = runs.final("1:3", *steps, "--look-first", "--scale", "3:3,60:1")
    kinds = [each["kind"] for each in events]
    assert digest == expected, events
    assert kinds.count("joined") >= 1 and kinds.count("left") == 2, events


def test_others_are_in_a_later_call_when_a_worker_has_arrived(runs: Runs) -> None:
    calls = ["--calls", "60", "--steps", "2"]
    expected, _ = runs.final(1, "--whole", *calls)
    digest, events = runs.final(3, *calls, "--look", "--kill", "5:1")
    kinds = [each["kind"] for each in events]
    assert digest == expected
    assert kinds.count("joined") == kinds.count("died") == 1, events


def test_others_do_not_wait_for_the_program_of_a_joining_worker(runs: Runs) -> None:
    steps = ["--steps", "250"]
    expected, _ = runs.final(1, "--whole", *steps)
    digest, events = runs.final(3, *steps, "--late", "--kill", "255:1")
    kinds = [each["kind"] for each in events]
    assert digest == expected
    assert kinds.count("joined") == kinds.count("died") == 1, events


def test_workers_join_again_and_again(runs: Runs) -> None:
    runs.check(2, "--kill", "5:0,70:1", joined=2, died=2)


def test_worker_leaves(runs: Runs) -> None:
    runs.check(4, "--leave", "5:1", left=1)


@pytest.mark.parametrize("more", [[], ["--blocks"]])
def test_holders_of_a_range_leave_together(runs: Runs, more: list[str]) -> None:
    """The job shrinks from five workers to one by one plan, and grows again in its next call."""
    runs.check("1:5", *more, "--scale", "3:5,40:1,70:3", joined=5, left=4)


def test_two_copies_survive_deaths_while_workers_join(runs: Runs) -> None:
    words = ["--copies", "2", "--scale", "3:5,40:3,70:4", "--kill", "20:1,20:2"]
    kinds = runs.check("3:5", *words, joined=5, died=2, left=2)
    assert "rollback" not in kinds


def test_death_while_workers_leave(runs: Runs) -> None:
    runs.check(5, "--leave", "5:1,5:2", "--kill", "6:4", left=2, died=1)


def test_death_while_the_state_moves_to_those_who_stay(runs: Runs) -> None:
    words = ["--scale", "3:5,40:1", "--strike", "hand over:3"]
    runs.check("1:5", *words, joined=3, died=1, left=3)


def test_death_of_the_only_worker_that_stays_cancels_the_plan(runs: Runs) -> None:
    words = ["--scale", "3:5,40:1", "--strike", "hand over:0"]
    runs.check("1:5", *words, joined=3, died=1)


def test_loss_of_both_holders_while_the_state_moves_returns_to_a_checkpoint(runs: Runs) -> None:
    words = ["--scale", "3:5,40:1", "--strike", "loss:3", "--checkpoint"]
    runs.check("1:5", *words, joined=3, died=2)


@pytest.mark.parametrize("member", [0, 1])
def test_death_when_a_joining_worker_has_received_its_ranges(runs: Runs, member: int) -> None:
    words = ["--scale", "3:3", "--strike", f"barrier:{member}"]
    kinds = runs.check("2:5", *words, joined=1, died=1)
    assert kinds.count("died") == 1  # the joining worker has not failed as well


@pytest.mark.parametrize("member", [0, 1, 2])
def test_death_while_the_state_moves_to_joining_workers(runs: Runs, member: int) -> None:
    """Member 2 joins itself."""
    runs.check("1:5", "--scale", "3:4", "--strike", f"join:{member}", joined=1, died=1)
