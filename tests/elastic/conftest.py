# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of real processes; see programs/members.py."""

import json
import os
import selectors
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import properties  # noqa: F401
import pytest
from conftest import clean_environment

from ddl_elastic.shares.sampler import Sampler

sys.path.insert(0, str(Path(__file__).parent / "programs"))

from strikes import CODES

LIMIT = 240  # seconds for a case, on a busy machine
SAMPLES = 203  # as in programs/members.py
# The phases in which a rank's shares of the step are lost with it, and the other phases.
LOSING = (
    *("local", "compute", "adopt", "answer", "backward", "reduce", "average", "reform", "shrink"),
)
DEADLY = (*LOSING, "vote", "outer", "apply", "evaluate", "finish")
PROGRESS = 10.0  # seconds until the survivors have committed the next step, whatever happened
CONSTANTS = (
    *("model", "batch", "logical", "passes", "steps", "optimizer", "loop", "buffers", "weighted"),
    *("local_steps", "moments", "wire", "clip_norm", "clamp"),
)


@pytest.fixture(autouse=True)
def no_watchdog_is_left() -> Iterator[None]:
    """Otherwise the thread would continue in later tests, and read the clock that they replace."""
    before = set(threading.enumerate())
    yield
    assert "ddl watchdog" not in [thread.name for thread in set(threading.enumerate()) - before]


