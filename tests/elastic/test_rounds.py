# SPDX-License-Identifier: Apache-2.0
"""Rounds of local steps: the same bits for any number of members, whoever dies in which phase of a
round. Members.check compares each case with the same job of one undisturbed member."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ddl_core
import ddl_torch.elastic as elastic
from ddl_elastic.shares.sampler import Sampler
from ddl_elastic.step import packed as packing
from ddl_elastic.step.packed import BLOCK, PackedAverage
from ddl_torch.elastic.moments import Moments

LIMIT = 500  # seconds, on a busy machine
CASE = {"batch": 16, "logical": 4, "local_steps": 3, "passes": 3}  # 13 rounds


def kill(member: int, step: int, phase: str) -> dict[str, Any]:
    return {"member": member, "step": step, "phase": phase}


SLOW = pytest.mark.slow
PHASES = ["local", "outer", *(pytest.param(p, marks=SLOW) for p in ("compute", "reduce", "apply"))]


@pytest.mark.parametrize("size", [pytest.param(2, marks=SLOW), 3, pytest.param(4, marks=SLOW)])
def test_any_number_of_members(members: Any, size: int) -> None:
    """With batch norm, dropout, augmented samples, AdamW, a schedule and an evaluation."""
    members.check(members=size, evaluate=[2], **CASE)


@pytest.mark.parametrize("phase", PHASES)
def test_a_death(members: Any, phase: str) -> None:
    logs = members.check(members=3, kills=[kill(1, 5, phase)], bucket_bytes=1, **CASE)
    found = [line[1] for log in logs for line in log if line[0] == "recovery"]
    assert [each["step"] for each in found] == [6 if phase in ("outer", "apply") else 5] * 2
    assert [each["adopted"] for each in found] == [2, 2]


@pytest.mark.slow
def test_members_without_shares(members: Any) -> None:
    members.check(members=3, owners="changing", kills=[kill(0, 7, "vote")], **CASE)


@pytest.mark.slow
def test_all_but_one(members: Any) -> None:
    kills = [kill(0, 5, "reduce"), kill(1, 7, "reduce"), kill(2, 9, "outer")]
    members.check(members=4, owners="changing", kills=kills, **CASE)


OPTIONS = (
    *({"moments": "fresh"}, {"buffers": "first", "optimizer": "NAdam"}, {"optimizer": "SGD"}),
    *({"moments": "fresh", "optimizer": "Adagrad"}, {"optimizer": "Adagrad"}),
    *({"loader_workers": 2}, {"steps": 7}),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", OPTIONS)
def test_options(members: Any, case: dict[str, Any]) -> None:
    """Steps are those of a stream."""
    known = {name: CASE[name] for name in CASE if name != "passes" or "steps" not in case}
    members.check(members=3, kills=[kill(1, 3, "local")], **known, **case)


WIRES = ["int4", *(pytest.param(each, marks=SLOW) for each in ("bf16", "int8"))]


@pytest.mark.parametrize("wire", WIRES)
def test_a_wire_format(members: Any, wire: str) -> None:
    """Members die while they compute, and between the two exchanges of an average."""
    kills = [kill(1, 3, "local"), kill(2, 6, "average")]
    members.check(members=3, kills=kills, bucket_bytes=1, wire=wire, **CASE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"optimizer": "SGD"}, {"optimizer": "Adagrad"}, {"moments": "fresh"}]
)
def test_what_a_wire_format_averages(members: Any, options: dict[str, Any]) -> None:
    """Some members have no shares."""
    kills = [kill(0, 7, "average")]
    options = {"owners": "changing", "wire": "int4", **options, **CASE}
    members.check(members=3, kills=kills, **options)


@pytest.mark.parametrize("size", [0, 1, 127, 129, 300])
def test_a_packed_average(size: int) -> None:
    """Of three logical workers on one rank, like the average that is computed step by step."""
    shares = [np.linspace(-1, v, size, dtype=np.float32) for v in range(3)]
    packed = {v: ddl_core.pack(share, "int4") for v, share in enumerate(shares)}
    rounded = [ddl_core.unpack(packed[v], "int4", np.empty_like(shares[v])) for v in range(3)]
    average = (rounded[0] + rounded[1] + rounded[2]) / np.float32(3)
    expected = ddl_core.unpack(ddl_core.pack(average, "int4"), "int4", np.empty_like(average))
    found = np.full(size, np.nan, np.float32)
    with ddl_core.Endpoint(secret="") as endpoint:
        comm = endpoint.connect([endpoint.address], 0, owned=True)
        PackedAverage(comm, [0, 0, 0], packed, found, "int4").wait()
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("takes", [[True], [True, False, True], [False, True, True, True]])
def test_the_blocks_of_an_average(takes: list[bool]) -> None:
    assert ddl_core.packed_size(BLOCK, "int4") == BLOCK // 2 + 1
    for size in (0, 1, 129, 1000):
        ends = packing._cut(size, takes)
        assert (ends[0], ends[-1]) == (0, size)
        for (begin, end), has_blocks in zip(pairwise(ends), takes, strict=True):
            assert begin % BLOCK == 0 or begin == size
            assert has_blocks or begin == end


# ---- one process ----


class Trial:
    """A job of one process, and a program whose shares call `work(round, batches)`."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        data = torch.utils.data.TensorDataset(torch.randn(12, 2), torch.randn(12, 1))
        with ddl_core.Endpoint(secret="") as endpoint:
            comm = endpoint.connect([endpoint.address], 0, owned=True)
            also = options.pop("also", None)
            self.job = elastic.Job(
                self.model, self.optimizer, batch=4, logical=2, comm=comm, also=also, watchdog=0
            )
            try:
                for round in self.job.rounds(data, **{"local_steps": 3, "rounds": 2, **options}):
                    for batches in round:
                        self.work(round, batches)
            finally:
                self.job.close()

    def work(self, round: Any, batches: Any) -> None:
        for x, y in batches:
            self.step(round, x, y)

    def step(self, round: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        round.backward(torch.nn.functional.mse_loss(self.model(x), y))
        self.optimizer.step()


def test_a_round_of_one_step_is_a_step_of_gradient_descent() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    data = [torch.randn(12, 2), torch.randn(12, 1)]
    found = Trial(local_steps=1, rounds=1)
    sampler = Sampler(12, 4, 2, 0)
    used = [i for v in range(2) for i in sampler.share(0, v).indices.tolist()]
    torch.nn.functional.mse_loss(model(data[0][used]), data[1][used]).backward()
    with torch.no_grad():
        for parameter, trained in zip(model.parameters(), found.model.parameters(), strict=True):
            # The first step of Nesterov momentum is 1 + 0.9 times the gradient.
            expected = parameter - 0.7 * 1.9 * 0.5 * parameter.grad
            torch.testing.assert_close(trained, expected)


def test_a_learning_rate_of_each_local_step() -> None:
    rates: list[float] = []

    class Own(Trial):
        def step(self, round: Any, x: torch.Tensor, y: torch.Tensor) -> None:
            rates.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.param_groups[0]["lr"] = 1 / (2 + round.local_step)
            super().step(round, x, y)

    found = Own()
    assert rates == [*(0.5, 1 / 2, 1 / 3) * 2, *(0.5, 1 / 5, 1 / 6) * 2]
    assert found.optimizer.param_groups[0]["lr"] == 0.5


def test_batches_that_are_not_used() -> None:
    class Breaks(Trial):
        def work(self, round: Any, batches: Any) -> None:
            self.step(round, *next(batches))

    class Forgets(Trial):
        def step(self, round: Any, x: torch.Tensor, y: torch.Tensor) -> None:
            pass

    for kind, done in ((Breaks, 1), (Forgets, 0)):
        text = f"logical worker 0 has taken {done} of 3 local steps in round 0: iterate"
        with pytest.raises(RuntimeError, match=text):
            kind()


def test_a_schedule_in_local_steps() -> None:
    class Own(Trial):
        def __init__(self) -> None:
            self.schedule: Any = None
            super().__init__(also={"kept": self})

        def state_dict(self) -> dict[str, int]:
            return {"steps": getattr(self, "steps", 0)}

        def step(self, round: Any, x: torch.Tensor, y: torch.Tensor) -> None:
            super().step(round, x, y)
            self.steps = 1

    with pytest.raises(RuntimeError, match="local steps have changed also={'kept'"):
        Own()


def test_what_is_refused() -> None:
    other = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="local_steps is 0; must be at least 1"):
        Trial(local_steps=0)
    with pytest.raises(ValueError, match='moments is "kept"; must be "fresh" or "averaged"'):
        Trial(moments="kept")
    with pytest.raises(ValueError, match="optimizer has a parameter of shape"):
        Trial(outer=torch.optim.SGD(other.parameters(), lr=1))
    with pytest.raises(ValueError, match="passes is 1 and rounds is 2; give one of them"):
        Trial(passes=1)
    with pytest.raises(ValueError, match="wire is 'int2'; must be one of f32, bf16, int8, int4"):
        Trial(wire="int2")


