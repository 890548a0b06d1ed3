"""The native parts of the adapter: where they lie, how they are compiled, and loading them.

They are compiled at first use, since they are for the installed jaxlib and libddl; once for each
version of these, and each change of source.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import threading
from pathlib import Path

import ddl_core
from ddl_core import native
from ddl_core.native import BuildError

_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = [
    *("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-O2"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
]
HANDLER, MPI = "handler", "mpi"  # for the operations; for jax's own collectives
PARTS = (HANDLER, MPI)

_lock = threading.Lock()
_handler: ctypes.CDLL | None = None


def handler() -> ctypes.CDLL:
    """The handler of the operations, known to XLA, and compiled before if need be. Raises
    BuildError."""
    global _handler
    with _lock:
        if _handler is None:
            import jax

            from ddl_jax.primitives import TARGET

            file = build(HANDLER)
            try:
                library = ctypes.CDLL(str(file))
            except OSError as error:
                raise BuildError(
                    f"cannot load {file} ({error}); remove it, to have it built anew"
                ) from error
            library.ddl_jax_open.argtypes = [ctypes.c_void_p]
            library.ddl_jax_open.restype = None
            capsule = jax.ffi.pycapsule(library.ddl_jax_call)
            jax.ffi.register_ffi_target(TARGET, capsule, platform="cpu")
            _handler = library
        return _handler


def build(part: str) -> Path:
    """Compile a part unless that was done before, and return its file."""
    target = path(part)
    native.once(target, f"ddl_jax for jaxlib {_version()} ({part})", _compile)
    return target


def path(part: str) -> Path:
    """The file of a part for what is installed here, built or not."""
    recipe = hashlib.sha256(repr(_flags()).encode())
    header = Path(ddl_core.get_include(), "ddl", "ddl.h")
    for source in [*sorted(_SOURCES.glob("*.[ch]")), header]:
        recipe.update(source.read_bytes())
    versions = f"jaxlib-{_version()}-libddl-{ddl_core.version()}"
    folder = native.cache_folder() / "ddl_jax" / f"{versions}-{recipe.hexdigest()[:12]}"
    return folder / f"libddl_jax_{part}.so"


def _compile(result: Path) -> None:
    source = _SOURCES / f"{result.stem.removeprefix('libddl_jax_')}.c"
    # -x: the compiler is that for C++, the source is C.
    files = ["-x", "c", str(source), "-x", "none", "-o", str(result)]
    native.run([*native.compiler(), *files, *_flags()])


def _flags() -> list[str]:
    library = Path(ddl_core.library_path())
    return [
        *_FLAGS,
        *(f"-I{ddl_core.get_include()}", f"-isystem{_jaxlib() / 'include'}"),
        # The very library that ddl_core has loaded.
        *(str(library), f"-Wl,-rpath,{library.parent}"),
    ]


# jax itself must not be imported here: see distributed.initialize.


def _version() -> str:
    return importlib.metadata.version("jaxlib")


def _jaxlib() -> Path:
    found = importlib.util.find_spec("jaxlib")
    if found is None or not found.submodule_search_locations:
        raise BuildError("jaxlib is not installed")
    return Path(found.submodule_search_locations[0])
