# SPDX-License-Identifier: Apache-2.0
"""The options of a process group of ddl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddl_torch._autoload import cpu_backend, is_ddl


@dataclass(frozen=True)
class Options:
    """Options for `pg_options` of torch.distributed.init_process_group and new_group.

    invariant  the order of additions, equal on all ranks. "size": the bits of a reduction of floats
               depend only on the operands and the number of ranks. "ranks:8": a sum has 8 logical
               workers, see `allreduce_parts`. "none": the fastest order. None: the default group's
               setting, and for the default group DDL_INVARIANT, else "none"

    Groups that are split off, shrunk or merged keep the setting of their group. Raises
    ddl_core.errors.InvalidArgument for another value.
    """

    invariant: str | None = None

    def __post_init__(self) -> None:
        self.number()

    def number(self) -> int:
        """Return `invariant` as in ddl_comm_config."""
        if self.invariant is None:  # most groups: their creation imports little
            return 0
        from ddl_core.base.config import Config

        return Config(invariant=self.invariant).fields()["invariant"]


def of_new_group(group: Any, given: Any) -> Options:
    """Return the options of a new group. `given` is the group's pg_options, which may be for
    another backend of the group."""
    import torch.distributed as dist

    options = given if isinstance(given, Options) else Options()
    if options.invariant or not group.global_ranks_in_group or not is_ddl(dist.group.WORLD):
        return options
    inherited = cpu_backend(dist.group.WORLD).invariant
    if not inherited:
        return options
    from ddl_core.base.config import invariant_name

    return Options(invariant=invariant_name(inherited))
