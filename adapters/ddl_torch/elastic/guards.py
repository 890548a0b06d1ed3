# SPDX-License-Identifier: Apache-2.0
"""Guards of a sharded job. They raise an error if the program uses data of which this process has
only a part, because each process would compute different bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ddl_elastic.sharded.shards import Shards

# With hooks, these modules would compute by other kernels in evaluations.
FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class InRanges(Tensor):
    """A stand-in for a gradient from the end of the vote to the optimizer's step. Its use raises
    RuntimeError."""

    WHY = (
        "a sharded job has the gradients of this process's ranges only, so a program cannot use the"
        " gradients, as torch.nn.utils.clip_grad_norm_ does. Pass clip_norm= to the job to clip"
        " them; for other uses, leave out shard=True"
    )

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError(cls.WHY)


def stand_in(parameter: nn.Parameter) -> Tensor:
    """Return a stand-in for the gradient of a parameter, without memory for its elements."""
    return torch.zeros((), dtype=parameter.dtype).expand(parameter.shape).as_subclass(InRanges)


class GivenGradients:
    """The gradients of the shards. They are set when the optimizer's step begins, and removed when
    it ends.

    updated  called after each step of the optimizer that may have used them
    """

    def __init__(self, optimizer: torch.optim.Optimizer, updated: Callable[[], object]) -> None:
        self._optimizer, self._updated = optimizer, updated
        # By shard: the whole parameter and the gradient, which is None if no share used it.
        self._parts: dict[nn.Parameter, tuple[nn.Parameter, Tensor | None]] = {}
        self._has_lost = False  # True if the gradients were removed because the ranges moved
        self._hook = optimizer.register_step_pre_hook(self._give)
        optimizer.register_step_post_hook(self._take)

    def add(self, shard: nn.Parameter, whole: nn.Parameter, gradient: Tensor | None) -> None:
        """Add the gradient of a shard for the next step."""
        self._parts[shard] = whole, gradient
        shard.grad = None if gradient is None else stand_in(shard)

    def clear(self) -> None:
        """Remove all gradients."""
        self._parts.clear()
        self._has_lost = False

    def lose(self) -> None:
        """Remove all gradients because the ranges move. If there were any, steps of the optimizer
        raise RuntimeError until `clear`."""
        self._has_lost = bool(self._parts)
        self._parts.clear()

    def come_last(self) -> None:
        """Make the hook that sets the gradients run after all hooks that the program has
        registered so far."""
        self._hook.remove()
        self._hook = self._optimizer.register_step_pre_hook(self._give)

    def _give(self, *_: Any) -> None:
        if self._has_lost:
            raise RuntimeError(
                "a process has died between a step and the optimizer's step, so the gradients of"
                " its ranges are lost: call optimizer.step() before other operations of the job"
            )
        for shard, (whole, gradient) in self._parts.items():
            found = [shard.grad, whole.grad]
            if any(each is None for each in found):  # unused, or cleared by the program
                shard.grad = None
            elif all(isinstance(each, InRanges) for each in found):
                shard.grad = gradient
            else:
                raise RuntimeError(f"the program has set a gradient: {InRanges.WHY}")

    def _take(self, *_: Any) -> None:
        for shard in self._parts:
            if shard.grad is not None:
                shard.grad = stand_in(shard)
        if self._parts:
            self._updated()


def guard_model(model: nn.Module, shards: Shards, reading: list[bool]) -> None:
    """Make the model's modules raise RuntimeError if the program calls them while the parameters
    are not up to date, or reads their state while some parameters are not there. `reading` is not
    empty while the job itself reads the state."""

    # Functions without `self`, which copies of the model can share.
    def refuse(*_: Any) -> None:
        if shards.is_hidden and not reading:
            raise RuntimeError(
                "this process has new parameters of its own ranges only. The whole model is there"
                " inside of a step, in job.map, after job.state() and after the last step"
            )

    def refuse_state(*_: Any) -> None:
        refuse()
        if shards.is_partial and not reading:
            raise RuntimeError(
                "this process has only its ranges of the blocks' parameters. The whole model is"
                " there in job.map and after job.state()"
            )

    fused = (each for each in model.modules() if isinstance(each, FUSED))
    unguarded = {*chain.from_iterable(each.modules() for each in fused)} - {model}
    for module in model.modules():
        module.register_state_dict_pre_hook(refuse_state)
        if module not in unguarded:
            module.register_forward_pre_hook(refuse)


def guard_optimizer(
    optimizer: torch.optim.Optimizer, is_sharded: Callable[[], bool], reading: list[bool]
) -> None:
    """Make the sharded optimizer raise RuntimeError if the program saves or loads its state.
    `reading` is not empty while the job itself saves or loads it."""

    def refuse(*_: Any) -> None:
        if is_sharded() and not reading:
            raise RuntimeError(
                "this process has ranges of the optimizer's state only: use job.state(), which"
                " returns the whole state, or the job's checkpoints"
            )

    optimizer.register_state_dict_pre_hook(refuse)
    optimizer.register_load_state_dict_pre_hook(refuse)


@contextmanager
def allowed(reading: list[bool]) -> Iterator[None]:
    """Allow the job itself to read or write its state in this context."""
    reading.append(True)
    try:
        yield
    finally:
        reading.pop()


def check_memory(memory: Mapping[nn.Parameter, Tensor]) -> None:
    """Raise RuntimeError if the program has replaced the memory of a parameter."""
    for parameter, values in memory.items():
        if parameter.data_ptr() != values.data_ptr() or not parameter.is_contiguous():
            raise RuntimeError(
                f"the program has replaced the memory of a parameter of shape"
                f" {tuple(parameter.shape)}, as `parameter.data = ...` does; a sharded job does not"
                " support this. Change its values: `parameter.data.copy_(...)`"
            )
