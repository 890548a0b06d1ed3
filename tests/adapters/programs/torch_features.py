# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_features on two or more ranks, with the name of a feature: features of PyTorch
that use process groups, over "ddl", compared with one process."""

import sys
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, CLASSES = 5, 5
FEATURES: dict[str, Callable[[], None]] = {}

warnings.filterwarnings("ignore", category=FutureWarning)  # names that PyTorch deprecates
dist.init_process_group("ddl", timeout=timedelta(seconds=100))
rank, size = dist.get_rank(), dist.get_world_size()
data = torch.Generator().manual_seed(3)
images = torch.randn(STEPS, 4 * size, 20, generator=data)
labels = torch.randint(CLASSES, (STEPS, 4 * size), generator=data)


def feature(function: Callable[[], None]) -> Callable[[], None]:
    FEATURES[function.__name__] = function
    return function


def network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5)
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rows: slice) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(images[step, rows]), labels[step, rows]).backward()
        optimizer.step()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def alone() -> torch.Tensor:
    model = network()
    train(model, adam(model), slice(None))
    return flat(list(model.parameters()))


def expect(weights: torch.Tensor, tolerance: float = 2e-5) -> None:
    difference = (weights - alone()).abs().max().item()
    assert difference < tolerance, difference
    others = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(others, weights)
    assert all(torch.equal(other, weights) for other in others)


MINE = slice(rank, None, size)


@feature
def fsdp2() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adam(model)
    train(model, optimizer, MINE)
    assert sum(p.to_local().numel() for p in model.parameters()) < 4000
    norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    assert norm.full_tensor() > 0
    expect(flat([p.full_tensor() for p in model.parameters()]))


@feature
def dtensor() -> None:
    """Tensors in parts: distributed, redistributed, multiplied, and a layer that is split into
    columns and rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (size,))
    a = torch.randn(4 * size + 1, 6, generator=data)
    b = torch.randn(6, 8, generator=data)
    left, right = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Replicate()])
    torch.testing.assert_close((left @ right).full_tensor(), a @ b)
    moved = left.redistribute(mesh, [Shard(1)])
    assert torch.equal(moved.full_tensor(), a)
    torch.testing.assert_close(
        (moved @ distribute_tensor(b, mesh, [Shard(0)])).full_tensor(), a @ b
    )
    torch.testing.assert_close(left.sum().full_tensor(), a.sum())

    model = network()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model, adam(model), slice(None))  # all ranks have all images
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    expect(flat(whole))


@feature
def inductor() -> None:
    model = DistributedDataParallel(network())
    train(torch.compile(model), adam(model), MINE)
    expect(flat(list(model.parameters())))


@feature
def compiled() -> None:
    model = DistributedDataParallel(network())
    train(torch.compile(model, backend="aot_eager"), adam(model), MINE)
    expect(flat(list(model.parameters())))


@feature
def zero1() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, optimizer, MINE)
    expect(flat(list(model.parameters())))
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == 6


@feature
def checkpoint() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network()
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
        return model, adam(model)

    model, optimizer = sharded()
    train(model, optimizer, MINE)
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id="checkpoint")

    again, optimizer2 = sharded()
    weights, states = get_state_dict(again, optimizer2)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id="checkpoint")
    set_state_dict(again, optimizer2, model_state_dict=weights, optim_state_dict=states)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.full_tensor(), other.full_tensor())
        assert torch.equal(
            optimizer.state[one]["exp_avg"].full_tensor(),
            optimizer2.state[other]["exp_avg"].full_tensor(),
        )
    plain = network()
    state = {"model": plain.state_dict()}
    dcp.load(state, checkpoint_id="checkpoint")
    plain.load_state_dict(state["model"])
    expect(flat(list(plain.parameters())))


@feature
def gloo() -> None:
    """Train over Gloo and twice over ddl: equal weights within rounding, and the same bits in both
    runs over ddl."""
    ends = []
    for backend in ("ddl", "ddl", "gloo"):
        group = dist.new_group(list(range(size)), backend=backend)
        model = DistributedDataParallel(network(), process_group=group, bucket_cap_mb=0.01)
        train(model, adam(model), MINE)
        ends.append(flat(list(model.parameters())))
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-5, atol=1e-6)
    expect(ends[0])


def hook_makers() -> dict[str, Callable[[object, object], tuple[object, Callable]]]:
    """Return the makers of PyTorch's hooks: of the state and the hook for a group, and a group of
    this rank alone."""
    from torch.distributed.algorithms.ddp_comm_hooks import (
        default_hooks,
        post_localSGD_hook,
        powerSGD_hook,
    )

    def of_group(hook):  # type: ignore[no-untyped-def]
        return lambda group, alone: (group, hook)

    def power(hook, **options):  # type: ignore[no-untyped-def]
        usual = {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2}
        usual["min_compression_rate"] = 0.5
        return lambda group, alone: (
            powerSGD_hook.PowerSGDState(group, **{**usual, **options}),
            hook,
        )

    def local(group, alone):  # type: ignore[no-untyped-def]
        state = post_localSGD_hook.PostLocalSGDState(group, alone, start_localSGD_iter=2)
        return state, post_localSGD_hook.post_localSGD_hook

    # PyTorch 2.13's batched PowerSGD calls this function with matrices, for which it raises an
    # error.
    orthogonalize = powerSGD_hook._orthogonalize
    powerSGD_hook._orthogonalize = lambda matrices, epsilon=0: orthogonalize(
        matrices if matrices.dim() == 3 else matrices[None], epsilon
    )
    wrapped = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
    return {
        "allreduce": of_group(default_hooks.allreduce_hook),
        "fp16": of_group(default_hooks.fp16_compress_hook),
        "bf16": of_group(default_hooks.bf16_compress_hook),
        "power": power(powerSGD_hook.powerSGD_hook),
        "power, equal shapes": power(
            powerSGD_hook.powerSGD_hook, batch_tensors_with_same_shape=True
        ),
        "power, fp16": power(wrapped),
        "batched power": power(powerSGD_hook.batched_powerSGD_hook),
        "local": local,
    }


