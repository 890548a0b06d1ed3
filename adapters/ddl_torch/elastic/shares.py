# SPDX-License-Identifier: Apache-2.0
"""The results of shares. Gradients stay in autograd's tensors until they are added to another
share's gradients, or copied to an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import ddl_core
from ddl_core.calls import dtypes
from ddl_core.calls.order import add_at
from ddl_elastic.frameworks.protocol import Array
from ddl_torch.elastic.layout import Section, ShareLayout
from ddl_torch.elastic.tensors import wide

_DTYPES = {each: dtypes.from_name(str(each)[6:], "") for each in (torch.float32, torch.float64)}


class ShareArrays(list[Array]):
    """The results of a share or of a step, as arrays and their sections.

    has_gradients  True to allocate memory for gradients
    """

    def __init__(self, layout: ShareLayout, has_gradients: bool = True) -> None:
        found: dict[int, Section] = {}
        self.others: list[Array] = []  # for each array, its part without gradients
        for numbers in layout.arrays:
            sections = [
                layout.sections[number] if has_gradients or number >= layout.buckets else []
                for number in numbers
            ]
            counts = [sum(each.numel() for each in section) for section in sections]
            whole = torch.empty(sum(counts), dtype=wide(layout.sections[numbers[0]][0]))
            for number, part, section in zip(numbers, whole.split(counts), sections, strict=True):
                found[number] = Section(part, section)
            self.append(whole.numpy())
            self.others.append(self[-1][counts[0] if numbers[0] < layout.buckets else 0 :])
        ordered = [found[number] for number in sorted(found)]
        self.gradients = ordered[: layout.buckets]
        moments = layout.buckets + layout.buffers
        self.buffers, self.moments = ordered[layout.buckets : moments], ordered[moments:-1]
        self.numbers = ordered[-1].array
        self.parts = [each.parts for each in self.gradients]  # by bucket


class Share(Sequence[Array]):
    """The results of a share, as arrays that are filled on first access.

    parts  the gradients by bucket; during the backward pass, only the first buckets exist
    """

    def __init__(self, shares: Shares) -> None:
        self._shares, self._own = shares, ShareArrays(shares.layout, has_gradients=False)
        self.numbers, self.buffers = self._own.numbers, self._own.buffers
        self.moments = self._own.moments
        self.parts: list[list[Tensor]] = []
        self._arrays: ShareArrays | None = None
        self._made = 0  # number of arrays that are filled

    def __len__(self) -> int:
        return len(self._own)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        arrays = self._take_arrays()
        while self._made <= number % len(self):
            if self._made < len(self.parts):
                torch._foreach_copy_(arrays.parts[self._made], self.parts[self._made])
            arrays.others[self._made][:] = self._own.others[self._made]
            self._have_made(arrays)
        return arrays[number]

    def add(self, number: int, left: Share, right: Share) -> None:
        """Set array `number` to left + right. This share is one of the two, and the arrays before
        this one have been added already."""
        arrays, given = self._take_arrays(), (left, right)
        if all(each._made > number for each in given):
            ddl_core.add(arrays[number], left[number], right[number])
            return
        if number < len(arrays.parts):
            to = arrays.parts[number]
            for parts in zip(to, left.parts[number], right.parts[number], strict=True):
                total, first, second = (part.data_ptr() for part in parts)
                add_at(total, first, second, parts[0].numel(), _DTYPES[parts[0].dtype])
        if arrays.others[number].size:
            ddl_core.add(arrays.others[number], left._others(number), right._others(number))
        if self._made == number:
            self._have_made(arrays)

    def _take_arrays(self) -> ShareArrays:
        if self._arrays is None:
            self._arrays = self._shares.take_arrays()
        return self._arrays

    def _have_made(self, arrays: ShareArrays) -> None:
        """Mark the next array as filled, and let `parts` refer to its memory for the gradients."""
        if self._made < len(self.parts):
            self.parts[self._made] = arrays.parts[self._made]
        self._made += 1

    def _others(self, number: int) -> Array:
        arrays = self._arrays if self._arrays and self._made > number else self._own
        return arrays.others[number]

    def clear(self) -> ShareArrays | None:
        """Reset a share that is no longer in use. Return its arrays, or None if it has none."""
        arrays, self._arrays, self._made = self._arrays, None, 0
        self.parts = []
        return arrays


class Shares:
    """A pool of reusable shares and arrays of one layout."""

    def __init__(self, layout: ShareLayout) -> None:
        self.layout = layout
        self._shares: list[Share] = []
        self._arrays: list[ShareArrays] = []

    def take(self) -> Share:
        return self._shares.pop() if self._shares else Share(self)

    def take_arrays(self) -> ShareArrays:
        return self._arrays.pop() if self._arrays else ShareArrays(self.layout)

    def free(self, share: Share) -> None:
        if arrays := share.clear():
            self._arrays.append(arrays)
        self._shares.append(share)


def add(number: int, into: Share, left: Share, right: Share) -> None:
    """Add one array of two shares; see ddl_elastic.step.partial.add_arrays."""
    into.add(number, left, right)
