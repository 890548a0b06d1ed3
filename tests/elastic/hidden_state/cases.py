# SPDX-License-Identifier: Apache-2.0
"""Programs with hidden state: `ddl elastic verify cases.py NAME`. Another file has those of other
frameworks than this one's.

Each case is one small program. CASES has, for each, the causes that `ddl elastic verify` may name,
and where users have reported such a program. A case "may be right" if the job handles its state.
The cases were written before the command.
"""

import copy
import itertools
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """One program, and the expected findings.

    run      trains
    causes   regular expressions: one of them is in the cause that is named
    source   where users have reported such a program; "": it is in the issue's own list
    is_right whether the job may keep the law with it
    """

    run: Callable[[], None]
    causes: tuple[str, ...]
    source: str = ""
    is_right: bool = False


CASES: dict[str, Case] = {}


def case(name: str, *causes: str, source: str = "", is_right: bool = False) -> Any:
    """Add a function to the cases."""

    def add(run: Callable[[], None]) -> Callable[[], None]:
        CASES[name] = Case(run, causes, source, is_right)
        return run

    return add


# ---- shared by most cases ----


class Samples:
    def __init__(self, count: int = 64) -> None:
        values = np.random.default_rng(3).normal(size=(count, 8))
        self.x = values.astype(np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], index % 3


def make_net() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 3))


def train(model: Any, data: Any, after: Any = None, loss: Any = None, **options: Any) -> None:
    import torch

    import ddl_torch.elastic as elastic

    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    loss = loss or torch.nn.functional.cross_entropy
    job = elastic.Job(model, optimizer, batch=8, logical=4, **options)
    for step in job.steps(data, passes=4):
        for x, y in step:
            step.backward(loss(model(x), y))
        optimizer.step()
        if after:
            after(step.number)


# ---- the cases of the issue ----


class NoisySamples(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        noise = self.generator.normal(size=8).astype(np.float32)
        return self.x[index] + noise, index % 3


@case("own generator", r"generator.*NoisySamples.*\.generator|NoisySamples\.generator.* generator")
def own_generator() -> None:
    train(make_net(), NoisySamples())


@case("queue", r"queue.*not a buffer")
def queue() -> None:
    import torch
    from torch import nn

    class Queue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.queue = make_net(), torch.zeros(3)

        def forward(self, x: Any) -> Any:
            found = self.net(x)
            self.queue = 0.9 * self.queue + found.detach().mean(0)
            return found - self.queue

    train(Queue(), Samples())


@case("averaged weights", r"averaged.*also")
def averaged_weights() -> None:
    """The program trains towards an average that it keeps in a dictionary."""
    import torch

    model = make_net()
    averaged = {name: each.detach().clone() for name, each in model.named_parameters()}

    def after(number: int) -> None:
        with torch.no_grad():
            for name, each in model.named_parameters():
                averaged[name] = 0.9 * averaged[name] + 0.1 * each
                each.lerp_(averaged[name], 0.05)

    train(model, Samples(), after)


@case("dropout at a step", r"\bp\b.*(attribute|not a buffer)")
def dropout_at_a_step() -> None:
    model = make_net()

    def after(number: int) -> None:
        if number == 4:
            model[2].p = 0.5

    train(model, Samples(), after)


class CachingSamples(Samples):
    def __init__(self) -> None:
        super().__init__(24)
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            noise = np.random.normal(size=8).astype(np.float32)
            self.cache[index] = self.x[index] + noise
        return self.cache[index], index % 3


@case("cache of augmented samples", r"CachingSamples.*\.cache|cache.*CachingSamples")
def cache_of_augmented_samples() -> None:
    train(make_net(), CachingSamples())


class ComposeLikeAlbumentations:
    def __init__(self, transforms: list[Any], seed: int | None = None) -> None:
        self.transforms = transforms
        self.random_generator = np.random.default_rng(seed)
        self.py_random = random.Random(seed)

    def __call__(self, image: Any) -> Any:
        for each in self.transforms:
            if self.py_random.random() < each.p:
                image = each.apply(image, self.random_generator)
        return image


class GaussNoiseLikeAlbumentations:
    def __init__(self, p: float) -> None:
        self.p = p

    def apply(self, image: Any, generator: Any) -> Any:
        return (image + generator.normal(size=image.shape)).astype(np.float32)


class AugmentedSamples(Samples):
    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.x[index]), index % 3


