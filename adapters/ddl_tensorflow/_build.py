"""The native part of the adapter: where it lies, how it is compiled, and loading it.

It is compiled at first use, because the C++ interface of TensorFlow's kernels changes with every
version of TensorFlow; once for each version of TensorFlow and libddl, and each change of source.
Where there is no compiler, _fallback.py takes its place.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

import ddl_core
from ddl_core import native
from ddl_core.native import BuildError, NoCompiler
from ddl_tensorflow import _fallback
from ddl_tensorflow._control import Control

NAME = "_ddl_tensorflow"
_SOURCES = Path(__file__).parent / "csrc"
_XLA = "xla.cpp"  # the lowering for XLA, whose headers take most of the time

_lock = threading.Lock()
_loaded: Native | None = None


class Native(NamedTuple):
    """The operations, and the way into the world: a Control, or what stands in for it."""

    operations: Any
    world: Any


def load() -> Native:
    """The native part, loaded, and compiled before if need be. Raises BuildError."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
            atexit.register(_loaded.world.leave)  # so that peers take it for no crash
        return _loaded


def _load() -> Native:
    if not path().exists():
        try:
            native.compiler()
        except NoCompiler as error:
            warnings.warn(f"{error}. {_fallback.LOST}", RuntimeWarning, stacklevel=4)
            return Native(_fallback.operations(str(error)), _fallback.world)
    file = build()
    try:
        return Native(tf.load_op_library(str(file)), Control(ctypes.CDLL(str(file))))
    except (OSError, tf.errors.OpError) as error:
        raise BuildError(
            f"cannot load {file} ({error}); remove it, to have it built anew"
        ) from error


def build() -> Path:
    """Compile the native part unless that was done before, and return its file."""
    target = path()
    native.once(target, f"ddl_tensorflow for TensorFlow {tf.__version__}", _build)
    return target


def path() -> Path:
    """The file of the native part for what is installed here, built or not."""
    recipe = hashlib.sha256(repr((_compile_flags(), _link_flags())).encode())
    for source in [*_sources(), *sorted(_SOURCES.glob("*.hpp")), _header()]:
        recipe.update(source.read_bytes())
    versions = f"tensorflow-{tf.__version__}-libddl-{ddl_core.version()}"
    folder = native.cache_folder() / "ddl_tensorflow" / f"{versions}-{recipe.hexdigest()[:12]}"
    return folder / f"{NAME}.so"


def _build(result: Path) -> None:
    compiler = native.compiler()
    # Two translation units, at the same time: the headers take much longer than these files.
    units = {"kernels": [s for s in _sources() if s.name != _XLA], "xla": [_SOURCES / _XLA]}
    objects = []
    with ThreadPoolExecutor(len(units)) as pool:
        for name, sources in units.items():
            unit = result.with_name(f"{name}.cpp")
            unit.write_text("".join(f'#include "{source}"\n' for source in sources))
            compiled = unit.with_suffix(".o")
            command = [*compiler, "-c", str(unit), "-o", str(compiled), *_compile_flags()]
            objects.append((pool.submit(native.run, command), compiled))
        for running, _ in objects:
            running.result()
    files = [str(file) for _, file in objects]
    native.run([*compiler, *files, "-shared", "-o", str(result), *_link_flags()])


def _compile_flags() -> list[str]:
    include = Path(tf.sysconfig.get_include())
    # XLA's headers include these two as from their own folders.
    external = [include / f"external/{part}" for part in ("highwayhash", "farmhash_archive/src")]
    given = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    return [
        *("-O2", "-fPIC", "-fvisibility=hidden", "-pthread", *given),
        *(f"-I{folder}" for folder in (_SOURCES, ddl_core.get_include())),
        *(f"-isystem{folder}" for folder in (include, *external)),
    ]


def _link_flags() -> list[str]:
    library = Path(ddl_core.library_path())
    return [
        *tf.sysconfig.get_link_flags(),
        "-l:libtensorflow_cc.so.2",
        # The very library that ddl_core has loaded.
        *(str(library), f"-Wl,-rpath,{library.parent}"),
    ]


def _sources() -> list[Path]:
    return sorted(_SOURCES.glob("*.cpp"))


def _header() -> Path:
    return Path(ddl_core.get_include(), "ddl", "ddl.h")