def test_an_outer_optimizer_that_lacks_a_parameter() -> None:
    model = torch.nn.Linear(2, 1)
    outer = torch.optim.SGD([model.weight], lr=1)
    inner = torch.optim.SGD(model.parameters(), lr=1)
    adapter = elastic.TorchAdapter(model, inner)
    with pytest.raises(ValueError, match="the outer optimizer lacks the parameter bias"):
        adapter.set_outer(outer, "fresh")


def test_two_calls_with_other_wire_formats() -> None:
    model = torch.nn.Linear(2, 1)
    adapter = elastic.TorchAdapter(model, torch.optim.SGD(model.parameters(), lr=1))
    for wire in ("int4", "bf16", None):
        adapter.set_outer(None, "fresh", wire)
        adapter.set_local(True)
        adapter.result()
        assert adapter.ops()[0] == (wire or "average")


def test_a_wire_format_of_float64() -> None:
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    adapter = elastic.TorchAdapter(model, torch.optim.SGD(model.parameters(), lr=1))
    adapter.set_outer(None, "fresh", "int8")
    adapter.set_local(True)
    with pytest.raises(ValueError, match="wire is 'int8', but the job averages float64"):
        adapter.result()


def test_moments_that_are_no_tensors() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["calls"] = 1

    model = torch.nn.Linear(2, 1)
    with pytest.raises(TypeError, match='keeps calls, a int, .* use moments="fresh"'):
        Moments(Counting(model.parameters(), lr=1))


