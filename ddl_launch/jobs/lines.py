# SPDX-License-Identifier: Apache-2.0
"""Splitting of a byte stream into lines. The stream may contain progress bars. Pure."""

from __future__ import annotations

LONGEST = 64 * 1024  # bytes; a longer line is split


class Lines:
    """A splitter of one stream into lines. A carriage return restarts the line as on a terminal, so
    a line contains only the last state of a progress bar.

    `live` is the unfinished line; `redrawn` is True if it was restarted.
    """

    def __init__(self) -> None:
        self.live = b""
        self.redrawn = False

    def feed(self, data: bytes) -> list[bytes]:
        """Add data. Return the lines that are now complete, without their ends."""
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
        """End the stream. Return the unfinished line, if there is one."""
        lines = [_last_state(self.live, ended=True)] if self.live else []
        self.live = b""
        return lines


def _last_state(line: bytes, *, ended: bool) -> bytes:
    """Return the visible part of a line, after the last carriage return. A carriage return at the
    very end belongs to the line's end, or to the following data."""
    start = line.rfind(b"\r", 0, len(line) - 1) + 1
    return line[start:].rstrip(b"\r") if ended else line[start:]
