"""libddl for Python: collective operations between processes on one host or many.

    import ddl_core
    import numpy as np

    comm = ddl_core.init()                  # started by ddlrun, mpirun, torchrun, srun, or alone
    array = np.full(4, comm.rank, np.float32)
    comm.allreduce(array, op="average")     # in place
    ddl_core.finalize()

Frameworks have adapters with their own tensors (ddl_torch, ...), built on this. It imports none of
them. All errors are DdlError; see ddl_core.errors.
"""

from ddl_core import errors
from ddl_core._lib import get_include, library_path, version
from ddl_core.comm import Comm
from ddl_core.config import Config
from ddl_core.dump import dump_on_signal
from ddl_core.endpoint import Endpoint
from ddl_core.errors import DdlError
from ddl_core.group import Group
from ddl_core.work import Work
from ddl_core.world_comm import finalize, init, is_initialized, world

__version__ = version()

__all__ = [
    "Comm",
    "Config",
    "DdlError",
    "Endpoint",
    "Group",
    "Work",
    "dump_on_signal",
    "errors",
    "finalize",
    "get_include",
    "init",
    "is_initialized",
    "library_path",
    "version",
    "world",
]
