# SPDX-License-Identifier: Apache-2.0
"""`job.map`: a table of numbers with a row for each batch, equal on all ranks, whichever rank
dies."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_elastic.frameworks.protocol import digest
from ddl_elastic.step import step as steps
from ddl_elastic.step.step import Step
from ddl_elastic.worker.evaluation import EvaluationPlan, as_numbers

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ddl_core  # noqa: E402
import ddl_torch.elastic as elastic  # noqa: E402

BATCHES = 9  # batches of up to 25 of the members' 203 samples


@given(samples=st.integers(1, 300), batch=st.integers(1, 40), workers=st.integers(1, 20))
def test_each_sample_is_in_one_batch(samples: int, batch: int, workers: int) -> None:
    plan = EvaluationPlan(samples, batch, workers)
    batches = [each for worker in range(workers) for each in plan.batches([worker])]
    assert batches == list(range(plan.count))
    assert plan.batches(reversed(range(workers))) == batches
    counts = [len(plan.batches([worker])) for worker in range(workers)]
    assert max(counts) - min(counts) <= 1
    indices = [index for each in batches for index in plan.share(0, each).indices.tolist()]
    assert indices == list(range(samples))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (2, [2.0]),
        (np.float32(0.5), [0.5]),
        (np.array(3), [3.0]),
        (torch.tensor(1.5), [1.5]),
        ((torch.tensor(1), 2.5), [1.0, 2.5]),
        (torch.tensor([1.0, -0.0]), [1.0, -0.0]),
        (np.arange(3), [0.0, 1.0, 2.0]),
    ],
)
def test_numbers(given: Any, expected: list[float]) -> None:
    assert as_numbers(given) == expected


def tables_of(logs: list[list[list[Any]]]) -> dict[int, list[Any]]:
    tables: dict[int, list[Any]] = {}
    for log in logs:
        for step, table in (line[1:] for line in log if line[0] == "table"):
            tables.setdefault(step, []).append(table)
    return tables


def evaluated(logs: list[list[list[Any]]], step: int) -> Counter[int]:
    numbers = [line[2][0] for log in logs for line in log if line[:2] == ["evaluated", step]]
    return Counter(number // 25 for number in numbers)


@pytest.mark.parametrize("workers", [0, 1])
def test_tables_are_equal_and_training_goes_on(members: Any, workers: int) -> None:
    steps = {"evaluate": [2, 12], "loader_workers": workers}
    (alone,) = members.check(members=1, **steps)
    kills = [
        {"member": 1, "step": 2, "phase": "evaluate"},
        {"member": 0, "step": 7, "phase": "compute"},
    ]
    logs = members.check(members=4, kills=kills, owners="changing", **steps)
    expected, found = tables_of([alone]), tables_of(logs)
    assert found == {2: 3 * expected[2], 12: 2 * expected[12]}
    assert np.shape(expected[2]) == (1, BATCHES, 2)
    assert [row[1] for row in expected[2][0]] == [25.0] * 8 + [3.0]
    assert expected[2] != expected[12]
    assert evaluated([alone], 2) == dict.fromkeys(range(BATCHES), 1)
    assert evaluated(logs, 12) == dict.fromkeys(range(BATCHES), 1)
    survivors = [logs[member] for member in (0, 2, 3)]
    assert evaluated(survivors, 2) == dict.fromkeys(range(BATCHES), 1)


def test_more_members_than_shares(members: Any) -> None:
    """A rank without a share evaluates a batch to learn how many numbers the function returns."""
    case = {"logical": 2, "batch": 16, "passes": 1, "evaluate": [3]}
    (alone,) = members.check(members=1, **case)
    logs = members.check(members=3, **case)
    assert tables_of(logs)[3] == 3 * tables_of([alone])[3]


@pytest.fixture
def job() -> Any:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddl_core.Endpoint(secret="") as endpoint, endpoint.connect([endpoint.address], 0) as comm:
        job = elastic.Job(model, optimizer, batch=4, logical=2, comm=comm)
        yield job
        job.close()
    torch.use_deterministic_algorithms(False)


def test_the_model_is_in_evaluation_mode(job: Any) -> None:
    model = job.framework.model
    model[1].eval()
    before = model[1].running_mean.clone()

    def measure(batch: torch.Tensor) -> torch.Tensor:
        assert not model.training
        assert not torch.is_grad_enabled()
        return model(batch).sum() + torch.rand(())

    first = job.map([torch.ones(3)] * 5, measure, batch=2)
    assert first.shape == (3, 1)
    assert np.array_equal(first, job.map([torch.ones(3)] * 5, measure, batch=2))
    assert [each.training for each in model] == [True, False, True, True]
    assert torch.is_grad_enabled()
    assert torch.equal(model[1].running_mean, before)


def test_wrong_evaluations(job: Any) -> None:
    with pytest.raises(ValueError, match="the data set has 0 samples"):
        job.map([], len, batch=2)
    with pytest.raises(ValueError, match="batch is 0; it must be at least 1"):
        job.map([1], len, batch=0)
    with pytest.raises(
        ValueError, match="the function returned 1 numbers for batch 1, and 2 for bat"
    ):
        job.map([1, 2, 3], lambda batch: [1.0] * len(batch), batch=2)
    with pytest.raises(ValueError, match="the function returned no numbers for batch 0"):
        job.map([1], lambda _: [], batch=2)


def test_the_writer(job: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert job.is_writer
    with caplog.at_level("INFO", logger="ddl_elastic"):
        job.log("evaluated", accuracy=0.5, loss=1 / 3)
        job.log(loss=2)
    assert caplog.messages == ["evaluated  accuracy 0.5  loss 0.333333", "loss 2"]


def test_the_loss_and_the_hash(job: Any) -> None:
    assert np.isnan(job.loss)
    before = job.hash()
    losses = []
    for step in job.steps(torch.arange(12.0).reshape(4, 3)):
        for x in step:
            loss = job.framework.model(x).sum()
            losses.append(loss.item())
            step.backward(loss)
    assert job.loss == pytest.approx(sum(losses) / 2)
    assert before != job.hash() == digest(job.framework.state())


def test_evaluations_do_not_count_as_steps(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    monkeypatch.setattr(Step, "_checksum", lambda step: names.append(step.name) or 0)
    monkeypatch.setattr(steps, "CHECK_EVERY", 1)
    for step in job.steps(torch.ones(8, 3)):
        for x in step:
            step.backward(job.framework.model(x).sum())
        job.map(torch.ones(8, 3), lambda x: x.sum(), batch=4)
    assert [name for name in names if name] == [
        *("step 0", "an evaluation before step 1", "step 1", "an evaluation before step 2")
    ]
