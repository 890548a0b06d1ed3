# SPDX-License-Identifier: Apache-2.0
"""A remote agent, which offers this machine's slots to a job on another host; see dialed.py.

A local engine runs its workers. They exit with the agent, and the agent exits with the job. The job
continues while it has no coordinator; see host_agent.py.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ddl_elastic.base import environment
from ddl_elastic.base.messages import Channel
from ddl_elastic.base.protocol import JobChannel
from ddl_elastic.engines import AgentSpec, Program, program, protocol
from ddl_elastic.engines.dialed import job_secret
from ddl_elastic.engines.host_agent import HostAgent, JoinRefused
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.engines.pool_agent import PoolAgent
from ddl_launch.rank import frames

ANSWER_LIMIT = 30.0  # seconds for the job's answer to a greeting
REDIAL_LIMIT = 5.0  # seconds for the answer when the agent reconnects or connects a slot
RUN_LIMIT = 5.0  # seconds in which to connect to a run of a job
_RETRY = 0.5  # seconds between two attempts to reach the job


def serve(address: tuple[str, int], token: str, slots: int, cores: int, wait: float) -> int:
    """Connect to a job or to `ddl serve`, offer it slots, and run workers in them until the job or
    the service ends. Wait up to `wait` seconds for a connection, at the start and whenever it is
    lost. Return the exit code, which is not 0 if the job has failed without a coordinator to report
    it. Raises JoinRefused."""
    host = socket.gethostname()
    about = protocol.AgentGreeting(
        f"{host}-{secrets.token_hex(4)}", host, f"cpu{cores}", cores, slots
    )
    connection, settings = dial(address, token, about, wait)
    if isinstance(settings, protocol.JobSettings):
        return _serve_job(connection, settings, address, token, about, wait)

    def dial_pool() -> Channel[protocol.ToPoolAgent]:
        return Channel(dial(address, token, about, limit=REDIAL_LIMIT)[0], protocol.TO_POOL_AGENT)

    def serve_run(run: str, port: int) -> int:
        own, where = job_secret(token, run), (address[0], port)
        connection, settings = dial(where, own, about, RUN_LIMIT)
        if not isinstance(settings, protocol.JobSettings):
            raise JoinRefused(f"run {run} does not listen at port {port}")
        return _serve_job(connection, settings, where, own, about, 0, stays=False)

    return PoolAgent(dial_pool, serve_run, wait).run(Channel(connection, protocol.TO_POOL_AGENT))


def _serve_job(
    connection: socket.socket,
    settings: protocol.JobSettings,
    address: tuple[str, int],
    token: str,
    about: protocol.AgentGreeting,
    wait: float,
    stays: bool = True,
) -> int:
    """Run the workers of one job, which has sent these settings. Return the exit code."""
    control = Channel(connection, protocol.TO_AGENT)
    work = _work_of(settings.program, job_secret(token, settings.job), control)

    def dial_job(greeting: protocol.Greeting) -> socket.socket:
        connection, found = dial(address, token, greeting, limit=REDIAL_LIMIT)
        if not isinstance(found, protocol.JobSettings) or found.job != settings.job:
            connection.close()
            raise JoinRefused("another job listens there")
        return connection

    with LocalEngine(work, about.slots, about.cores) as engine:
        return HostAgent(engine, about, dial_job, wait, stays).run(control, connection)


def _work_of(
    order: Program, secret: str, control: Channel[protocol.ToAgent]
) -> Callable[[AgentSpec, JobChannel], None]:
    """Import the program's modules, and return the main function of workers. Raises JoinRefused."""
    path = Path(order.path)
    try:
        environment.give_variables(order.variables)
        os.chdir(order.folder or ".")
        if not path.is_file():
            raise FileNotFoundError(2, "there is no such program", str(path))
        program.preload(order.preload or None, path)
    except (OSError, ImportError) as error:
        text = f"{socket.gethostname()}: {error}"
        with suppress(OSError):
            control.send(protocol.AgentFailed(text))
        raise JoinRefused(text) from None

    def work(spec: AgentSpec, channel: JobChannel) -> None:
        program.work(spec, channel, path, order.arguments, secret, None)

    return work


def dial(
    address: tuple[str, int],
    token: str,
    greeting: protocol.Greeting,
    wait: float = 0.0,
    limit: float = ANSWER_LIMIT,
) -> tuple[socket.socket, protocol.GreetingAnswer]:
    """Connect to the job and greet it. Return the connection and the settings that the job sent.
    Raises JoinRefused."""
    where = f"{address[0]}:{address[1]}"
    connection = _reach(address, where, time.monotonic() + wait, limit)
    own = secrets.token_bytes(32)
    try:
        kind, nonce = _read_frame(connection)
        if kind != frames.NONCE:
            raise ValueError("the peer is not an elastic job")
        connection.sendall(frames.proven(frames.HELLO, protocol.seal(greeting, own), nonce, token))
        kind, payload = _read_frame(connection)
        answer = frames.open_proven(frames.GO, payload, own, token)
        settings = protocol.open_sealed(protocol.GREETING_ANSWER, answer, where)
    except protocol.VersionMismatch as error:
        connection.close()
        raise JoinRefused(str(error)) from None
    except (OSError, ValueError, EOFError) as error:
        connection.close()
        raise JoinRefused(
            f"{where} rejects this agent: {error or type(error).__name__}. Check the job's address"
            " and the token"
        ) from None
    connection.settimeout(None)
    return connection, settings


def _reach(address: tuple[str, int], where: str, until: float, limit: float) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection(address, limit)
        except OSError as error:
            if time.monotonic() > until:
                raise JoinRefused(f"cannot reach a job at {where}: {error}") from None
            time.sleep(_RETRY)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            frames.enable_keepalive(connection)
            return connection


def _read_frame(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read exactly one frame, because messages for the caller may follow it at once."""
    kind, length = frames.HEAD.unpack(_read(connection, frames.HEAD.size))
    if length > frames.LARGEST:
        raise ValueError(f"a frame of {length} bytes; the limit is {frames.LARGEST}")
    return kind, _read(connection, length)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the peer has closed the connection")
        data += part
    return data


def read_token(path: Path) -> str:
    """Return the token in a file. Raises OSError, and ValueError if the file is empty."""
    token = path.read_text().strip()
    if not token:
        raise ValueError("the file is empty")
    return token
