# SPDX-License-Identifier: Apache-2.0
"""A worker of `Job.train`. It joins the other workers, trains, and sends the final state."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddl_elastic.base import environment, protocol
from ddl_elastic.base.inbox import Inbox
from ddl_elastic.base.messages import pack
from ddl_elastic.engines import AgentSpec
from ddl_elastic.frameworks.protocol import Framework
from ddl_elastic.worker.joining import connect
from ddl_elastic.worker.loop import Loop
from ddl_elastic.worker.reporter import Reporter
from ddl_elastic.worker.rounds import RoundsLoop

CHUNK = 1 << 19  # bytes of a tensor in one message


def work(
    spec: AgentSpec,
    channel: protocol.JobChannel,
    options: dict[str, Any],
    secret: str,
    make: Callable[[], Framework],
    data: dict[str, Any],
    traces: Path | None,
) -> None:
    """Run a worker from start to end. Report errors of the program to the coordinator.

    options  the keyword arguments for Loop
    data     the keyword arguments for `train`
    """
    environment.collect_traces(traces)
    try:
        framework = make()
        inbox = Inbox(channel)
        loop = make_loop(
            framework,
            data,
            **connect(inbox, spec.member, secret),
            **options,
            reporter=Reporter(channel, traces),
            beside="local_steps" not in data,  # which change the parameters
        )
        train(loop, data)
        while not isinstance(message := inbox.receive(), protocol.ExitWorker):
            if isinstance(message, protocol.SendState):
                send_state(framework, channel)
    except EOFError:
        return  # the job is over
    except Exception as error:
        tell_failure(channel, error)
        raise SystemExit(1) from None


def make_loop(framework: Framework, data: dict[str, Any], **options: Any) -> Loop:
    """Return a loop for `train` with the same `data`."""
    return (RoundsLoop if "local_steps" in data else Loop)(framework, **options)


def train(loop: Loop, data: dict[str, Any]) -> None:
    """Train all steps or rounds of a job without a custom loop. `data` are arguments for Loop.steps
    or, with `local_steps`, for RoundsLoop.start_rounds."""
    if isinstance(loop, RoundsLoop):
        for round in loop.start_rounds(**data):
            for batches in round:
                for batch in batches:
                    round.run(batch)
        loop.close()
        return
    for step in loop.steps(**data):
        for batch in step:
            step.run(batch)
        loop.framework.update()
    loop.close()


def tell_failure(channel: protocol.JobChannel, error: Exception) -> None:
    text = f"{type(error).__name__}: {error}"
    channel.send(protocol.ProgramFailed(text, traceback.format_exc()))


def send_state(framework: Framework, channel: protocol.JobChannel) -> None:
    """Send the state as messages for coordinator.receive_state."""
    for name, tensor in framework.state().items():
        data = tensor.data.data
        channel.send(protocol.TensorHeader(name, tensor.dtype, list(tensor.shape), len(data)))
        for begin in range(0, len(data), CHUNK):
            part = protocol.TensorData(data[begin : begin + CHUNK])
            channel.send_packed(pack(part, compress=False))
    channel.send(protocol.StateEnd())
