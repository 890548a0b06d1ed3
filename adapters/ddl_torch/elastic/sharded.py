# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of PyTorch whose optimizer is sharded: elastic.Job(..., shard=True).

Each bucket of gradients has a flat array with the values of its parameters, which are views of it.
The optimizer's groups contain shards instead: parameters that are views of the pieces which this
rank holds. So the program's `optimizer.step()` updates these pieces only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn

from ddl_elastic.frameworks import protocol
from ddl_elastic.frameworks.protocol import Array
from ddl_elastic.sharded.cut import TensorPiece
from ddl_elastic.sharded.protocol import ParameterBlocks
from ddl_elastic.sharded.shards import Shards
from ddl_elastic.sharded.tables import Table
from ddl_torch.elastic import guards
from ddl_torch.elastic.adapter import TorchAdapter
from ddl_torch.elastic.buffers import ModelBuffers
from ddl_torch.elastic.refusals import refuse_sharded
from ddl_torch.elastic.shard_set import TorchShards, WholeOptimizer, make_shard, stream_slots
from ddl_torch.elastic.shares import ShareArrays
from ddl_torch.elastic.tensors import pack

# All their operations are elementwise, so their bits do not depend on the cut.
OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


class ShardedAdapter(TorchAdapter):
    """The PyTorch adapter with a sharded optimizer. Each rank has the whole parameters."""

    blocks: ParameterBlocks | None = None

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, copies: int = 1, **options: Any
    ) -> None:
        super().__init__(model, optimizer, **options)
        refuse_sharded(model, optimizer, OPTIMIZERS, self._also)
        self.shards = Shards(self, copies)
        self._arrays: list[Tensor] = []  # by bucket: the values of its parameters
        self._at: dict[nn.Parameter, tuple[int, int]] = {}  # the array and tensor of a parameter
        self._memory: dict[nn.Parameter, Tensor] = {}  # the values of each in its array
        self._groups = [[*group["params"]] for group in optimizer.param_groups]
        self._given = guards.GivenGradients(optimizer, self.shards.updated)
        self._reading: list[bool] = []  # True while this adapter reads or writes the state
        guards.guard_model(model, self.shards, self._reading)
        guards.guard_optimizer(optimizer, lambda: bool(self._arrays), self._reading)

    def set_outer(self, *_: Any, **__: Any) -> None:
        raise ValueError("job.rounds does not support shard=True: leave out one of the two")

    # ---- the layout ----

    def _lay_out(self, trained: Sequence[nn.Parameter]) -> None:
        if not self._arrays:
            super()._lay_out(trained)
            self._result = ShareArrays(self._layout, has_gradients=False)
            self._flatten()
            self._shard()
        elif {*trained} != {*self._at}:
            raise RuntimeError(
                "the program has frozen, unfrozen, added or removed parameters since the job began;"
                " a sharded job does not support this"
            )

    def _flatten(self) -> None:
        """Store the parameters of each bucket in one array."""
        for number, bucket in enumerate(self._gradients.buckets):
            array = self._store(torch.cat([each.detach().reshape(-1) for each in bucket]))
            self._arrays.append(array)
            ends = accumulate(each.numel() for each in bucket)
            for tensor, (parameter, end) in enumerate(zip(bucket, ends, strict=True)):
                values = array[end - parameter.numel() : end].view(parameter.shape)
                self._at[parameter], self._memory[parameter] = (number, tensor), values
                parameter.data = values

    def _store(self, array: Tensor) -> Tensor:
        """Return the memory for an array of parameters, with these values."""
        return array

    def result(self) -> protocol.Share:
        guards.check_memory(self._memory)
        return super().result()

    def lengths(self) -> list[list[int]]:
        return [[each.numel() for each in bucket] for bucket in self._gradients.buckets]

    def values(self) -> list[Array]:
        return [each.numpy() for each in self._arrays]

    # ---- the shards ----

    def make(self, found: Sequence[TensorPiece], table: Table) -> TorchShards:
        buckets = self._gradients.buckets
        shards = [make_shard(each, buckets[each.array][each.tensor], table) for each in found]
        return TorchShards(shards)

    def install(self, shards: Any) -> None:
        self._given.lose()
        self._installed, state, kept = shards, self.optimizer.state, self._unsharded_slots()
        state.clear()
        state.update((parameter, slots) for parameter, slots in kept.values())
        state.update((each.parameter, each.slots) for each in shards.shards)
        for group, parameters in zip(self.optimizer.param_groups, self._groups, strict=True):
            group["params"] = [
                part
                for each in parameters
                for part in (
                    [shard.parameter for shard in shards.of(*self._at[each])]
                    if each in self._at
                    else [each]
                )
            ]

    def _unsharded_slots(self) -> dict[int, tuple[nn.Parameter, dict[str, Any]]]:
        """Return the slots of parameters that are not trained, by number of the parameter."""
        return {
            number: (each, self.optimizer.state[each])
            for number, each in enumerate(chain.from_iterable(self._groups))
            if each not in self._at and each in self.optimizer.state
        }

    def _shard(self) -> None:
        """Replace the optimizer's parameters by shards, each of them a whole parameter at first."""
        lengths = enumerate(self.lengths())
        whole = [TensorPiece(a, t, 0, n) for a, each in lengths for t, n in enumerate(each) if n]
        shards = self.make(whole, {})
        for each in shards.shards:
            parameter = self._gradients.buckets[each.piece.array][each.piece.tensor]
            for name, value in self.optimizer.state.get(parameter, {}).items():
                is_sharded = isinstance(value, Tensor) and value.shape == parameter.shape
                # Adam's number of steps has the shape of a scalar parameter.
                is_sharded = is_sharded and name != "step"
                each.slots[name] = value.reshape(-1) if is_sharded else value
        self.install(shards)
        self.shards.reset(shards)

    # ---- the result ----

    def apply(self) -> None:
        guards.check_memory(self._memory)
        numbers = self._result.numbers
        weight = protocol.check_total(float(numbers[1]))
        self.loss = float(numbers[0]) / weight
        flags = dict(zip(self._gradients.parameters, numbers.tolist()[2:], strict=True))
        self._buffers.apply(self._result)
        self._given.clear()
        order = self._parameters, self._gradients.parameters
        factor = self.clipping.find_factor(*order, self.shards.squares, weight)
        for array, each in self._installed.by_array():
            result = torch.from_numpy(self.shards.result(array))
            if weight != 1:
                result /= weight
            if factor != 1:
                result *= factor
            parts = result.split([shard.parameter.numel() for shard in each])
            for shard, part in zip(each, parts, strict=True):
                parameter = self._gradients.buckets[array][shard.piece.tensor]
                self._given.add(shard.parameter, parameter, part if flags[parameter] else None)
        for parameter, is_used in flags.items():
            parameter.grad = guards.stand_in(parameter) if is_used else None
        self._given.come_last()
        self.shards.updated()

    def abandon(self) -> None:
        self._given.clear()
        groups = (group["params"] for group in self.optimizer.param_groups)
        for parameter in chain(chain.from_iterable(groups), self._at):
            parameter.grad = None

    # ---- the state ----

    def state(self) -> protocol.State:
        """Return the whole state. Shards.prepare has gathered its slots."""
        if not self._arrays:
            return super().state()
        guards.check_memory(self._memory)
        found = self.stream(*self.shards.whole())
        return {name: found[name] for name in found}

    def stream(self, table: Table, gather: Callable[[str, str], Array]) -> protocol.StreamedState:
        parameters = enumerate(chain.from_iterable(self._groups))  # _whole adds frozen ones
        keys = {n: ("{}.{}".format(*self._at[p]), p.shape) for n, p in parameters if p in self._at}
        slots, sources = stream_slots(keys, table, gather)
        with guards.allowed(self._reading):
            return protocol.StreamedState(self._read(self._whole(slots)), sources)

    def own_state(self, pieces: Sequence[TensorPiece], is_first: bool) -> protocol.PartialState:
        found = protocol.PartialState(self.replicated() if is_first else {})
        names: dict[nn.Parameter, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(parameter, []).append(f"model.{name}")
        numbers = {each: n for n, each in enumerate(chain.from_iterable(self._groups))}
        for piece in pieces:
            parameter = self._gradients.buckets[piece.array][piece.tensor]
            values = parameter.detach().view(-1)[piece.begin : piece.end]
            parts = dict.fromkeys(names[parameter], values)
            for name, value in self._installed.slots(piece).items():
                key = f"slot.{numbers[parameter]}.{name}"
                if isinstance(value, Tensor) and value.shape == values.shape:
                    parts[key] = value
                elif not piece.begin:
                    found[key] = pack(key, value)
            shape = tuple(parameter.shape)
            for name, value in parts.items():
                packed, begin = pack(name, value), piece.begin * value.element_size()
                found[name] = protocol.Tensor(packed.dtype, shape, packed.data, begin)
        return found

    def replicated(self) -> protocol.State:
        with guards.allowed(self._reading):
            state = self._read(self._whole({}))
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if parameter in self._at:
                del state[f"model.{name}"]
        return state

    def parameters(self) -> protocol.State:
        return {
            f"model.{name}": pack(name, parameter.detach().clone())
            for name, parameter in self.model.named_parameters(remove_duplicate=False)
            if parameter in self._at
        }

    def _whole(self, slots: dict[int, dict[str, Any]]) -> Any:
        groups = zip(self.optimizer.param_groups, self._groups, strict=True)
        kept = {number: found for number, (_, found) in self._unsharded_slots().items()}
        return WholeOptimizer([{**g, "params": each} for g, each in groups], {**kept, **slots})

    def load(self, state: protocol.State) -> None:
        if self._arrays:  # load it as if the optimizer was not sharded
            self.optimizer.state.clear()
            for group, parameters in zip(self.optimizer.param_groups, self._groups, strict=True):
                group["params"] = [*parameters]
        with guards.allowed(self._reading):
            super().load(state)
        if self._arrays:
            self._buffers = ModelBuffers(self.model, self._takes_first)
        if isinstance(state, protocol.PartialState):
            self.install(self._installed)
        elif self._arrays:
            self._shard()
