# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_collectives on any number of ranks: ddl_torch's optimizer, batch normalization
and helpers, compared with one process that has the whole batch."""

import copy
import warnings

import torch
import torch.distributed as dist
from checks import refused
from torch import nn
from torch.nn.functional import cross_entropy

import ddl_torch as ddl
from ddl_core.errors import InvalidArgument, InvalidState

refused(
    InvalidState,
    "call ddl_torch.init() first",
    ddl.DistributedOptimizer,
    torch.optim.SGD([nn.Parameter(torch.ones(1))]),
)
ddl.init(timeout=60)
rank, size = ddl.rank(), ddl.size()
data = torch.Generator().manual_seed(3)
STEPS, BATCH = 6, 4 * size
images = torch.randn(STEPS, BATCH, 20, generator=data)
labels = torch.randint(5, (STEPS, BATCH), generator=data)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rows: slice, passes: int = 1) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        mine = range(BATCH)[rows]
        for part in range(passes):
            each = list(mine[part::passes])
            (cross_entropy(model(images[step, each]), labels[step, each]) / passes).backward()
        optimizer.step()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


alone = network()
train(alone, sgd(alone), slice(None))

# ---- DistributedOptimizer ----

for what, tolerance, passes, options in [
    ("plain", 1e-5, 1, {}),
    ("many buckets", 1e-5, 1, {"bucket_bytes": 1000}),
    ("two passes", 1e-5, 2, {"backward_passes_per_step": 2}),
    ("f16", 0.01, 1, {"compression": "f16"}),
    ("bf16", 0.05, 1, {"compression": "bf16", "bucket_bytes": 1000}),
]:
    model = network(rank)
    ddl.broadcast_parameters(model)
    optimizer = ddl.DistributedOptimizer(sgd(model), **options)
    assert isinstance(optimizer, torch.optim.SGD)
    train(model, optimizer, slice(rank, None, size), passes)
    difference = (flat(model) - flat(alone)).abs().max().item()
    assert difference < tolerance, (what, difference)
    assert options.get("compression") is None or size == 1 or difference > 1e-7, "not compressed"
    for other in ddl.allgather(flat(model)[None]):
        assert torch.equal(other, flat(model)), what
    if rank == 0:
        print(f"{what}: {difference:.1e}")

# Clipping before the step, sums, Adam, a parameter that only one rank uses, a frozen one.
model = network()
extra = nn.Parameter(torch.ones(3))
parameters = [*model.parameters(), extra, nn.Parameter(torch.ones(2), requires_grad=False)]
optimizer = ddl.DistributedOptimizer(torch.optim.Adam(parameters), op="sum")
loss = cross_entropy(model(images[0, rank::size]), labels[0, rank::size])
if rank == size - 1:
    loss = loss + (extra * 2).sum()
loss.backward()
optimizer.synchronize()
assert extra.grad.tolist() == [2.0] * 3
norm = nn.utils.clip_grad_norm_(parameters, 1e-3)
assert len(set(ddl.allgather_object(float(norm)))) == 1
optimizer.step()
assert (extra < 1).all() and torch.equal(ddl.broadcast(extra.detach()), extra.detach())

# Sparse gradients.
table = nn.Embedding(10, 3, sparse=True)
nn.init.ones_(table.weight)
optimizer = ddl.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
table(torch.tensor([rank, 9])).sum().backward()
optimizer.step()
wanted = torch.ones(10, 3)
wanted[:size] -= 1 / size
wanted[9] -= 1
assert torch.allclose(table.weight, wanted)
optimizer.zero_grad()
if rank == 0:  # the gradients of other ranks are zero, but sparse
    table(torch.tensor([9])).sum().backward()
optimizer.step()
wanted[9] -= 1 / size
assert torch.allclose(table.weight, wanted)

# Calls in the wrong order.
model = network()
plain = sgd(model)
refused(InvalidArgument, "op is 'max'", ddl.DistributedOptimizer, plain, op="max")
refused(
    InvalidArgument,
    "backward_passes_per_step is 0",
    ddl.DistributedOptimizer,
    plain,
    backward_passes_per_step=0,
)
refused(InvalidArgument, "compression is 'zip'", ddl.DistributedOptimizer, plain, compression="zip")
optimizer = ddl.DistributedOptimizer(plain)
refused(InvalidArgument, "is already a DistributedOptimizer", ddl.DistributedOptimizer, plain)
model(images[0]).sum().backward()
refused(InvalidState, "backward() was called again before step()", model(images[0]).sum().backward)
optimizer.step()
refused(InvalidState, "step(closure)", optimizer.step, lambda: 0.0)

# ---- the optimizer's state ----

source = network(rank)
optimizer = torch.optim.Adam(source.parameters(), lr=0.1 * (rank + 1))
if rank == size - 1:
    for _ in range(3):
        source(images[0]).sum().backward()
        optimizer.step()
before = copy.deepcopy(optimizer.state_dict())
ddl.broadcast_optimizer_state(optimizer, root=size - 1)
for of, state in enumerate(ddl.allgather_object(optimizer.state_dict())):
    assert state["param_groups"][0]["lr"] == 0.1 * size, of
    assert state["state"].keys() == set(range(6))
    for number, values in state["state"].items():
        assert values["step"] == 3
        assert torch.equal(values["exp_avg"], optimizer.state_dict()["state"][number]["exp_avg"])
if rank == size - 1:
    torch.testing.assert_close(before, optimizer.state_dict(), rtol=0, atol=0)

# ---- batch normalization ----

for shape in [(3 * size, 4), (2 * size, 4, 5), (2 * size, 4, 3, 3)]:
    for affine, momentum in [(True, 0.1), (False, None)]:
        batch = torch.randn(shape, generator=data, dtype=torch.float64) * 3 + 5
        usual = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
        one = usual(4, affine=affine, momentum=momentum).double()
        many = ddl.SyncBatchNorm.convert(nn.Sequential(copy.deepcopy(one)))
        assert isinstance(many[0], ddl.SyncBatchNorm)
        whole, part = batch.clone().requires_grad_(), batch[rank::size].clone().requires_grad_()
        weights = torch.randn(shape, generator=data, dtype=torch.float64)
        wanted = one(whole)
        (wanted * weights).sum().backward()
        actual = many(part)
        (actual * weights[rank::size]).sum().backward()
        torch.testing.assert_close(actual, wanted[rank::size])
        torch.testing.assert_close(part.grad, whole.grad[rank::size])
        torch.testing.assert_close(many[0].running_mean, one.running_mean)
        torch.testing.assert_close(many[0].running_var, one.running_var)
        if affine:
            torch.testing.assert_close(ddl.allreduce(many[0].weight.grad), one.weight.grad)
            torch.testing.assert_close(ddl.allreduce(many[0].bias.grad), one.bias.grad)
        torch.testing.assert_close(many.eval()(part), one.eval()(whole)[rank::size])
        many.train()

        # Gradients of gradients, for a penalty, as in the training of generative networks.
        # PyTorch's own layer computes a wrong gradient of the third order.
        def plain(rows, layer=one):  # type: ignore[no-untyped-def]
            over = [0, *range(2, rows.dim())]
            variance, mean = torch.var_mean(rows, over, unbiased=False, keepdim=True)
            result = (rows - mean) * (variance + layer.eps).rsqrt()
            if layer.weight is None:
                return result
            return result * layer.weight.view(mean.shape) + layer.bias.view(mean.shape)

        slope = torch.randn(4, 4, generator=data, dtype=torch.float64)
        higher = []
        for model, rows in ((plain, batch), (many, batch[rank::size])):
            mixing, given = slope.clone().requires_grad_(), rows.clone().requires_grad_()
            result = model(torch.einsum("ni...,ij->nj...", given, mixing))
            (first,) = torch.autograd.grad((result**3).sum(), given, create_graph=True)
            second = torch.autograd.grad((first**2).sum(), [given, mixing], create_graph=True)
            third = torch.autograd.grad((second[0] ** 2).sum(), given)
            higher.append((first, second[0], third[0], second[1]))
        for wanted, actual in zip(*(each[:3] for each in higher), strict=True):
            torch.testing.assert_close(actual, wanted[rank::size])
        torch.testing.assert_close(ddl.allreduce(higher[1][3].detach()), higher[0][3].detach())
uneven = torch.randn(10 * size, 4, generator=data)
mine = uneven[10 * rank : 10 * rank + 10] if rank else uneven[:3]
rest = torch.cat([uneven[:3], uneven[10:]])
result = ddl.SyncBatchNorm(4)(mine)
begin = 0 if rank == 0 else 3 + 10 * (rank - 1)
torch.testing.assert_close(result, nn.BatchNorm1d(4)(rest)[begin : begin + len(mine)])
half = ddl.SyncBatchNorm(4)(uneven[rank::size].bfloat16())
assert half.dtype == torch.bfloat16
refused(ValueError, "input has 1 dimensions", ddl.SyncBatchNorm(4), torch.ones(4))

# ---- metrics, and the learning rate ----

average = ddl.average_metrics({"loss": rank, "accuracy": torch.tensor(0.5)}, weight=rank + 1)
total = size * (size + 1) / 2
assert abs(average["loss"] - sum(r * (r + 1) for r in range(size)) / total) < 1e-12
assert abs(average["accuracy"] - 0.5) < 1e-12
assert ddl.average_metrics({"x": 1.0}, weight=0) == {"x": 0.0}
refused(InvalidArgument, "weight is -1", ddl.average_metrics, {}, -1)
warnings.filterwarnings("ignore", "Detected call of")
optimizer = sgd(network())
schedule = ddl.scaled_warmup(optimizer, 4, scale=8, after=lambda step: 0.5**step)
rates = []
for _ in range(7):
    rates.append(optimizer.param_groups[0]["lr"])
    optimizer.step()
    schedule.step()
assert torch.allclose(torch.tensor(rates), torch.tensor([1, 2.75, 4.5, 6.25, 8, 4, 2]) * 0.1)
schedule = ddl.scaled_warmup(sgd(network()), 0)
assert schedule.get_last_lr() == [0.1 * size]
refused(InvalidArgument, "steps is -1", ddl.scaled_warmup, optimizer, -1)

ddl.shutdown()
assert not dist.is_initialized()
print("done")
