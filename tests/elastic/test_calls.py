# SPDX-License-Identifier: Apache-2.0
"""Workers join in a later call of `job.steps`, and get the results of earlier evaluations. Jobs
resume in a later call."""

import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddl_elastic.base.inbox import Inbox
from ddl_elastic.base.messages import Channel, JobOver
from ddl_elastic.base.protocol import FROM_WORKER, TO_WORKER, PositionReached
from ddl_elastic.sharded.cut import StateLost
from ddl_elastic.step.membership import Membership, MembershipPlan
from ddl_elastic.step.step import Recovery
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import change
from ddl_elastic.worker.change import Arrival
from ddl_elastic.worker.elastic_step import ElasticStep
from ddl_elastic.worker.loop import Loop

torch = pytest.importorskip("torch")

import ddl_core  # noqa: E402
import ddl_torch.elastic as elastic  # noqa: E402

PROGRAM = Path(__file__).parent / "programs" / "calls.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run"]
LIMIT = 240  # seconds, on a busy machine
STEPS = 7  # of the first call


Run = Callable[..., tuple[str, str, list[dict[str, Any]]]]


@pytest.fixture
def run_calls(run_here: Any, tmp_path: Path) -> Run:
    """Run the program. Return the final state, the evaluations, and the events."""

    def run(*words: str) -> tuple[str, str, list[dict[str, Any]]]:
        command = [*DDL, "--report", tmp_path / "report.json", *words]
        done = run_here(command, limit=LIMIT).expect_success()
        found = re.findall(r"^\[\d+\] state (\w{64}) evaluated (\w{64})$", done.out, re.M)
        assert found and len({*found}) == 1, done.out  # all workers have the same
        return *found[0], json.loads((tmp_path / "report.json").read_text())["events"]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--late", "0"], ["--late", "0.5"], ["--top"]])
def test_the_last_ones_have_joined_in_a_later_call(run_calls: Run, words: list[str]) -> None:
    expected = run_calls("-n", "1", str(PROGRAM), *words)[:2]
    kills = f"{STEPS}:0,{2 * STEPS}:1"
    *found, events = run_calls("-n", "2", str(PROGRAM), "--kills", kills, *words)
    assert (*found,) == expected
    joined = {each["member"]: each["step"] for each in events if each["kind"] == "joined"}
    assert {2, 3} == {*joined}, events
    assert all(step > STEPS for step in joined.values())
    assert [each["member"] for each in events if each["kind"] == "died"] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("end", "words"), [(2 * STEPS + 2, []), (5, []), (5, ["--top"])])
def test_workers_join_after_a_resume(
    run_calls: Run, run_here: Any, end: int, words: list[str]
) -> None:
    """The resumed program undoes its first step, which joining workers execute as well."""
    expected, _, _ = run_calls("-n", "1", str(PROGRAM), *words)
    program = [str(PROGRAM), "--checkpoint", "saved", *words]
    ended = run_here([*DDL, "-n", "1", *program, "--end", str(end)], limit=LIMIT)
    assert ended.code == 1, ended.err
    found, _, events = run_calls("-n", "2", *program, "--kills", f"{3 * STEPS}:0")
    assert found == expected
    assert [each["kind"] for each in events if each["kind"] in ("joined", "died")] == [
        "died",
        "joined",
    ]


MakeJob = Callable[..., elastic.Job]


