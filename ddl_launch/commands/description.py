# SPDX-License-Identifier: Apache-2.0
"""A reader of descriptions in TOML. Its errors name the file and the key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from ddl_launch.errors import CommandError

_T = TypeVar("_T")


class DescriptionError(CommandError):
    """An error in a description. The message names the file and the key."""


class Table:
    """A table of a file. Every key must be read before `end`."""

    def __init__(self, path: Path, values: Mapping[str, Any], where: str = "") -> None:
        self.path, self._values, self._where = path, values, where
        self._known: set[str] = set()

    def get(self, key: str, convert: Callable[[Any], _T], default: _T | None = None) -> _T:
        """Return the value of a key, converted by `convert`, which raises ValueError. The key is
        required unless there is a default."""
        self._known.add(key)
        if key not in self._values:
            if default is None:
                raise self.error(key, "is missing")
            return default
        try:
            return convert(self._values[key])
        except ValueError as error:
            raise self.error(key, str(error)) from None

    def tables(self, key: str) -> Iterator[Table]:
        """Yield the tables in a list, which may be missing."""
        self._known.add(key)
        value = self._values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(key, "must be a list of tables")
        for i, item in enumerate(value):
            yield Table(self.path, item, f"{self._where}{key}[{i}].")

    def end(self) -> None:
        """Raise DescriptionError if the table has an unknown key."""
        for key in self._values:
            if key not in self._known:
                raise self.error(
                    key, f"is unknown; the known keys are {', '.join(sorted(self._known))}"
                )

    def error(self, key: str, problem: str) -> DescriptionError:
        return DescriptionError(f"{self.path}: {self._where}{key}: {problem}")


def read(path: Path) -> Table:
    """Read a file. Raises DescriptionError."""
    try:
        return Table(path, tomllib.loads(path.read_text()))
    except OSError as error:
        raise DescriptionError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DescriptionError(f"{path}: {error}") from None


def text(value: object) -> str:
    """Return a string of at least one character. Raises ValueError for other values."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a string")
    return value


def positive(value: object) -> int:
    """Return an integer of at least 1. Raises ValueError for other values."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not an integer >= 1")
    return value


def share(value: object) -> float:
    """Return a number above 0 and at most 1. Raises ValueError for other values."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1:
        raise ValueError(f"{value!r} is not a number above 0 and at most 1")
    return float(value)
