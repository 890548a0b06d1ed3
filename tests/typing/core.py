# SPDX-License-Identifier: Apache-2.0
"""ddl_core, as a user with a strict type checker writes it. Each `ignore` is of an error."""

from __future__ import annotations

import numpy as np

import ddl_core
from ddl_core import Comm, Config, DdlError
from ddl_core.base.names import Op
from ddl_core.errors import PeerLost

comm: Comm = ddl_core.init()
array = np.ones(4, np.float32)
chosen: Op = "max"
comm.allreduce(array, op=chosen)
comm.allreduce(array, op="maximum")  # type: ignore[arg-type]
total: np.ndarray[tuple[int], np.dtype[np.float32]] = comm.allreduce(array)
comm.allreduce(array, name="gradients", prescale=0.5)
comm.allreduce(array, tiemout=1.0)  # type: ignore[call-arg]
work = comm.allreduce_async(array, op="average")
result: np.ndarray[tuple[int], np.dtype[np.float32]] = work.wait()
half: Comm = comm.split(comm.rank % 2)
nobody: None = comm.split(None)
perhaps: Comm | None = comm.split(comm.rank if comm.rank else None)
half.close()
with comm.group() as group:
    group.allreduce(array)
config = Config(timeout=2.0)
copy: Comm = comm.duplicate(config)
counters: dict[str, int] = copy.counters()
flags: list[str] = [ddl_core.get_include(), ddl_core.library_path(), ddl_core.version()]
try:
    comm.barrier()
except PeerLost as error:
    lost: DdlError = error
    comm = comm.shrink()
ddl_core.finalize()
