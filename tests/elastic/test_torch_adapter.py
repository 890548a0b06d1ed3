# SPDX-License-Identifier: Apache-2.0
"""PyTorch's adapter: the results of a share, their application, and errors."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import ddl_core  # noqa: E402
import ddl_torch  # noqa: E402
import ddl_torch.elastic as elastic  # noqa: E402
from ddl_elastic.frameworks.protocol import digest, find_adapter  # noqa: E402
from ddl_elastic.shares.sampler import share_seed  # noqa: E402
from ddl_torch.elastic.tensors import pack, unpack  # noqa: E402


def adapter_of(model: nn.Module, **options: Any) -> elastic.TorchAdapter:
    return elastic.TorchAdapter(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


class Odd(nn.Module):
    """Parameters of two types, one of them frozen and one unused, and unusual buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2, 3), 0.5))
        self.brief = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(()))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("third", torch.tensor([1 / 3]))
        self.register_buffer("calls", torch.tensor(0, dtype=torch.int32))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.lerp_(x.mean(0), 0.5)
        return (x * self.brief.float() * self.frozen) @ self.weight.T


def compute(adapter: elastic.TorchAdapter, x: torch.Tensor, worker: int = 0) -> Any:
    adapter.result()
    adapter.begin(worker)
    return adapter.backward(adapter.model(x).sum())


def apply(adapter: elastic.TorchAdapter, arrays: list[np.ndarray]) -> None:
    for array, value in zip(adapter.result(), arrays, strict=True):
        array[:] = value
    adapter.apply()


def test_the_next_share_starts_from_the_same_state_and_the_result_is_applied() -> None:
    adapter = adapter_of(Odd())
    before = digest(adapter.state())
    share = compute(adapter, torch.ones(4, 3))
    adapter.begin(1)
    assert digest(adapter.state()) == before
    gradients, buffers, numbers = 6 + 3 + 1, 2 + 1 + 3, 2 + 3
    assert [array.dtype.name for array in share] == ["float32", "int64"]
    assert [array.size for array in share] == [gradients + buffers + numbers, 1]
    loss = share.numbers[0]
    apply(adapter, share)
    model = adapter.model
    assert adapter.loss == loss
    assert model.weight.grad.tolist() == [[4.0] * 3] * 2
    assert model.brief.grad.dtype == torch.bfloat16
    assert model.frozen.grad is None
    assert model.unused.grad is None
    assert model.mask.tolist() == [0.0, -torch.inf]
    assert model.third.tolist() == torch.tensor([1 / 3]).tolist()
    assert (int(model.calls), model.mean.tolist()) == (1, [0.5] * 3)


def test_an_average_over_three_shares_keeps_constant_buffers() -> None:
    """The sum x + x + x divided by 3 may differ from x, so changes are averaged, not values."""
    adapter = adapter_of(Odd())
    shares = [compute(adapter, torch.ones(4, 3)) for _ in range(3)]
    result = [(a + b + c) / a.dtype.type(3) for a, b, c in zip(*shares, strict=True)]
    apply(adapter, result)
    assert adapter.model.third.item() == torch.tensor(1 / 3).item()
    assert int(adapter.model.calls) == 1


class Limits(nn.Linear):
    """Buffers that are infinite, become infinite, or are NaN; and one that is left out."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("limits", torch.tensor([-torch.inf, torch.inf, 1.0, 3e38, 3e38]))
        self.register_buffer("none", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.limits[2] = torch.inf
        self.limits[3:] -= 3e38
        return super().forward(x)


def test_buffers_that_are_infinite() -> None:
    adapter = adapter_of(Limits())
    share = compute(adapter, torch.ones(4, 3))
    assert share.buffers[0].array.tolist() == [0, 0, np.inf, *[-np.float32(3e38)] * 2]
    apply(adapter, share)
    assert adapter.model.limits.tolist() == [-np.inf, np.inf, np.inf, 0, 0]


def average(shares: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the averages of the shares' arrays, in any order of additions."""
    return [np.stack(each).mean(0).astype(each[0].dtype) for each in zip(*shares, strict=True)]


def test_weights_make_a_mean_of_all_shares() -> None:
    """The result is the mean over the counted elements, not the mean of the shares' means."""
    torch.manual_seed(0)
    x, counted = torch.randn(8, 3), torch.tensor([1, 1, 1, 1, 1, 0, 0, 0.0])
    adapter, shares = adapter_of(nn.Linear(3, 1)), []
    for part in (slice(0, 4), slice(4, 8)):
        adapter.result()
        adapter.begin(0)
        losses = adapter.model(x[part]).square().squeeze(1) * counted[part]
        shares.append(adapter.backward(losses.sum(), weight=counted[part].sum()))
    apply(adapter, average(shares))
    found = adapter.model.weight.grad.clone()
    adapter.model.zero_grad()
    mean = adapter.model(x[:5]).square().mean()
    mean.backward()
    assert torch.allclose(found, adapter.model.weight.grad)
    assert adapter.loss == pytest.approx(mean.item())


