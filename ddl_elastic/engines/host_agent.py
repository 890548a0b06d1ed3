# SPDX-License-Identifier: Apache-2.0
"""The agent of a host, which relays messages between its workers and the job's coordinator.

Workers connect only to their agent, so they continue when the coordinator is lost. The agent then
records their messages, and reconnects when there is a coordinator again. It accepts requests only
from a coordinator that knows the job's token.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ddl_elastic.base.messages import Channel
from ddl_elastic.base.protocol import TO_WORKER, FromWorker, JobChannel, StepCommitted
from ddl_elastic.base.waiting import ready
from ddl_elastic.engines import AgentSpec, Handle, protocol
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.engines.worker_record import WorkerRecord
from ddl_launch.rank import frames
from ddl_launch.rank.witness import is_report

REDIAL = 0.2  # seconds between two attempts to reconnect to a coordinator
CUT = 1.0  # seconds within which all connections to a lost coordinator close

# A function that connects to the job with this greeting. Raises JoinRefused.
Dial = Callable[[protocol.Greeting], socket.socket]


class JoinRefused(RuntimeError):
    """The error for a job that the agent cannot join. The message contains the reason."""


@dataclass(eq=False)
class _WorkerPlace:
    """A slot with a worker."""

    handle: Handle
    output: Iterator[bytes]
    record: WorkerRecord
    link: JobChannel | None  # carries this worker's messages from and to the coordinator
    unsent: bytes = b""  # output of the worker that could not be sent yet
    is_open: bool = True  # the worker's channel is open
    end: protocol.ProcessExited | None = None

    @property
    def keeps_agent(self) -> bool:
        """True if the worker can continue without a coordinator."""
        return self.end is None and not self.record.is_waiting


class HostAgent:
    """The agent that offers the slots of an engine to a job.

    about  the agent's greeting, which includes its name
    dial   connects to the job's coordinator, or to its successor
    wait   seconds to wait for another coordinator while none of its workers trains
    stays  True if workers continue to train without a coordinator, False if all are stopped then
    """

    def __init__(
        self,
        engine: LocalEngine,
        about: protocol.AgentGreeting,
        dial: Dial,
        wait: float,
        stays: bool = True,
    ) -> None:
        self._engine, self._about, self._dial, self._wait = engine, about, dial, wait
        self._stays = stays
        self._connection: socket.socket | None = None  # None: not connected to a coordinator
        self._control: Channel[protocol.ToAgent] | None = None
        self._offered: dict[int, socket.socket] = {}  # connections of free slots, by slot id
        self._places: dict[int, _WorkerPlace] = {}  # by slot id
        self._look_at = self._cut_at = 0.0
        self._alone_since = self._dial_at = 0.0
        self._is_over = False

    def run(self, control: Channel[protocol.ToAgent], connection: socket.socket) -> int:
        """Serve the job until it is over. Return the agent's exit code. Raises JoinRefused."""
        self._control, self._connection = control, connection
        self._guard(self._offer_free)
        while not self._is_over and (self._control or self._reach()):
            found = self._select()
            self._guard(lambda: self._listen(found))  # noqa: B023
            for place in list(self._places.values()):
                self._hear_worker(place, found)
            self._note_ends()
            ended = self._engine.witnessed()
            self._guard(lambda: self._tell_witnessed(ended))  # noqa: B023
            if self._control:
                self._guard(self._report)
        return 0 if self._is_over else self._give_up()

    def _guard(self, talk: Callable[[], None]) -> None:
        """Call a function that needs the coordinator, and handle its loss. Raises JoinRefused."""
        try:
            talk()
        except (OSError, EOFError) as error:
            self._lose(str(error))
        except ValueError as error:
            raise JoinRefused(f"the job sent {error}") from None

    def _select(self) -> list[Any]:
        waits_for: list[Any] = [*self._engine.channels(), self._engine.witness]
        waits_for += [self._control] if self._control else []
        for place in self._places.values():
            waits_for += [place.link] if place.link else []
            waits_for += [place.handle.channel] if place.is_open else []
        timeout = 0.1 if self._places or not self._control else frames.TICK
        return ready(waits_for, timeout)

    # ---- the coordinator ----

    def _listen(self, found: list[Any]) -> None:
        if self._control in found and self._control:
            for message in self._control.poll():
                self._take(message)
        for place in list(self._places.values()):
            if place.link and place.link in found:
                self._hear_coordinator(place, place.link)
        if self._cut_at and time.monotonic() > self._cut_at + CUT:
            raise EOFError("a connection to it is cut")
        if self._connection and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + frames.TICK
            if frames.is_silent(self._connection):
                raise EOFError("its host does not answer")

    def _hear_coordinator(self, place: _WorkerPlace, link: JobChannel) -> None:
        """Forward the coordinator's messages to a worker. Raises ValueError if one is malformed."""
        try:
            for message in link.poll():
                place.record.ordered(message)
                with suppress(OSError):  # the worker has exited
                    place.handle.channel.send(message)
        except EOFError:
            self._cut(place)

    def _cut(self, place: _WorkerPlace) -> None:
        """Close a worker's link to the coordinator. The control connection will show the reason:
        the job is over, or its coordinator is lost."""
        if place.link:
            place.link.close()
            place.link, self._cut_at = None, time.monotonic()

    def _take(self, message: protocol.ToAgent) -> None:
        match message:
            case protocol.StartWorker() if message.slot in self._offered:
                self._start(message)
            case protocol.StopWorker():
                if place := self._places.get(message.slot):
                    self._engine.stop(place.handle, message.grace)
            case protocol.EndpointEnded() if is_report(message.endpoint):
                self._engine.spread(message.endpoint)
            case protocol.JobEnded():
                self._is_over = True
            case _:
                raise ValueError(f"an invalid message: {message}")

    def _tell_witnessed(self, endpoints: list[bytes]) -> None:
        for endpoint in endpoints if self._control else []:
            assert self._control
            self._control.send(protocol.EndpointEnded(endpoint))

    def _start(self, order: protocol.StartWorker) -> None:
        link = Channel(self._offered.pop(order.slot), TO_WORKER)
        spec = AgentSpec(order.member, order.threads)
        handle = self._engine.start(self._engine.slots()[order.slot], spec)
        output = self._engine.logs(handle, follow=True)
        self._places[order.slot] = _WorkerPlace(handle, output, WorkerRecord(order.member), link)

    def _offer_free(self) -> None:
        for slot in self._engine.slots():
            if slot.id not in self._places and slot.id not in self._offered:
                try:
                    self._offered[slot.id] = self._dial(self._slot(slot.id, -1))
                except JoinRefused as error:
                    raise EOFError(str(error)) from None

    def _slot(self, number: int, member: int) -> protocol.SlotGreeting:
        return protocol.SlotGreeting(self._about.agent, number, member)

    def _report(self) -> None:
        """Send the coordinator the workers' new output and exit codes."""
        assert self._control
        for slot, place in list(self._places.items()):
            while chunk := place.unsent or next(place.output, b""):
                place.unsent = chunk
                self._control.send(protocol.WorkerOutput(slot, chunk))
                place.unsent = b""
            if place.end:
                self._control.send(protocol.WorkerExited(slot, place.end.code, place.end.ordered))
                self._forget(slot)
        self._offer_free()

    def _forget(self, slot: int) -> None:
        link = self._places.pop(slot).link
        if link:
            link.close()

    # ---- without a coordinator ----

    def _lose(self, why: str) -> None:
        if self._control is None or self._is_over:
            return
        with suppress(OSError, EOFError, ValueError):  # the last message may be `over`
            if ready([self._control], 0):
                self._is_over = any(
                    isinstance(each, protocol.JobEnded) for each in self._control.poll()
                )
        if self._places and not self._is_over:
            print(
                f"ddl elastic agent: the connection to the job's coordinator is lost: {why}",
                file=sys.stderr,
            )
        self._control.close()
        self._control, self._connection, self._cut_at = None, None, 0.0
        for connection in self._offered.values():
            connection.close()
        self._offered.clear()
        for place in self._places.values():
            if place.link:
                place.link.close()
                place.link = None
        self._alone_since, self._dial_at = time.monotonic(), 0.0

    def _reach(self) -> bool:
        """Try to reconnect, if it is time to. Return False if the wait has been too long."""
        now = time.monotonic()
        if not self._stays:
            return False
        if any(place.keeps_agent for place in self._places.values()):
            self._alone_since = now
        if now - self._alone_since > self._wait:
            return False
        if now >= self._dial_at:
            self._dial_at = now + REDIAL
            with suppress(JoinRefused):
                connection = self._dial(self._about)
                self._control, self._connection = Channel(connection, protocol.TO_AGENT), connection
                self._guard(self._return)
                self._dial_at = time.monotonic() + REDIAL
        return True

    def _return(self) -> None:
        """Report all workers, and the events that were not delivered, to a new coordinator."""
        for slot, place in self._places.items():
            try:
                connection = self._dial(self._slot(slot, place.record.member))
            except JoinRefused as error:
                raise EOFError(str(error)) from None
            place.link = Channel(connection, TO_WORKER)
            place.link.send(place.record.snapshot())
            while place.record.unheard:
                place.link.send(place.record.unheard[0])
                del place.record.unheard[0]

    def _give_up(self) -> int:
        """Print the workers' unsent output and return an exit code, because no coordinator has
        connected."""
        for place in self._places.values():
            text = place.unsent + b"".join(iter(lambda: next(place.output, b""), b""))  # noqa: B023
            for line in text.decode(errors="replace").splitlines():
                print(f"[{place.record.member}] {line}")
        sys.stdout.flush()
        waiting = [p for p in self._places.values() if p.end is None and p.record.has_begun]
        if waiting:
            print(
                f"ddl elastic agent: no coordinator has connected for {self._wait:g} s, and rank"
                f" {waiting[0].record.member} needs one to continue",
                file=sys.stderr,
            )
            return 1
        ended = [place for place in self._places.values() if place.end]
        # Ignore workers that died while other workers completed the training.
        for place in [each for each in ended if each.record.has_trained] or ended:
            if place.end and (code := place.end.code):
                return code if code > 0 else 128 - code
        return 0

    # ---- the workers ----

    def _hear_worker(self, place: _WorkerPlace, found: list[Any] | None) -> None:
        """Forward a worker's messages to the coordinator, if there is one. If `found` is None, the
        worker has exited: forward all messages that are left."""
        channel = place.handle.channel
        try:
            while place.is_open and channel in (found or ready([channel], 0)):
                for message in channel.poll():
                    self._pass_on(place, message)
                if found is not None:
                    return
        except EOFError:
            place.is_open = False
        except ValueError:  # an invalid message
            place.is_open = False
            self._engine.stop(place.handle, 0)

    def _pass_on(self, place: _WorkerPlace, message: FromWorker) -> None:
        heard, link = False, place.link
        if link:
            try:
                if isinstance(message, StepCommitted):
                    heard = link.offer(message)
                else:
                    link.send(message)
                    heard = True
            except OSError:
                self._cut(place)
        place.record.told(message, heard)

    def _note_ends(self) -> None:
        for event in self._engine.events(0):
            place = self._places[event.slot.id]
            self._hear_worker(place, None)
            place.is_open = False
            place.end = protocol.ProcessExited(event.code, event.ordered)
