# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of PyTorch whose optimizer is sharded: elastic.Job(..., shard=True).

Each bucket of gradients has a flat array with the values of its parameters, which are views of it.
The optimizer's groups contain shards instead: parameters that are views of the pieces which this
rank holds. So the program's `optimizer.step()` updates these pieces only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn

from ddl_elastic.frameworks import protocol
from ddl_elastic.frameworks.protocol import Array
from ddl_elastic.sharded.cut import TensorPiece
from ddl_elastic.sharded.shards import Shards, Table
from ddl_torch.elastic import state as elastic_state
from ddl_torch.elastic.adapter import TorchAdapter
from ddl_torch.elastic.buffers import ModelBuffers
from ddl_torch.elastic.refusals import refuse_sharded
from ddl_torch.elastic.rounds import MomentsKind
from ddl_torch.elastic.shard_set import (
    InRanges,
    Shard,
    TorchShards,
    WholeOptimizer,
    make_shard,
    restore,
    stand_in,
)
from ddl_torch.elastic.shares import ShareArrays
from ddl_torch.elastic.tensors import pack

# All their operations are elementwise, so their bits do not depend on the cut.
OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


class ShardedAdapter(TorchAdapter):
    """The PyTorch adapter with a sharded optimizer. The parameters are whole in each rank."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, optimizer, **options)
        refuse_sharded(model, optimizer, OPTIMIZERS, self._also)
        self.shards = Shards(self)
        self._arrays: list[Tensor] = []  # by bucket: the values of its parameters
        self._at: dict[nn.Parameter, tuple[int, int]] = {}  # the array and tensor of a parameter
        self._groups = [[*group["params"]] for group in optimizer.param_groups]
        self._parts: dict[nn.Parameter, Tensor | None] = {}  # by shard: its gradient
        self._hook = optimizer.register_step_pre_hook(self._give_gradients)
        optimizer.register_step_post_hook(self._take_gradients)
        optimizer.register_state_dict_pre_hook(self._refuse_state)
        optimizer.register_load_state_dict_pre_hook(self._refuse_state)
        self._is_loading = False
        self._guard_stale(model)

    def _guard_stale(self, model: nn.Module) -> None:
        shards, self._reading = self.shards, list[bool]()

        # A function without `self`, which copies of the model can share.
        def refuse_stale(*_: Any, reading: list[bool] = self._reading) -> None:
            if shards.is_stale and not reading:
                raise RuntimeError(
                    "this process has new parameters of its own ranges only. The whole model is"
                    " there inside of a step, in job.map, after job.state() and after the last step"
                )

        # With hooks, these modules would compute by other kernels in evaluations.
        fused = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
        found = (each for each in model.modules() if isinstance(each, fused))
        unguarded = {*chain.from_iterable(each.modules() for each in found)} - {model}
        for module in model.modules():
            module.register_state_dict_pre_hook(refuse_stale)
            if module not in unguarded:
                module.register_forward_pre_hook(refuse_stale)

    def _refuse_state(self, *_: Any) -> None:
        if self._arrays and not self._is_loading:
            raise RuntimeError(
                "this process has ranges of the optimizer's state only: use job.state(), which"
                " returns the whole state, or the job's checkpoints"
            )

    def set_outer(self, outer: torch.optim.Optimizer | None, moments: MomentsKind) -> None:
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
                "the program has frozen, unfrozen, added or removed parameters after the job's"
                " begin; a sharded job does not support this"
            )

    def _flatten(self) -> None:
        """Store the parameters of each bucket in one array."""
        self._begins = [[*accumulate(each, initial=0)] for each in self.lengths()]
        for number, bucket in enumerate(self._gradients.buckets):
            array = torch.cat([each.detach().reshape(-1) for each in bucket])
            self._arrays.append(array)
            for tensor, (parameter, begin) in enumerate(
                zip(bucket, self._begins[number], strict=False)
            ):
                self._at[parameter] = number, tensor
                parameter.data = array[begin:][: parameter.numel()].view(parameter.shape)

    def _check_memory(self) -> None:
        """Raise RuntimeError if the program has given a parameter other memory."""
        for parameter, (number, tensor) in self._at.items():
            begin = self._begins[number][tensor]
            values = self._arrays[number].data_ptr() + begin * parameter.element_size()
            if parameter.data_ptr() != values or not parameter.is_contiguous():
                raise RuntimeError(
                    f"the program has replaced the memory of a parameter of shape"
                    f" {tuple(parameter.shape)}, as `parameter.data = ...` does; a sharded job does"
                    " not support this. Change its values: `parameter.data.copy_(...)`"
                )

    def result(self) -> protocol.Share:
        self._check_memory()
        return super().result()

    def lengths(self) -> list[list[int]]:
        return [[each.numel() for each in bucket] for bucket in self._gradients.buckets]

    def values(self) -> list[Array]:
        return [each.numpy() for each in self._arrays]

    # ---- the shards ----

    def make(self, found: Sequence[TensorPiece], table: Table) -> TorchShards:
        buckets = self._gradients.buckets
        return TorchShards(
            [make_shard(each, buckets[each.array][each.tensor], table) for each in found]
        )

    def install(self, shards: Any) -> None:
        self._installed, state, kept = shards, self.optimizer.state, self._unsharded_slots()
        state.clear()
        state.update((parameter, slots) for parameter, slots in kept.values())
        for each in shards.shards:
            state[each.parameter] = each.slots
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
        """Replace the optimizer's parameters by shards that contain all of them."""
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
        self._check_memory()
        numbers = self._result.numbers
        weight = protocol.check_total(float(numbers[1]))
        self.loss = float(numbers[0]) / weight
        used = numbers.tolist()[2:]
        flags = dict(zip(chain.from_iterable(self._gradients.buckets), used, strict=True))
        self._buffers.apply(self._result)
        self._parts.clear()
        for array, each in self._by_array():
            result = torch.from_numpy(self.shards.result(array))
            if weight != 1:
                result /= weight
            parts = result.split([shard.parameter.numel() for shard in each])
            for shard, part in zip(each, parts, strict=True):
                is_used = flags[self._whole_of(shard)]
                self._parts[shard.parameter] = part if is_used else None
                shard.parameter.grad = stand_in(shard.parameter) if is_used else None
        for parameter, is_used in flags.items():
            parameter.grad = stand_in(parameter) if is_used else None
        # Be the last hook, after those that the program has registered.
        self._hook.remove()
        self._hook = self.optimizer.register_step_pre_hook(self._give_gradients)
        self.shards.updated()

    def _whole_of(self, shard: Shard) -> nn.Parameter:
        return self._gradients.buckets[shard.piece.array][shard.piece.tensor]

    def _give_gradients(self, *_: Any) -> None:
        """Give the shards their gradients when the optimizer's step begins."""
        for shard in self._installed.shards if self._arrays else ():
            found = [shard.parameter.grad, self._whole_of(shard).grad]
            if any(each is None for each in found):  # unused, or cleared by the program
                shard.parameter.grad = None
            elif all(isinstance(each, InRanges) for each in found):
                shard.parameter.grad = self._parts[shard.parameter]
            else:
                raise RuntimeError(f"the program has set a gradient: {InRanges.WHY}")

    def _take_gradients(self, *_: Any) -> None:
        """Take the gradients back when the optimizer's step ends."""
        for shard in self._installed.shards if self._arrays else ():
            if shard.parameter.grad is not None:
                shard.parameter.grad = stand_in(shard.parameter)

    def abandon(self) -> None:
        groups = (group["params"] for group in self.optimizer.param_groups)
        for parameter in chain(chain.from_iterable(groups), self._at):
            parameter.grad = None

    def _by_array(self) -> list[tuple[int, list[Shard]]]:
        found: dict[int, list[Shard]] = {}
        for each in self._installed.shards:
            found.setdefault(each.piece.array, []).append(each)
        return [*found.items()]

    # ---- the state ----

    def state(self) -> protocol.State:
        """Return the whole state, whose slots Shards.prepare has gathered."""
        if not self._arrays:
            return super().state()
        self._check_memory()
        slots = dict[int, dict[str, Any]]()
        table, arrays = self.shards.whole()
        for number, parameter in enumerate(chain.from_iterable(self._groups)):
            if parameter not in self._at:
                continue  # _whole adds its slots
            key = "{}.{}".format(*self._at[parameter])
            for name, each in table.get(key, {}).items():
                if "value" in each:
                    value = restore(name, each)
                else:
                    value = torch.from_numpy(arrays[key, name]).view(parameter.shape)
                slots.setdefault(number, {})[name] = value
        return elastic_state.read(self.model, self._whole(slots), self._also)

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
            for name, value in parts.items():
                packed, begin = pack(name, value), piece.begin * value.element_size()
                shape = tuple(parameter.shape)
                found[name] = protocol.Tensor(packed.dtype, shape, packed.data, begin)
        return found

    def replicated(self) -> protocol.State:
        self._reading.append(True)
        try:
            state = elastic_state.read(self.model, self._whole({}), self._also)
        finally:
            self._reading.clear()
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
        whole = {**kept, **slots}
        return WholeOptimizer([{**group, "params": each} for group, each in groups], whole)

    def load(self, state: protocol.State) -> None:
        if self._arrays:  # load it as if the optimizer was not sharded
            self.optimizer.state.clear()
            for group, parameters in zip(self.optimizer.param_groups, self._groups, strict=True):
                group["params"] = [*parameters]
        self._is_loading = True
        try:
            super().load(state)
        finally:
            self._is_loading = False
        if self._arrays:
            self._buffers = ModelBuffers(self.model, self._takes_first)
        if isinstance(state, protocol.PartialState):
            self.install(self._installed)
        elif self._arrays:
            self._shard()
