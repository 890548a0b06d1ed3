# SPDX-License-Identifier: Apache-2.0
"""Buckets of gradients, and the times at which they are complete."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ddl_elastic.step.partial import PartialSums

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import ddl_torch.elastic as elastic  # noqa: E402


def made(model: nn.Module, bucket_bytes: float) -> elastic.TorchAdapter:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    adapter = elastic.TorchAdapter(model, optimizer, bucket_bytes=bucket_bytes)
    adapter.result()
    adapter.begin(0)
    return adapter


def layers(*widths: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(widths)])


def gradients_of(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


class Calls:
    """Calls of `ready`: how many arrays are complete, and their contents at that time."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.held: list[list[float]] = []

    def __call__(self, share: Any, count: int) -> None:
        self.held += [array.tolist() for array in share[len(self.held) : count]]
        self.counts.append(count)


def test_the_last_parameters_come_first() -> None:
    adapter, calls = made(layers(2, 3, 4, 1), 4 * 10), Calls()
    share = adapter.backward(adapter.model(torch.ones(5, 2)).sum(), calls)
    numbers = 2 + 6
    assert [array.size for array in share] == [1 + 4 + 4 + 12, 3 + 6 + numbers]
    assert calls.counts == [1]  # the last array is complete at the end
    assert all(each.grad is None for each in adapter.model.parameters())
    gradients = gradients_of(adapter.model, adapter.model(torch.ones(5, 2)).sum())
    expected = torch.cat([each.reshape(-1) for each in reversed(gradients)])
    assert [*share[0], *share[1][:9]] == expected.tolist()
    assert calls.held == [share[0].tolist()]


@pytest.mark.parametrize(("bucket_bytes", "number"), [(1, 6), (4 * 12, 2), (2**20, 1)])
def test_gradients_do_not_depend_on_buckets(bucket_bytes: int, number: int) -> None:
    torch.manual_seed(0)
    adapter, calls = made(layers(2, 3, 4, 1), bucket_bytes), Calls()
    share = adapter.backward(adapter.model(torch.ones(5, 2)).square().sum(), calls)
    assert len(share) == number
    assert calls.counts == sorted(set(calls.counts))
    assert calls.counts[-1:] == [number - 1][: number - 1]
    for array, result in zip(share, adapter.result(), strict=True):
        result[:] = array
    adapter.apply()
    found = [each.grad for each in adapter.model.parameters()]
    adapter.begin(0)
    expected = gradients_of(adapter.model, adapter.model(torch.ones(5, 2)).square().sum())
    assert all(map(torch.equal, found, expected))


def test_each_type_has_its_own_buckets() -> None:
    model = layers(2, 2, 2, 2)
    model[1].to(torch.bfloat16)
    model[2].to(torch.float64)
    adapter = made(model, 1 << 20)
    assert [(array.dtype.name, array.size) for array in adapter.result()] == [
        *(("float64", 6), ("float32", 12 + 8))
    ]


class Partly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(2, 2, 2, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[3](self.layers[1](self.layers[0](x)))


def test_an_unused_parameter_holds_back_its_bucket_and_the_later_ones() -> None:
    adapter, calls = made(Partly(), 1), Calls()
    share = adapter.backward(adapter.model(torch.ones(5, 2)).sum(), calls)
    assert calls.counts[-1] == 2
    assert share[2].tolist() == share[3].tolist()[:2] == [0, 0]
    assert share.numbers[2:].tolist() == [1, 1, 0, 0, 1, 1, 1, 1]


def test_without_a_listener_nothing_is_called() -> None:
    adapter, calls = made(layers(2, 2, 2), 1), Calls()
    adapter.backward(adapter.model(torch.ones(5, 2)).sum(), calls)
    counts = list(calls.counts)
    adapter.backward(adapter.model(torch.ones(5, 2)).sum())
    adapter.model(torch.ones(5, 2)).sum().backward()
    assert calls.counts == counts


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


def test_two_gradients_of_one_parameter() -> None:
    """Each reentrant checkpoint is a separate backward pass within the other."""
    x = torch.ones(5, 2, requires_grad=True)
    adapter = made(Twice(), 1)
    with pytest.raises(NotImplementedError, match=r"shape \(2,\) got two gradients in one"):
        adapter.backward(adapter.model(x).sum(), Calls())
    adapter = made(Twice(), float("inf"))
    share = adapter.backward(adapter.model(x).sum(), Calls())
    gradients = gradients_of(adapter.model, adapter.model(x).sum())
    expected = torch.cat([each.reshape(-1) for each in reversed(gradients)])
    assert share[0][: len(expected)].tolist() == expected.tolist()


@pytest.mark.parametrize("logical", [1, 2, 5, 8])
def test_gradients_are_added_as_arrays_are(logical: int) -> None:
    torch.manual_seed(0)
    adapter, x = made(layers(2, 3, 4, 1), 4 * 12), torch.randn(logical, 5, 2)
    adapter.model.append(nn.BatchNorm1d(1))
    adapter.result()
    found, expected = PartialSums(logical, adapter.free, adapter.add), PartialSums(logical)
    for worker in range(logical):
        share, copied = adapter_shares(adapter, x[worker])
        expected.add(worker, [array.copy() for array in copied])
        adapter.free(copied)
        found.add(worker, share, 1)
        found.add(worker, share)
    for number in range(len(adapter.result())):
        (one,), (other,) = (each.arrays([(0, logical)], number) for each in (found, expected))
        assert one.tobytes() == other.tobytes()


def adapter_shares(adapter: elastic.TorchAdapter, x: torch.Tensor) -> list[Any]:
    shares = []
    for _ in range(2):
        adapter.begin(0)
        shares.append(adapter.backward(adapter.model(x).square().sum()))
    return shares


@pytest.mark.parametrize("odd", ["unused", "transposed", "bfloat16"])
def test_gradients_that_cannot_be_added_as_they_are(odd: str) -> None:
    model: nn.Module = Partly() if odd == "unused" else nn.Linear(3, 2, bias=False)
    if odd == "transposed":
        model.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).T)
    elif odd == "bfloat16":
        model.to(torch.bfloat16)
    adapter = made(model, 1 << 20)
    x = torch.arange(6.0).reshape(3, 2) if odd == "unused" else torch.arange(6.0).reshape(2, 3)
    share, copied = adapter_shares(adapter, x.to(next(model.parameters()).dtype))
    once = copied[0].copy()
    adapter.add(0, copied, share, copied)
    assert np.array_equal(copied[0], 2 * once)
    assert once[: 2 * 2].any()
