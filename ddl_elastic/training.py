# SPDX-License-Identifier: Apache-2.0
"""What the coordinator of `Job.train` waits for: the final state."""

from __future__ import annotations

import numpy as np

from ddl_elastic.coordinator import Coordinator
from ddl_elastic.framework import State, Tensor
from ddl_elastic.messages import Channel


def fetch(coordinator: Coordinator) -> State:
    """The final state, once all workers that live are done. Then they end. Raises JobFailed."""
    coordinator.staff.ends_when_done = True
    while any(worker.state != "done" for worker in coordinator.require()):
        coordinator.wait()
    coordinator.compare()
    state = _fetch_state(coordinator)
    coordinator.wait()
    for worker in coordinator.workers:
        coordinator.send(worker, "exit")
    return state


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
        while worker.state != "ended":
            coordinator.wait()


def receive_state(channel: Channel) -> State:
    """What worker.send_state sends. Raises ValueError for anything else."""
    state: State = {}
    message = channel.receive()
    while message.kind == "void":  # a plan that has ended with the job
        message = channel.receive()
    while message.kind == "tensor":
        data, length = bytearray(), message.fields["bytes"]
        while len(data) < length and (part := channel.receive()).kind == "data":
            data += part.data
        if len(data) != length:
            raise ValueError(f"{len(data)} bytes of a tensor of {length}")
        tensor = Tensor(
            message.fields["dtype"],
            tuple(message.fields["shape"]),
            np.frombuffer(bytes(data), np.uint8),
        )
        state[message.fields["name"]] = tensor
        message = channel.receive()
    if message.kind != "end":
        raise ValueError(f"a message {message.kind!r} within a state")
    return state
