# SPDX-License-Identifier: Apache-2.0
"""libddl for torchft, which replaces the members of a process group at each change of its quorum.

    from ddl_torch.torchft import ProcessGroupDDL

    manager = torchft.Manager(pg=ProcessGroupDDL(timeout=timedelta(seconds=30)), ...)

Written for torchft 0.2.0, whose managers take a process group with a method `configure`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from ddl_core.calls import gpu
from ddl_torch import _build, shared_memory
from ddl_torch.options import Options


class ProcessGroupDDL(ProcessGroupWrapper):  # torchft may be missing
    """A process group of the backend "ddl" for torchft's Manager, to replace ProcessGroupGloo.

    timeout: the limit for creating each quorum's group, and for its operations.
    invariant: the order of additions, as in `ddl_torch.Options`. None: DDL_INVARIANT, else "none".
    Equal in all replica groups. Raises ddl_core.errors.InvalidArgument for another value.

    An operation with a dead member fails within a fraction of a second, not after the timeout. The
    group supports reduce_scatter, which ProcessGroupGloo does not. The callbacks of futures that
    are complete run at once, as torchft expects.
    """

    def __init__(
        self, timeout: timedelta = timedelta(seconds=60), invariant: str | None = None
    ) -> None:
        super().__init__(timeout)
        self._invariant = Options(invariant).number()

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        native = _build.module()
        shared_memory.apply(native)
        if torch.version.cuda is not None:
            gpu.load_libraries()
        name = f"quorum {self._quorum_id}"
        backend = native.join(store, rank, world_size, self._timeout, name, self._invariant)
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        for device in devices:
            kind = dist.ProcessGroup.BackendType.CUSTOM
            group._register_backend(torch.device(device), kind, backend)
        return group

    def getBackendName(self) -> str:
        """Return the name by which torchft logs this group."""
        return "torchft-ddl"

    def errored(self) -> Exception | None:
        """Return an error if the group's comm has failed. torchft then requests a new quorum."""
        if self._pg is None:
            return None
        return _failure(self._pg._get_backend(torch.device("cpu")))


def _failure(backend: Any) -> Exception | None:
    error = backend.get_error()
    if error.name == "SUCCESS":
        return None
    return dist.DistBackendError(f"ddl: the group of this quorum has failed: {error.name}")
