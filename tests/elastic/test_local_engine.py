"""The engine of one machine: agents, workers, their ends and what they have written."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from ddl_elastic.engines import AgentSpec, Engine, Event
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.messages import Channel

LIMIT = 60  # seconds

# Where other tests of this process have started threads. The fork server and the agents use nothing
# of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def work(spec: AgentSpec, channel: Channel) -> None:
    """Tells its process; ends when told to."""
    print(f"member {spec.member}, {os.environ['OMP_NUM_THREADS']} threads", flush=True)
    channel.send("ready", address="", pid=os.getpid())
    channel.send("progress", step=0, loss=0.0, shares=1, busy=0.1)
    if spec.member == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    if channel.receive().kind == "exit":
        raise SystemExit(7)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with LocalEngine(work, 3) as engine:
        yield engine


def ended(engine: Engine) -> Event:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for event in engine.events(1.0):
            return event
    pytest.fail(f"no event in {LIMIT} s")


def test_a_worker_ends_by_itself_is_asked_to_and_is_killed(engine: Engine) -> None:
    handles = [engine.start(slot, AgentSpec(n, 2)) for n, slot in enumerate(engine.slots())]
    assert [slot.state for slot in engine.slots()] == ["used"] * 3
    for handle in handles:
        assert handle.channel.receive().kind == "ready"
        assert handle.channel.receive().kind == "progress"
    handles[0].channel.send("exit")
    first = ended(engine)
    assert (first.kind, first.member, first.slot.id, first.code) == ("agent ended", 0, 0, 7)
    engine.stop(handles[1], 60)
    assert ended(engine).code == -signal.SIGTERM
    engine.stop(handles[2], 0.1)  # which is stopped, so it takes no SIGTERM
    assert ended(engine).code == -signal.SIGKILL
    assert [slot.state for slot in engine.slots()] == ["free"] * 3
    engine.stop(handles[2], 0)  # too late, and no error
    text = b"".join(engine.logs(handles[1], follow=True))
    assert text == b"member 1, 2 threads\n"
    again = engine.start(engine.slots()[0], AgentSpec(5, 1))
    assert again.channel.receive().kind == "ready"
    assert b"".join(engine.logs(again, follow=False)).endswith(b"member 5, 1 threads\n")


def test_a_slot_holds_one_agent(engine: Engine) -> None:
    slot = engine.slots()[0]
    engine.start(slot, AgentSpec(0, 1))
    with pytest.raises(ValueError, match="slot 0 is used"):
        engine.start(slot, AgentSpec(1, 1))


def test_closing_ends_all() -> None:
    with LocalEngine(work, 1) as engine:
        handle = engine.start(engine.slots()[0], AgentSpec(2, 1))
        pid = handle.channel.receive().fields["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