def test_wrong_weights() -> None:
    adapter = adapter_of(nn.Linear(3, 1))
    for weight in (-1, float("nan"), float("inf")):
        adapter.result()
        adapter.begin(0)
        with pytest.raises(ValueError, match=f"weight is {float(weight)}"):
            adapter.backward(adapter.model(torch.ones(2, 3)).sum(), weight=weight)
    adapter.begin(0)
    share = adapter.backward(adapter.model(torch.ones(2, 3)).sum(), weight=0)
    with pytest.raises(ValueError, match="all shares of a step have weight 0"):
        apply(adapter, share)


def test_batch_norm_is_a_share_s_own() -> None:
    """PyTorch's kernel changes the statistics without changing their versions."""
    model = nn.BatchNorm1d(3)
    adapter = adapter_of(model)
    x = torch.randn(8, 3)
    share = compute(adapter, x)
    adapter.begin(1)
    assert model.running_mean.tolist() == [0.0] * 3
    apply(adapter, share)
    assert torch.allclose(model.running_mean, 0.1 * x.mean(0))
    assert int(model.num_batches_tracked) == 1


def test_the_first_share_s_buffers_are_kept() -> None:
    adapter = adapter_of(Odd(), buffers="first")
    before = digest(adapter.state())
    shares = [compute(adapter, torch.full((4, 3), v + 1.0), v) for v in range(3)]
    adapter.begin(3)
    assert digest(adapter.state()) == before
    ops = adapter.ops()
    assert ops == ["average", "sum", "sum"]
    sums = [sum(each) for each in zip(*shares, strict=True)]
    apply(adapter, [s / 3 if op == "average" else s for s, op in zip(sums, ops, strict=True)])
    model = adapter.model
    assert model.mean.tolist() == [0.5] * 3
    assert model.mask.tolist() == [0.0, -torch.inf]
    assert model.third.item() == torch.tensor(1 / 3).item()
    assert int(model.calls) == 1


def test_what_becomes_of_buffers_is_one_of_two() -> None:
    with pytest.raises(ValueError, match='buffers is \'last\'; must be "average" or "first"'):
        adapter_of(Odd(), buffers="last")


def test_arrays_are_used_again() -> None:
    adapter = adapter_of(Odd())
    result, share = adapter.result(), compute(adapter, torch.ones(4, 3))
    adapter.free(share)
    assert compute(adapter, torch.ones(4, 3)) is share
    assert adapter.result() is result


def test_another_model_may_be_made_meanwhile() -> None:
    adapter = adapter_of(Odd())
    result = adapter.result()
    nn.Linear(3, 3)
    adapter.model.calls = adapter.model.calls  # like `self.calls += 1`
    assert adapter.result() is result


def test_a_loaded_state_is_where_shares_start() -> None:
    adapter, other = adapter_of(Odd()), adapter_of(Odd())
    apply(other, compute(other, torch.ones(4, 3)))
    compute(adapter, torch.ones(4, 3))
    adapter.load(other.state())
    adapter.result()
    adapter.begin(0)
    assert digest(adapter.state()) == digest(other.state())


