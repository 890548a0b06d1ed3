# SPDX-License-Identifier: Apache-2.0
"""Text to print: other users' text without control characters, and sizes of jobs. Pure."""

from __future__ import annotations

import re

from ddl_scheduler.base.requests import MOST

# Characters that control a terminal (C0, DEL, C1) or change the order in which text is displayed.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def printable(text: str) -> str:
    r"""Replace control characters by escapes such as \x1b and \u202e, for terminals and pages. Tabs
    and line ends stay."""
    return _OBEYED.sub(_escape, text)


def printable_line(text: str) -> str:
    """Do the same as `printable`, and return one line."""
    return printable(text).replace("\n", "\\n").replace("\t", " ")


def sizes_text(slots: int, least: int, most: int | None) -> str:
    """Describe how many slots a job has and may have, such as "2 of 1:8" or "2 of 1+"."""
    return f"{slots} of {least}" + (f":{most}" if most and most < MOST else "+")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
