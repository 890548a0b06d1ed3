# SPDX-License-Identifier: Apache-2.0
"""The agent of a pool, without a service: the test is its other end."""

import multiprocessing
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ddl_elastic.base.messages import Channel
from ddl_elastic.engines import protocol
from ddl_elastic.engines.host_agent import JoinRefused
from ddl_elastic.engines.pool_agent import PoolAgent


def serve(run: str, port: int) -> int:
    while port:
        signal.pause()
    return 3


def dial() -> Channel[protocol.ToPoolAgent]:
    raise JoinRefused("there is no service")


def run_agent(connection: socket.socket, other_end: socket.socket) -> None:
    other_end.close()
    PoolAgent(dial, serve, 0.0).run(Channel(connection, protocol.TO_POOL_AGENT))


@contextmanager
def service_of_an_agent() -> Iterator[Channel[protocol.FromPoolAgent]]:
    near, far = socket.socketpair()
    agent = multiprocessing.get_context("fork").Process(target=run_agent, args=[far, near])
    agent.start()
    far.close()
    channel = Channel(near, protocol.FROM_POOL_AGENT)
    try:
        yield channel
    finally:
        channel.close()
        agent.join()


def received_until_no_run(
    channel: Channel[protocol.FromPoolAgent],
) -> list[protocol.FromPoolAgent]:
    found: list[protocol.FromPoolAgent] = []
    while protocol.RunsServed([]) not in found:
        found += channel.poll()
    return found


def test_run_that_has_failed_is_reported_with_its_status() -> None:
    with service_of_an_agent() as channel:
        channel.send(protocol.ServeRun("1-a", 0))
        (why,) = (m for m in received_until_no_run(channel) if isinstance(m, protocol.RunUnserved))
    assert why == protocol.RunUnserved("1-a", "run 1-a has ended here: status 3")


def test_run_that_the_service_drops_is_not_reported_as_failed() -> None:
    with service_of_an_agent() as channel:
        channel.send(protocol.ServeRun("1-a", 1))
        channel.send(protocol.DropRun("1-a"))
        found = received_until_no_run(channel)
    assert not [each for each in found if isinstance(each, protocol.RunUnserved)]
