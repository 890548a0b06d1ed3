# SPDX-License-Identifier: Apache-2.0
"""The end of `Job.train`: the coordinator fetches the final state from a worker."""

from __future__ import annotations

import math
import time

import numpy as np

from ddl_elastic.base import protocol
from ddl_elastic.base.states import WorkerState
from ddl_elastic.coordinator.coordinator import Coordinator
from ddl_elastic.frameworks.protocol import State, Tensor

LATE = 300.0  # seconds for all workers to finish after the first one has
SILENT = 60.0  # maximum seconds between two messages of the final state


def fetch(coordinator: Coordinator) -> State:
    """Return the final state when all live workers are done, and end them. Raises JobFailed."""
    coordinator.registry.ends_when_done = True
    _wait_for_all(coordinator)
    coordinator.compare()
    state = _fetch_state(coordinator)
    coordinator.wait()
    for worker in coordinator.workers:
        coordinator.send(worker, protocol.ExitWorker())
    return state


def _wait_for_all(coordinator: Coordinator) -> None:
    """Wait until all live workers are done. Ranks that are done no longer detect ranks that hang.
    Therefore, LATE seconds after the first worker is done, stop all workers that are not."""
    since = 0.0
    while late := [each for each in coordinator.require() if each.state != WorkerState.DONE]:
        coordinator.wait()
        if not any(each.state == WorkerState.DONE for each in coordinator.workers):
            continue
        since = since or time.monotonic()
        if time.monotonic() > since + LATE:
            for worker in late:
                coordinator.stop(worker, f"hung: another worker finished {LATE:.0f} s earlier")
            since = math.inf


def _fetch_state(coordinator: Coordinator) -> State:
    """Fetch the state from one worker. If it fails, try the next, which has the same state."""
    while True:
        worker = coordinator.require()[0]
        coordinator.send(worker, protocol.SendState())
        try:
            return receive_state(worker.handle.channel)
        except EOFError:
            pass
        except ValueError as error:
            coordinator.stop(worker, f"it sent {error}")
        except TimeoutError as error:
            coordinator.stop(worker, f"hung: the coordinator requested its state, and {error}")
        while worker.state != WorkerState.ENDED:
            coordinator.wait()


def receive_state(channel: protocol.WorkerChannel) -> State:
    """Receive the state that trainer.send_state sends. Raises ValueError if a message is
    unexpected or a tensor is incomplete, and TimeoutError if no data arrives."""
    state: State = {}
    message = channel.receive(SILENT)
    while isinstance(
        message, protocol.PlanCancelled
    ):  # a plan that was cancelled by the end of the job
        message = channel.receive(SILENT)
    while isinstance(message, protocol.TensorHeader):
        data = bytearray()
        while len(data) < message.size:
            part = channel.receive(SILENT)
            if not isinstance(part, protocol.TensorData):
                break
            data += part.data
        if len(data) != message.size:
            raise ValueError(f"{len(data)} bytes of a tensor of {message.size} bytes")
        array = np.frombuffer(bytes(data), np.uint8)
        state[message.name] = Tensor(message.dtype, tuple(message.shape), array)
        message = channel.receive(SILENT)
    if not isinstance(message, protocol.StateEnd):
        raise ValueError(
            f"an unexpected {type(message).__name__} message before the end of its state"
        )
    return state
