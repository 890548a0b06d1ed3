# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces on one switch, links shaped with tc tbf. Root
only.

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
    """Run a command. If it fails, raise an error with its output."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip() or done.returncode}")


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class Lab:
    """Hosts 10.77.0.1, 10.77.0.2, ... for the time of a with block.

    `rate` is that of each host's link, each way, as tc writes it ("1gbit"); None: unshaped. A list
    gives each host as many interfaces, eth0 in 10.77.0.0/24, eth1 in 10.78.0.0/24 and so on, each
    on a switch of its own. `shape` has the options of tc tbf.
    """

    def __init__(
        self,
        hosts: int,
        rate: str | Sequence[str | None] | None,
        shape: str = "burst 256kb latency 50ms",
    ) -> None:
        self.prefix = f"ddl{os.getpid()}-"
        self.hosts = hosts
        self.rates = [rate] if rate is None or isinstance(rate, str) else list(rate)
        self._shape = shape
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
        for h in range(self.hosts):
            sh(f"ip netns add {self.prefix}{h}")
            sh(f"ip -n {self.prefix}{h} link set lo up")
        for nic, rate in enumerate(self.rates):
            sh(f"ip -n {switch} link add br{nic} type bridge")
            sh(f"ip -n {switch} link set br{nic} up")
            for h in range(self.hosts):
                self._plug(self.prefix + str(h), h, nic, rate)

    def _plug(self, host: str, h: int, nic: int, rate: str | None) -> None:
        switch, inner, outer = self.prefix + "sw", f"eth{nic}", f"p{h}n{nic}"
        sh(f"ip -n {switch} link add {outer} type veth peer name {inner} netns {host}")
        sh(f"ip -n {switch} link set {outer} master br{nic} up")
        sh(f"ip -n {host} addr add {self.address(h, nic)}/24 dev {inner}")
        sh(f"ip -n {host} link set {inner} up")
        if rate:
            shape = f"root tbf rate {rate} {self._shape}"
            sh(f"tc -n {host} qdisc add dev {inner} {shape}")
            sh(f"tc -n {switch} qdisc add dev {outer} {shape}")

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

    def address(self, host: int, nic: int = 0) -> str:
        """Return the address of a host's n-th interface."""
        return f"10.{77 + nic}.0.{host + 1}"

    def unplug(self, host: int, nic: int) -> None:
        """Drop all packets at the host's n-th interface, without an error on either side."""
        sh(f"ip -n {self.prefix}sw link set p{host}n{nic} nomaster")

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
        """Return the bytes that a host has sent on its links so far."""
        paths = " ".join(
            f"/sys/class/net/eth{nic}/statistics/tx_bytes" for nic in range(len(self.rates))
        )
        # sysfs shows the namespace of the process that mounted it, hence a separate mount.
        shell = f"mount -t sysfs sysfs /sys && cat {paths}"
        inside = ["nsenter", f"--net=/run/netns/{self.prefix}{host}", "unshare", "--mount"]
        done = subprocess.run(
            [*inside, "sh", "-c", shell], capture_output=True, text=True, check=True
        )
        return sum(int(line) for line in done.stdout.split())

    def finish(self, processes: Sequence[subprocess.Popen[str]], seconds: float) -> list[str]:
        """Return the output of the processes. Raises an error if one failed or has not ended in
        time."""
        deadline = time.monotonic() + seconds
        outputs = []
        for rank, process in enumerate(processes):
            output, _ = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            if process.returncode:
                raise RuntimeError(f"rank {rank} ended with {process.returncode}:\n{output}")
            outputs.append(output)
        return outputs
