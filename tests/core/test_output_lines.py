# SPDX-License-Identifier: Apache-2.0
"""Lines are assembled from pieces, and carriage returns take effect."""

import pytest

from ddl_launch.jobs.console import Lines

pytestmark = pytest.mark.pure


def fed(*pieces: bytes) -> tuple[list[bytes], bytes]:
    lines = Lines()
    return [line for piece in pieces for line in lines.feed(piece)], lines.live


@pytest.mark.parametrize(
    ("pieces", "complete", "live"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"], b""),
        ([b"on", b"e\ntw", b"o"], [b"one"], b"two"),
        ([b"\n\n"], [b"", b""], b""),
        ([b"dos\r\n"], [b"dos"], b""),
        ([b"dos\r", b"\n"], [b"dos"], b""),
        ([b"\r 10%", b"\r 20%"], [], b" 20%"),
        ([b" 10%\r", b" 20%\r"], [], b" 20%\r"),
        ([b"\r 90%", b"\r100%\ndone\n"], [b"100%", b"done"], b""),
        ([b"\r 10%", b"\r    \rmessage\n\r 20%"], [b"message"], b" 20%"),
        ([b"a" * 70000 + b"\n"], [b"a" * 70000], b""),
    ],
)
def test_lines_of_pieces(pieces: list[bytes], complete: list[bytes], live: bytes) -> None:
    assert fed(*pieces) == (complete, live)
    # The result does not depend on how the bytes are cut.
    whole = b"".join(pieces)
    assert fed(*(whole[i : i + 1] for i in range(len(whole))))[1] == live


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    lines = Lines()
    parts = [line for _ in range(100) for line in lines.feed(b"x" * 10000)]
    parts += lines.end()
    assert b"".join(parts) == b"x" * 1000000
    assert len(parts) > 10


def test_end_gives_what_has_begun() -> None:
    lines = Lines()
    assert lines.feed(b"one\ntwo") == [b"one"]
    assert lines.end() == [b"two"]
    assert lines.end() == []


def test_redrawn_says_that_a_line_was_started_over() -> None:
    lines = Lines()
    lines.feed(b"prompt: ")
    assert not lines.redrawn
    lines.feed(b"\r 10%")
    lines.feed(b"...")
    assert lines.redrawn
    lines.feed(b"\nnext")
    assert not lines.redrawn
