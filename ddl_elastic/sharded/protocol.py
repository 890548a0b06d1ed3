# SPDX-License-Identifier: Apache-2.0
"""The interface between sharded jobs and the adapters of frameworks that shard their state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ddl_elastic.frameworks.protocol import Array, PartialState, State
from ddl_elastic.sharded.cut import TensorPiece
from ddl_elastic.sharded.reads import Span
from ddl_elastic.sharded.tables import Table


class ShardSet(Protocol):
    """The shards of some pieces of tensors, with the optimizer slots of these pieces."""

    def table(self) -> Table:
        """Return the table of the slots, see Table."""

    def slot(self, piece: TensorPiece, name: str) -> Array:
        """Return the part of a sharded slot that belongs to a piece. One of the shards must contain
        the piece."""


class ParameterBlocks(Protocol):
    """The blocks of a model: modules whose parameters have memory only while they are used."""

    @property
    def rest(self) -> Sequence[Span]:
        """The parameters outside of all blocks."""

    @property
    def are_whole(self) -> bool:
        """True from `gathered` to `drop`. Equal on all ranks: a rank may hold all blocks."""

    def drop(self) -> None:
        """Free the memory of all blocks' parameters, except the parts that this rank holds."""

    def gathered(self) -> None:
        """Record that this rank has all parameters of all blocks."""


class Sharded(Protocol):
    """The part of a framework's adapter that shards the state."""

    clipping: Any  # its attribute `limit` is None if gradients are not clipped
    blocks: ParameterBlocks | None  # None if all parameters have memory at all times

    def lengths(self) -> Sequence[Sequence[int]]:
        """Return the lengths of the tensors of each array."""

    def values(self) -> Sequence[Array]:
        """Return the parameters as arrays that share the parameters' memory."""

    def make(self, found: Sequence[TensorPiece], table: Table) -> ShardSet:
        """Return shards for these pieces, with slots of uninitialized memory."""

    def install(self, shards: ShardSet) -> None:
        """Make the optimizer update these shards instead of the previous ones."""

    def state(self) -> State:
        """Return the whole state, as Framework.state does."""

    def stream(self, table: Table, gather: Callable[[str, str], Array]) -> State:
        """Return the whole state. Its sharded slots are gathered only when they are read, by
        calling `gather` with the tensor and the name of the slot."""

    def replicated(self) -> State:
        """Return the part of the state that is not sharded, so that each rank has it."""

    def parameters(self) -> State:
        """Return copies of the sharded parameters by name."""

    def abandon(self) -> None:
        """Discard the gradients, so that the program's next update has no effect."""

    def own_state(self, pieces: Sequence[TensorPiece], is_first: bool) -> PartialState:
        """Return these pieces of the state and, on the first rank, all unsharded data."""
