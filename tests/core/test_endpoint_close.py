# SPDX-License-Identifier: Apache-2.0
"""An endpoint is closed while a thread joins: it is destroyed once, after its comms."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import ddl_core.endpoint_handle
from ddl_core import Endpoint
from ddl_core.errors import Unreachable

LIMIT = 60  # seconds


class Recorder:
    """The library, and the order of what ends. It destroys an endpoint only once."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.ended: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def ddl_endpoint_destroy(self, handle: Any) -> None:
        if "endpoint" not in self.ended:
            self._real.ddl_endpoint_destroy(handle)
        self.ended.append("endpoint")


class SlowComm:
    """A comm whose closing takes as long as `wait`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.wait = lambda: None

    def close(self) -> None:
        self.wait()
        self._recorder.ended.append("comm")


@pytest.mark.parametrize("last", ["close", "join"])
def test_who_leaves_last_destroys(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    recorder = Recorder(ddl_core.endpoint_handle.lib)
    monkeypatch.setattr(ddl_core.endpoint_handle, "lib", recorder)
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
    endpoint.close()  # which destroys nothing
    order = ["join", "comm"] if last == "close" else ["comm", "join"]
    assert recorder.ended == [*order, "endpoint", "comm"]
