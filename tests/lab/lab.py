"""Several hosts on one machine: network namespaces on one switch, links shaped with tc tbf.

Root only. A host is a network namespace, and as abstract unix sockets end at its border, ranks in
two of them cannot share memory. The switch is a bridge in a namespace of its own, so nothing of
the machine's own network is touched, and with the namespaces everything goes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from types import FrameType, TracebackType


def sh(command: str) -> None:
    """Run a command and raise, with what it said, when it fails."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip() or done.returncode}")


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class Lab:
    """Hosts 10.77.0.1, 10.77.0.2, ... for the time of a with block.

    `rate` is that of each host's link, each way, as tc writes it ("1gbit"); None: unshaped.
    """

    def __init__(self, hosts: int, rate: str | None) -> None:
        self.prefix = f"ddl{os.getpid()}-"
        self.hosts = hosts
        self.rate = rate
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Lab:
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGHUP, _stop)
        try:
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _build(self) -> None:
        switch = self.prefix + "sw"
        sh(f"ip netns add {switch}")
        sh(f"ip -n {switch} link add br0 type bridge")
        sh(f"ip -n {switch} link set br0 up")
        for h in range(self.hosts):
            host = self.prefix + str(h)
            sh(f"ip netns add {host}")
            sh(f"ip -n {host} link set lo up")
            sh(f"ip -n {switch} link add p{h} type veth peer name eth0 netns {host}")
            sh(f"ip -n {switch} link set p{h} master br0 up")
            sh(f"ip -n {host} addr add {self.address(h)}/24 dev eth0")
            sh(f"ip -n {host} link set eth0 up")
            if self.rate:
                shape = f"root tbf rate {self.rate} burst 256kb latency 50ms"
                sh(f"tc -n {host} qdisc add dev eth0 {shape}")
                sh(f"tc -n {switch} qdisc add dev p{h} {shape}")

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        names = [str(h) for h in range(self.hosts)] + ["sw"]
        for name in names:
            subprocess.run(["ip", "netns", "del", self.prefix + name], capture_output=True)

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"10.77.0.{host + 1}"

    def start(
        self, host: int, command: Sequence[str], env: dict[str, str]
    ) -> subprocess.Popen[str]:
        """Start a process on a host; it ends with the lab at the latest."""
        process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.prefix}{host}", *command],
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def sent(self, host: int) -> int:
        """Bytes that a host has put on its link so far."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        # sysfs shows the namespace of the process that mounted it, hence a mount of our own.
        shell = f"mount -t sysfs sysfs /sys && cat {path}"
        inside = ["nsenter", f"--net=/run/netns/{self.prefix}{host}", "unshare", "--mount"]
        done = subprocess.run(
            [*inside, "sh", "-c", shell], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    def finish(self, processes: Sequence[subprocess.Popen[str]], seconds: float) -> list[str]:
        """What the processes wrote; raises when one failed or has not ended in time."""
        deadline = time.monotonic() + seconds
        outputs = []
        for rank, process in enumerate(processes):
            output, _ = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            if process.returncode:
                raise RuntimeError(f"rank {rank} ended with {process.returncode}:\n{output}")
            outputs.append(output)
        return outputs
