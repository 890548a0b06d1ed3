# SPDX-License-Identifier: Apache-2.0
"""The compilation and loading of the adapter's native part."""

from __future__ import annotations

import atexit
import functools
import importlib.machinery
import importlib.util
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import torch

import ddl_core
from ddl_core import native
from ddl_core.diagnosis.live_objects import live_comms
from ddl_core.frameworks import torch_choices
from ddl_core.native import BuildError

NAME = "_ddl_torch"  # must match csrc/module.cpp
_SOURCES = Path(__file__).parent / "csrc"

_lock = threading.Lock()
_module: ModuleType | None = None
_failure: BuildError | None = None  # the error of the only attempt to load the module
_missing = False  # True once a warning has been given that the module is missing


def module() -> ModuleType:
    """Load the native module and return it. Compile it first if necessary. Raises BuildError."""
    global _module, _failure
    with _lock:
        if _failure is not None:
            raise _failure
        if _module is None:
            try:
                _module = part().load(_load)
            except BuildError as error:
                _failure = error
                raise
            atexit.register(_module.close_all)  # otherwise peers would report a crash
            live_comms.add_source(_add_new_comms)
        return _module


def _add_new_comms() -> None:
    from ddl_torch import native_comms  # loads more of ddl_core than joining needs

    native_comms.add_new(_module)


def load_ahead() -> None:
    """Load the native module in advance, in a thread. Errors are ignored: `module_or_none` raises
    or reports them again."""
    with suppress(Exception):
        if torch_choices.native():
            module()


def module_or_none() -> ModuleType | None:
    """Return the native module, or None if ddl_torch.fallback must replace it: if DDL_TORCH_NATIVE
    is 0, or if the module cannot be compiled, which causes a warning."""
    global _missing
    if not torch_choices.native():
        return None
    if not _missing:
        try:
            return module()
        except BuildError as error:
            _missing = True
            warnings.warn(
                f"the backend ddl has no native part, so it is slower: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
    return None


@functools.cache
def part() -> native.Part:
    """Return the description of the native part for the installed versions."""
    abi = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
    key = f"torch-{torch.__version__}-{abi}"
    framework = f"PyTorch {torch.__version__}"
    # The builds of one version for CPUs and GPUs have the same commit, headers and interface.
    prebuilt = prebuilt_name(torch.__version__, torch.version.git_version, abi)
    return native.Part(
        *("ddl_torch", framework, key, _SOURCES, f"{NAME}.so", _flags(), _compile, prebuilt)
    )


def prebuilt_name(version: str, commit: str | None, abi: str) -> str:
    """Return the beginning of a prebuilt part's folder name; see packaging/torch_parts.py."""
    return f"torch-{version.partition('+')[0]}-{str(commit)[:12]}-{abi}"


def _compile(result: Path) -> None:
    import sysconfig

    include = sysconfig.get_path("include")
    python = Path(include, "Python.h")
    if not python.exists():
        raise BuildError(f"{python} does not exist; install Python's headers (Debian: python3-dev)")
    unit = native.one_unit(result.with_suffix(".cpp"), sorted(_SOURCES.glob("*.cpp")))
    native.run([*native.compiler(), str(unit), "-o", str(result), f"-isystem{include}", *_flags()])


def _flags() -> list[str]:
    root = Path(torch.__file__).parent
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    includes = [root / "include", root / "include/torch/csrc/api/include"]
    flags = [
        *(f"-std=c++{20 if version >= (2, 13) else 17}", "-shared", *native.COMPILE_FLAGS),
        *("-DUSE_DISTRIBUTED", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"),
        *(f"-I{folder}" for folder in (_SOURCES, ddl_core.get_include())),
        *(f"-isystem{folder}" for folder in includes),
        *(f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"),
        *native.link_flags(),
    ]
    # If these exist, pybind11 shares PyTorch's types only with modules of the same values.
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            flags.append(f'-DPYBIND11_{name}="{value}"')
    return flags


def _load(file: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(file))
    spec = importlib.util.spec_from_file_location(NAME, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
