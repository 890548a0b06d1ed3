# SPDX-License-Identifier: Apache-2.0
"""Received data is checked, and never unpickled."""

from __future__ import annotations

import pickle
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ddl_elastic.base.messages import Channel, Message, encode
from ddl_elastic.base.protocol import (
    FROM_WORKER,
    FromWorker,
    PlanCancelled,
    SendState,
    StateEnd,
    StepCommitted,
    TensorData,
    TensorHeader,
    TrainingDone,
    WorkerChannel,
)
from ddl_elastic.coordinator import training
from ddl_elastic.coordinator.training import receive_state
from ddl_elastic.worker.reporter import Reporter
from ddl_launch.rank.frames import HEAD, LARGEST, Frames, frame

pytestmark = pytest.mark.pure


@pytest.fixture
def pair() -> Iterator[tuple[WorkerChannel, WorkerChannel, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield Channel(near, FROM_WORKER), Channel(far, FROM_WORKER), far


Pair = tuple[WorkerChannel, WorkerChannel, socket.socket]


class Text(str):
    """A subclass of str, like PyTorch's version."""


def test_messages_and_data(pair: Pair) -> None:
    reader, writer, far = pair
    done = TrainingDone(3, np.float64(0.5), Text("ab"), {})
    writer.send(done)
    writer.send(TensorData(memoryview(b"x" * 70000)))
    assert reader.receive() == done
    part = reader.receive()
    assert isinstance(part, TensorData) and part.data == b"x" * 70000
    assert writer.offer(StepCommitted(2, float("nan"), 4, 0.5, 0))
    assert isinstance(reader.receive(), StepCommitted)
    far.close()
    with pytest.raises(EOFError):
        reader.receive()


def test_lines_wait_for_no_coordinator(pair: Pair) -> None:
    reader, writer, far = pair
    reporter, lines, texts = Reporter(writer), 5000, list[str]()
    for number in range(lines):
        reporter.line(f"line {number} {'.' * 90}")

    def read() -> None:
        with suppress(EOFError):
            while True:
                texts.append(reader.receive().text)

    thread = threading.Thread(target=read)
    thread.start()
    reporter.flush()
    far.close()
    thread.join(60)
    assert texts[0].startswith("line 0 ") and texts[-1].startswith(f"line {lines - 1} ")
    (lost,) = (text for text in texts if "lost" in text)
    assert re.match(rf"\({lines - len(texts)} lines before this one are lost\) line ", lost), lost


def test_what_does_not_come(pair: Pair) -> None:
    with pytest.raises(TimeoutError, match="nothing was received for 0 s"):
        pair[0].receive(0.05)


def test_a_reader_that_is_slow_delays_nobody(pair: Pair) -> None:
    _, writer, _ = pair
    sent = sum(writer.offer(StepCommitted(n, 0.0, 0, 0.0, 0)) for n in range(100_000))
    assert 0 < sent < 100_000


@pytest.mark.parametrize(
    "data",
    [
        frame(b"P", pickle.dumps(print)),
        frame(b"M", pickle.dumps(print)),
        b"M" + (LARGEST + 1).to_bytes(4, "big"),
    ],
)
def test_garbage_is_refused(pair: Pair, data: bytes) -> None:
    channel, _, far = pair
    far.sendall(data)
    with pytest.raises(ValueError):
        channel.receive()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats()
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)
VALUES = {
    int: st.integers(-3, 9),
    str: st.text(max_size=9),
    float: st.floats(),
    bool: st.booleans(),
}


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Return a frame: mostly a message that is nearly right, or data."""
    kind: type[Message] = draw(st.sampled_from(get_args(FromWorker)))
    fields = {
        each.name: draw(VALUES.get(each.type, st.lists(st.integers(0, 9), max_size=3)) | JSON)
        for each in structs.fields(kind)
    }
    text = encode({"message": kind.__name__, **fields})
    data = st.binary(max_size=40)
    return draw(st.just(frame(b"M", text)) | data)


@given(stream=st.lists(messages(), max_size=8).map(b"".join), state=st.booleans())
def test_any_bytes(stream: bytes, state: bool) -> None:
    """Received data is a message, or ends the reading with one of two errors. Only an incomplete
    frame is kept."""
    near, far = socket.socketpair()
    with near, far:
        channel = Channel(near, FROM_WORKER)
        far.sendall(stream)
        far.close()
        with pytest.raises((ValueError, EOFError)):  # at the latest, the stream ends
            while True:
                if state:
                    receive_state(channel)
                else:
                    assert isinstance(channel.receive(), Message)
        assert len(channel._frames._rest) <= len(stream)


def test_a_frame_that_never_ends_is_not_kept() -> None:
    frames = Frames()
    assert frames.feed(HEAD.pack(b"D", LARGEST)) == []
    assert frames.feed(b"x" * LARGEST) == [(b"D", b"x" * LARGEST)]
    with pytest.raises(ValueError, match="a frame of"):
        frames.feed(HEAD.pack(b"D", LARGEST + 1))


def test_a_plan_that_ends_with_the_job(pair: Pair) -> None:
    reader, writer, _ = pair
    for message in (PlanCancelled(3, []), TensorHeader("w", "uint8", [0], 0), StateEnd()):
        writer.send(message)
    assert [*receive_state(reader)] == ["w"]


class Worker:
    """A worker that has a state, or hangs."""

    def __init__(self, hangs: bool) -> None:
        self.hangs, self.state = hangs, "running" if hangs else "done"
        near, self.far = socket.socketpair()
        self.handle = SimpleNamespace(channel=Channel(near, FROM_WORKER))


class Workers:
    """Stands for a coordinator whose workers hang, as a real program cannot be made to."""

    def __init__(self, *hang: bool) -> None:
        self.workers = [Worker(each) for each in hang]
        self.causes: list[str] = []

    def require(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.state != "ended"]

    def wait(self) -> None:
        pass

    def send(self, worker: Worker, message: Message) -> None:
        if message == SendState() and not worker.hangs:
            Channel(worker.far, FROM_WORKER).send(StateEnd())

    def stop(self, worker: Worker, cause: str) -> None:
        self.causes.append(cause)
        worker.state = "ended"


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(training, "LATE", 0.2)
    monkeypatch.setattr(training, "SILENT", 0.2)
    made = Workers(True, False)
    yield made
    for worker in made.workers:
        worker.handle.channel.close()
        worker.far.close()


def test_a_worker_that_is_never_done(hanging: Any) -> None:
    training._wait_for_all(hanging)
    assert hanging.causes == ["hung: another worker finished 0 s earlier"]


def test_a_worker_that_does_not_send_the_state(hanging: Any) -> None:
    assert training._fetch_state(hanging) == {}
    assert hanging.causes == [
        "hung: the coordinator requested its state, and nothing was received for 0 s"
    ]