BUCKETS = {25: 1, 0.009: 2, 1e-4: 5}  # megabytes: number of buckets


@feature
def all_hooks() -> None:
    """Compare PyTorch's hooks over ddl and over Gloo, with one bucket and several. Some hooks start
    operations in callbacks. Over Gloo these crash unless each bucket waits for the one before.

    Some start operations in callbacks. Over Gloo these crash unless each bucket waits for the one
    before.
    """

    def train_with(backend, make, megabytes):  # type: ignore[no-untyped-def]
        group, alone = groups[backend]
        model = DistributedDataParallel(
            network(), process_group=group, bucket_cap_mb=megabytes, gradient_as_bucket_view=True
        )
        state, hook = make(group, alone)
        seen = set()

        def watched(state, bucket):  # type: ignore[no-untyped-def]
            seen.add(bucket.index())
            future = hook(state, bucket)
            if backend == "gloo":
                future.wait()
            return future

        model.register_comm_hook(state, watched)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), MINE)
        assert len(seen) == BUCKETS[megabytes], (megabytes, seen)
        return flat(list(model.parameters()))

    groups = {
        backend: (
            dist.new_group(backend=backend),
            [dist.new_group([each], backend=backend) for each in range(size)][rank],
        )
        for backend in ("ddl", "gloo")
    }
    for name, make in hook_makers().items():
        for megabytes in BUCKETS:
            ours, theirs = (train_with(backend, make, megabytes) for backend in groups)
            difference = (ours - theirs).abs().max().item()
            assert difference < (2e-2 if "fp16" in name or name == "bf16" else 1e-3), (
                name,
                megabytes,
                difference,
            )


@feature
def quantization_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, quantization_hooks

    def gradients(hook, megabytes):  # type: ignore[no-untyped-def]
        model = DistributedDataParallel(network(), bucket_cap_mb=megabytes)
        seen, ranges = set(), []

        def watched(group, bucket):  # type: ignore[no-untyped-def]
            seen.add(bucket.index())
            ranges.append((bucket.buffer().max() - bucket.buffer().min()).item())
            return hook(group, bucket)

        model.register_comm_hook(dist.group.WORLD, watched)
        for _ in range(3):
            model.zero_grad()
            cross_entropy(model(images[0, MINE]), labels[0, MINE]).backward()
        assert len(seen) == BUCKETS[megabytes], (megabytes, seen)
        return flat([parameter.grad for parameter in model.parameters()]), max(ranges)

    for megabytes in BUCKETS:
        exact, _ = gradients(default_hooks.allreduce_hook, megabytes)
        for hook in (
            quantization_hooks.quantization_pertensor_hook,
            quantization_hooks.quantization_perchannel_hook,
        ):
            quantized, largest = gradients(hook, megabytes)
            others = [torch.empty_like(quantized) for _ in range(size)]
            dist.all_gather(others, quantized)
            assert all(torch.equal(other, quantized) for other in others)
            widest = torch.tensor([largest])  # of the values in a step of 255
            dist.all_reduce(widest, dist.ReduceOp.MAX)
            difference = (quantized - exact).abs().max().item()
            assert 0 < difference <= widest.item() / 255, (hook, megabytes, difference)


@feature
def zero_hooks() -> None:
    """ZeRO's steps in the hooks of buckets, and between the hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def sgd(parameters, **options):  # type: ignore[no-untyped-def]
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **options)

    wanted = network()
    train(wanted, sgd(wanted.parameters()), slice(None))
    for add in (ddp_zero_hook.hook_with_zero_step, ddp_zero_hook.hook_with_zero_step_interleaved):
        for megabytes in BUCKETS:
            model = DistributedDataParallel(network(), bucket_cap_mb=megabytes)
            optimizer = ZeroRedundancyOptimizer(
                model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1, momentum=0.9
            )
            hook = add(default_hooks.allreduce_hook, model, optimizer)
            model.register_comm_hook(None, hook)
            for step in (0, 0, *range(STEPS)):  # the first two make no update
                model.zero_grad()
                cross_entropy(model(images[step, MINE]), labels[step, MINE]).backward()
            mine = flat(list(model.parameters()))
            torch.testing.assert_close(mine, flat(list(wanted.parameters())), rtol=0, atol=2e-5)


@feature
def mesh2d() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("across", "within"))
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mesh["within"].get_group())
    assert tensor.item() == rank // 2 * 4 + 1
    model = network()
    fully_shard(model, mesh=mesh)
    train(model, adam(model), MINE)
    expect(flat([p.full_tensor() for p in model.parameters()]))


@feature
def shrink() -> None:
    """The default group without its last rank, which leaves. No other feature may follow."""
    if rank < size - 1:
        dist.shrink_group([size - 1])
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert (dist.get_world_size(), tensor.item()) == (size - 1, size - 1)


for name in sys.argv[1:]:
    FEATURES[name]()
    print(f"done {name}", flush=True)
dist.destroy_process_group()
