# SPDX-License-Identifier: Apache-2.0
"""The native part of the adapter: compiling and loading it. Without a compiler, _fallback.py
replaces it."""

from __future__ import annotations

import ctypes
import functools
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

import ddl_core
from ddl_core import adapter, native
from ddl_core.native import NoCompiler
from ddl_tensorflow import _fallback, calls

NAME = "_ddl_tensorflow"
_SOURCES = Path(__file__).parent / "csrc"
_XLA = "xla.cpp"  # the lowering for XLA, whose headers take most of the compile time

_lock = threading.Lock()
_loaded: NativeOperations | None = None


class NativeOperations(NamedTuple):
    """The operations, and the functions that open and close their worlds: `open(number, comm)` and
    `close()`. kept: objects that must exist as long as this object."""

    operations: Any
    open: Callable[[int, ddl_core.Comm], None]
    close: Callable[[], None]
    kept: Any = None


def load() -> NativeOperations:
    """Return the native part. Compiles it if necessary. Raises BuildError."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
        return _loaded


def _load() -> NativeOperations:
    if not part().path.exists():
        try:
            native.compiler()
        except NoCompiler as error:
            warnings.warn(f"{error}. {_fallback.LOST}", RuntimeWarning, stacklevel=5)
            worlds = _fallback.worlds
            return NativeOperations(_fallback.operations(str(error)), worlds.open, worlds.close)
    return part().load(_load_file, (OSError, tf.errors.OpError))


def _load_file(file: Path) -> NativeOperations:
    operations, library = tf.load_op_library(str(file)), ctypes.CDLL(str(file))
    library.ddl_tensorflow_open.argtypes = [ctypes.c_int64, ctypes.c_void_p]
    library.ddl_tensorflow_open.restype = library.ddl_tensorflow_close.restype = None
    return NativeOperations(
        operations,
        lambda number, comm: library.ddl_tensorflow_open(number, adapter.address(comm)),
        library.ddl_tensorflow_close,
        calls.serve(library),
    )


@functools.cache
def part() -> native.Part:
    """Return the native part for the installed versions."""
    flags = [*_compile_flags(), *_link_flags()]
    version = tf.__version__
    title, key = f"TensorFlow {version}", f"tensorflow-{version}"
    return native.Part("ddl_tensorflow", title, key, _SOURCES, f"{NAME}.so", flags, _compile)


def _compile(result: Path) -> None:
    compiler = native.compiler()
    sources = sorted(_SOURCES.glob("*.cpp"))
    # Two translation units, compiled in parallel, since the headers take most of the time.
    units = {"kernels": [s for s in sources if s.name != _XLA], "xla": [_SOURCES / _XLA]}
    objects = []
    with ThreadPoolExecutor(len(units)) as pool:
        for name, own in units.items():
            unit = native.one_unit(result.with_name(f"{name}.cpp"), own)
            compiled = unit.with_suffix(".o")
            command = [*compiler, "-c", str(unit), "-o", str(compiled), *_compile_flags()]
            objects.append((pool.submit(native.run, command), compiled))
        for running, _ in objects:
            running.result()
    files = [str(file) for _, file in objects]
    native.run([*compiler, *files, "-shared", "-o", str(result), *_link_flags()])


def _compile_flags() -> list[str]:
    include = Path(tf.sysconfig.get_include())
    # XLA's headers include these two from their own folders.
    external = [include / f"external/{part}" for part in ("highwayhash", "farmhash_archive/src")]
    given = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    return [
        *(*native.COMPILE_FLAGS, *given),
        *(f"-I{folder}" for folder in (_SOURCES, ddl_core.get_include())),
        *(f"-isystem{folder}" for folder in (include, *external)),
    ]


def _link_flags() -> list[str]:
    return [*tf.sysconfig.get_link_flags(), "-l:libtensorflow_cc.so.2", *native.link_flags()]
