"""An agent that dials in: offers this machine's slots to a job, from any host; see engines/dialed.

Its workers are those of a local engine. They end with the agent, and the agent with the job.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddl_elastic import program
from ddl_elastic.engines import AgentSpec, Handle, Program
from ddl_elastic.engines.dialed import job_secret
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.messages import Channel, Message
from ddl_launch import frames

ANSWER_LIMIT = 30.0  # seconds for the job's answer to a greeting
_RETRY = 0.5  # seconds between two attempts to reach the job


class Refused(RuntimeError):
    """The job cannot be joined; the message says why."""


def serve(address: tuple[str, int], token: str, slots: int, cores: int, wait: float) -> None:
    """Dial in and offer so many slots of so many cores each, until the job is over. A job that is
    not there yet is waited for, up to `wait` seconds. Raises Refused."""
    name = secrets.token_hex(8)
    about = {"host": socket.gethostname(), "kind": f"cpu{cores}", "cores": cores, "slots": slots}
    connection, settings = dial(address, token, {"agent": name, **about}, wait)
    control, job = Channel(connection), settings.pop("job")
    work = _work_of(Program(**settings), job_secret(token, job), control)
    with LocalEngine(work, slots, cores) as engine:
        agent = _Agent(engine, control, lambda n: dial(address, token, {"agent": name, "slot": n}))
        agent.run(connection)


def _work_of(order: Program, secret: str, control: Channel) -> Callable[[AgentSpec, Channel], None]:
    """What a worker does here. Its modules are imported now. Raises Refused."""
    path = Path(order.path)
    try:
        os.chdir(order.folder or ".")
        if not path.is_file():
            raise FileNotFoundError(2, "there is no such program", str(path))
        program.preload(order.preload or None, path)
    except (OSError, ImportError) as error:
        text = f"{socket.gethostname()}: {error}"
        with suppress(OSError):
            control.send("failed", error=text, trace="")
        raise Refused(text) from None

    def work(spec: AgentSpec, channel: Channel) -> None:
        program.work(spec, channel, path, order.arguments, secret, None)

    return work


def dial(
    address: tuple[str, int], token: str, hello: dict[str, Any], wait: float = 0.0
) -> tuple[socket.socket, dict[str, Any]]:
    """A connection to the job, and what it has answered. Raises Refused."""
    where = f"{address[0]}:{address[1]}"
    connection = _reach(address, where, time.monotonic() + wait)
    own = secrets.token_bytes(32)
    try:
        kind, nonce = _read_frame(connection)
        if kind != frames.NONCE:
            raise ValueError("it is no job")
        greeting = {**hello, "nonce": own.hex()}
        connection.sendall(frames.proven(frames.HELLO, greeting, nonce, token))
        kind, payload = _read_frame(connection)
        settings: dict[str, Any] = frames.open_proven(frames.GO, payload, own, token)
    except (OSError, ValueError, EOFError) as error:
        connection.close()
        raise Refused(
            f"{where} does not take this agent: {error or type(error).__name__};"
            " is it the job's address, and its token?"
        ) from None
    connection.settimeout(None)
    return connection, settings


def _reach(address: tuple[str, int], where: str, until: float) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection(address, ANSWER_LIMIT)
        except OSError as error:
            if time.monotonic() > until:
                raise Refused(f"cannot reach a job at {where}: {error}") from None
            time.sleep(_RETRY)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            frames.enable_keepalive(connection)
            return connection


def _read_frame(connection: socket.socket) -> tuple[bytes, bytes]:
    stream = frames.Frames()
    while True:
        data = connection.recv(frames.LARGEST)
        if not data:
            raise EOFError("it has closed the connection")
        if found := stream.feed(data):
            return found[0]


class _Agent:
    def __init__(
        self,
        engine: LocalEngine,
        control: Channel,
        offer: Callable[[int], tuple[socket.socket, Any]],
    ) -> None:
        self._engine, self._control, self._offer = engine, control, offer
        self._offered = {slot.id: offer(slot.id)[0] for slot in engine.slots()}
        self._handles: dict[int, Handle] = {}
        self._output: dict[int, Any] = {}

    def run(self, connection: socket.socket) -> None:
        """Until the job is over."""
        look_at = 0.0
        while True:
            waits_for: list[Any] = [self._control, *self._engine.channels()]
            ready, _, _ = select.select(waits_for, [], [], 0.1 if self._handles else frames.TICK)
            try:
                if self._control in ready:
                    for message in self._control.poll():
                        self._take(message)
                self._pass_output()
                self._tell_ends()
            except (EOFError, OSError):
                return  # the job is over
            except ValueError as error:
                raise Refused(f"the job sent {error}") from None
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + frames.TICK
                if frames.is_silent(connection):
                    print("ddl elastic agent: the job's host does not answer", file=sys.stderr)
                    return

    def _take(self, message: Message) -> None:
        if message.kind == "start" and message.fields["slot"] in self._offered:
            self._start(**message.fields)
        elif message.kind == "halt":
            self._halt(**message.fields)
        else:
            raise ValueError(f"a message {message.kind!r} with {message.fields}")

    def _start(self, slot: int, member: int, threads: int) -> None:
        connection = self._offered.pop(slot)
        spec = AgentSpec(member, threads)
        used = self._engine.launch(self._engine.slots()[slot], spec, connection)
        self._handles[slot] = Handle(used, member, self._control)
        self._output[slot] = self._engine.logs(self._handles[slot], follow=True)

    def _halt(self, slot: int, grace: float) -> None:
        if slot in self._handles:
            self._engine.stop(self._handles[slot], grace)

    def _pass_output(self) -> None:
        for slot, output in self._output.items():
            while chunk := next(output, b""):
                self._control.send("log", slot=slot)
                self._control.send_data(memoryview(chunk))

    def _tell_ends(self) -> None:
        for event in self._engine.events(0):
            slot = event.slot.id
            self._pass_output()  # what it has written at last
            del self._handles[slot], self._output[slot]
            self._control.send("gone", slot=slot, code=event.code, ordered=event.ordered)
            try:
                self._offered[slot] = self._offer(slot)[0]
            except Refused as error:
                raise EOFError(str(error)) from None


def read_token(path: Path) -> str:
    """Of a file. Raises OSError, and ValueError if there is none in it."""
    token = path.read_text().strip()
    if not token:
        raise ValueError("it is empty")
    return token
