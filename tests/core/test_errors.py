# SPDX-License-Identifier: Apache-2.0
"""Every status of ddl.h has exactly one exception class, in the group that the header gives."""

import pickle
import re
from pathlib import Path

import pytest

import ddl_core
from ddl_core import errors
from ddl_core.base import _lib

pytestmark = pytest.mark.pure

HEADER = (Path(ddl_core.get_include()) / "ddl" / "ddl.h").read_text()
STATUSES = {
    name: int(value) for name, value in re.findall(r"^\s+(DDL_E\w+) = (-\d+)", HEADER, re.MULTILINE)
}


def concrete(cls: type[errors.DdlError]) -> list[type[errors.DdlError]]:
    """Return the classes of ddl_core below `cls` that stand for a status; an adapter may add its
    own."""
    found = [cls] if cls.status and cls.__module__ == errors.__name__ else []
    return found + [below for child in cls.__subclasses__() for below in concrete(child)]


def test_header_was_read() -> None:
    assert len(STATUSES) == 14
    assert STATUSES["DDL_EINVAL"] == -1


def test_every_status_has_one_class() -> None:
    classes = concrete(errors.DdlError)
    assert sorted(cls.status for cls in classes) == sorted(STATUSES.values())
    assert {cls.status: cls for cls in classes} == errors.BY_STATUS


def test_statuses_are_those_of_the_library() -> None:
    compiled = _lib.ffi.typeof("ddl_status").relements
    assert {name: value for name, value in compiled.items() if value < 0} == STATUSES


@pytest.mark.parametrize(
    ("first", "last", "group"),
    [
        ("fix the call", "retry or give up", errors.UsageError),
        ("retry or give up", "this comm is dead", errors.RetryError),
        ("this comm is dead", "a defect in libddl", errors.CommDead),
        ("a defect in libddl", "} ddl_status", errors.InternalError),
    ],
)
def test_groups_are_those_of_the_header(first: str, last: str, group: type) -> None:
    text = HEADER.lower()
    section = text[text.index("/* " + first) : text.index(last, text.index("/* " + first))]
    values = [int(value) for value in re.findall(r"= (-\d+)", section)]
    assert values
    assert all(issubclass(errors.BY_STATUS[value], group) for value in values)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.InvalidArgument, ValueError),
        (errors.TimedOut, TimeoutError),
        (errors.Expired, TimeoutError),
        (errors.OutOfMemory, MemoryError),
        (errors.PeerLost, ConnectionError),
        (errors.Unreachable, ConnectionError),
        (errors.SystemRefused, OSError),
    ],
)
def test_classes_are_the_builtin_ones_too(cls: type, builtin: type) -> None:
    assert issubclass(cls, builtin)


@pytest.mark.parametrize("cls", errors.BY_STATUS.values())
def test_message_survives_pickling(cls: type[errors.DdlError]) -> None:
    error = pickle.loads(pickle.dumps(cls("rank 3 on host b is lost")))
    assert type(error) is cls
    assert (error.status, error.message, str(error)) == (
        cls.status,
        *["rank 3 on host b is lost"] * 2,
    )


def test_check_raises_with_the_librarys_message() -> None:
    with pytest.raises(errors.InvalidArgument, match="comm is NULL"):
        _lib.check(_lib.lib.ddl_comm_status(_lib.ffi.NULL))


def test_unknown_status_is_an_internal_error() -> None:
    with pytest.raises(errors.InternalError, match="unknown status -99"):
        _lib.check(-99)
