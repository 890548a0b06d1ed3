# SPDX-License-Identifier: Apache-2.0
"""ddlrun's stdout and stderr. They show the ranks' lines, each complete and with its prefix."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import BinaryIO

LONGEST = 64 * 1024  # bytes; a longer line is split
# Seconds between two lines of a progress bar if there is no terminal.
_SECONDS_BETWEEN_STATES = 10.0
_COLORS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92, 94, 91)  # a terminal's colors, one for each host
_CLEAR = b"\r\x1b[K"


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


class Stream:
    """A rank's stdout or stderr, whose lines go to `sink`."""

    def __init__(
        self,
        console: Console,
        rank: int,
        prefix: bytes,
        sink: BinaryIO,
        color: int | None = None,
        last: deque[bytes] | None = None,
    ) -> None:
        self.rank = rank
        self.mark = prefix
        self.last = last
        self.prefix = b"\x1b[%dm%s\x1b[0m" % (color, prefix) if color and prefix else prefix
        self.sink = sink
        self.lines = Lines()
        self._console = console
        self._shown = time.monotonic()
        # Bytes are passed on unchanged if there is no prefix and no line is redrawn.
        self._is_raw = not prefix and not console.draws_on(sink)
        self._unfinished = b""

    def feed(self, data: bytes) -> None:
        """Forward received data. Raises BrokenPipeError if no process reads the sink any more."""
        self._pass_on(self.lines.feed(data))
        if self._is_raw:
            self._unfinished += data
            end = max(self._unfinished.rfind(b"\n"), self._unfinished.rfind(b"\r")) + 1
            if len(self._unfinished) - end > LONGEST:
                end = len(self._unfinished)
            self._pass_raw(end)

    def end(self) -> None:
        """Forward the rest after the rank has closed the stream."""
        self._pass_on(self.lines.end())
        self._pass_raw(len(self._unfinished))

    def _pass_raw(self, end: int) -> None:
        """Forward the first `end` bytes that have not been forwarded yet. Usually they are complete
        lines, so that the output of other ranks does not split a line."""
        data, self._unfinished = self._unfinished[:end], self._unfinished[end:]
        self._console.put(self.sink, data)

    def _pass_on(self, lines: list[bytes]) -> None:
        if self.last is not None:
            self.last.extend(lines)
        if self._is_raw:
            return
        now = time.monotonic()
        if lines:
            self._shown = now
        elif self.lines.redrawn and now - self._shown >= _SECONDS_BETWEEN_STATES:
            self._shown = now
            if not self._console.draws_on(self.sink):
                lines = [self.lines.live.rstrip(b"\r")]
        self._console.write(self, lines)


def open_standard_streams() -> None:
    """Open /dev/null for each standard stream that was closed when this process began."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


class Console:
    """ddlrun's stdout and stderr.

    On a terminal, a rank's unfinished line (a progress bar, a prompt) stays at the bottom, below
    the lines of all ranks.
    """

    def __init__(self) -> None:
        # Python's own streams are not buffered with PYTHONUNBUFFERED. They then lose the rest of a
        # write that a signal interrupted.
        self.out = open(sys.stdout.fileno(), "wb", closefd=False)
        self.err = open(sys.stderr.fileno(), "wb", closefd=False)
        self._terminals = [sink for sink in (self.out, self.err) if sink.isatty()]
        self._live: dict[Stream, bytes] = {}
        self._drawn: Stream | None = None

    def stream(
        self,
        rank: int,
        prefix: str,
        sink: BinaryIO,
        host: int | None = None,
        last: deque[bytes] | None = None,
    ) -> Stream:
        """Return a stream of `rank`.

        sink   stdout or stderr of ddlrun, which gets each line after `prefix`
        host   the number of the host, which chooses the color on a terminal
        last   also gets the lines
        """
        color = None
        if host is not None and self.draws_on(sink) and "NO_COLOR" not in os.environ:
            color = _COLORS[host % len(_COLORS)]
        return Stream(self, rank, prefix.encode(), sink, color, last)

    def draws_on(self, sink: BinaryIO) -> bool:
        """Return True if lines on this sink can be redrawn, as on a terminal."""
        return sink in self._terminals

    def log(self, message: str) -> None:
        """Print a message of ddlrun to stderr."""
        self.show([f"ddlrun: {message}".encode(errors="surrogateescape")])

    def show(self, lines: Sequence[bytes]) -> None:
        """Print lines that belong to the previous message to stderr."""
        try:
            self._erase()
            self.put(self.err, b"".join(line + b"\n" for line in lines))
            self._draw()
        except OSError:  # its reader is gone, or the disk is full
            self.abandon(self.err)

    def write(self, stream: Stream, lines: list[bytes]) -> None:
        """Write complete `lines` of a stream, and redraw its unfinished line if the sink is a
        terminal."""
        if self.draws_on(stream.sink):
            if stream.lines.live.strip():
                self._live[stream] = stream.lines.live
            else:
                self._live.pop(stream, None)
        if lines:
            self._erase()
            self.put(stream.sink, b"".join(stream.prefix + line + b"\n" for line in lines))
        self._draw()

    def _erase(self) -> None:
        if self._drawn:
            self.put(self._drawn.sink, _CLEAR)
            self._drawn = None

    def _draw(self) -> None:
        """Draw the unfinished line of the lowest rank that has one."""
        stream = min(self._live, key=lambda stream: stream.rank, default=None)
        if stream is None:
            self._erase()
            return
        if self._drawn is not None and self._drawn is not stream:
            self._erase()
        text = stream.prefix + self._live[stream].rstrip(b"\r")
        self.put(stream.sink, _CLEAR + _fit(text, shutil.get_terminal_size().columns - 1))
        self._drawn = stream

    def put(self, sink: BinaryIO, data: bytes) -> None:
        """Write bytes to `sink` unchanged."""
        sink.write(data)
        sink.flush()

    def abandon(self, sink: BinaryIO) -> None:
        """Discard this and later data for `sink`, because no process reads it any more."""
        self._live = {stream: line for stream, line in self._live.items() if stream.sink != sink}
        if self._drawn and self._drawn.sink is sink:
            self._drawn = None
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sink.fileno())


def _fit(line: bytes, columns: int) -> bytes:
    """Cut `line` to one row of the terminal, since only one row can be redrawn."""
    text = line.decode(errors="replace")
    if len(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)) <= columns:
        return line
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)[:columns].encode()
