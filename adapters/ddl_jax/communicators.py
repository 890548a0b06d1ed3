# SPDX-License-Identifier: Apache-2.0
"""Communicators of a part of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddl_core.errors import InvalidArgument
from ddl_core.frameworks import communicators
from ddl_jax import world

if TYPE_CHECKING:
    from ddl_core import Comm


class Communicator(communicators.Communicator):
    __doc__ = communicators.Communicator.__doc__

    def _add(self, comm: Comm) -> int:
        self._comm = comm
        number, self._epoch = world.add(comm)
        return number

    def _part(self) -> Comm:
        if self._epoch != world.epoch():
            raise InvalidArgument("comm was created before ddl_jax.shutdown(); create it again")
        return self._comm


_functions = communicators.Functions(Communicator, world.joined)
split, subset, members = _functions.split, _functions.subset, _functions.members