class Members:
    """Runs cases, and compares each with the same job of one undisturbed member."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, ""
        self._count = 0
        self._references: dict[tuple[Any, ...], str] = {}
        program = Path(__file__).parent / "programs" / "members.py"
        self.process = subprocess.Popen(
            [sys.executable, program, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment({"DDL_LOG": "off"}),
            cwd=folder,
        )
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self.process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(LIMIT), f"no answer in {LIMIT} s"
        return self.process.stdout.readline().decode().strip()

    def run(self, **case: Any) -> tuple[list[int], list[list[list[Any]]]]:
        """Return the exit codes of the members, and the lines that each has written."""
        self._count += 1
        self.name = name = f"case{self._count}"
        assert self.process.stdin
        self.process.stdin.write(json.dumps({**case, "name": name}).encode() + b"\n")
        self.process.stdin.flush()
        codes = json.loads(self._read())
        files = [self.folder / f"{name}.{member}" for member in range(case["members"])]
        logs = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        return codes, logs

    def check(self, **case: Any) -> list[list[list[Any]]]:
        """Run a case. Check that the survivors have the state of one undisturbed member, that every
        sample is used once in a pass, and that only the dead members' shares were computed twice.
        Return the logs."""
        case = {"model": "cnn", "batch": 32, "logical": 8, **case}
        if "steps" not in case:
            case.setdefault("passes", 2)
        constants = tuple(case.get(name) for name in CONSTANTS)
        if constants not in self._references and (case["members"] > 1 or "kills" in case):
            alone = {name: case[name] for name in CONSTANTS if name in case}
            self.check(**alone, members=1)
        died, ends = expected_ends(case)
        case["ends"] = [m for m, how in ends.items() if how == "stop"]
        codes, logs = self.run(**case)
        errors = [
            line[1]
            for m, log in enumerate(logs)
            for line in log
            if line[0] == "error" and ends.get(m) != "exception"
        ]
        assert not errors, errors[0]
        assert codes == [CODES[ends[m]] if m in ends else 0 for m in range(case["members"])]
        check_progress(case, died, logs)
        digests = {log[-1][1] for m, log in enumerate(logs) if m not in died}
        assert digests == {self._references.setdefault(constants, *digests)}
        check_shares(case, died, logs)
        return logs

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(LIMIT) == 0


def is_deadly(kill: dict[str, Any]) -> bool:
    return kill["phase"] in DEADLY and not kill.get("harmless")


def expected_ends(case: dict[str, Any]) -> tuple[dict[int, int], dict[int, str]]:
    """Return, for each member that the job loses, the step whose shares are lost with it (-1:
    none), and how it ends."""
    lost, ends = dict[int, int](), dict[int, str]()
    for kill in filter(is_deadly, case.get("kills", [])):
        how, step = kill.get("how", "kill"), kill["step"]
        victims = kill["cut"] if how == "command" else [kill.get("target", kill["member"])]
        for member in victims:
            lost[member] = step if kill["phase"] in LOSING else step + 1
            if kill["phase"] == "vote" and how != "command":
                lost[member] = -1  # one that is cut off may vote: what the others sent has come
            ends[member] = "refused" if how in ("expel", "command") else how
    return lost, ends


def check_progress(case: dict[str, Any], died: dict[int, int], logs: list[Any]) -> None:
    """Check that the survivors have committed a step soon after each strike."""
    strikes = [line[2] for log in logs for line in log if line[0] == "kill"]
    assert len(strikes) >= len(list(filter(is_deadly, case.get("kills", []))))
    limit = PROGRESS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    for struck in strikes:
        for log in (log for m, log in enumerate(logs) if m not in died):
            commits = [line[3] for line in log if line[0] == "commit"]
            following = min((at for at in commits if at > struck), default=commits[-1])
            assert following - struck < limit


def check_shares(case: dict[str, Any], lost: dict[int, int], logs: list[list[list[Any]]]) -> None:
    """Check that each share was computed once, from the right samples, and once more if its rank
    died before all had the result; and that each sample was used once in each pass."""
    batch = case["batch"] * case.get("local_steps", 1)
    sampler = Sampler(SAMPLES, batch, case["logical"], 5)
    steps = case["steps"] if "steps" in case else sampler.steps(case["passes"])
    kept: Counter[tuple[int, int]] = Counter()
    used: dict[tuple[int, int], list[int]] = {}
    for member, log in enumerate(logs):
        for step, worker, indices in (line[1:] for line in log if line[0] == "share"):
            assert used.setdefault((step, worker), indices) == indices
            kept[step, worker] += lost.get(member) != step
    assert max(kept.values()) == 1
    assert len(used) == steps * case["logical"]
    order = [i for t in range(steps) for v in range(case["logical"]) for i in used[t, v]]
    if "steps" in case:
        assert order == list(range(steps * batch))
    for number in range(case.get("passes", 0)):
        assert sorted(order[number * SAMPLES : (number + 1) * SAMPLES]) == list(range(SAMPLES))
    for member, log in enumerate(logs):
        commits = [line[1] for line in log if line[0] == "commit"]
        assert commits == list(range(len(commits)))
        assert len(commits) == steps or member in lost


class Jobs:
    """Runs jobs with Job.train, see programs/train.py."""

    PASSES = 12  # 75 steps

    def __init__(self, run: Any, folder: Path) -> None:
        self._run, self._folder = run, folder
        self.shown = ""

    def train(self, *cases: dict[str, Any]) -> list[dict[str, Any]]:
        """Run the jobs and return their reports. Before, one worker alone runs the same job; all
        must have its result."""
        cases = tuple({"passes": self.PASSES, **case} for case in cases)
        alone = [{"workers": 1, "passes": n} for n in sorted({case["passes"] for case in cases})]
        reports = self.run(*alone, *cases)
        expected = {
            case["passes"]: each["hash"] for case, each in zip(alone, reports, strict=False)
        }
        for case, report in zip(cases, reports[len(alone) :], strict=True):
            self.check(report, expected[case["passes"]], case)
        return reports[len(alone) - 1 :]

    def check(self, report: dict[str, Any], expected: str, case: Any = "") -> None:
        """Check that the job has this final state. If not, show its error and its whole output,
        because pytest would cut a text."""
        error = report.get("error", "no error")
        text = f"{case} {report['state']}: {error}\n{json.dumps(report)}\n{self.shown}"
        assert report.get("hash") == expected, text

    def fail(self, case: dict[str, Any]) -> dict[str, Any]:
        (report,) = self.run({"passes": self.PASSES, **case})
        assert report["state"] == "failed"
        return report

    def run(self, *cases: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the jobs' reports."""
        program = Path(__file__).parent / "programs" / "train.py"
        command = [sys.executable, program, *map(json.dumps, cases)]
        done = self._run(command, cwd=self._folder, limit=LIMIT).expect_success()
        self.shown = done.err
        return [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture
def jobs(run_program: Any, tmp_path: Path) -> Jobs:
    return Jobs(run_program, tmp_path)


@pytest.fixture(scope="session")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    started = Members(tmp_path_factory.mktemp("members"))
    yield started
    started.close()
