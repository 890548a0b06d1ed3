# SPDX-License-Identifier: Apache-2.0
"""Agents on a Ray cluster: an actor for each slot starts an agent, which connects to the job.

If an actor's node is lost, Ray restarts the actor on another node as soon as one has room. The
worker is a child of the agent. The training process therefore does not contain Ray, and Ray does
not decide which workers are alive.

The actors continue when the job's coordinator exits, and end with their agents.
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
from ddl_launch.errors import FAILED, NOT_FOUND, LaunchError
from ddl_launch.rank import sockets

END_LIMIT = 1.0  # seconds for the actors to report their results at the end of the job
_SAID_LIMIT = 10.0  # seconds for the coordinator to fetch an agent's exit code from its actor
REACH_LIMIT = 10.0  # seconds in which to connect to the cluster

_EXEC = Path(sockets.__file__).with_name("exec_rank.py")  # makes an agent exit with its actor


class RayAgents:
    """The actors of a job, one for each slot. A context manager, which ends them.

    cluster  the address for `ray.init`: "auto" or host:port
    port     the port at which the job listens
    cores    the number of cores of each slot
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
        # Ray prints messages on lost nodes to stdout, which is for the workers' output.
        self._stdout = redirect_stdout(sys.stderr)
        self._stdout.__enter__()
        where = f"{self._ray.util.get_node_ip_address()}:{port}"
        # Ray restarts a lost actor on another node, where a new agent connects.
        options = {"num_cpus": cores, "max_restarts": -1, "max_task_retries": -1}
        actor = self._ray.remote(**options, lifetime="detached")(_Slot)
        self._actors = [actor.remote(where, token, cores) for _ in range(slots)]
        self._ends = [each.wait.remote() for each in self._actors]

    def failure(self) -> str:
        """Return an error message for the first agent that failed, or ""."""
        for end in self._ray.wait(self._ends, num_returns=len(self._ends), timeout=0)[0]:
            host, code, said = self._ray.get(end)
            if code:
                return f"no agent on {host}: exit code {code}:\n  {said}"
        return ""

    def close(self) -> None:
        """Give the actors time to report their agents' exit, and end them."""
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
    """Check that the cluster is reachable, because Ray would retry forever. Raises OSError and
    ValueError."""
    host, colon, port = cluster.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), REACH_LIMIT).close()


class _Slot:
    """The actor that runs an agent with one slot until the agent exits."""

    def __init__(self, where: str, token: str, cores: int) -> None:
        self._end: tuple[str, int, str] = ("", 0, "")
        self._agent = threading.Thread(target=self._run, args=(where, token, cores))
        self._agent.start()

    def wait(self) -> tuple[str, int, str]:
        """Wait for the agent. Return the host, the agent's exit code and the end of its stderr."""
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
    """Kill this process's actor without a restart, if its coordinator has not killed it first."""
    time.sleep(_SAID_LIMIT)
    ray: Any = importlib.import_module("ray")
    ray.kill(ray.get_runtime_context().current_actor)
