"""Elastic training with PyTorch: ddl_elastic's half that knows torch.

    import ddl_torch.elastic as elastic

    job = elastic.Job(model, optimizer, batch=256, logical=16)
    for step in job.steps(train_set, passes=10):
        for x, y in step:                           # this process's shares of the step
            step.backward(loss_fn(model(x), y))     # instead of loss.backward()
        optimizer.step()

docs/elastic.md tells what is promised, and what a program must not do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ddl_core
from ddl_elastic import framework, joining
from ddl_elastic.loop import Loop
from ddl_torch.batch_norm import SyncBatchNorm
from ddl_torch.elastic_tensors import WIDE, is_integer, lengths, pack, parts_of, unpack


class Job(Loop):
    """An elastic job with a loop of one's own.

    batch, logical, seed   see docs/elastic.md: they are constants of the job
    threads                of PyTorch in each process, a constant as well: other numbers, other bits
    comm                   of the processes of the job; None: those that `ddl elastic run` has
                           started, else as ddl_core.init finds them
    watchdog               seconds that the others wait for a process that hangs; 0: for ever
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        batch: int,
        logical: int,
        seed: int = 0,
        threads: int = 1,
        comm: ddl_core.Comm | None = None,
        **options: Any,
    ) -> None:
        pin(threads)
        half = Half(model, optimizer)
        joined = {"comm": comm} if comm else joining.join()
        super().__init__(half, **joined, batch=batch, logical=logical, seed=seed, **options)


def preload() -> None:
    """Import what PyTorch imports only when it is first used: seconds, which workers that are
    forked from this process need not spend."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter]).step()


def pin(threads: int) -> None:
    """Fix what changes the bits of a share's gradients."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)


def seed(seed: int) -> None:
    """Seed all generators. 64 bits."""
    # torch.manual_seed formats a stack for CUDA's sake on each call, initialised or not.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


class Half:
    """See ddl_elastic.framework.Framework."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[..., Tensor] | None = None,
        schedule: Callable[..., Any] | None = None,
    ) -> None:
        self.model, self.optimizer, self.loss_function = model, optimizer, loss
        self._schedule = schedule(optimizer) if schedule else None
        self.loss = float("nan")
        _refuse(model, optimizer)
        self._trained: list[nn.Parameter] = []
        self._summed: list[Tensor] = []  # the buffers whose changes are averaged
        self._before: dict[Tensor, Tensor] = {}  # the buffers' values, as the share starts

    # ---- a share ----

    seed = staticmethod(seed)

    def collate(self, samples: Sequence[Any]) -> Any:
        return torch.utils.data.default_collate(list(samples))

    def begin(self) -> None:
        self._look_up()
        for parameter in self.model.parameters():
            parameter.grad = None
        self._before = {buffer: buffer.detach().clone() for buffer in self.model.buffers()}

    def run(self, batch: Any) -> list[framework.Array]:
        assert self.loss_function
        *inputs, target = batch
        return self.backward(self.loss_function(self.model(*inputs), target))

    def backward(self, loss: Tensor) -> list[framework.Array]:
        loss.backward()
        share = self._arrays()
        for part, parameter in parts_of(share, self._trained):
            if parameter.grad is None:
                part.zero_()
            elif parameter.grad.is_sparse:
                raise NotImplementedError("a gradient is sparse; elastic training needs dense ones")
            else:
                part.copy_(parameter.grad)
        for part, buffer in parts_of(share[len(lengths(self._trained)) :], self._summed):
            # Exactly zero where nothing changed, also for an infinity.
            before = self._before[buffer]
            part.copy_(torch.where(buffer == before, 0, buffer.detach() - before))
        self._put_back()
        share[-1][0] = loss.item()
        share[-1][1:] = [parameter.grad is not None for parameter in self._trained]
        return share

    @torch.no_grad()
    def _put_back(self) -> None:
        if any(buffer not in self._before for buffer in self.model.buffers()):
            raise NotImplementedError(
                "the model replaced one of its buffers by another tensor; change it in place"
            )
        for buffer, before in self._before.items():
            has_average = buffer.dtype in WIDE or is_integer(buffer)
            if not (has_average or torch.equal(buffer, before)):
                raise NotImplementedError(
                    f"the model changed a buffer of {buffer.dtype}, which has no average"
                )
            buffer.copy_(before)

    # ---- the result ----

    def empty(self) -> list[framework.Array]:
        self._look_up()
        return self._arrays()

    def _arrays(self) -> list[framework.Array]:
        groups = [*lengths(self._trained).items(), *lengths(self._summed).items()]
        arrays = [np.empty(count, str(dtype).removeprefix("torch.")) for dtype, count in groups]
        numbers = np.empty(1 + len(self._trained))  # the loss, then who has a gradient
        return [*arrays, numbers]

    def _look_up(self) -> None:
        """What the arrays hold; the program may freeze a parameter between two steps."""
        self._trained = [each for each in self.model.parameters() if each.requires_grad]
        self._summed = [b for b in self.model.buffers() if b.dtype in WIDE or is_integer(b)]

    def apply(self, result: Sequence[framework.Array]) -> None:
        trained = self._trained
        used = dict(zip(trained, result[-1][1:], strict=True))
        self.loss = float(result[-1][0])
        for part, parameter in parts_of(result, trained):
            parameter.grad = part.to(parameter) if used[parameter] else None
        with torch.no_grad():
            for part, buffer in parts_of(result[len(lengths(trained)) :], self._summed):
                buffer.add_(part.to(buffer.device))

    def update(self) -> None:
        self.optimizer.step()
        if self._schedule:
            self._schedule.step()

    # ---- the state ----

    def state(self) -> framework.State:
        return {name: pack(name, value) for name, value in self._named()}

    def _named(self) -> Iterator[tuple[str, Any]]:
        optimizer = self.optimizer.state_dict()
        slots, groups = optimizer["state"], optimizer["param_groups"]
        yield from ((f"model.{name}", value) for name, value in self.model.state_dict().items())
        for kind, parts in (("slot", slots.items()), ("group", enumerate(groups))):
            for number, part in parts:
                for name in (each for each in part if each != "params"):
                    yield f"{kind}.{number}.{name}", part[name]

    def load(self, state: framework.State) -> None:
        optimizer = self.optimizer.state_dict()
        parts: dict[str, dict[Any, Any]] = {
            "slot": optimizer["state"],
            "group": dict(enumerate(optimizer["param_groups"])),
        }
        model = {}
        for key, packed in state.items():
            kind, rest = key.split(".", 1)
            if kind == "model":
                model[rest] = unpack(key, packed)
            else:
                number, name = rest.split(".", 1)
                parts[kind].setdefault(int(number), {})[name] = unpack(key, packed)
        try:
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"the state is not this model's: {error}") from error


def _refuse(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What cannot keep the promise."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm | SyncBatchNorm):
            raise TypeError(
                f"{name or 'model'} is a SyncBatchNorm: its statistics would depend on the number"
                " of processes. Use BatchNorm: elastic training averages its statistics over the"
                " logical workers"
            )
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise TypeError("model is a DistributedDataParallel; give the module inside of it")
    known = set(model.parameters())
    for parameter in chain.from_iterable(group["params"] for group in optimizer.param_groups):
        if parameter not in known:
            shape = tuple(parameter.shape)
            raise ValueError(f"optimizer has a parameter of shape {shape} that is not model's")
