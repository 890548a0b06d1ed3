# SPDX-License-Identifier: Apache-2.0
"""The shards that a rank holds: pieces of parameters, with the optimizer's slots for these
pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddl_elastic.frameworks import protocol
from ddl_elastic.frameworks.protocol import Array
from ddl_elastic.sharded.cut import TensorPiece
from ddl_elastic.sharded.tables import Table
from ddl_torch.elastic.tensors import pack, unpack


class Shard:
    """A piece of a model's parameter, which the optimizer treats as a parameter, and the
    optimizer's state for that piece."""

    def __init__(self, piece: TensorPiece, values: Tensor) -> None:
        self.piece, self.parameter = piece, nn.Parameter(values)
        self.slots: dict[str, Any] = {}

    def is_sharded(self, value: Any) -> bool:
        """Return True if a slot has an element for each element of the shard."""
        return isinstance(value, Tensor) and value.shape == self.parameter.shape


class TorchShards:
    """The shards of some pieces; implements ddl_elastic.sharded.protocol.ShardSet."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self._of: dict[tuple[int, int], list[Shard]] = defaultdict(list)  # by array and tensor
        for each in shards:
            self._of[each.piece[:2]].append(each)

    def of(self, array: int, tensor: int) -> list[Shard]:
        """Return the shards of one tensor, ascending."""
        return self._of.get((array, tensor), [])

    def by_array(self) -> list[tuple[int, list[Shard]]]:
        """Return the shards of each array."""
        found: dict[int, list[Shard]] = {}
        for each in self.shards:
            found.setdefault(each.piece.array, []).append(each)
        return [*found.items()]

    def table(self) -> Table:
        return {
            f"{array}.{tensor}": {
                name: _describe(name, value, shards[0].is_sharded(value))
                for name, value in shards[0].slots.items()
            }
            for (array, tensor), shards in self._of.items()
        }

    def slot(self, piece: TensorPiece, name: str) -> Array:
        found: Array = self.slots(piece)[name].numpy()
        return found

    def slots(self, piece: TensorPiece) -> dict[str, Any]:
        """Return the slots of a piece that lies within one of the shards. Raises KeyError if no
        shard contains it."""
        for each in self.of(piece.array, piece.tensor):
            begin = each.piece.begin
            if begin <= piece.begin and piece.end <= each.piece.end:
                part = slice(piece.begin - begin, piece.end - begin)
                return {
                    name: value[part] if each.is_sharded(value) else value
                    for name, value in each.slots.items()
                }
        raise KeyError(f"no shard contains {piece}")


def _describe(name: str, value: Any, is_sharded: bool) -> dict[str, Any]:
    if is_sharded:
        return {"dtype": str(value.dtype).removeprefix("torch.")}
    packed = pack(name, value)
    return {"dtype": packed.dtype, "shape": packed.shape, "value": packed.data.tolist()}


def make_shard(piece: TensorPiece, parameter: nn.Parameter, table: Table) -> Shard:
    """Return a shard for a piece of a parameter. Its sharded slots are uninitialized memory, and
    its other slots are restored from the table."""
    shard = Shard(piece, parameter.detach().view(-1)[piece.begin : piece.end])
    for name, each in table.get(f"{piece.array}.{piece.tensor}", {}).items():
        if "value" in each:
            shard.slots[name] = restore(name, each)
        else:
            dtype = getattr(torch, each["dtype"])
            shard.slots[name] = torch.empty(piece.end - piece.begin, dtype=dtype)
    return shard


def restore(name: str, found: Mapping[str, Any]) -> Any:
    """Return a slot that is not sharded, as a table describes it."""
    data = np.array(found["value"], np.uint8)
    return unpack(name, protocol.Tensor(found["dtype"], tuple(found["shape"]), data))


def stream_slots(
    keys: Mapping[int, tuple[str, torch.Size]],
    table: Table,
    gather: Callable[[str, str], Array],
) -> tuple[dict[int, dict[str, Any]], dict[str, Callable[[], protocol.Tensor]]]:
    """Return the slots that are not sharded, by number of the parameter. For each sharded slot,
    return a function that gathers the whole slot, by the slot's name in the state. `keys` holds
    each parameter's tensor and shape."""
    slots, sources = dict[int, dict[str, Any]](), dict[str, Callable[[], protocol.Tensor]]()
    for number, (key, shape) in keys.items():
        for name, each in table.get(key, {}).items():
            if "value" in each:
                slots.setdefault(number, {})[name] = restore(name, each)
            else:
                sources[f"slot.{number}.{name}"] = partial(gather_tensor, gather, key, name, shape)
    return slots, sources


def gather_tensor(
    gather: Callable[[str, str], Array], key: str, name: str, shape: torch.Size
) -> protocol.Tensor:
    """Return a whole slot of this shape, or its parameter if `name` is ""."""
    return pack(name, torch.from_numpy(gather(key, name)).view(shape))


class WholeOptimizer:
    """The optimizer as if it were not sharded, for ddl_torch.elastic.state."""

    def __init__(self, groups: list[dict[str, Any]], slots: dict[int, dict[str, Any]]) -> None:
        self.param_groups, self._slots = groups, slots

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._slots, "param_groups": self.param_groups}
