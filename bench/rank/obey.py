"""A rank's end of the scheduler's socket: lines of JSON, and one answer to each command."""

from __future__ import annotations

import json
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

WARM_UP = 3  # steps of each program, the first of which compiles it

Program = Callable[[], Any]  # a step, at the end of which the result is there


def obey(player: Any, path: str, about: Mapping[str, Any]) -> None:
    """Say `about`, then call the player's methods as it is told, until the scheduler hangs up."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        stream = connection.makefile("rw")

        def say(message: Mapping[str, Any]) -> None:
            stream.write(json.dumps(message) + "\n")
            stream.flush()

        say(about)
        for line in stream:
            command = json.loads(line)
            try:
                say(getattr(player, command.pop("do"))(**command))
            except Exception as error:
                traceback.print_exc()  # into the rank's log
                say({"error": f"{type(error).__name__}: {error}"})


class Steps:
    """Runs programs of training. What makes them adds `prepare`.

    play     program, steps: answers with the seconds of each step, after one that is not counted,
             and the processor's for one
    rest     drop them
    """

    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.programs: dict[str, Program] = {}

    def warm_up(self) -> None:
        for program in self.programs.values():
            for _ in range(WARM_UP):
                program()

    def rest(self) -> dict[str, Any]:
        self.programs = {}
        return {}

    def play(self, program: str, steps: int) -> dict[str, Any]:
        step, clock = self.programs[program], time.perf_counter
        step()
        seconds, processor = [], time.process_time()
        for _ in range(steps):
            start = clock()
            step()
            seconds.append(clock() - start)
        return {"seconds": seconds, "processor": (time.process_time() - processor) / steps}
