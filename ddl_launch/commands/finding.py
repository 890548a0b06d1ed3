# SPDX-License-Identifier: Apache-2.0
"""One thing that `ddl doctor` has looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """level: "note" costs speed or matters to others than libddl, "wrong" ends the command with 1.
    change: what to do about it, "" where all is well."""

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
