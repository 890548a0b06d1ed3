# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_collectives on each rank: gradients through operations.

    python torch_gradients.py

Expected gradients are finite differences: every loss is linear in every rank's input, so the
difference in the sum of the ranks' losses is the derivative of a float64, but for rounding.
"""

import torch
from checks import refused
from torch import Tensor

import ddl_torch as ddl

ddl.init()
rank, size = ddl.rank(), ddl.size()
checked = 0


def values(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return small numbers that differ between ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(31 * seed + rank)).to(dtype)


def total_loss(function, inputs: list[Tensor]) -> float:
    loss = sum((each * values(each.shape, 7 + i)).sum() for i, each in enumerate(function(*inputs)))
    return ddl.allreduce(loss.detach().clone()).item(), loss


def expect_gradient(function, *shapes: tuple[int, ...]) -> None:
    """Compare the result of backward() with finite differences. `function` returns a list."""
    global checked
    inputs = [values(shape, i).requires_grad_() for i, shape in enumerate(shapes)]
    before, loss = total_loss(function, inputs)
    loss.backward()
    for of in range(size):  # the rank whose input is changed
        for number, tensor in enumerate(inputs):
            counts = ddl.allgather(torch.tensor(tensor.numel()))
            for index in range(int(counts[of])):
                with torch.no_grad():
                    changed = [each.detach().clone() for each in inputs]
                    if rank == of:
                        changed[number].view(-1)[index] += 1.0
                    after, _ = total_loss(function, changed)
                if rank == of:
                    got = tensor.grad.reshape(-1)[index].item()
                    assert abs(got - (after - before)) < 1e-9, (got, after - before, of, index)
                    checked += 1


# ---- ddl_torch's own operations ----

x = torch.tensor([1.0], requires_grad=True)
((x * 2).sum() + ddl.allreduce(x * 3).sum()).backward()
assert x.grad.item() == 2 + 3 * size, x.grad

rows = [of % 3 for of in range(size)]  # none on rank 0
sent = [(rank + to) % 3 for to in range(size)]
for op in ("sum", "average"):
    expect_gradient(lambda a, op=op: [ddl.allreduce(a, op)], (2, 3))
    expect_gradient(lambda a, op=op: [ddl.reduce_scatter(a, op)], (2 * size, 2))
    expect_gradient(lambda a, b, op=op: ddl.grouped_allreduce([a, b], op), (3,), (2, 2))
    expect_gradient(
        lambda a, b, op=op: [each * 2 for each in ddl.grouped_allreduce_async([a, b], op).wait()],
        (),
        (1,),
    )
for root in range(size):
    expect_gradient(lambda a, root=root: [ddl.broadcast(a, root)], (2, 2))
expect_gradient(lambda a: [ddl.allgather(a)], (2, 2))
expect_gradient(lambda a: [ddl.allgather(a)], ())
expect_gradient(lambda a: [ddl.allgather(a, rows)], (rows[rank], 2))
expect_gradient(lambda a: [ddl.alltoall(a)], (2 * size, 2))
expect_gradient(lambda a: [ddl.alltoall(a, sent)], (sum(sent), 2))
expect_gradient(lambda a: [ddl.alltoall(a, sent, sent)], (sum(sent),))


def several(a: Tensor, b: Tensor) -> list[Tensor]:
    first, second = ddl.allreduce_async(a * b), ddl.allgather_async(a)
    third, fourth = ddl.broadcast_async(b, size - 1), ddl.reduce_scatter_async(a.repeat(size, 1))
    fifth = ddl.alltoall_async(b.repeat(size, 1))
    results = [each.wait() for each in (fifth, fourth, third, second)]
    return [*results, first.wait() / 10]


x, y = values((2, 2), 0).requires_grad_(), values((2, 2), 1)
expect_gradient(lambda a: several(a, y), (2, 2))
expect_gradient(lambda b: several(x.detach(), b), (2, 2))

# Whatever else is in the graphs, the backward operations of all ranks have the same order.
expect_gradient(
    lambda a, b: [
        (first := ddl.allreduce(a if rank else a * 1 + 0 * b.sum())),
        ddl.allreduce(b) if rank == 0 else (ddl.allreduce(b) * 2) * 0.5,
        ddl.allgather(first * 2),
    ],
    (2,),
    (3,),
)

# Only one rank needs the gradient of its input.
x = values((3,), 0).requires_grad_()
loss = ddl.broadcast(x * 2, 0).sum() * (rank + 1)
loss.backward()
assert x.grad.tolist() == [size * (size + 1.0) if rank == 0 else 0.0] * 3, x.grad
# A result that has no weight in one rank's loss.
x = values((3,), 0).requires_grad_()
first, second = ddl.grouped_allreduce([x, x * 2])
(first.sum() + (second.sum() if rank == 0 else 0)).backward()
assert x.grad.tolist() == [size + 2.0] * 3, x.grad
# Types without gradients mixed with others; complex numbers.
x = values((3,), 0).requires_grad_()
counted, summed = ddl.grouped_allreduce([torch.tensor([rank]), x])
assert counted.item() == size * (size - 1) // 2 and not counted.requires_grad
summed.sum().backward()
assert x.grad.tolist() == [size] * 3
x = torch.complex(values((3,), 0), values((3,), 1)).requires_grad_()
(ddl.allreduce(x) * 2j).real.sum().backward()
assert x.grad.tolist() == [-2j * size] * 3, x.grad

# Gradients of gradients.
x = values((2,), 0).requires_grad_()
loss = ddl.allgather(ddl.allreduce(x, "average") ** 3).sum()
(gradient,) = torch.autograd.grad(loss, x, create_graph=True)
mean = ddl.allreduce(x.detach(), "average")
assert torch.allclose(gradient, 3 * size * mean**2), (gradient, mean)
(second,) = torch.autograd.grad(gradient.sum(), x)
assert torch.allclose(second, 6 * size * mean), (second, mean)

# The future's tensors are the results.
x = values((2,), 0).requires_grad_()
(result,) = ddl.allreduce_async(x).future().wait()
result.sum().backward()
assert x.grad.tolist() == [size] * 2


x = values((size,), 0).requires_grad_()
for op in ("min", "max", "product"):
    result = ddl.allreduce(x, op)
    refused(NotImplementedError, f"allreduce with op {op} has no gradient", result.sum().backward)
result = ddl.reduce_scatter(x, "max")
refused(NotImplementedError, "reduce_scatter with op max has no gradient", result.sum().backward)
for function in (ddl.allreduce, ddl.broadcast):
    refused(RuntimeError, "omit `out`", function, x, out=torch.empty(size).double())
    refused(RuntimeError, "omit `out`", function, x.detach(), out=x)
    with torch.no_grad():
        function(x.detach(), out=x)
refused(RuntimeError, "omit `out`", ddl.grouped_allreduce, [x], out=[torch.ones(size).double()])
with torch.no_grad():
    assert not ddl.allreduce(x).requires_grad
assert not ddl.allreduce(x.detach()).requires_grad

ddl.shutdown()
print(f"checked {checked}", flush=True)
