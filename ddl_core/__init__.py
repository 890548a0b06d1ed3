# SPDX-License-Identifier: Apache-2.0
"""libddl for Python: collective operations between processes on one host or many.

    import ddl_core
    import numpy as np

    comm = ddl_core.init()                  # started by ddlrun, mpirun, torchrun, srun, or alone
    array = np.full(4, comm.rank, np.float32)
    comm.allreduce(array, op="average")     # in place
    ddl_core.finalize()

The adapters for frameworks (ddl_torch, ...) build on this package, which imports no framework. All
errors are DdlError; see ddl_core.errors.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ddl_core._sources import installed_path

__path__ = installed_path(__name__, __path__)

from ddl_core.paths import get_include, library_path

if TYPE_CHECKING:
    from ddl_core import errors
    from ddl_core._lib import version
    from ddl_core.comm import Comm
    from ddl_core.config import Config
    from ddl_core.dump import dump_on_signal
    from ddl_core.endpoint import Endpoint
    from ddl_core.errors import DdlError
    from ddl_core.group import Group
    from ddl_core.memory import empty
    from ddl_core.order import Order, add
    from ddl_core.work import Work
    from ddl_core.world_comm import finalize, init, is_initialized, world

# Imported at first use: an adapter whose native part calls the library needs none of these, and
# imports would delay its init.
_LATER = {
    "Comm": "comm",
    "Config": "config",
    "DdlError": "errors",
    "Endpoint": "endpoint",
    "Group": "group",
    "Order": "order",
    "Work": "work",
    "add": "order",
    "dump_on_signal": "dump",
    "empty": "memory",
    "finalize": "world_comm",
    "init": "world_comm",
    "is_initialized": "world_comm",
    "version": "_lib",
    "world": "world_comm",
}
_MODULES = frozenset(_LATER.values()) | {"arguments", "buffer", "dtypes", "operations", "options"}

__version__: str

if "DDL_LAUNCHER" in os.environ:
    from ddl_core.uncaught import report_to_launcher

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
