# SPDX-License-Identifier: Apache-2.0
"""Access to the extension modules, which only this module imports. Calls into libddl that can fail
go through `check`."""

from __future__ import annotations

from ddl_core.base.paths import missing
from ddl_core.errors import BY_STATUS, DdlError, InternalError

try:
    from ddl_core import _ddl, _fast_path
except ImportError as error:
    raise missing(error) from error

ffi = _ddl.ffi
lib = _ddl.lib
FastPath = _fast_path.FastPath
Pending = _fast_path.Pending
address = _fast_path.address  # the address of a NumPy array's elements
work_test, work_destroy = _fast_path.test, _fast_path.destroy
fail_exit = _fast_path.fail_exit


def to_error(status: int) -> DdlError:
    """Return the exception for the status of a failed call, with this thread's last message."""
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


def version() -> str:
    """Return the version of the loaded library, as 'major.minor.patch'."""
    number: int = lib.ddl_version()
    return f"{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}"
