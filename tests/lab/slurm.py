# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on one machine: the hosts of a laboratory as its nodes.

Needs Debian's packages munge, slurmctld, slurmd and slurm-client. One munged serves all nodes; h1
runs the controller as well.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from ddl_launch.lab import Lab, missing

_PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
}
_LIMIT = 30.0  # seconds to start


def why_not() -> str:
    """Return the reason why Slurm cannot run here; "" if it can."""
    lacking = {package for program, package in _PROGRAMS.items() if not _find(program)}
    return missing() or (f"no Slurm (Debian: {' '.join(sorted(lacking))})" if lacking else "")


class Slurm:
    """Slurm on the hosts of a laboratory, for the time of a with block.

    requeued  seconds after which a job whose node was lost may start again
    """

    def __init__(self, lab: Lab, cpus: int = 4, requeued: int = 120) -> None:
        self.lab = lab
        self.nodes = [host.name for host in lab.hosts]
        self.folder = Path(tempfile.mkdtemp(prefix="ddl-slurm-"))
        self.folder.chmod(0o755)  # munge rejects a socket that not all users can reach
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._cpus, self._requeued = cpus, requeued

    def __enter__(self) -> Slurm:
        try:
            self._start_munge()
            self._write_configuration()
            self._complete_pmix()
            self._start("slurmctld", "h1", "slurmctld", "-D")
            for node in self.nodes:
                self._start_node(node)
            self._wait_until_idle(self.nodes)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that Slurm's commands need on the hosts."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def clean(self) -> dict[str, str]:
        """Return this process's environment without another job's variables, and with
        `environment`."""
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "DDL_"))}
        return {**base, **self.environment}

    def run(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
        host: str = "h1",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node to its end; return its output as text."""
        process = subprocess.Popen(
            self.lab.at(host, *command),
            env={**self.clean(), **(env or {})},
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"{command}: not ended in {timeout} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(list(map(str, command)), process.returncode, out, err)

    def lose(self, node: str) -> None:
        """Kill all processes on a node, including slurmd and its jobs. Tell Slurm of the loss,
        which it would otherwise detect after SlurmdTimeout. It requeues the jobs that may be
        requeued."""
        self.lab.run(node, ["sh", "-c", "kill -9 -1"], timeout=_LIMIT)
        self._update(node, "state=down", "reason=lost")

    def bring_back(self, node: str) -> None:
        """Start a lost node."""
        self._start_node(node)
        self._wait_until_idle([node])

    def _update(self, node: str, *settings: str) -> None:
        done = self.run(["scontrol", "update", f"nodename={node}", *settings], timeout=_LIMIT)
        if done.returncode:
            raise RuntimeError(f"scontrol: {done.stderr}")

    def _start_node(self, node: str) -> None:
        self._start(f"slurmd-{node}", node, "slurmd", "-D", "-N", node)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        arguments = [f"--{option}={folder / name}" for option, name in files.items()]
        command = [_find("munged") or "munged", "--foreground", "--force", f"--key-file={key}"]
        with (self.folder / "munged.log").open("wb") as log:
            munge = subprocess.Popen([*command, *arguments], stdout=log, stderr=log)
        self._daemons.append(munge)
        deadline = time.monotonic() + _LIMIT
        while not (folder / "socket").exists():
            if munge.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"munged: {(self.folder / 'munged.log').read_text()}")
            time.sleep(0.01)

    def _write_configuration(self) -> None:
        folder = self.folder
        for name in ("state", "spool", "run"):
            (folder / name).mkdir()
        addresses = {host.name: host.addresses[0] for host in self.lab.hosts}
        lines = [
            "ClusterName=lab",
            f"SlurmctldHost=h1({addresses['h1']})",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge/socket,cred_expire={self._requeued}",
            "SlurmUser=root",
            "SlurmdUser=root",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool/%n",
            f"SlurmctldPidFile={folder}/run/slurmctld.pid",
            f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "MailProg=/bin/true",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",
            "ReturnToService=2",
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0",
            *(f"NodeName={n} NodeAddr={a} CPUs={self._cpus}" for n, a in addresses.items()),
            "PartitionName=lab Nodes=ALL Default=YES State=UP",
        ]
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "mpi.conf").write_text("PMIxCliTmpDirBase=/dev/shm\n")

    def _complete_pmix(self) -> None:
        """Debian's plugin opens libpmix.so, which only the development package contains. So the
        nodes see a copy of the library's folder with this link. Nothing happens if the library is
        not installed."""
        self.has_pmix = False
        for library in Path("/usr/lib").glob("*/pmix2/lib/libpmix.so.2"):
            folder, copy = library.parent, self.folder / "pmix"
            shutil.copytree(folder, copy, symlinks=True)
            if not (copy / "libpmix.so").exists():
                (copy / "libpmix.so").symlink_to(library.name)
            for node in self.nodes:
                done = self.lab.run(node, ["mount", "--bind", copy, folder], timeout=_LIMIT)
                self.has_pmix = done.returncode == 0

    def _start(self, name: str, node: str, program: str, *arguments: str) -> None:
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "DDL_"))}
        with (self.folder / f"{name}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    self.lab.at(node, _find(program) or program, *arguments),
                    env={**base, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _wait_until_idle(self, nodes: Sequence[str]) -> None:
        deadline = time.monotonic() + _LIMIT
        sinfo = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%T"]
        while True:
            said = self.run(sinfo, timeout=_LIMIT)
            if said.stdout.split() == ["idle"] * len(nodes):
                return
            if time.monotonic() > deadline:
                logs = "\n".join(log.read_text()[-2000:] for log in self.folder.glob("*.log"))
                raise RuntimeError(f"Slurm's nodes are not idle: {said}\n{logs}")
            time.sleep(0.05)


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
