# SPDX-License-Identifier: Apache-2.0
"""The changes that shares make to a model's buffers, such as batch norm's running statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ddl_torch.elastic.layout import Section
from ddl_torch.elastic.shares import Share, ShareArrays
from ddl_torch.elastic.tensors import WIDE, is_integer, wide


class ModelBuffers:
    """The buffers of a model. Each share starts from the committed values.

    first  True to commit the values of logical worker 0's share, False to commit the average of all
           shares' changes
    """

    def __init__(self, model: nn.Module, first: bool) -> None:
        self._first = first
        self.op = "sum" if first else "average"
        self._slots = [module._buffers for module in model.modules() if module._buffers]
        self._pointers: list[int] | None = None  # of all buffers, when _memory was created
        self._memory: list[_Memory] = []
        kinds: dict[torch.dtype, list[Tensor]] = {}
        self._fixed: list[Tensor] = []  # buffers of types without sums: they must not change
        for each in model.buffers():
            if each.dtype in WIDE or is_integer(each):
                kinds.setdefault(wide(each), []).append(each)
            else:
                self._fixed.append(each)
        self.kinds = list(kinds.values())
        self._committed = [Section.of(kind) for kind in self.kinds]
        self._committed_fixed: list[Tensor] = []
        self._is_saved = False

    def begin(self) -> None:
        """Start a share with the committed values."""
        if self._is_saved:  # an earlier share of this step has changed the buffers
            for memory, committed in zip(self._memory, self._committed, strict=True):
                memory.store(committed)
        else:
            self._save()

    def _save(self) -> None:
        pointers = self._find_pointers()
        if pointers != self._pointers:
            self._pointers, self._memory = pointers, [_Memory(kind) for kind in self.kinds]
        for memory, committed in zip(self._memory, self._committed, strict=True):
            memory.load(committed)
        self._committed_fixed = [each.clone() for each in self._fixed]
        self._is_saved = True

    def _find_pointers(self) -> list[int]:
        found = [each for slots in self._slots for each in slots.values()]
        return [each.data_ptr() for each in found if each is not None]

    def take(self, share: Share, worker: int) -> None:
        """Store the buffer changes of a logical worker's share in `share`."""
        self._check()
        sections = zip(share.buffers, self._committed, self._memory, strict=True)
        for section, committed, memory in sections:
            memory.load(section)
            if not self._first:
                # Exactly zero if a value did not change, even if it is infinite.
                unchanged = section.whole == committed.whole
                section.whole.sub_(committed.whole).masked_fill_(unchanged, 0)
            elif worker:
                section.whole.zero_()

    def _check(self) -> None:
        if self._find_pointers() != self._pointers:
            raise NotImplementedError(
                "the model replaced one of its buffers with another tensor; change it in place"
            )
        for each, committed in zip(self._fixed, self._committed_fixed, strict=True):
            if not torch.equal(each, committed):
                raise NotImplementedError(
                    f"the model changed a buffer of {each.dtype}, which cannot be averaged"
                )

    def apply(self, result: ShareArrays) -> None:
        """Commit the combined result of all shares."""
        if not self._is_saved:  # this process computed no share
            self._save()
        sections = zip(result.buffers, self._committed, self._memory, strict=True)
        for section, committed, memory in sections:
            if not self._first:
                section.whole.add_(committed.whole)
            memory.store(section)
        self._is_saved = False


class _Memory:
    """The memory of some buffers of one kind, accessed without autograd."""

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._tensors = [each.detach() for each in buffers]
        is_flat = all(each.is_cpu and each.is_contiguous() for each in buffers)
        self._flat = [each.view(-1) for each in self._tensors] if is_flat else []

    def load(self, section: Section) -> None:
        """Copy the buffers to a section."""
        if self._flat:  # the fastest way
            torch.cat(self._flat, out=section.whole)
        else:
            torch._foreach_copy_(section.parts, self._tensors)

    def store(self, section: Section) -> None:
        """Copy a section to the buffers."""
        torch._foreach_copy_(self._tensors, section.parts)