@pytest.mark.parametrize("change", ["freeze", "replace", "add"])
def test_the_model_changes_between_two_steps(change: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    adapter = adapter_of(model)
    apply(adapter, compute(adapter, torch.ones(2, 3)))
    if change == "freeze":
        model[0].requires_grad_(False)
    elif change == "replace":
        model[1] = nn.Linear(3, 4)
    else:
        model.append(nn.BatchNorm1d(2))
    share = compute(adapter, torch.ones(2, 3))
    apply(adapter, share)
    trained = [each for each in model.parameters() if each.requires_grad]
    assert [each.shape for each in share.parts[0]] == [each.shape for each in reversed(trained)]
    assert share.numbers.size == 2 + len(trained)
    assert all((each.grad is not None) == each.requires_grad for each in model.parameters())


class Wrapped:
    """An object of the program, which has a schedule."""

    def __init__(self, schedule: Any) -> None:
        self.schedules = [schedule]
        self.state_dict, self.load_state_dict = schedule.state_dict, schedule.load_state_dict


def test_a_schedule_that_nothing_saves_is_refused() -> None:
    adapter = adapter_of(nn.Linear(3, 2))
    schedule = torch.optim.lr_scheduler.StepLR(adapter.optimizer, 1)
    message = re.escape('pass also={"schedule": schedule}')
    with pytest.raises(ValueError, match=message):
        adapter.result()
    average = torch.optim.swa_utils.AveragedModel(adapter.model)
    other = torch.optim.lr_scheduler.StepLR(adapter_of(nn.Linear(3, 2)).optimizer, 1)
    for also in ({"average": average}, {"schedule": other}, {"optimizer": adapter.optimizer}):
        with pytest.raises(ValueError, match=message):
            elastic.TorchAdapter(adapter.model, adapter.optimizer, also=also).result()
    for kept in (schedule, Wrapped(schedule)):
        elastic.TorchAdapter(adapter.model, adapter.optimizer, also={"any name": kept}).result()


def test_schedules_made_of_schedules_are_kept() -> None:
    adapter, schedules = adapter_of(nn.Linear(3, 2)), torch.optim.lr_scheduler
    parts = [
        schedules.StepLR(adapter.optimizer, 1),
        schedules.ExponentialLR(adapter.optimizer, 0.9),
    ]
    sequence = schedules.SequentialLR(adapter.optimizer, parts, [3])
    for schedule in (schedules.ChainedScheduler(parts), sequence):
        elastic.TorchAdapter(adapter.model, adapter.optimizer, also={"schedule": schedule}).result()


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_the_state_travels(make: Any) -> None:
    def made() -> elastic.TorchAdapter:
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(torch.float64)
        optimizer = make(model.parameters(), lr=0.1)
        return elastic.TorchAdapter(model, optimizer)

    trained, other = made(), made()
    schedule = torch.optim.lr_scheduler.StepLR(trained.optimizer, 1, 0.5)
    trained.model(torch.randn(4, 3, dtype=torch.float64)).sum().backward()
    trained.update()
    schedule.step()
    assert digest(trained.state()) != digest(other.state())
    other.load(trained.state())
    assert digest(trained.state()) == digest(other.state())


def test_a_share_does_not_change_a_state_that_was_taken() -> None:
    adapter = adapter_of(Odd())
    state = adapter.state()
    before = digest(state)
    compute(adapter, torch.ones(4, 3))
    assert digest(state) == before
    assert digest(adapter.state()) != before


def test_tensors_without_elements_travel() -> None:
    def made() -> elastic.TorchAdapter:
        model = nn.Linear(3, 2)
        model.register_buffer("nothing", torch.empty(0, 4))
        model.register_parameter("none", nn.Parameter(torch.empty(2, 0)))
        return adapter_of(model)

    trained, other = made(), made()
    share = compute(trained, torch.ones(1, 3))
    apply(trained, share)
    assert trained.model.none.grad is None
    state = trained.state()
    assert state["model.nothing"].shape == (0, 4)
    assert len(state["model.nothing"].data.data) == 0
    other.load(state)
    assert digest(other.state()) == digest(state)


@pytest.mark.parametrize("dtype", ["bool", "int32", "bfloat16", "float64"])
def test_tensors_of_all_types_travel(dtype: str) -> None:
    for value in (torch.tensor([1, 0, 1]), torch.tensor(1), torch.empty(0, 2)):
        sent = value.to(getattr(torch, dtype))
        found = unpack("value", pack("value", sent))
        assert found.dtype == sent.dtype
        assert torch.equal(found, sent)


@pytest.mark.parametrize(
    "value",
    [{3: 1, 5: 2}, Counter({3: 1}), [(1, 2), {"a": {(0, 1): None}}], {"__kind__": "tuple"}, {}],
    ids=repr,
)
def test_what_schedules_hold_travels(value: Any) -> None:
    found = unpack("value", pack("value", value))
    assert found == value
    assert type(found) is type(value)


def test_what_has_no_place_in_a_state_is_named() -> None:
    with pytest.raises(TypeError, match=r"also.schedule.base: \{1\} cannot be part of .* Counter"):
        pack("also.schedule.base", {1})


def test_milestones_travel() -> None:
    def made() -> Any:
        adapter = adapter_of(nn.Linear(3, 2))
        schedule = torch.optim.lr_scheduler.MultiStepLR(adapter.optimizer, [2, 4, 4])
        return elastic.TorchAdapter(
            adapter.model, adapter.optimizer, also={"schedule": schedule}
        ), schedule

    (trained, schedule), (other, loaded) = made(), made()
    for _ in range(3):
        trained.optimizer.step()
        schedule.step()
    other.load(trained.state())
    assert loaded.milestones == schedule.milestones
    assert type(loaded.milestones) is Counter
    loaded.step()
    assert loaded.get_last_lr() == [pytest.approx(0.1 * 0.1**3)]


def test_another_model_s_state_is_refused() -> None:
    with pytest.raises(ValueError, match="the state belongs to another model"):
        adapter_of(nn.Linear(3, 2)).load(adapter_of(nn.Linear(2, 2)).state())


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_bounded_embeddings_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match=f"0 is an {kind.__name__} with max_norm: its forward"):
        adapter_of(nn.Sequential(kind(5, 3, max_norm=1.0), nn.Linear(3, 1)))
    adapter_of(nn.Sequential(kind(5, 3), nn.Linear(3, 1)))


