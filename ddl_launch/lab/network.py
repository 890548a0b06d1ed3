# SPDX-License-Identifier: Apache-2.0
"""A laboratory's hosts and wires, made of Linux namespaces with unshare, ip and tc.

Each host is a network namespace with UTS, IPC, PID and mount namespaces of its own, so it has a
name, a /dev/shm and processes of its own, and nothing passes between two hosts but by wire: neither
abstract unix sockets nor shared memory nor process_vm_readv. Each network is a bridge in one more
namespace, the switch, to which every host has a veth pair, shaped at both its ends.

Nothing here has a name outside: a namespace lives as long as a process in it, and each is held by
one that ends when the pipe to its stdin does. So whatever becomes of the laboratory's daemon, the
machine is left as it was.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

LIMIT = 30  # seconds for any command here

# What process 1 of a host does. /sys shows the network interfaces of the namespace in which it was
# mounted, hence a mount of its own; what is mounted below, as cgroups are, stays. A shell as
# process 1 also collects the children that others leave behind. It is the one process that
# `kill -9 -1` on the host spares, so the host is there for more commands then.
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
    """Why there is no laboratory: the command that failed, and its output."""


def address(host: int, nic: int) -> str:
    """The address of a host, counted from 1, on a network, counted from 0."""
    return f"10.{77 + nic}.{host // 250}.{host % 250 + 1}"


class Network:
    """`hosts` hosts, h1, h2, ..., each with `nics` interfaces, eth0, eth1, ..., on a network each.

    rate     of each interface, each way, as tc writes it ("1gbit"); "": not shaped
    folder   an empty folder for what the hosts mount
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
        """Make everything. Raises NetworkError; `close` removes what was made."""
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
        """The process 1 of a host."""
        return self._inits[name]

    def temporary(self, name: str) -> Path:
        """A host's folder for temporary files. /tmp is that of all hosts, and of other
        laboratories. There Open MPI's daemons would have folders in common, since their names are
        of the host's name and the number of a process."""
        return self._folder / "tmp" / name

    def connect(self, name: str, nic: int, on: bool) -> None:
        """Take a host's interface up or down."""
        port = f"p{self.names.index(name) + 1}n{nic}"
        _in_network(self._switch, ["ip", "link", "set", port, "up" if on else "down"])

    def close(self) -> None:
        """End all processes of all hosts, and with them the namespaces."""
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
        raise NetworkError(f"cannot make a host: {said.decode(errors='replace').strip()}")


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
