# SPDX-License-Identifier: Apache-2.0
"""What a worker has written, from a file that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path


def follow_log(path: Path, more: Callable[[], bool]) -> Iterator[bytes]:
    """The file's bytes, from the start; an empty chunk where there is no more yet. It ends where
    `more` says that no more is to come."""
    try:
        file = open(path, "ab+")
    except OSError:  # whoever writes it tells so
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
