# SPDX-License-Identifier: Apache-2.0
"""ddlrun's own stdout and stderr, which get the ranks' lines, each whole and with its prefix."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import BinaryIO

from ddl_launch.lines import LONGEST, Lines

# Seconds between two lines of a progress bar if there is no terminal to draw it on.
_SECONDS_BETWEEN_STATES = 10.0
_COLORS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92, 94, 91)  # of a terminal, one per host
_CLEAR = b"\r\x1b[K"


class Stream:
    """One rank's stdout or stderr on its way to `sink`."""

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
        # Without a prefix, and not redrawn, the bytes are passed on as they are.
        self._is_raw = not prefix and not console.draws_on(sink)
        self._unfinished = b""

    def feed(self, data: bytes) -> None:
        """Pass on what was read. BrokenPipeError when nobody reads the sink any more."""
        self._pass_on(self.lines.feed(data))
        if self._is_raw:
            self._unfinished += data
            end = max(self._unfinished.rfind(b"\n"), self._unfinished.rfind(b"\r")) + 1
            if len(self._unfinished) - end > LONGEST:
                end = len(self._unfinished)
            self._pass_raw(end)

    def end(self) -> None:
        """The rank has closed the stream."""
        self._pass_on(self.lines.end())
        self._pass_raw(len(self._unfinished))

    def _pass_raw(self, end: int) -> None:
        """Pass on the first `end` unfinished bytes: whole lines, which no other rank's output
        splits."""
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
    """What was closed when this process began is /dev/null from now on."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


class Console:
    """ddlrun's stdout and stderr. On a terminal, an unfinished line of a rank (a progress bar, a
    prompt) stays at the bottom, below the lines of all others."""

    def __init__(self) -> None:
        self.out = sys.stdout.buffer
        self.err = sys.stderr.buffer
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
        """A stream of `rank` whose lines go to `sink` (ours), each after `prefix`, in the color of
        host number `host` on a terminal. `last` gets the lines as well."""
        color = None
        if host is not None and self.draws_on(sink) and "NO_COLOR" not in os.environ:
            color = _COLORS[host % len(_COLORS)]
        return Stream(self, rank, prefix.encode(), sink, color, last)

    def draws_on(self, sink: BinaryIO) -> bool:
        """Whether lines on this sink can be redrawn: it is a terminal."""
        return sink in self._terminals

    def log(self, message: str) -> None:
        """One line of ddlrun's own, to stderr."""
        self.show([f"ddlrun: {message}".encode(errors="surrogateescape")])

    def show(self, lines: Sequence[bytes]) -> None:
        """Lines that belong to the message before, to stderr."""
        try:
            self._erase()
            self.put(self.err, b"".join(line + b"\n" for line in lines))
            self._draw()
        except OSError:  # nobody reads it, or there is no room for it
            self.abandon(self.err)

    def write(self, stream: Stream, lines: list[bytes]) -> None:
        """Write the complete `lines` of a stream, and redraw its unfinished one if the sink allows
        it."""
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
        """Write bytes to `sink` as they are."""
        sink.write(data)
        sink.flush()

    def abandon(self, sink: BinaryIO) -> None:
        """Discard what is buffered for `sink`, whose reader has gone."""
        self._live = {stream: line for stream, line in self._live.items() if stream.sink != sink}
        if self._drawn and self._drawn.sink is sink:
            self._drawn = None
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sink.fileno())


def _fit(line: bytes, columns: int) -> bytes:
    """`line` cut to one row of the terminal: only one row can be redrawn."""
    text = line.decode(errors="replace")
    if len(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)) <= columns:
        return line
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)[:columns].encode()
