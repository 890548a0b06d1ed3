"""The native part of the adapter: where it lies, how it is compiled, and loading it.

It is compiled at first use, because the C++ interface of PyTorch's process groups changes with
every version of PyTorch; once for each version of PyTorch, Python and libddl, and each change of
source.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.machinery
import importlib.util
import os
import threading
import warnings
from pathlib import Path
from types import ModuleType

import torch

import ddl_core
from ddl_core import native, paths
from ddl_core.native import BuildError

NAME = "_ddl_torch"  # as in csrc/module.cpp
_SOURCES = Path(__file__).parent / "csrc"

_lock = threading.Lock()
_module: ModuleType | None = None
_missing = False  # building has failed


def module() -> ModuleType:
    """The native module, loaded, and compiled before if need be. Raises BuildError."""
    global _module
    with _lock:
        if _module is None:
            _module = _load(build())
            atexit.register(_module.close_all)  # say goodbye, so that peers take it for no crash
        return _module


def module_or_none() -> ModuleType | None:
    """The same, but None where there is none to be had, with a warning the first time. Then
    ddl_torch.fallback does what it does."""
    global _missing
    if not _missing:
        try:
            return module()
        except BuildError as error:
            _missing = True
            warnings.warn(
                f"the backend ddl runs without its native part, hence slower: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
    return None


def build() -> Path:
    """Compile the native module unless that was done before, and return its file."""
    target = path()
    native.once(target, f"ddl_torch for PyTorch {torch.__version__}", _build)
    return target


def path() -> Path:
    """The file of the native module for what is installed here, built or not."""
    # Every process passes here while it joins, so without sysconfig and the library, which take
    # longer than the rest.
    recipe = hashlib.sha256(repr(_flags()).encode())
    for source in [*_sources(".cpp"), *_sources(".hpp"), _header()]:
        recipe.update(source.read_bytes())
    abi = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
    versions = f"torch-{torch.__version__}-{abi}-libddl-{paths.header_version()}"
    folder = native.cache_folder() / "ddl_torch" / f"{versions}-{recipe.hexdigest()[:12]}"
    return folder / f"{NAME}.so"


def _build(result: Path) -> None:
    import sysconfig

    include = sysconfig.get_path("include")
    python = Path(include, "Python.h")
    if not python.exists():
        raise BuildError(f"there is no {python}; install Python's headers (Debian: python3-dev)")
    # One translation unit: the headers of PyTorch take much longer than these files.
    unit = result.with_suffix(".cpp")
    unit.write_text("".join(f'#include "{source}"\n' for source in _sources(".cpp")))
    native.run([*native.compiler(), str(unit), "-o", str(result), f"-isystem{include}", *_flags()])


def _flags() -> list[str]:
    root = Path(torch.__file__).parent
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    library = Path(ddl_core.library_path())
    includes = [root / "include", root / "include/torch/csrc/api/include"]
    flags = [
        f"-std=c++{20 if version >= (2, 13) else 17}",
        *("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
        *("-DUSE_DISTRIBUTED", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"),
        *(f"-I{folder}" for folder in (_SOURCES, ddl_core.get_include())),
        *(f"-isystem{folder}" for folder in includes),
        *(f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"),
        # The very library that ddl_core has loaded.
        *(str(library), f"-Wl,-rpath,{library.parent}"),
    ]
    # Where these exist, pybind11 shares PyTorch's types only with modules that agree in them.
    for part in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):
        value = getattr(torch._C, f"_PYBIND11_{part}", None)
        if value is not None:
            flags.append(f'-DPYBIND11_{part}="{value}"')
    return flags


def _sources(suffix: str) -> list[Path]:
    return [_SOURCES / name for name in sorted(os.listdir(_SOURCES)) if name.endswith(suffix)]


def _header() -> Path:
    return Path(ddl_core.get_include(), "ddl", "ddl.h")


def _load(file: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(file))
    spec = importlib.util.spec_from_file_location(NAME, file, loader=loader)
    assert spec is not None
    try:
        native = importlib.util.module_from_spec(spec)
    except ImportError as error:
        raise BuildError(
            f"cannot load {file} ({error}); remove it, to have it built anew"
        ) from error
    loader.exec_module(native)
    return native
