"""What arrives is checked; nothing is unpickled."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator

import pytest

from ddl_elastic.messages import Channel
from ddl_launch.frames import LARGEST, frame


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield Channel(near), far


def test_messages_and_data(pair: tuple[Channel, socket.socket]) -> None:
    reader, far = pair
    writer = Channel(far)
    writer.send("done", steps=3, loss=0.5, digest="ab")
    writer.send_data(memoryview(b"x" * 70000))
    first = reader.receive()
    assert (first.kind, first.fields) == ("done", {"steps": 3, "loss": 0.5, "digest": "ab"})
    assert reader.receive().data == b"x" * 70000
    assert writer.offer("progress", step=2, loss=float("nan"))
    assert reader.receive().kind == "progress"
    far.close()
    with pytest.raises(EOFError):
        reader.receive()


def test_a_reader_that_is_slow_delays_nobody(pair: tuple[Channel, socket.socket]) -> None:
    _, far = pair
    writer = Channel(far)
    sent = sum(writer.offer("progress", step=n, loss=0.0) for n in range(100_000))
    assert 0 < sent < 100_000


@pytest.mark.parametrize(
    "data",
    [
        frame(b"P", pickle.dumps(print)),
        frame(b"J", pickle.dumps(print)),
        frame(b"J", b"[1]"),
        frame(b"J", json.dumps({"kind": "unknown"}).encode()),
        frame(b"J", json.dumps({"kind": ["exit"]}).encode()),
        frame(b"J", json.dumps({"kind": "exit", "code": 1}).encode()),
        frame(b"J", json.dumps({"kind": "ended", "code": True}).encode()),
        frame(b"J", json.dumps({"kind": "ended"}).encode()),
        frame(b"J", b"\xff"),
        b"J" + (LARGEST + 1).to_bytes(4, "big"),
    ],
)
def test_garbage_is_refused(pair: tuple[Channel, socket.socket], data: bytes) -> None:
    channel, far = pair
    far.sendall(data)
    with pytest.raises(ValueError):
        channel.receive()