# ---- with Job.train ----


def train(run_program: Any, folder: Path, *cases: dict[str, Any]) -> list[dict[str, Any]]:
    program = Path(__file__).parent / "programs" / "train.py"
    texts = [json.dumps({"local_steps": 2, **case}) for case in cases]
    done = run_program([sys.executable, program, *texts], cwd=folder, limit=LIMIT)
    return [json.loads(line) for line in done.expect_success().out.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"moments": "averaged"}, {"moments": "fresh"}, {"moments": "fresh", "wire": "int4"}],
    ids=lambda options: "-".join(options.values()),
)
def test_twenty_kills_and_joins_and_a_leave(
    run_program: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    kills = [[2 + 2 * number, number] for number in range(20)]
    case = {"workers": "1:3", "start": 3, "kill": kills, "others": 1, "resize": [[60, 2], [75, 3]]}
    case = {**case, "replace": True, "changes": 42}
    both = {"passes": 40, **options}
    alone, disturbed = train(run_program, tmp_path, {"workers": 1, **both}, {**case, **both})
    assert alone["steps"] == 125
    assert disturbed["hash"] == alone["hash"], disturbed
    kinds = [each["kind"] for each in disturbed["events"]]
    assert kinds.count("died") == 20
    assert kinds.count("joined") >= 20
    assert "left" in kinds


@pytest.mark.slow
def test_all_die_and_others_resume(run_program: Any, tmp_path: Path) -> None:
    saved = {"checkpoint": "saved", "every": 5, "passes": 12, "wire": "int8"}
    killed = {**saved, "workers": 3, "kill": [[12, 0], [12, 1], [12, 2]], "changes": 0}
    alone = {"workers": 1, "passes": 12, "wire": "int8"}
    other = {**saved, "workers": 1, "local_steps": 3}
    reports = train(run_program, tmp_path, alone, killed, {**saved, "workers": 2}, other)
    assert [each["state"] for each in reports] == ["done", "failed", "done", "failed"]
    assert reports[2]["hash"] == reports[0]["hash"]
    assert "is of another job: local_steps was 2, is 3" in reports[3]["error"]
