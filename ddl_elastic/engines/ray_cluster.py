# SPDX-License-Identifier: Apache-2.0
"""Agents on a Ray cluster: an actor for each slot starts one, and it dials in.

An actor whose node is lost is restarted by Ray on another one, as soon as there is room, and so is
one that has waited for a node to be added. The worker is the agent's child: Ray is not in the
process that trains, and says nothing about who is alive there.

The actors outlive the job's coordinator, as agents do, and end with their agents.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ddl_elastic.base import environment
from ddl_launch import sockets
from ddl_launch.errors import FAILED, NOT_FOUND, LaunchError

END_LIMIT = 1.0  # seconds
_SAID_LIMIT = 10.0  # seconds in which a coordinator that lives has heard why an agent has ended
REACH_LIMIT = 10.0

_EXEC = Path(sockets.__file__).with_name("exec_rank.py")  # has an agent end with its actor


class RayAgents:
    """As many actors as a job may have workers. A context manager; ends them.

    cluster  as `ray.init` takes it: "auto" or host:port
    port     where the job listens
    cores    of each slot
    """

    def __init__(self, cluster: str, slots: int, port: int, token: str, cores: int) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
            _reach(cluster)
            self._ray.init(address=cluster, log_to_driver=False, logging_level="warning")
        except ImportError as error:
            raise LaunchError(NOT_FOUND, f"--ray: {error}; pip install 'libddl[ray]'") from None
        except (OSError, ValueError) as error:
            raise LaunchError(FAILED, f"--ray {cluster}: {error}") from None
        # What Ray tells of nodes that are lost is no result of the program's workers.
        self._stdout = redirect_stdout(sys.stderr)
        self._stdout.__enter__()
        where = f"{self._ray.util.get_node_ip_address()}:{port}"
        # A lost actor is made anew on another node, where its agent dials in again.
        options = {"num_cpus": cores, "max_restarts": -1, "max_task_retries": -1}
        actor = self._ray.remote(**options, lifetime="detached")(_Slot)
        self._actors = [actor.remote(where, token, cores) for _ in range(slots)]
        self._ends = [each.wait.remote() for each in self._actors]

    def failure(self) -> str:
        """Of the first agent that has ended with an error; "" if there is none."""
        for end in self._ray.wait(self._ends, num_returns=len(self._ends), timeout=0)[0]:
            host, code, said = self._ray.get(end)
            if code:
                return f"no agent on {host}: exit code {code}:\n  {said}"
        return ""

    def close(self) -> None:
        """Agents have ended with the job, and their actors are about to tell."""
        self._ray.wait(self._ends, num_returns=len(self._ends), timeout=END_LIMIT)
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()
        self._stdout.__exit__(None, None, None)

    def __enter__(self) -> RayAgents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reach(cluster: str) -> None:
    """Ray itself tries forever, without a word. Raises OSError and ValueError."""
    host, colon, port = cluster.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), REACH_LIMIT).close()


class _Slot:
    """What an actor does: an agent of one slot, to its end."""

    def __init__(self, where: str, token: str, cores: int) -> None:
        self._end: tuple[str, int, str] = ("", 0, "")
        self._agent = threading.Thread(target=self._run, args=(where, token, cores))
        self._agent.start()

    def wait(self) -> tuple[str, int, str]:
        """The host, the agent's exit code and its last message."""
        self._agent.join()
        return self._end

    def _run(self, where: str, token: str, cores: int) -> None:
        agent = [sys.executable, "-m", "ddl_launch.commands", "elastic", "agent", "--join", where]
        alive = [sys.executable, "-I", "-S", str(_EXEC), str(os.getpid()), ""]
        done: Any = subprocess.run(
            [*alive, *agent, "-n", "1", "--cores", str(cores)],
            env=environment.with_token(token),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._end = os.uname().nodename, done.returncode, done.stderr[-1000:].strip()
        threading.Thread(target=_end_actor, daemon=True).start()


def _end_actor() -> None:
    """Of this process, for good. Its coordinator does so, if it lives."""
    time.sleep(_SAID_LIMIT)
    ray: Any = importlib.import_module("ray")
    ray.kill(ray.get_runtime_context().current_actor)
