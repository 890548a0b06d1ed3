# SPDX-License-Identifier: Apache-2.0
"""The command loop of a rank: reads commands from the scheduler as lines of JSON, and answers
each."""

import json
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

WARM_UP = 3  # steps of each program; the first one compiles it

Program = Callable[[], Any]  # runs one step; its result is complete on return


def run_commands(worker: Any, path: str, about: Mapping[str, Any]) -> None:
    """Run the scheduler's commands until it closes the connection.

    Connects to the Unix socket at `path` and sends `about`. A command {"do": name, ...} calls the
    method `name` of `worker` with the other fields as arguments; the answer is the dict that the
    method returns, or {"error": message}.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        stream = connection.makefile("rw")

        def send(message: Mapping[str, Any]) -> None:
            stream.write(json.dumps(message) + "\n")
            stream.flush()

        send(about)
        for line in stream:
            command = json.loads(line)
            try:
                send(getattr(worker, command.pop("do"))(**command))
            except Exception as error:
                traceback.print_exc()  # into the rank's log
                send({"error": f"{type(error).__name__}: {error}"})


class Steps:
    """The commands that run training programs. A subclass adds `prepare`, which creates them.

    run      program, steps: run one step more than `steps`, the first one untimed; the answer has
             the seconds of each step and the processor time of one
    release  drop the programs
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.programs: dict[str, Program] = {}

    def warm_up(self) -> None:
        for program in self.programs.values():
            for _ in range(WARM_UP):
                program()

    def release(self) -> dict[str, Any]:
        self.programs = {}
        return {}

    def run(self, program: str, steps: int) -> dict[str, Any]:
        step, clock = self.programs[program], time.perf_counter
        step()
        seconds, processor = [], time.process_time()
        for _ in range(steps):
            start = clock()
            step()
            seconds.append(clock() - start)
        return {"seconds": seconds, "processor": (time.process_time() - processor) / steps}
