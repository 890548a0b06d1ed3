"""Text of others, made harmless. Pure."""

from __future__ import annotations

import re

# What terminals obey (C0, DEL, C1), and what makes text read in another order than it is written.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def printable(text: str) -> str:
    r"""For terminals and pages: control characters appear as \x1b or \u202e. Tabs and line ends
    stay."""
    return _OBEYED.sub(_escape, text)


def printable_line(text: str) -> str:
    """The same in one line."""
    return printable(text).replace("\n", "\\n").replace("\t", " ")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
