"""One worker of `Job.train`: joins the others, trains, and keeps its coordinator informed.

It never waits for the coordinator between two steps.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from ddl_core import Comm, Config, Endpoint
from ddl_core.errors import DdlError
from ddl_elastic.engines import AgentSpec
from ddl_elastic.framework import Framework, digest
from ddl_elastic.loop import Dataset, ElasticStep, Loop
from ddl_elastic.messages import Channel

CONNECT_LIMIT = 60.0  # seconds
REPORT_EVERY = 0.1  # seconds


@dataclass(frozen=True)
class Constants:
    """What the final state depends on, besides the program and its data. Fixed for life."""

    batch: int
    logical: int
    passes: int
    seed: int
    threads: int


def work(
    spec: AgentSpec,
    channel: Channel,
    constants: Constants,
    secret: str,
    make: Callable[[], Framework],
    data: Dataset,
) -> None:
    """A worker's whole life. Errors of the program are told to the coordinator."""
    try:
        framework = make()
        comm, members = _connect(channel, secret, spec.member)
        steps = _train(framework, comm, members, constants, data, channel)
        channel.send("done", steps=steps, loss=framework.loss, digest=digest(framework.state()))
        while (message := channel.receive()).kind != "exit":
            if message.kind == "state":
                send_state(framework, channel)
    except EOFError:
        return  # the job is over
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        channel.send("failed", error=text, trace=traceback.format_exc())
        raise SystemExit(1) from None


def _connect(channel: Channel, secret: str, member: int) -> tuple[Comm, list[int]]:
    """The comm of all who are there, and their members' numbers. If one of them ends meanwhile, the
    others are told anew."""
    endpoint = Endpoint(secret=secret)
    while True:
        channel.send("ready", address=endpoint.address.hex(), pid=os.getpid())
        plan = channel.receive()
        if plan.kind == "exit":
            raise EOFError
        addresses = [bytes.fromhex(each) for each in plan.fields["addresses"]]
        config = Config(timeout=CONNECT_LIMIT, epoch=plan.fields["attempt"])
        members: list[int] = plan.fields["members"]
        try:
            rank = members.index(member)
            return endpoint.connect(addresses, rank, config, owned=True), members
        except DdlError:
            continue


def _train(
    framework: Framework,
    comm: Comm,
    members: list[int],
    constants: Constants,
    data: Dataset,
    channel: Channel,
) -> int:
    loop = Loop(
        framework,
        comm,
        batch=constants.batch,
        logical=constants.logical,
        seed=constants.seed,
        members=members,
    )
    number, reported = 0, 0.0
    for step in loop.steps(data, constants.passes):
        for batch in step:
            step.run(batch)
        framework.update()
        number = step.number + 1
        if loop.group.comm.rank == 0:
            reported = _report(channel, step, framework.loss, reported)
    loop.close()
    return number


def _report(channel: Channel, step: ElasticStep, loss: float, reported: float) -> float:
    """Tell the coordinator, not too often. Returns when it was told last."""
    if step.recovery:
        channel.offer("recovered", **vars(step.recovery))
    now = time.monotonic()
    if now - reported < REPORT_EVERY:
        return reported
    channel.offer("progress", step=step.number, loss=loss)
    return now


def send_state(framework: Framework, channel: Channel) -> None:
    """As messages, which coordinator.receive_state reads."""
    for name, tensor in framework.state().items():
        data = tensor.data.data
        shape = list(tensor.shape)
        channel.send("tensor", name=name, dtype=tensor.dtype, shape=shape, bytes=len(data))
        channel.send_data(data)
    channel.send("end")
