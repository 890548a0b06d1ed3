# SPDX-License-Identifier: Apache-2.0
"""Audits find workers that compute wrongly, and expel only these."""

import json
import os
import re
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import clean_environment
from hypothesis import given
from hypothesis import strategies as st

from ddl_elastic.base.audits import EXIT_CODE, check_options
from ddl_elastic.shares.assign import assign
from ddl_elastic.step.audit import (
    REPEATS,
    STATE,
    SUM,
    Audit,
    AuditOutcome,
    Evidence,
    Verdict,
    describe_difference,
    judge,
    plan,
)
from ddl_elastic.step.digest import ShareDigest, digest_share

LIMIT = 240  # seconds for a run, on a busy machine
SOAK = int(os.environ.get("DDL_AUDIT_RUNS", "12"))  # of test_wrong_worker_is_found_in_many_runs


@given(workers=st.integers(1, 40), ranks=st.integers(1, 8), rate=st.floats(0.001, 1))
def test_plan_names_other_ranks(workers: int, ranks: int, rate: float) -> None:
    owners = assign(workers, [1.0] * min(ranks, workers)).owners
    for number in range(20):
        for worker, auditor in plan(rate, 3, number, owners).items():
            assert auditor in owners
            assert auditor != owners[worker] or len({*owners}) == 1


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
def test_plan_audits_the_fraction_and_loads_ranks_evenly(rate: float) -> None:
    owners, steps = assign(16, [1.0] * 4).owners, 20_000
    plans = [plan(rate, 7, number, owners) for number in range(steps)]
    counts = Counter(worker for each in plans for worker in each)
    assert all(abs(counts[v] / steps - rate) < 5 * (rate / steps) ** 0.5 for v in range(16))
    assert all(len({*Counter(each.values()).values()}) <= 1 for each in plans)
    if rate == 1:
        assert all(len(each) == 16 for each in plans)


def test_plan_does_not_audit_shares_without_owner() -> None:
    assert {*plan(1.0, 0, 5, (-1, 0, 0, 2))} == {1, 2, 3}


@pytest.mark.parametrize(
    ("computed", "able", "expected"),
    [
        ({0: [7], 1: [7]}, [0, 1, 2], Verdict(AuditOutcome.AGREE)),
        ({0: [7], 1: [8]}, [0, 1, 2, 3], Verdict(AuditOutcome.COMPUTE, [2])),
        ({0: [7], 1: [8], 3: [7]}, [0, 1, 2, 3], Verdict(AuditOutcome.COMPUTE, [1])),
        ({0: [7], 1: [8, 8, 8], 3: [7]}, [0, 1, 2, 3], Verdict(AuditOutcome.EXPEL, [1])),
        ({0: [7, 8, 8], 1: [8], 2: [8]}, [0, 1, 2], Verdict(AuditOutcome.EXPEL, [0])),
        ({0: [7], 1: [8], 2: [9]}, [0, 1, 2], Verdict(AuditOutcome.PROGRAM, [0, 1, 2])),
        ({0: [7], 1: [8]}, [0, 1], Verdict(AuditOutcome.COMPUTE, [0, 1])),
        ({0: [7] * 3, 1: [8] * 3}, [0, 1], Verdict(AuditOutcome.BOTH, [0, 1])),
        ({0: [7] * 3, 1: [8, 7, 7]}, [0, 1], Verdict(AuditOutcome.EXPEL, [1])),
        ({0: [7, 8, 9], 1: [1, 2, 3]}, [0, 1], Verdict(AuditOutcome.PROGRAM, [0, 1])),
        ({0: [7, 8]}, [0], Verdict(AuditOutcome.COMPUTE, [0])),
        ({0: [7, 8, 7]}, [0], Verdict(AuditOutcome.UNSTEADY, [0])),
        ({0: [7, 8, 9]}, [0], Verdict(AuditOutcome.PROGRAM, [0])),
        ({0: [7], 2: [8]}, [0, 1], Verdict(AuditOutcome.COMPUTE, [1])),
    ],
)
def test_judge(computed: dict[int, list[int]], able: list[int], expected: Verdict) -> None:
    assert judge(computed, able) == expected


