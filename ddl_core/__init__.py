# SPDX-License-Identifier: Apache-2.0
"""libddl for Python: collective operations between processes on one host or many.

    import ddl_core
    import numpy as np

    comm = ddl_core.init()                  # started by ddlrun, mpirun, torchrun, srun, or alone
    array = np.full(4, comm.rank, np.float32)
    comm.allreduce(array, op="average")     # in place
    ddl_core.finalize()

The adapters for frameworks (ddl_torch, ...) build on this package, which imports no framework. All
errors are subclasses of DdlError; see ddl_core.errors.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ddl_core.base._sources import installed_path

__path__ = installed_path(__name__, __path__)

from ddl_core.base.paths import get_include, library_path

if TYPE_CHECKING:
    from ddl_core import errors
    from ddl_core.base._lib import version
    from ddl_core.base.config import Config
    from ddl_core.calls.order import Order, add
    from ddl_core.calls.packing import pack, packed_size, unpack
    from ddl_core.comm import Comm
    from ddl_core.diagnosis.dump import dump_on_signal
    from ddl_core.endpoint import Endpoint
    from ddl_core.errors import DdlError
    from ddl_core.group import Group
    from ddl_core.handles.work import Work
    from ddl_core.joining.memory import empty
    from ddl_core.joining.world_comm import finalize, init, is_initialized, world

# Imported at first use: an adapter whose native part calls the library needs none of these, and
# imports would delay its init.
_LATER = {
    "Comm": "comm",
    "Config": "base.config",
    "DdlError": "errors",
    "Endpoint": "endpoint",
    "Group": "group",
    "Order": "calls.order",
    "Work": "handles.work",
    "add": "calls.order",
    "dump_on_signal": "diagnosis.dump",
    "empty": "joining.memory",
    "finalize": "joining.world_comm",
    "init": "joining.world_comm",
    "is_initialized": "joining.world_comm",
    "pack": "calls.packing",
    "packed_size": "calls.packing",
    "unpack": "calls.packing",
    "version": "base._lib",
    "world": "joining.world_comm",
}
_MODULES = {"comm", "endpoint", "errors", "group", "operations", "options"}

__version__: str

if "DDL_LAUNCHER" in os.environ:
    from ddl_core.diagnosis.uncaught import report_to_launcher

    report_to_launcher()

__all__ = [
    "Comm",
    "Config",
    "DdlError",
    "Endpoint",
    "Group",
    "Order",
    "Work",
    "add",
    "dump_on_signal",
    "empty",
    "errors",
    "finalize",
    "get_include",
    "init",
    "is_initialized",
    "library_path",
    "pack",
    "packed_size",
    "unpack",
    "version",
    "world",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        return __getattr__("version")()
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
