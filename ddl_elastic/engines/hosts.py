# SPDX-License-Identifier: Apache-2.0
"""Agents on given hosts, which mpirun or srun starts and which then connect to the job.

Each host has its own launcher process, so that the loss of one host does not affect the others.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ddl_elastic.base import environment
from ddl_launch.hosts.launchers import LaunchRequest, find_launcher, start
from ddl_launch.hosts.layout import Host, Layout
from ddl_launch.jobs.remote_job import exported_names
from ddl_launch.rank import sockets

END_LIMIT = 5.0  # seconds for the agents to exit after the end of the job
_SHOWN = 5  # lines of a launcher's output in an error message


class HostAgents:
    """The agents on the given hosts. A context manager. Raises ddl_launch.errors.LaunchError.

    port   the port at which the job listens
    cores  the number of cores of each slot
    """

    def __init__(self, hosts: Sequence[Host], port: int, token: str, cores: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ddl-elastic-"))
        self._launchers: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for host in hosts:
                self._launchers[host.name] = self._start(host, port, token, cores)
        except BaseException:
            self.close()
            raise

    def _start(self, host: Host, port: int, token: str, cores: int) -> subprocess.Popen[bytes]:
        folder = self._folder / host.name
        folder.mkdir()
        variables = environment.with_token(token)
        names = exported_names(variables, [])
        launcher, layout = find_launcher("auto", environment.scheduler()), Layout((host.name,))
        begin = start(
            LaunchRequest(launcher, layout, names, environment.remote_shell(), [], folder)
        )
        for name, text in begin.files.items():
            (folder / name).write_text(text)
        agent = [sys.executable, "-m", "ddl_launch.commands", "elastic", "agent"]
        where = f"{self._address(host.name)}:{port}"
        slots = [] if host.ranks is None else ["-n", str(host.ranks)]
        with (folder / "output").open("wb") as output:
            return subprocess.Popen(
                [*begin.command, *agent, "--join", where, "--cores", str(cores), *slots],
                env={**variables, **begin.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the job, which then ends its agents
            )

    def _address(self, host: str) -> str:
        """Return this machine's address as seen from the host."""
        try:
            return sockets.addresses_to(host)[0]
        except socket.gaierror:
            return socket.gethostname()  # only the launcher may be able to resolve the host

    def failure(self) -> str:
        """Return an error message for the first host whose agent failed, or ""."""
        for host, launcher in self._launchers.items():
            if launcher.poll():
                output = (self._folder / host / "output").read_text(errors="replace")
                said = "\n  ".join(output.strip().splitlines()[-_SHOWN:])
                return f"no agent on {host}: exit code {launcher.returncode}:\n  {said}"
        return ""

    def close(self) -> None:
        """Wait up to END_LIMIT seconds for each agent to exit, and then stop it."""
        for launcher in self._launchers.values():
            try:
                launcher.wait(END_LIMIT)
            except subprocess.TimeoutExpired:
                launcher.terminate()
        for launcher in self._launchers.values():
            try:
                launcher.wait(END_LIMIT)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> HostAgents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
