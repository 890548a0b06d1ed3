# SPDX-License-Identifier: Apache-2.0
"""Communicators of a part of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddl_core.frameworks import communicators
from ddl_tensorflow import world

if TYPE_CHECKING:
    from ddl_core import Comm


class Communicator(communicators.Communicator):
    __doc__ = communicators.Communicator.__doc__

    def _add(self, comm: Comm) -> int:
        return world.add(comm)

    def _part(self) -> Comm:
        return world.part(self._number)


_functions = communicators.Functions(Communicator, world.joined)
split, subset, members = _functions.split, _functions.subset, _functions.members
