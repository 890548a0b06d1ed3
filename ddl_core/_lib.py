"""The only importer of the extensions. Calls into libddl that can fail go through `check`."""

from __future__ import annotations

from pathlib import Path

from ddl_core.errors import BY_STATUS, DdlError, InternalError

try:
    from ddl_core import _ddl, _gate
except ImportError as error:
    raise ImportError(
        f"{Path(__file__).parent} has no usable libddl ({error}). Install it with"
        " 'pip install .' in the project's folder, and start Python outside of that folder, where"
        " the sources would be imported instead."
    ) from error

ffi = _ddl.ffi
lib = _ddl.lib
Gate = _gate.Gate
Pending = _gate.Pending
address = _gate.address  # of a NumPy array's elements
work_test, work_destroy = _gate.test, _gate.destroy

_FOLDER = Path(_ddl.__file__).parent


def to_error(status: int) -> DdlError:
    """The exception for a failed call's status, with this thread's last message."""
    message = ffi.string(lib.ddl_last_error()).decode(errors="replace")
    text = ffi.string(lib.ddl_strerror(status)).decode()
    cls = BY_STATUS.get(status)
    if cls is None:
        return InternalError(f"unknown status {status}: {message or text}")
    return cls(message or text)


def check(status: int) -> None:
    """Raise the typed exception for `status` unless it is DDL_OK."""
    if status != 0:
        raise to_error(status)


def get_include() -> str:
    """The folder to compile against: it holds ddl/ddl.h."""
    return str(_FOLDER / "include")


def library_path() -> str:
    """The shared library that this process uses. Link native code to this very file, so that there
    is one libddl in the process."""
    return str(_FOLDER / "lib" / "libddl.so.1")


def version() -> str:
    """The version of the library that is loaded, as 'major.minor.patch'."""
    number: int = lib.ddl_version()
    return f"{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}"
