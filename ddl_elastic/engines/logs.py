# SPDX-License-Identifier: Apache-2.0
"""A reader for the log file of a running worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path


def follow_log(path: Path, more: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the file's bytes from the start, and an empty chunk while there is no new data. Stop
    at the end of the file when `more` returns False."""
    try:
        file = open(path, "ab+")
    except OSError:  # the writer reports the error
        return
    with file:
        file.seek(0)
        while True:
            grows = more()
            while data := file.read(1 << 16):
                yield data
            if not grows:
                return
            yield b""