@given(wrong=st.integers(0, 4), auditor=st.integers(0, 4), bits=st.integers(1, 2**62))
def test_judge_expels_only_the_wrong_rank(wrong: int, auditor: int, bits: int) -> None:
    computed: dict[int, list[int]] = {(wrong + auditor) % 5: [], auditor: []}
    for rank in computed:
        computed[rank].append(bits if rank == wrong else 0)
    for _ in range(2 * REPEATS):
        verdict = judge(computed, range(5))
        if verdict.outcome is not AuditOutcome.COMPUTE:
            break
        for rank in verdict.ranks:
            computed.setdefault(rank, []).append(bits if rank == wrong else 0)
    expected = [wrong] if wrong in computed and len(computed) > 1 else []
    assert [*verdict.ranks] == expected


@pytest.mark.parametrize("what", [SUM, STATE])
@pytest.mark.parametrize(
    ("digests", "wrong", "stops"),
    [
        ([7, 8, 7], [1], False),
        ([7, None, 8, 7], [2], False),  # one rank has not read its state
        ([7, 8], [0, 1], True),
        ([7, 8, 7, 8], [0, 1, 2, 3], True),
    ],
)
def test_describe_difference_names_the_minority(
    what: int, digests: list[int | None], wrong: list[int], stops: bool
) -> None:
    table = [
        Evidence(10 + rank, computed=[{"a": 1, "b": each}] if each else [], trusted={"": 2})
        for rank, each in enumerate(digests)
    ]
    ranks, found = describe_difference(table, 9, what)
    assert ([*ranks], [*found.members]) == (wrong, [10 + rank for rank in wrong])
    assert found.stops == stops
    assert found.first == (9 if what == SUM else 2)
    assert found.tensor == ("sum" if what == SUM else "b")


def test_worker_that_has_joined_knows_what_others_know() -> None:
    """Without the others' evidence it would take all checkpoints for wrong ones."""
    one, joined = (Audit(0.5, "rollback", 0) for _ in range(2))
    one.start, one.step = 4, 20
    owners, members = (0, 0, 1, 1), [5, 6]
    one.found_right({0: 1}, owners, members)
    one.joined([7], 21)
    joined.learn(json.loads(json.dumps(one.known())))
    assert joined.start == 4
    wrong = ShareDigest({"a": 1}), ShareDigest({"a": 2})
    for member, first in ((5, 20), (6, 4), (7, 21)):
        for other in (one, joined):
            table = [other.evidence(1, [wrong[0]]), Evidence(member, computed=[{"a": 2}])]
            table.append(other.evidence(2, [wrong[0]]))
            assert describe_difference(table, 30, STATE)[1].first == first


def test_digest_names_the_first_tensor_that_differs() -> None:
    one = {"a": np.zeros((2, 3), np.float32), "b": np.ones(4)}
    other = {name: each.copy() for name, each in one.items()}
    assert digest_share(one.items()).word == digest_share(other.items()).word
    other["b"].view(np.uint64)[2] ^= 1
    first, second = digest_share(one.items()), digest_share(other.items())
    assert first.word != second.word
    assert first.first_difference(second) == "b"


@pytest.mark.parametrize(("rate", "action"), [(-0.1, "stop"), (1.5, "stop"), (0.1, "none")])
def test_wrong_options_are_refused(rate: float, action: str) -> None:
    with pytest.raises(ValueError, match="audit"):
        check_options(rate, action)


