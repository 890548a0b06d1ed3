# SPDX-License-Identifier: Apache-2.0
"""The native parts of the adapter: compiling and loading them.

The part "handler" contains the operations, and "mpi" contains the MPI for jax's own collectives.
This module must not import jax at its top: see distributed.initialize.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import threading
from pathlib import Path

import ddl_core
from ddl_core import native
from ddl_core.frameworks import native_recipe

PARTS = ("handler", "mpi")
# The symbol that XLA calls on each platform.
PLATFORMS = {"cpu": "ddl_jax_call", "CUDA": "ddl_jax_call_cuda"}
_SOURCES = Path(__file__).parent / "csrc"

_lock = threading.Lock()
_handler: ctypes.CDLL | None = None


def handler() -> ctypes.CDLL:
    """Return the handler of the operations, registered with XLA. Compiles it if necessary. Raises
    BuildError."""
    global _handler
    with _lock:
        if _handler is None:
            _handler = part("handler").load(_load_handler)
        return _handler


def _load_handler(file: Path) -> ctypes.CDLL:
    import jax

    from ddl_jax.primitives import TARGET

    library = ctypes.CDLL(str(file))
    library.ddl_jax_open.argtypes = [ctypes.c_void_p]
    library.ddl_jax_open.restype = None
    library.ddl_jax_add.argtypes = [ctypes.c_void_p]
    for platform, call in PLATFORMS.items():
        capsule = jax.ffi.pycapsule(library[call])
        jax.ffi.register_ffi_target(TARGET, capsule, platform=platform)
    return library


@functools.cache
def part(name: str) -> native.Part:
    """Return a part, one of PARTS, for the installed versions."""
    jax, jaxlib = (importlib.metadata.version(package) for package in ("jax", "jaxlib"))
    return native.Part(
        "ddl_jax",
        f"JAX {jax}, jaxlib {jaxlib}",
        f"jaxlib-{jaxlib}",
        _SOURCES,
        f"libddl_jax_{name}.so",
        _flags(),
        functools.partial(_compile, name),
        native_recipe.xla_interface(_include()),
    )


def _compile(name: str, result: Path) -> None:
    # -x c, since the sources are C and the compiler is one for C++.
    files = ["-x", "c", str(_SOURCES / f"{name}.c"), "-x", "none", "-o", str(result)]
    native.run([*native.compiler(), *files, *_flags()])


def _flags() -> list[str]:
    return [
        *native_recipe.JAX_FLAGS,
        f"-I{ddl_core.get_include()}",
        f"-isystem{_include()}",
        *native.link_flags(),
    ]


def _include() -> Path:
    """Return the folder of XLA's headers."""
    found = importlib.util.find_spec("jaxlib")
    if found is None or not found.submodule_search_locations:
        raise native.BuildError("jaxlib is not installed")
    return Path(found.submodule_search_locations[0]) / "include"