@pytest.fixture
def make_job() -> Iterator[MakeJob]:
    """Make jobs of one rank that another worker may join."""
    made, inboxes = list[elastic.Job](), list[tuple[Channel[Any], Inbox]]()

    def make(**options: Any) -> elastic.Job:
        torch.manual_seed(1)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        endpoint, ends = ddl_core.Endpoint(secret=""), socket.socketpair()
        near, inbox = Channel(ends[0], FROM_WORKER), Inbox(Channel(ends[1], TO_WORKER))
        inboxes.append((near, inbox))
        membership = Membership(inbox, 0, endpoint, {})
        joined = {"comm": endpoint.connect([endpoint.address], 0), "membership": membership}
        made.append(elastic.Job(model, optimizer, batch=4, logical=2, **joined, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
    for near, inbox in inboxes:
        near.close()
        with pytest.raises(JobOver):
            inbox.receive()
        inbox.channel.close()
    torch.use_deterministic_algorithms(False)


def train_call(job: elastic.Job) -> Iterator[ElasticStep]:
    """Train a pass. Yield each step after the optimizer's step."""
    for step in job.steps([(torch.ones(2), 1)] * 8):
        for x, y in step:
            step.backward(torch.nn.functional.cross_entropy(job.framework.model(x), y))
        job.framework.optimizer.step()
        yield step


def test_a_checkpoint_of_clipped_steps_is_refused_without_clipping(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """A job without a loop of its own does not clip gradients."""
    first = make_job(checkpoint=str(tmp_path), clip_norm=0.1)
    assert len([*train_call(first)]) == 2
    adapter = elastic.TorchAdapter(first.framework.model, first.framework.optimizer)
    policy = policy_find(str(tmp_path), 1, 1)
    loop = Loop(adapter, first.group.comm, batch=4, logical=2, policy=policy)
    with pytest.raises(ValueError, match=r"clip_norm was '0\.1', is None"):
        loop.steps([(torch.ones(2), 1)] * 8)
    loop.group.watch.close()


def train_rounds(job: elastic.Job, **options: Any) -> None:
    """Train a pass in steps, and then one in rounds."""
    for _ in train_call(job):
        pass
    for round in job.rounds([(torch.ones(2), 1)] * 24, **options):
        for batches in round:
            for x, y in batches:
                round.backward(torch.nn.functional.cross_entropy(job.framework.model(x), y))
                job.framework.optimizer.step()


def test_later_rounds_are_compared_with_the_checkpoint(make_job: MakeJob, tmp_path: Path) -> None:
    saved = {"checkpoint": str(tmp_path), "every": 1}
    train_rounds(make_job(**saved), local_steps=2)
    with pytest.raises(ValueError, match="is of another job: local_steps was 2, is 3"):
        train_rounds(make_job(**saved), local_steps=3)
    with pytest.raises(ValueError, match="is of another job: wire was None, is 'int8'"):
        train_rounds(make_job(**saved), local_steps=2, wire="int8")
    job = make_job(**saved)
    for _ in train_call(job):
        pass
    with pytest.raises(ValueError, match="is of another job: local_steps was 2, is None"):
        job.steps([(torch.ones(2), 1)] * 24)
    train_rounds(make_job(**saved), local_steps=2)


def test_a_call_without_steps_is_not_compared_with_the_checkpoint(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """It begins at the same step as the rounds that follow."""
    for _ in range(2):  # the second job resumes
        job = make_job(checkpoint=str(tmp_path), every=1)
        assert not [*job.steps([(torch.ones(2), 1)] * 8, steps=0)]
        for round in job.rounds([(torch.ones(2), 1)] * 24, local_steps=2):
            for batches in round:
                for x, y in batches:
                    round.backward(torch.nn.functional.cross_entropy(job.framework.model(x), y))
                    job.framework.optimizer.step()


def test_break_out_of_a_lost_step_leaves_no_writer(make_job: MakeJob, tmp_path: Path) -> None:
    """Its state is neither written nor trained."""
    job = make_job(checkpoint=str(tmp_path), shard=True)
    for step in train_call(job):
        assert job.is_writer
        job.group.shards.forget()
        step.lost = StateLost("all holders died")
        break
    assert not job.is_writer
    with pytest.raises(StateLost, match="in a step that the program has left"):
        next(job.steps([(torch.ones(2), 1)] * 8))


def test_rounds_after_the_checkpoint_may_differ(make_job: MakeJob, tmp_path: Path) -> None:
    saved = {"checkpoint": str(tmp_path), "every": 1}
    assert len([*train_call(make_job(**saved))]) == 2
    train_rounds(make_job(**saved), local_steps=3)


def show(job: elastic.Job) -> tuple[str, float, float]:
    return job.hash(), job.loss, job.norm


def test_an_evaluation_before_the_first_step_keeps_the_admission(make_job: MakeJob) -> None:
    job, awaited = make_job(), []
    job.map([torch.ones(2)], len, batch=1)
    for step in job.steps([(torch.ones(2), 1)] * 4):
        for x, y in step:
            awaited.append(job.awaits_admission)
            step.backward(torch.nn.functional.cross_entropy(job.framework.model(x), y))
    assert awaited == [True, True, False, False]


def test_a_passed_step_shows_the_checkpoint(make_job: MakeJob, tmp_path: Path) -> None:
    saved = {"checkpoint": str(tmp_path), "every": 3, "clip_norm": 0.1}
    first = make_job(**saved)
    shown = [show(first) for _ in range(2) for _ in train_call(first)]
    (tmp_path / "steps-000000000004.json").unlink()
    resumed = make_job(**saved)
    model, found = resumed.framework.model, []

    def look(number: int) -> None:
        table = resumed.map([torch.ones(2)], lambda batch: model(batch)[0], batch=1)
        found.append((number, show(resumed), resumed.is_writer, table.tolist()))

    for call in range(2):
        for step in train_call(resumed):
            look(step.number)
            if not call:
                resumed.stop()  # has no effect in a passed step
        look(-1)
    assert [each[:3] for each in found] == [
        *((0, shown[2], False), (-1, shown[2], True)),
        *((3, shown[3], True), (-1, shown[3], True)),
    ]
    assert found[0][3] == found[1][3]


def evaluate(job: elastic.Job, number: float) -> float:
    return float(job.map([torch.ones(2)], lambda _: number, batch=1)[0, 0])


def join_in_call(job: elastic.Job, call: int, **given: Any) -> None:
    """Let the job's admission end as that of a worker that joins before the first step of a call.
    All others are said to have died since."""
    position = {"number": 2 * call, "next": 2 * call, "call": call}
    known = {"state": job.framework.state(), "audit": job.group.audit.known()}
    tables = {"tables": [], "head": []}
    arrival = Arrival(observer=None, **known | position | tables | given)

    def admit(_: Any) -> None:
        job._is_admitted = True
        job._take_arrival(arrival)

    job.admit = admit


def test_a_joining_worker_stops_in_no_step_that_it_has_missed(make_job: MakeJob) -> None:
    job, found = make_job(), []
    join_in_call(job, 1)
    for call in range(2):
        for step in train_call(job):
            found.append((call, step.number))
            if not call:
                job.stop()
        if not call:
            job.stop()
    assert found == [(0, 0), (1, 2), (1, 3)]


def test_stop_ends_the_training(make_job: MakeJob, caplog: pytest.LogCaptureFixture) -> None:
    job, found = make_job(), []
    with caplog.at_level("INFO", logger="ddl_elastic"):
        for call in range(3):
            for step in train_call(job):
                found.append((call, step.number))
                if call == 1:
                    job.stop()
    assert found == [(0, 0), (0, 1), (1, 2)]
    text = "job.stop() has ended the training: this call of job.steps has no steps"
    assert caplog.messages == [text]


@pytest.mark.parametrize("how", ["lost", "audit"])
def test_stop_in_a_step_that_is_undone_has_no_effect(
    make_job: MakeJob, tmp_path: Path, how: str
) -> None:
    """The program calls it again when it repeats the step."""
    options = {"audit": 0.5} if how == "audit" else {}
    job, found = make_job(checkpoint=str(tmp_path), every=2, **options), []

    def settle(audit: Any, begin: int) -> bool:
        audit.first = None
        job._reload(StateLost("undone"), begin)
        return True

    job._settle = settle
    for step in job.steps([(torch.ones(2), 1)] * 24):
        for x, y in step:
            step.backward(torch.nn.functional.cross_entropy(job.framework.model(x), y))
        job.framework.optimizer.step()
        if step.number == 3:
            job.stop()
            if 3 not in found and how == "lost":
                step.lost = StateLost("undone")
            elif 3 not in found:
                job.group.audit.first = 2
        found.append(step.number)
    assert found[:4] == [0, 1, 2, 3]
    assert found.count(3) == 2 and found[-1] == 3


def test_evaluation_in_an_undone_first_step_is_not_kept(make_job: MakeJob, tmp_path: Path) -> None:
    """A joining worker, whose program executes this step once, would get its table."""
    job, values = make_job(checkpoint=str(tmp_path), audit=0.5), [float("nan"), 7.0]
    for step in train_call(job):
        if step.number == 0:
            evaluate(job, values.pop(0))
            step.lost = StateLost("undone") if values else None
    assert [each.tolist() for each in job.past.tables] == [[[7.0]]]


@pytest.mark.parametrize(("follows", "expected"), [(False, [[1]]), (True, [])])
def test_a_death_after_the_last_step_is_reported(
    make_job: MakeJob, follows: bool, expected: list[list[int]]
) -> None:
    """Otherwise the coordinator never ends a process that hangs there. A rank that has left does
    not count as dead."""
    job, told = make_job(), list[list[int]]()
    complete = job._complete

    def lose(step: Any, compute: Any) -> None:
        complete(step, compute)
        step.recovery, step.follows = Recovery(step.number, [1]), follows

    job._complete = lose
    job.reporter.recovered = lambda recovery, _: told.append(recovery.died)
    job._finish()
    assert told == expected


def test_no_rank_writes_before_the_checkpoint_is_loaded(
    make_job: MakeJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the top of the first step, the model is untrained."""
    saved = {"checkpoint": str(tmp_path), "every": 1}
    for end in (True, False):
        job, found = make_job(**saved), []
        with caplog.at_level("INFO", logger="ddl_elastic"):
            for step in job.steps([(torch.ones(2), 1)] * 12):
                found.append(job.is_writer)
                for x, y in step:
                    step.backward(torch.nn.functional.cross_entropy(job.framework.model(x), y))
                job.framework.optimizer.step()
                if end:
                    job.stop()
    assert not found[0]
    assert all(found[1:])
    assert "resumed after 1 steps" in caplog.messages


def test_an_evaluation_before_the_first_step_keeps_the_initial_checkpoint(
    make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job(checkpoint=str(tmp_path), audit=0.5)
    job.map([torch.ones(2)], len, batch=1)
    assert len([*train_call(job)]) == 2
    assert (tmp_path / "steps-000000000000.json").exists()


def test_a_call_without_steps_does_not_count_as_the_first(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """A joining worker executes no step there, either, and the evaluation after it."""
    saved, found = {"checkpoint": str(tmp_path), "every": 1}, []
    for steps in ([0, 1], [0]):  # a resumed job repeats the first one
        job = make_job(**saved)
        empty = [step.number for step in job.steps([(torch.ones(2), 1)] * 4, 0)]
        job.map([torch.ones(2)], len, batch=1)
        found.append((empty, len(job.past.tables), job.awaits_admission))
        assert [step.number for step in train_call(job)] == steps
    assert found == [([], 0, True)] * 2


def test_resumed_job_evaluates_in_step_0_like_a_joining_worker(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """The resumed program passes by step 0, and a joining worker's program has that step, too."""
    saved, data = {"checkpoint": str(tmp_path), "every": 1}, [(torch.ones(2), 1)] * 12

    def train(job: elastic.Job, end: int = 100) -> None:
        for call in range(2):
            for step in job.steps(data):
                for x, y in step:
                    step.backward(torch.nn.functional.cross_entropy(job.framework.model(x), y))
                job.framework.optimizer.step()
                if step.number % 2 == 0:
                    seen.append((step.number, evaluate(job, len(seen))))
                if step.number + 1 == end:
                    return
                if step.number == 3:
                    positions.append(change.describe_position(job))
            seen.append((f"after call {call}", evaluate(job, len(seen))))

    seen, positions = list[Any](), list[Any]()
    train(make_job(**saved), end=2)
    seen.clear()
    train(make_job(**saved))
    first, *resumed = seen
    assert [number for number, _ in resumed] == [2, "after call 0", 4, "after call 1"]
    assert first == (0, 0)
    job, tables = make_job(), [np.array(each) for each in positions[0]["tables"]]
    assert len(tables) == 2
    join_in_call(job, 1, tables=tables, number=3, next=3)
    seen.clear()
    train(job)
    assert seen[:2] == [first, resumed[1]]


def test_the_state_is_sent_again_after_the_last_step(make_job: MakeJob) -> None:
    """The ranks that sent it may have died in that step."""
    job, sent = make_job(), []
    job.group.sender.send = lambda *given: sent.append(given[-1])
    for step in train_call(job):
        if step.number == 1:
            job.group.sends_at = job.position["number"]
    assert job.group.sends_at is None
    assert [each["next"] for each in sent] == [2]


def test_an_evaluation_at_the_top_of_the_step_in_which_a_worker_joins(make_job: MakeJob) -> None:
    job, found = make_job(), []
    join_in_call(job, 1, tables=[np.array([[7.0]])], head=[np.array([[8.0]])])
    for call in range(2):
        for step in job.steps([(torch.ones(2), 1)] * 8):
            found.append(evaluate(job, 3))
            for x, y in step:
                step.backward(torch.nn.functional.cross_entropy(job.framework.model(x), y))
            if not call:
                found.append(evaluate(job, 4))
    assert found == [3, 7, 8, 3]


def test_the_position_has_the_evaluations_at_the_top_of_the_step(make_job: MakeJob) -> None:
    job, heads = make_job(), {}
    for step in job.steps([(torch.ones(2), 1)] * 12):
        evaluate(job, step.number)
        for x, y in step:
            heads[step.number] = change.describe_position(job)["head"]
            step.backward(torch.nn.functional.cross_entropy(job.framework.model(x), y))
        evaluate(job, 9)
    assert heads == {number: [[[number]]] for number in range(3)}
    assert change.describe_position(job)["tables"] == [[[9]]]


def test_a_resumed_job_sets_its_learning_rate_at_the_top_of_a_step(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """The same learning rates as without an interruption, and the same initial state as that of a
    worker that joins, whose program is in step 0."""
    data, hashes, founders = [(torch.ones(2), number % 2) for number in range(24)], [], []
    for end, saved in ((6, tmp_path / "a"), (3, tmp_path / "b"), (6, tmp_path / "b")):
        job = make_job(checkpoint=str(saved), every=1)
        job.reporter.admitted = lambda bits: founders.append((bits.state, bits.share))
        model, optimizer = job.framework.model, job.framework.optimizer
        for step in job.steps(data):
            optimizer.param_groups[0]["lr"] = 1 / (2 + step.number)
            for x, y in step:
                step.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            if step.number + 1 == end:
                job.stop()
        hashes.append(job.hash())
    assert hashes[2] == hashes[0] != hashes[1]
    assert len({*founders}) == 1 and len(founders) == 3


def test_a_joining_worker_tells_that_it_waits_for_the_others(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it counts as hanging while they evaluate for a long time."""
    job, sent = make_job(), []
    monkeypatch.setattr(Channel, "send", lambda _, message: sent.append(message))
    monkeypatch.setattr(change, "_wait_for_plan", lambda _: MembershipPlan(3, [0, 1], [1], []))
    monkeypatch.setattr(change, "_join_group", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        change.join(job, "a fingerprint")
    assert sent[-1] == PositionReached(3)