@case("albumentations", r"generator.*transform|transform.*generator")
def albumentations() -> None:
    transform = ComposeLikeAlbumentations([GaussNoiseLikeAlbumentations(p=0.5)], seed=7)
    train(make_net(), AugmentedSamples(transform))


@case("order of a set", r"order of a set", is_right=True)
def order_of_a_set() -> None:
    import torch

    model = make_net()
    with torch.no_grad():
        for number, name in enumerate({each for each, _ in model.named_parameters()}):
            model.get_parameter(name).mul_(1 + number / 8)
    train(model, Samples())


@case("subset of each epoch", r"generator", r"random", r"len", is_right=True)
def subset_of_each_epoch() -> None:
    """Each epoch has a subset with another length, drawn from the global generators."""
    import torch

    import ddl_torch.elastic as elastic

    random.seed(2)
    model, data = make_net(), Samples()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    job = elastic.Job(model, optimizer, batch=8, logical=4)
    for _ in range(6):
        count = random.randrange(24, 64)
        subset = torch.utils.data.Subset(data, torch.randperm(64)[:count].tolist())  # type: ignore
        for step in job.steps(subset, passes=1):
            for x, y in step:
                step.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()


# ---- ten more, which users have reported ----


@case(
    "step counter",
    r"calls.*not a buffer",
    source="mujocolab/mjlab#484: a counter of steps that anneals a loss",
)
def step_counter() -> None:
    from torch import nn

    class Annealed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls = make_net(), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return self.net(x) * min(1.0, 0.1 + self.calls / 100)

    train(Annealed(), Samples())


class ImagePool:
    """A stand-in for the pool of CycleGAN, which returns earlier results at random."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.images: list[Any] = []

    def query(self, batch: Any) -> Any:
        self.images = [*self.images, batch.detach().mean()][-self.size :]
        return batch - random.choice(self.images)


@case(
    "image pool",
    r"images.*(not a buffer|also|not part)",
    source="junyanz/pytorch-CycleGAN-and-pix2pix#1380: the loss is higher after a resume",
)
def image_pool() -> None:
    from torch import nn

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.pool = make_net(), ImagePool(16)

        def forward(self, x: Any) -> Any:
            return self.pool.query(self.net(x))

    train(Pooled(), Samples())


@case(
    "gradient scaler",
    r"scaler.*also",
    source="huggingface/transformers#11663, pytorch/vision#4923: the scaler is not saved",
)
def gradient_scaler() -> None:
    import torch

    import ddl_torch.elastic as elastic

    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=3.0, growth_factor=1.3, growth_interval=1)
    scaler.scale(torch.zeros(1))
    job = elastic.Job(model, optimizer, batch=8, logical=4)
    for step in job.steps(Samples(), passes=4):
        for x, y in step:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            step.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()


class Lookahead:
    """An optimizer's wrapper with slow weights, as in the reported programs."""

    def __init__(self, model: Any) -> None:
        self.model, self.count = model, 0
        self.slow = [copy.deepcopy(each.data) for each in model.parameters()]

    def step(self) -> None:
        self.count += 1
        if self.count % 3 == 0:
            for slow, fast in zip(self.slow, self.model.parameters(), strict=True):
                slow += 0.5 * (fast.data - slow)
                fast.data.copy_(slow)


