# SPDX-License-Identifier: Apache-2.0
"""The layout of a share's arrays: the part for each tensor. shares.py creates the arrays.

Each bucket of gradients has an array. The next arrays are for buffers, one for each type, for the
moments of rounds, and for the numbers: the loss, its weight, and for each parameter 1 if it was
used. Sections that can be added together with the last bucket are in its array, so most models have
one or two arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddl_torch.elastic.tensors import wide


class Section:
    """Concatenated tensors, in the type in which they are added.

    whole  all elements, in one dimension
    parts  the tensors, as views of `whole` with their own shapes
    array  `whole` as a NumPy array
    """

    def __init__(self, whole: Tensor, tensors: Sequence[Tensor]) -> None:
        self.whole, self.array = whole, whole.numpy()
        self.parts: list[Tensor] = []
        begin = 0
        for each in tensors:
            self.parts.append(whole[begin : begin + each.numel()].view(each.shape))
            begin += each.numel()

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Section:
        count = sum(each.numel() for each in tensors)
        return cls(torch.empty(count, dtype=wide(tensors[0])), tensors)


class ShareLayout:
    """The layout of a share: buckets of parameters, groups of buffers, and groups of optimizer
    moments. The tensors of a bucket or a group have one type.

    op     how the shares' buffers are combined; everything else is averaged
    apart  True to keep the gradients in separate arrays
    wires  the wire formats in which gradients and moments are averaged, except numbers such as a
           step count; None: without rounding
    ops    how each array is combined: "average", "sum" or a wire format
    """

    def __init__(
        self,
        buckets: Sequence[Sequence[Tensor]],
        buffers: Sequence[Sequence[Tensor]],
        op: str,
        moments: Sequence[Sequence[Tensor]] = (),
        apart: bool = False,
        wires: tuple[str, str] | None = None,
    ) -> None:
        kind = wide(buckets[-1][0]) if buckets else torch.float64
        numbers = torch.empty(2 + sum(map(len, buckets)), dtype=kind)
        self.sections = [*buckets, *buffers, *moments, [numbers]]
        self.buckets, self.buffers = len(buckets), len(buffers)
        self.arrays: list[list[int]] = [[number] for number in range(len(buckets))]
        of_gradients, of_moments = wires or ("average", "average")
        self.ops = [of_gradients] * len(buckets)
        own_ops = [op] * len(buffers)
        own_ops += [of_moments if each[0].dim() else "average" for each in moments]
        for number, own in enumerate([*own_ops, "average"], len(buckets)):
            section = self.sections[number]
            # A block of a wire format has one scale, and moments are larger than changes.
            first = len(buckets) if apart or wires else max(0, len(buckets) - 1)
            for array in range(first, len(self.arrays)):
                like = self.sections[self.arrays[array][0]][0]
                if self.ops[array] == own and wide(like) == wide(section[0]):
                    self.arrays[array].append(number)
                    break
            else:
                self.arrays.append([number])
                self.ops.append(own)
