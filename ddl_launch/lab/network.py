# SPDX-License-Identifier: Apache-2.0
"""A laboratory's hosts and wires, built from Linux namespaces with unshare, ip and tc.

Each host has its own network, UTS, IPC, PID and mount namespaces, and so its own name, /dev/shm and
processes. Hosts can communicate by wire only, not through abstract unix sockets, shared memory or
process_vm_readv. Each network is a bridge in one more namespace, the switch. Every host has a veth
pair to it, shaped at both ends.

The namespaces have no names outside. A namespace lives as long as a process in it. Each is held by
a process that ends when the pipe to its stdin is closed. So the machine is restored even if the
laboratory's daemon is killed.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

LIMIT = 30  # seconds for each command in this module

# The program of a host's process 1. /sys shows the network interfaces of the namespace in which it
# was mounted, so each host mounts its own; mounts below it, such as cgroups, stay. A shell as
# process 1 also reaps orphaned children. `kill -9 -1` on the host spares only process 1, so the
# host can run more commands afterwards.
_INIT = """
set -e
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2/hosts" /etc/hosts
mount -t sysfs sysfs "$2/sys"
mount --rbind /sys/fs/cgroup "$2/sys/fs/cgroup"
mount --rbind "$2/sys" /sys
ip link set lo up
echo ready
until cat >/dev/null; do :; done
"""


class NetworkError(Exception):
    """An error: the laboratory cannot be built. The message has the failed command and its
    output."""


def address(host: int, nic: int) -> str:
    """Return the address of a host, counted from 1, on a network, counted from 0."""
    return f"10.{77 + nic}.{host // 250}.{host % 250 + 1}"


class Network:
    """The hosts h1, h2, ..., each with the interfaces eth0, eth1, ..., one on each network.

    rate     the rate of each interface in each direction, in tc's notation ("1gbit"); "": unlimited
    folder   an empty folder for the files that the hosts mount
    """

    def __init__(self, hosts: int, nics: int, rate: str, folder: Path) -> None:
        self.names = [f"h{h}" for h in range(1, hosts + 1)]
        self.nics = nics
        self._rate = rate
        self._folder = folder
        self._holders: list[subprocess.Popen[bytes]] = []
        self._inits: dict[str, int] = {}
        self._switch = 0

    def build(self) -> None:
        """Build everything. Raises NetworkError; `close` removes the parts that exist."""
        self._write_hosts()
        (self._folder / "sys").mkdir()
        for name in self.names:
            self.temporary(name).mkdir(parents=True)
            self.temporary(name).chmod(0o1777)
        hold = self._hold(["unshare", "--net", "sh", "-c", "echo ready; cat >/dev/null"])
        for name in self.names:
            namespaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--mount-proc"]
            own = ["unshare", *namespaces, "--fork", "--kill-child"]
            self._hold([*own, "sh", "-c", _INIT, "sh", name, str(self._folder)])
        for holder in self._holders:
            _wait_until_ready(holder)
        self._switch = hold.pid
        for name, holder in zip(self.names, self._holders[1:], strict=True):
            children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text()
            self._inits[name] = int(children.split()[0])
        self._wire()

    def init(self, name: str) -> int:
        """Return the process id of a host's process 1, as seen from outside the host."""
        return self._inits[name]

    def temporary(self, name: str) -> Path:
        """Return a host's folder for temporary files.

        All hosts and all laboratories share /tmp. There, Open MPI's daemons of different hosts
        could use the same folder, since its name has only the host's name and the number of a
        process.
        """
        return self._folder / "tmp" / name

    def connect(self, name: str, nic: int, on: bool) -> None:
        """Switch a host's interface on or off."""
        port = f"p{self.names.index(name) + 1}n{nic}"
        _in_network(self._switch, ["ip", "link", "set", port, "up" if on else "down"])

    def close(self) -> None:
        """End all processes of all hosts. Their namespaces end with them."""
        for holder in self._holders:
            with contextlib.suppress(BrokenPipeError):
                holder.stdin.close()  # type: ignore[union-attr]
        for holder in self._holders:
            try:
                holder.wait(5)
            except subprocess.TimeoutExpired:
                holder.kill()
                holder.wait()

    def _hold(self, command: list[str]) -> subprocess.Popen[bytes]:
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._holders.append(holder)
        return holder

    def _write_hosts(self) -> None:
        lines = ["127.0.0.1 localhost"]
        for h, name in enumerate(self.names, 1):
            lines.append(f"{address(h, 0)} {name}")
            lines += [f"{address(h, nic)} {name}-eth{nic}" for nic in range(1, self.nics)]
        (self._folder / "hosts").write_text("\n".join(lines) + "\n")

    def _wire(self) -> None:
        links, ports = [], []
        for nic in range(self.nics):
            links += [f"link add br{nic} type bridge", f"link set br{nic} up"]
            for h, name in enumerate(self.names, 1):
                port = f"p{h}n{nic}"
                pair = f"link add {port} type veth peer name eth{nic} netns {self._inits[name]}"
                links += [pair, f"link set {port} master br{nic} up"]
                ports.append(port)
        _in_network(self._switch, ["ip", "-batch", "-"], links)
        self._shape(self._switch, ports)
        for h, name in enumerate(self.names, 1):
            own = []
            for nic in range(self.nics):
                own += [f"addr add {address(h, nic)}/16 dev eth{nic}", f"link set eth{nic} up"]
            _in_network(self._inits[name], ["ip", "-batch", "-"], own)
            self._shape(self._inits[name], [f"eth{nic}" for nic in range(self.nics)])

    def _shape(self, process: int, devices: list[str]) -> None:
        if self._rate:
            shape = f"root tbf rate {self._rate} burst 256kb latency 50ms"
            lines = [f"qdisc add dev {device} {shape}" for device in devices]
            _in_network(process, ["tc", "-batch", "-"], lines)


def _wait_until_ready(holder: subprocess.Popen[bytes]) -> None:
    said = holder.stdout.readline() if holder.stdout else b""
    if said != b"ready\n":
        raise NetworkError(f"cannot create a host: {said.decode(errors='replace').strip()}")


def _in_network(process: int, command: list[str], lines: list[str] | None = None) -> None:
    """Run a command in the network namespace of a process, with `lines` as its input."""
    done = subprocess.run(
        ["nsenter", f"--net=/proc/{process}/ns/net", *command],
        input="\n".join(lines or []),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