@case(
    "lookahead",
    r"Lookahead.*\.(slow|count).*also",
    r"lookahead.*\.(slow|count).*also",
    source="mgrankin/over9000#6, kozistr/pytorch_optimizer#310: slow weights are not saved",
)
def lookahead() -> None:
    model = make_net()
    lookahead = Lookahead(model)
    train(model, Samples(), lambda number: lookahead.step())


@case(
    "threads by cores",
    r"thread",
    source="pytorch/pytorch#88718, pytorch/pytorch#2201: set_num_threads changes the results",
)
def threads_by_cores() -> None:
    import torch
    from torch import nn

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(8, 4440), nn.ReLU(), nn.Linear(4440, 3))

        def forward(self, x: Any) -> Any:
            torch.set_num_threads(len(os.sched_getaffinity(0)))
            return self.net(x)

    train(Wide(), Samples())


class SeededByName(Samples):
    def __getitem__(self, index: int) -> Any:
        noise = np.random.default_rng(hash(f"image{index}") % 2**32).normal(size=8)
        return self.x[index] + noise.astype(np.float32), index % 3


@case(
    "hash of a name",
    r"order of a set.*hash|hash.*order of a set",
    source="PolicyEngine/policyengine-core#455, for-all-dev/git-history-evals#120",
    is_right=True,
)
def hash_of_a_name() -> None:
    train(make_net(), SeededByName())


class SequentialSamples(Samples):
    """Samples that are read one after the other, as from a file, whatever the index."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0

    def __getitem__(self, index: int) -> Any:
        self.position = (self.position + 1) % len(self)
        return self.x[self.position], self.position % 3


@case(
    "position of a reader",
    r"SequentialSamples.*\.position|position.*SequentialSamples",
    source="huggingface/datasets#8308, EvolvingLMMs-Lab/lmms-engine#172",
)
def position_of_a_reader() -> None:
    train(make_net(), SequentialSamples())


class SeededByTime(Samples):
    def __getitem__(self, index: int) -> Any:
        np.random.seed(time.time_ns() % 2**32)
        return self.x[index] + np.random.normal(size=8).astype(np.float32), index % 3


@case(
    "seed of the time",
    r"time",
    source="isl-org/Open3D-ML#254: worker_init_fn seeds with int(time.time())",
)
def seed_of_the_time() -> None:
    train(make_net(), SeededByTime())


# ---- programs that keep the law, though they look as if they broke it ----


@case("plain", is_right=True)
def plain() -> None:
    train(make_net(), Samples())


class DecodedSamples(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        self.cache.setdefault(index, self.x[index] * 2)
        return self.cache[index] + np.random.normal(size=8).astype(np.float32), index % 3


@case("cache of decoded samples", is_right=True)
def cache_of_decoded_samples() -> None:
    train(make_net(), DecodedSamples())


@case("losses for a plot", is_right=True)
def losses_for_a_plot() -> None:
    began, times, numbers = time.monotonic(), [], itertools.count()

    def after(number: int) -> None:
        times.append((next(numbers), time.monotonic() - began))

    train(make_net(), Samples(), after)


@case("batch norm", is_right=True)
def batch_norm() -> None:
    import torch
    from torch import nn

    torch.manual_seed(1)
    spectral = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(8, 12))
    train(nn.Sequential(spectral, nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3)), Samples())


@case("recurrent", is_right=True)
def recurrent() -> None:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.lstm, self.head = nn.LSTM(2, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            self.last = self.lstm(x.view(-1, 4, 2))[0]  # kept for inspection only
            return self.head(self.last[:, -1])

    train(Net(), Samples())


@case("generator made again", is_right=True)
def generator_made_again() -> None:
    class Augmented(Samples):
        def __getitem__(self, index: int) -> Any:
            generator = np.random.default_rng(np.random.randint(2**31))
            return self.x[index] + generator.normal(size=8).astype(np.float32), index % 3

    train(make_net(), Augmented())


if __name__ == "__main__":
    CASES[sys.argv[1]].run()
