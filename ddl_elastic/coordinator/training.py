# SPDX-License-Identifier: Apache-2.0
"""What the coordinator of `Job.train` waits for: the final state."""

from __future__ import annotations

import math
import time

import numpy as np

from ddl_elastic.base.messages import Channel
from ddl_elastic.base.states import WorkerState
from ddl_elastic.coordinator.coordinator import Coordinator
from ddl_elastic.frameworks.protocol import State, Tensor

LATE = 300.0  # seconds for a worker to be done, once another one is
SILENT = 60.0  # seconds without a part of the final state


def fetch(coordinator: Coordinator) -> State:
    """The final state, once all workers that live are done. Then they end. Raises JobFailed."""
    coordinator.registry.ends_when_done = True
    _wait_for_all(coordinator)
    coordinator.compare()
    state = _fetch_state(coordinator)
    coordinator.wait()
    for worker in coordinator.workers:
        coordinator.send(worker, "exit")
    return state


def _wait_for_all(coordinator: Coordinator) -> None:
    """Nobody observes a worker any more that is done with the last step: one that hangs then is
    ended when the others have been done for long."""
    since = 0.0
    while late := [each for each in coordinator.require() if each.state != WorkerState.DONE]:
        coordinator.wait()
        if not any(each.state == WorkerState.DONE for each in coordinator.workers):
            continue
        since = since or time.monotonic()
        if time.monotonic() > since + LATE:
            for worker in late:
                coordinator.stop(worker, f"hung: another one was done {LATE:.0f} s before")
            since = math.inf


def _fetch_state(coordinator: Coordinator) -> State:
    """From any of those who are done: all have the same."""
    while True:
        worker = coordinator.require()[0]
        coordinator.send(worker, "state")
        try:
            return receive_state(worker.handle.channel)
        except EOFError:
            pass
        except ValueError as error:
            coordinator.stop(worker, f"it sent {error}")
        except TimeoutError as error:
            coordinator.stop(worker, f"hung: it was asked for the state, and {error}")
        while worker.state != WorkerState.ENDED:
            coordinator.wait()


def receive_state(channel: Channel) -> State:
    """What worker.send_state sends. Raises ValueError for anything else, and TimeoutError."""
    state: State = {}
    message = channel.receive(SILENT)
    while message.kind == "void":  # a plan that has ended with the job
        message = channel.receive(SILENT)
    while message.kind == "tensor":
        data, length = bytearray(), message.fields["bytes"]
        while len(data) < length and (part := channel.receive(SILENT)).kind == "data":
            data += part.data
        if len(data) != length:
            raise ValueError(f"{len(data)} bytes of a tensor of {length}")
        tensor = Tensor(
            message.fields["dtype"],
            tuple(message.fields["shape"]),
            np.frombuffer(bytes(data), np.uint8),
        )
        state[message.fields["name"]] = tensor
        message = channel.receive(SILENT)
    if message.kind != "end":
        raise ValueError(f"a message {message.kind!r} within a state")
    return state
