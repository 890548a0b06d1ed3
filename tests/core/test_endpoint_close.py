# SPDX-License-Identifier: Apache-2.0
"""An endpoint is closed while a thread joins, or while one of its comms is closing. It is destroyed
once, after its comms."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import ddl_core.comm
import ddl_core.handles.endpoint_handle
from ddl_core import Comm, Endpoint
from ddl_core.errors import Unreachable

pytestmark = pytest.mark.pure

LIMIT = 60  # seconds


class Recorder:
    """The library, and the order of destructions. It destroys an endpoint only once."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.ended: list[str] = []
        self.before_comm: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def ddl_endpoint_destroy(self, handle: Any) -> None:
        if "endpoint" not in self.ended:
            self._real.ddl_endpoint_destroy(handle)
        self.ended.append("endpoint")

    def ddl_comm_destroy(self, handle: Any) -> None:
        self.before_comm()
        self._real.ddl_comm_destroy(handle)
        self.ended.append("comm")


class SlowComm:
    """A comm whose closing takes as long as `wait`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.wait = lambda: None

    def close(self) -> None:
        self.wait()
        self._recorder.ended.append("comm")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder(ddl_core.handles.endpoint_handle.lib)
    monkeypatch.setattr(ddl_core.handles.endpoint_handle, "lib", made)
    monkeypatch.setattr(ddl_core.comm, "lib", made)
    return made


def alone(endpoint: Endpoint) -> Comm:
    return endpoint.connect([endpoint.address], 0)


@pytest.mark.parametrize("last", ["close", "join"])
def test_who_leaves_last_destroys(recorder: Recorder, last: str) -> None:
    endpoint, comm = Endpoint(secret=""), SlowComm(recorder)
    endpoint._comms.add(comm)
    begun, may_fail = threading.Event(), threading.Event()

    def fail(handle: Any, slot: Any) -> int:
        begun.set()
        assert may_fail.wait(LIMIT)
        recorder.ended.append("join")
        raise Unreachable("a member has died")

    def join() -> None:
        with pytest.raises(Unreachable):
            endpoint._join(fail, lambda handle: comm)

    def end_of_join() -> None:
        may_fail.set()
        thread.join(LIMIT)

    thread = threading.Thread(target=join)
    thread.start()
    assert begun.wait(LIMIT)
    if last == "close":
        comm.wait = end_of_join
    endpoint.close()
    end_of_join()
    endpoint.close()  # it destroys nothing
    order = ["join", "comm"] if last == "close" else ["comm", "join"]
    assert recorder.ended == [*order, "endpoint", "comm"]


def test_a_comm_is_being_closed(recorder: Recorder) -> None:
    endpoint = Endpoint(secret="")
    comm = alone(endpoint)
    begun, may_end = threading.Event(), threading.Event()

    def before_comm() -> None:
        begun.set()
        assert may_end.wait(LIMIT)

    recorder.before_comm = before_comm
    closing = threading.Thread(target=comm.close)
    closing.start()
    assert begun.wait(LIMIT)
    second = threading.Thread(target=endpoint.close)
    second.start()
    second.join(0.2)
    assert not recorder.ended
    may_end.set()
    closing.join(LIMIT)
    second.join(LIMIT)
    assert recorder.ended == ["comm", "endpoint"]


def test_closing_a_comm_is_interrupted(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(handle: Any) -> bool:
        raise KeyboardInterrupt

    endpoint = Endpoint(secret="")
    comm = alone(endpoint)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(comm, "_close_groups", interrupt)
        comm.close()
    comm.close()
    endpoint.close()
    assert not recorder.ended