class Runs:
    """Runs programs/audited.py several times in one process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._references: dict[tuple[str, ...], str] = {}
        program = Path(__file__).parent / "programs" / "audited_runs.py"
        self.process = subprocess.Popen(
            [sys.executable, program],
            bufsize=0,  # the selector would not report a line in a buffer
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=clean_environment({"PYTHONHASHSEED": "0"}),
            cwd=folder,
        )
        self.shown = ""

    def run(self, options: str, words: str) -> tuple[int, dict[str, Any]]:
        self._count += 1
        words = words.replace("@", f"--checkpoint saved{self._count}")
        assert self.process.stdin and self.process.stdout
        line = json.dumps([options.split(), words.split()])
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        self.shown = ""
        while True:
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                assert selector.select(LIMIT), f"no answer in {LIMIT} s: {self.shown}"
            text = self.process.stdout.readline().decode()
            assert text, self.shown
            if text.startswith("@ "):
                code, report = json.loads(text[2:])
                return code, report
            self.shown += text

    def reference(self, *words: str) -> str:
        """Return the hash of an undisturbed job with one worker."""
        if words not in self._references:
            code, report = self.run("-n 1 --quiet", " ".join(words))
            assert code == 0, self.shown
            self._references[words] = report["hash"]
        return self._references[words]

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(LIMIT) == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    started = Runs(tmp_path_factory.mktemp("audited"))
    yield started
    started.close()


def findings(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in report["events"] if each["kind"] == "audit"]


def check_found(
    runs: Runs, options: str, words: str, member: int = 1, *reference: str
) -> dict[str, Any]:
    """Check that exactly this member is expelled, and that the final state is the undisturbed
    one."""
    code, report = runs.run(options, f"{words} --member {member} {' '.join(reference)}")
    (found,) = findings(report)
    assert found["members"] == [member], (found, runs.shown)
    assert code == 0, runs.shown
    died = [each["member"] for each in report["events"] if each["kind"] == "died"]
    assert died == [member]
    assert report["mismatches"] == 1
    assert report["hash"] == runs.reference(*reference), (words, report["events"])
    return report


def test_flipped_gradients_expel_the_worker(runs: Runs) -> None:
    report = check_found(runs, "-n 3 --audit 1", "--fault gradient @")
    (found,) = findings(report)
    pid = report["workers"]["1"]["pid"]
    assert found["step"] == found["first"] == 5  # no committed step is wrong
    assert found["tensor"] == "1.weight"
    assert re.search(rf"rank 1 on \S+ \(pid {pid}\) computes wrongly", found["text"])
    assert f"step 5, share {found['share']}, tensor 1.weight" in found["text"]
    assert len(report["workers"]) == 3  # no other worker was started on this host


def test_rare_flips_roll_the_job_back(runs: Runs) -> None:
    """The worker does not repeat its wrong bits, so any of its steps may be wrong."""
    report = check_found(runs, "-n 3 --audit 0.2", "--fault gradient --every 10 @")
    (rolled,) = [each for each in report["events"] if each["kind"] == "rollback"]
    assert (rolled["first"], rolled["step"]) == (0, 0)


def test_flipped_weight_rolls_the_job_back(runs: Runs) -> None:
    report = check_found(runs, "-n 3 --audit 0.2", "--fault weight --begin 21 @")
    (rolled,) = [each for each in report["events"] if each["kind"] == "rollback"]
    assert rolled["step"] < rolled["first"] <= 21  # which checkpoints exist depends on the timing
    assert findings(report)[0]["first"] == rolled["first"]


def test_wrong_weight_without_effect_on_a_share_is_found(runs: Runs) -> None:
    """The lowest bits of a weight are wrong. In step 11, rounding makes the member's share right,
    so if only its shares counted, the job would continue from a checkpoint with the wrong
    weight."""
    words, reference = "--fault weight --begin 4 --bit 1 @", ("--seed", "26", "--logical", "12")
    report = check_found(runs, "-n 4 --audit 0.1", words, 1, *reference)
    (found,) = findings(report)
    assert found["tensor"] == "model.1.weight"
    assert found["first"] <= 4


@pytest.mark.slow
def test_worker_that_has_joined_is_right(runs: Runs) -> None:
    code, report = runs.run("-n 3 --audit 1", "--steps 120 --killed 0 @")
    assert code == 0, runs.shown
    assert [each["member"] for each in report["events"] if each["kind"] == "joined"] == [3]
    assert not findings(report), findings(report)
    assert report["hash"] == runs.reference("--steps", "120")


@pytest.mark.slow
def test_worker_that_has_joined_is_found(runs: Runs) -> None:
    words = "--fault weight --begin 150 --steps 200 --killed 0 --save-every 1 --member 3 @"
    code, report = runs.run("-n 3 --audit 0.2", words)
    assert code == 0, runs.shown
    (found,) = findings(report)
    assert found["members"] == [3]
    (rolled,) = [each for each in report["events"] if each["kind"] == "rollback"]
    assert 3 < rolled["first"] <= 150 <= found["step"]
    assert report["hash"] == runs.reference("--steps", "200")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-n 3 --audit 1", "--fault once @"),
        ("-n 3 --audit 1", "--fault sum @"),
        ("-n 3 --audit 0.2", "--fault applied @"),
        ("-n 4 --audit 0.2", "--fault weight @"),
        ("-n 2 --audit 0.5", "--fault gradient --every 10 @"),
    ],
)
def test_other_faults_expel_the_worker(runs: Runs, options: str, words: str) -> None:
    check_found(runs, options, words)


def test_two_steady_workers_stop_the_job(runs: Runs) -> None:
    code, report = runs.run("-n 2 --audit 0.5", "--fault gradient @")
    assert code == EXIT_CODE
    (found,) = findings(report)
    assert found["members"] == [0, 1]
    assert "each repeats its own" in found["text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words", "text"),
    [
        ("-n 3 --audit 0.5", "--fault hidden", "the program has hidden state"),
        ("-n 2 --audit 0.5", "--fault hidden", "the program has hidden state"),
        ("-n 1 --audit 0.5", "--fault hidden --member 0", "the program has hidden state"),
        ("-n 1 --audit 0.5", "--fault gradient --every 3 --member 0", "does not repeat its own"),
        ("-n 3 --audit 0.2", "--fault weight", "there is no checkpoint before them"),
        ("-n 3 --audit 0.2 --audit-action stop", "--fault weight @", "audit_action=stop"),
    ],
)
def test_job_stops(runs: Runs, options: str, words: str, text: str) -> None:
    code, report = runs.run(options, words)
    assert code == EXIT_CODE
    assert text in findings(report)[-1]["text"]


@pytest.mark.slow
def test_job_continues_with_wrong_steps(runs: Runs) -> None:
    code, report = runs.run("-n 3 --audit 0.2 --audit-action continue", "--fault weight @")
    assert code == 0, runs.shown
    assert findings(report)[0]["members"] == [1]
    assert "audit_action=continue, so the job continues with them" in runs.shown
    assert report["hash"] != runs.reference()


@pytest.mark.slow
def test_stopped_job_continues_from_the_right_checkpoint(runs: Runs) -> None:
    words = "--fault weight --begin 21 --checkpoint restarted"
    code, _ = runs.run("-n 3 --audit 0.2 --audit-action stop", words)
    assert code == EXIT_CODE
    code, report = runs.run("-n 2", "--checkpoint restarted")
    assert code == 0, runs.shown
    assert "resumed after" in runs.shown
    assert report["hash"] == runs.reference()


def test_audits_without_fault_change_nothing(runs: Runs) -> None:
    code, report = runs.run("-n 3 --audit 0.3", "@")
    assert code == 0, runs.shown
    assert not findings(report)
    assert 0.1 * 240 < report["audited"] < 0.5 * 240
    assert report["hash"] == runs.reference()


FAULTS = [
    ("1", "gradient", 1),
    ("0.1", "gradient", 1),
    ("0.5", "gradient", 10),
    ("0.1", "weight", 1),
    ("1", "once", 1),
    ("0.2", "applied", 1),
    ("1", "sum", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SOAK))
def test_wrong_worker_is_found_in_many_runs(runs: Runs, number: int) -> None:
    """The wrong worker is found within 10 / audit of its shares. DDL_AUDIT_RUNS=300 for more
    runs."""
    rate, fault, every = FAULTS[number % len(FAULTS)]
    workers, seed = 3 + number % 2, number // len(FAULTS)
    begin, member = 3 + number * 5 % 11, number % workers
    # The optimizer rounds the lowest bits of a gradient away, and then no state is wrong.
    bit = number % 23 if fault != "applied" else 8 + number % 15
    words = f"--fault {fault} --every {every} --begin {begin} --bit {bit} @"
    # With 6 logical workers, the last one of 4 ranks would have no share.
    reference = ("--seed", str(seed), "--steps", "120", "--logical", "12")
    report = check_found(runs, f"-n {workers} --audit {rate}", words, member, *reference)
    (found,) = findings(report)
    shares = (found["step"] - begin + 1) * 12 / workers
    assert shares <= 10 * every / float(rate) + 12 / workers


@pytest.mark.slow
def test_wrong_worker_of_jax_is_expelled(run_here: Any, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    program = Path(__file__).parent / "programs" / "audited_jax.py"
    command = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run", "--quiet"]
    reports = []
    for options, words in ((["-n", "1"], []), (["-n", "3", "--audit", "1"], ["wrong"])):
        line = [*command, *options, "--report", "report.json", program, *words]
        run_here(line, limit=LIMIT).expect_success()
        reports.append(json.loads((tmp_path / "report.json").read_text()))
    (found,) = findings(reports[1])
    assert found["step"] == found["first"] == 6
    assert "tensor 1 ['b']" in found["text"]
    assert reports[1]["hash"] == reports[0]["hash"]
