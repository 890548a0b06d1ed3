# SPDX-License-Identifier: Apache-2.0
"""The findings of `ddl doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """A finding about one subject.

    level    "note" if it reduces speed or matters only to other libraries; "wrong" sets exit code 1
    change   the change that is suggested, or ""
    """

    level: Level
    what: str
    told: str
    change: str = ""


def ok(what: str, told: str) -> Finding:
    return Finding("ok", what, told)


def note(what: str, told: str, change: str) -> Finding:
    return Finding("note", what, told, change)


def wrong(what: str, told: str, change: str) -> Finding:
    return Finding("wrong", what, told, change)
