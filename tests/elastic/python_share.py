# SPDX-License-Identifier: Apache-2.0
"""The processor time that elastic training adds to a step.

    python tests/elastic/python_share.py [STEPS]

One process with one logical worker trains a small convolutional network with batch norm, by an
elastic loop and by a plain one. Both read the same samples and compute the same. Prints a table: by
the number of parameters, the processor time of a step's thread in both, and the difference; then
the same difference where the network computes nothing, and the gradients are given: then what a
step needs is still in the processor's caches. Each time is the median of a round of steps, and the
least of several rounds, since other load on the machine makes steps longer.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import ddl_core
import ddl_torch.elastic as elastic
from ddl_elastic.shares.sampler import Sampler, sample_seed

BATCH, CHANNELS, CLASSES = 4, 8, 10
ROUNDS = 10  # of each loop, in turns


class Network(nn.Sequential):
    def __init__(self, layers: int) -> None:
        parts: list[nn.Module] = [nn.Conv2d(1, CHANNELS, 1)]
        for _ in range(layers):
            parts += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)]
            parts += [nn.BatchNorm2d(CHANNELS), nn.ReLU()]
        super().__init__(*parts, nn.Flatten(), nn.Linear(CHANNELS * 64, CLASSES))


def make(layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Network(layers)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def read(sampler: Sampler, data: list[Any], step: int) -> list[Any]:
    samples, share = [], sampler.share(step, 0)
    for in_pass, index in zip(share.passes.tolist(), share.indices.tolist(), strict=True):
        elastic.seed(sample_seed(0, in_pass, index))
        samples.append(data[index])
    return samples


class Given:
    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._gradients = [torch.randn_like(each) for each in self._parameters]

    def backward(self) -> None:
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def item(self) -> float:
        return 1.0


def losses(model: nn.Module, computes: bool) -> Callable[..., Any]:
    given = Given(model)
    if computes:
        return lambda x, y: nn.functional.cross_entropy(model(x), y)
    return lambda _x, _y: given


def plain(layers: int, computes: bool, data: list[Any], steps: int) -> Iterator[None]:
    model, optimizer = make(layers)
    loss = losses(model, computes)
    sampler = Sampler(len(data), BATCH, 1, 0)
    for number in range(steps):
        x, y = torch.utils.data.default_collate(read(sampler, data, number))
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()
        yield


def changed(layers: int, computes: bool, data: list[Any], steps: int) -> Iterator[None]:
    model, optimizer = make(layers)
    loss = losses(model, computes)
    with ddl_core.Endpoint(secret="") as endpoint:
        comm = endpoint.connect([endpoint.address], 0)
        job = elastic.Job(model, optimizer, batch=BATCH, logical=1, comm=comm)
        for step in job.steps(data, passes=-(-steps * BATCH // len(data))):
            for x, y in step:
                step.backward(loss(x, y))
            optimizer.step()
            yield
        job.close()


def times(steps: Iterator[None]) -> list[float]:
    found, last = [], time.thread_time()
    for _ in steps:
        now = time.thread_time()
        found.append(1e6 * (now - last))
        last = now
    return found[5:]


def measure(layers: int, computes: bool, data: list[Any], steps: int) -> list[float]:
    """Return the times of the plain loop and of the elastic loop."""
    medians: dict[Any, list[float]] = {plain: [], changed: []}
    for _ in range(ROUNDS):
        for loop, found in medians.items():
            found.append(statistics.median(times(loop(layers, computes, data, steps // ROUNDS))))
    return [min(found) for found in medians.values()]


def main(steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(1, 8, 8, generator=generator), n % CLASSES) for n in range(256)]
    elastic.pin(threads=1)
    print("| parameters | buffers | plain | elastic | difference | nothing computed |")
    print("|---|---|---|---|---|---|")
    for layers in (5, 19):
        model = make(layers)[0]
        sizes = len([*model.parameters()]), len([*model.buffers()])
        plainly, elastically = measure(layers, True, data, steps)
        without, with_it = measure(layers, False, data, steps)
        found = (plainly, elastically, elastically - plainly, with_it - without)
        shown = [f"{each:.0f} us" for each in found]
        print("|", " | ".join([*map(str, sizes), *shown]), "|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
