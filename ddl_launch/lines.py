# SPDX-License-Identifier: Apache-2.0
"""Splits a byte stream, which arrives in pieces and may hold progress bars, into lines. Pure."""

from __future__ import annotations

LONGEST = 64 * 1024  # bytes; a longer line is split


class Lines:
    """Splits one stream into lines. A carriage return starts the line over, as on a terminal, so
    only the last state of a progress bar remains when the line ends.

    `live` is the unfinished line; `redrawn` says whether it was started over.
    """

    def __init__(self) -> None:
        self.live = b""
        self.redrawn = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take data. Returns the lines that are now complete, without their ends."""
        *complete, rest = (self.live + data).split(b"\n")
        if complete:
            self.redrawn = False
        self.redrawn |= b"\r" in rest
        self.live = _last_state(rest, ended=False)
        lines = [_last_state(line, ended=True) for line in complete]
        while len(self.live) > LONGEST:
            lines.append(self.live[:LONGEST])
            self.live = self.live[LONGEST:]
        return lines

    def end(self) -> list[bytes]:
        """Take the end of the stream. Returns the unfinished line, if there is one."""
        lines = [_last_state(self.live, ended=True)] if self.live else []
        self.live = b""
        return lines


def _last_state(line: bytes, *, ended: bool) -> bytes:
    """The visible part of a line: after the last carriage return. One at the very end belongs to
    the line's end, or to what follows."""
    start = line.rfind(b"\r", 0, len(line) - 1) + 1
    return line[start:].rstrip(b"\r") if ended else line[start:]