@pytest.mark.parametrize("kind", [nn.SyncBatchNorm, ddl_torch.SyncBatchNorm])
def test_sync_batch_norm_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="1 is a SyncBatchNorm: its statistics would depend"):
        adapter_of(nn.Sequential(nn.Linear(3, 3), kind(3)))


@pytest.fixture
def gloo(find_port: Any) -> Iterator[None]:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{find_port()}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of torch.distributed.optim itself
@pytest.mark.usefixtures("gloo")
def test_sharded_states_are_refused() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(
        TypeError, match=r"optimizer is sharded over processes \(ZeroRedundancyOptimizer\)"
    ):
        elastic.TorchAdapter(model, optimizer)
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(TypeError, match=r"0.weight is sharded over processes \(DTensor\)"):
        adapter_of(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(TypeError, match=r"model is sharded over processes \(FSDPModule\)"):
        adapter_of(model)


def test_an_optimizer_with_a_closure_is_refused() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match="optimizer is an LBFGS, which computes the loss several"):
        elastic.TorchAdapter(model, torch.optim.LBFGS(model.parameters()))
    distributed: Any = torch.optim.SGD(model.parameters())
    distributed.synchronize = lambda: None  # as ddl_torch.DistributedOptimizer sets it
    with pytest.raises(TypeError, match="optimizer is a DistributedOptimizer: an elastic job adds"):
        elastic.TorchAdapter(model, distributed)


def test_foreign_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"parameter of shape \(2, 2\) that model does not have"):
        elastic.TorchAdapter(nn.Linear(3, 2), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def test_sparse_gradients_are_refused() -> None:
    adapter = adapter_of(nn.Embedding(4, 2, sparse=True))
    with pytest.raises(NotImplementedError, match="a gradient is sparse"):
        compute(adapter, torch.tensor([1, 2]))


class Replaces(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + x.mean(0)
        return super().forward(x)


class Flips(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("seen", torch.tensor(False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.fill_(True)
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [(Replaces, "replaced one of its buffers"), (Flips, "changed a buffer of torch.bool")],
)
def test_buffers_without_an_average_are_refused(model: Any, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        compute(adapter_of(model()), torch.ones(2, 3))


def test_adapter_is_found_by_the_model() -> None:
    assert find_adapter(nn.Linear(1, 1)) is elastic
    assert find_adapter(Odd()) is elastic
    with pytest.raises(TypeError, match=r"model is a builtins.dict; .* knows models of keras, t"):
        find_adapter({})


def test_what_the_bits_of_a_gpu_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    elastic.pin(1)
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    elastic.pin(1)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    torch.use_deterministic_algorithms(False)


def data_of(samples: int) -> list[tuple[Any, int]]:
    return [(torch.full((3,), float(n)), n % 2) for n in range(samples)]


@pytest.fixture
def job() -> Any:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddl_core.Endpoint(secret="") as endpoint, endpoint.connect([endpoint.address], 0) as comm:
        job = elastic.Job(model, optimizer, batch=4, logical=2, comm=comm)
        yield job
        job.close()
    torch.use_deterministic_algorithms(False)


def test_a_share_that_was_not_computed(job: elastic.Job) -> None:
    step = next(job.steps(data_of(4)))
    with pytest.raises(RuntimeError, match="a share of step 0 was not computed"):
        list(step)


def test_a_share_that_was_computed_twice(job: elastic.Job) -> None:
    for step in job.steps(data_of(4)):
        for x, _ in step:
            step.backward(job.framework.model(x).sum())
            with pytest.raises(RuntimeError, match="is called once for each batch"):
                step.backward(job.framework.model(x).sum())


def test_a_step_that_was_left(job: elastic.Job) -> None:
    steps = job.steps(data_of(8))
    next(steps)
    with pytest.raises(RuntimeError, match="step 0 is not agreed on: iterate over it to its end"):
        next(steps)


def test_random_numbers_are_the_share_s(job: elastic.Job) -> None:
    import random

    found = []
    for step in job.steps(data_of(4)):
        for x, _ in step:
            found.append((torch.rand(()).item(), np.random.rand(), random.random()))
            step.backward(job.framework.model(x).sum())
    expected = []
    for worker in range(2):
        elastic.seed(share_seed(0, 0, worker))
        expected.append((torch.rand(()).item(), np.random.rand(), random.random()))
    assert found == expected


def test_modules_can_be_compiled_after_the_import() -> None:
    assert isinstance(torch.compile(nn.Linear(2, 2), backend="eager"), nn.Module)
