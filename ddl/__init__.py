# SPDX-License-Identifier: Apache-2.0
"""libddl under one name: `ddl.torch` is the package ddl_torch, `ddl.elastic` is ddl_elastic ...

    import ddl.torch

    ddl.torch.init()

    import ddl                   # the names of ddl_core: operations on NumPy arrays

    comm = ddl.init()

Both names of a module refer to the same object: `ddl.torch.elastic` is `ddl_torch.elastic`. This
package imports a framework only when one of its modules is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import ddl_core

if TYPE_CHECKING:
    from ddl_core import *  # noqa: F403

__all__ = list(ddl_core.__all__)


class _Loader(InspectLoader):
    """A loader for the second name of a module, such as ddl.torch. It returns the module that was
    imported by its own name.

    spec  the spec of the module's own name
    """

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(self._spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has replaced it

    # These methods are for `python -m ddl.torch`.

    def get_code(self, fullname: str) -> CodeType | None:
        assert isinstance(self._spec.loader, InspectLoader)
        return self._spec.loader.get_code(self._spec.name)

    def get_source(self, fullname: str) -> str | None:
        assert isinstance(self._spec.loader, InspectLoader)
        return self._spec.loader.get_source(self._spec.name)


class _Finder(MetaPathFinder):
    """A finder that resolves ddl.NAME and its modules to the package ddl_NAME and its modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != __name__ or not name:
            return None
        own = importlib.util.find_spec(f"{package}_{name}")
        if own is None:
            return None
        is_package = own.submodule_search_locations is not None
        return ModuleSpec(fullname, _Loader(own), origin=own.origin, is_package=is_package)


# Placed before the finder of files, which would find modules of ddl_torch in `ddl.torch.__path__`
# and load them a second time.
sys.meta_path.insert(0, _Finder())


def __getattr__(name: str) -> Any:
    if name in __all__ or name == "__version__":
        return getattr(ddl_core, name)
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
