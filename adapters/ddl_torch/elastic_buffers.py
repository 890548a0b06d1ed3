"""What a share does to the buffers of a model, as the running statistics of batch norm are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddl_torch.elastic_layout import Section, Share
from ddl_torch.elastic_tensors import WIDE, is_integer, wide


class Buffers:
    """Those of a model. Each share starts from the committed values.

    first  whether the values of logical worker 0's share are committed; else the average over all
           shares of how they changed them
    """

    def __init__(self, model: nn.Module, first: bool) -> None:
        self._first = first
        self._slots = [module._buffers for module in model.modules() if module._buffers]
        self._ids = self._ids_in_slots()
        kinds: dict[torch.dtype, list[Tensor]] = {}
        self._fixed: list[Tensor] = []  # those that have no sum, and must not change
        for each in model.buffers():
            if each.dtype in WIDE or is_integer(each):
                kinds.setdefault(wide(each), []).append(each)
            else:
                self._fixed.append(each)
        self.kinds = list(kinds.values())
        self._summed = [each for kind in self.kinds for each in kind]
        self.op = "sum" if first else "average"
        self._committed = [Section.of(kind) for kind in self.kinds]
        self._committed_parts = [part for each in self._committed for part in each.parts]
        self._committed_fixed: list[Tensor] = []
        self._is_saved = False

    def _ids_in_slots(self) -> list[int]:
        return [id(each) for slots in self._slots for each in slots.values()]

    @torch.no_grad()
    def begin(self) -> None:
        """A share starts."""
        if self._is_saved:  # by a share before it, which has changed them
            _copy(self._summed, self._committed_parts)
        else:
            self._save()

    def _save(self) -> None:
        _copy(self._committed_parts, self._summed)
        self._committed_fixed = [each.clone() for each in self._fixed]
        self._is_saved = True

    @torch.no_grad()
    def take(self, share: Share, worker: int) -> None:
        """Store what the worker's share did."""
        self._check()
        _copy(share.buffer_parts, self._summed)
        for section, committed in zip(share.buffers, self._committed, strict=True):
            if not self._first:
                # Exactly zero where nothing changed, also for an infinity.
                unchanged = section.whole == committed.whole
                section.whole.sub_(committed.whole).masked_fill_(unchanged, 0)
            elif worker:
                section.whole.zero_()

    def _check(self) -> None:
        if self._ids_in_slots() != self._ids:
            raise NotImplementedError(
                "the model replaced one of its buffers by another tensor; change it in place"
            )
        for each, committed in zip(self._fixed, self._committed_fixed, strict=True):
            if not torch.equal(each, committed):
                raise NotImplementedError(
                    f"the model changed a buffer of {each.dtype}, which has no average"
                )

    @torch.no_grad()
    def apply(self, result: Share) -> None:
        """Commit what came of all shares."""
        if not self._is_saved:  # there was no share here
            self._save()
        for section, committed in zip(result.buffers, self._committed, strict=True):
            if not self._first:
                section.whole.add_(committed.whole)
        _copy(self._summed, result.buffer_parts)
        self._is_saved = False


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)
