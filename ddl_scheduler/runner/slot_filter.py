# SPDX-License-Identifier: Apache-2.0
"""A filter around an engine: slots are free only if the job may use them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from ddl_elastic.engines import AgentSpec, Engine, Event, Handle, Slot


class SlotFilterEngine:
    """An engine for one job, in which only the slots that the job may use are free. See
    ddl_elastic.engines.Engine.

    name  returns the name of an engine's slot
    """

    def __init__(
        self, engine: Engine, name: Callable[[Slot], str], granted: Collection[str]
    ) -> None:
        self._engine, self.name = engine, name
        self.granted = frozenset(granted)  # the slots that the job may use; may be replaced
        self._used: set[str] = set()

    @property
    def held(self) -> list[str]:
        """The slots that the job may use, and the slots on which it still has a process."""
        return sorted(self.granted | self._used)

    def slots(self) -> list[Slot]:
        return [
            slot if self.name(slot) in self.granted else _withhold(slot)
            for slot in self._engine.slots()
        ]

    def start(self, slot: Slot, spec: AgentSpec) -> Handle:
        handle = self._engine.start(slot, spec)
        self._used.add(self.name(slot))
        return handle

    def stop(self, handle: Handle, grace: float) -> None:
        self._engine.stop(handle, grace)

    def events(self, timeout: float) -> list[Event]:
        events = self._engine.events(timeout)
        self._used -= {self.name(each.slot) for each in events if each.kind == "agent ended"}
        return events

    def logs(self, handle: Handle, follow: bool) -> Iterator[bytes]:
        return self._engine.logs(handle, follow)

    def want(self, slots: int) -> None:
        self._engine.want(slots)

    def close(self) -> None:
        self._engine.close()


def _withhold(slot: Slot) -> Slot:
    return replace(slot, state="lost" if slot.state == "free" else "draining")
