"""Whole lines out of a byte stream that comes in pieces and may hold progress bars. Pure."""

from __future__ import annotations

_LONGEST = 64 * 1024  # bytes; a longer line is given in parts


class Lines:
    """Cuts one stream into lines. A carriage return starts the line over, as on a terminal, so that
    of a progress bar only the last state is left when the line ends.

    `live` is the line that has begun and not ended yet; `redrawn` says that it was started over.
    """

    def __init__(self) -> None:
        self.live = b""
        self.redrawn = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take in what was read; the lines that are now complete, without their ends."""
        *complete, rest = (self.live + data).split(b"\n")
        if complete:
            self.redrawn = False
        self.redrawn |= b"\r" in rest
        self.live = _last_state(rest, ended=False)
        lines = [_last_state(line, ended=True) for line in complete]
        while len(self.live) > _LONGEST:
            lines.append(self.live[:_LONGEST])
            self.live = self.live[_LONGEST:]
        return lines

    def end(self) -> list[bytes]:
        """The stream has ended: the line that had no end, if there is one."""
        lines = [_last_state(self.live, ended=True)] if self.live else []
        self.live = b""
        return lines


def _last_state(line: bytes, *, ended: bool) -> bytes:
    """What is to be seen after the last carriage return. One at the very end is part of the line's
    end, or belongs to what comes next."""
    start = line.rfind(b"\r", 0, len(line) - 1) + 1
    return line[start:].rstrip(b"\r") if ended else line[start:]
