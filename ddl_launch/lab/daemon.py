# SPDX-License-Identifier: Apache-2.0
"""The daemon of one laboratory: creates the hosts, runs commands on request, removes the hosts.

    python -m ddl_launch.lab.daemon FOLDER HOSTS NICS RATE LIFE

It prints "ready" or an error on stdout. With LIFE "tied" it exits when its stdin is closed, with
"free" when a client requests it.

Design notes. Hosts cannot reach each other's namespaces, but all of them see the daemon's socket, a
path in FOLDER. A request is one JSON object after its length, with the descriptors of stdin, stdout
and stderr. One thread serves it, and starts enter.py, for which only this thread waits. While the
command runs, the client sends signals as single bytes. If the client ends, the command is ended.

The daemon has inherited a lock on FOLDER.lock, which the kernel releases when the daemon ends. So
FOLDER belongs to the daemon alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from ddl_launch.lab.network import Network, NetworkError, address

_HERE = Path(__file__).parent
_GRACE = 1.0  # seconds for a command to end after its client
_LIBRARIES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def agent_environment(agent: str) -> dict[str, str]:
    """Return variables that make ddlrun, Open MPI 5 and 4, MPICH and Intel MPI use `agent` instead
    of ssh."""
    names = ("DDL_RSH", "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")
    return dict.fromkeys((*names, "I_MPI_HYDRA_BOOTSTRAP_EXEC"), agent)


class _Daemon:
    def __init__(self, folder: Path, network: Network) -> None:
        self._folder = folder
        self._network = network
        self.over = threading.Event()
        self._agent = str(folder / "rsh")

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the listener was closed
                return
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        descriptors: list[int] = []
        with connection, contextlib.suppress(OSError):
            try:
                head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
                (length,) = struct.unpack("!I", head)
                text = b""
                while len(text) < length:
                    piece = connection.recv(length - len(text))
                    if not piece:
                        raise ConnectionError(
                            "the client disconnected in the middle of its request"
                        )
                    text += piece
                answer = self._answer(json.loads(text), connection, descriptors)
            except (KeyError, ValueError, NetworkError, struct.error) as error:
                answer = {"error": str(error)}
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            connection.sendall(json.dumps(answer).encode())
            connection.shutdown(socket.SHUT_RDWR)  # _watch may still read

    def _answer(
        self, request: dict[str, Any], connection: socket.socket, descriptors: list[int]
    ) -> dict[str, Any]:
        what = request["do"]
        if what == "show":
            return {
                "hosts": [
                    {
                        "name": name,
                        "addresses": [address(h, nic) for nic in range(self._network.nics)],
                        "process": self._network.init(name),
                    }
                    for h, name in enumerate(self._network.names, 1)
                ],
            }
        if what == "down":
            self.over.set()
            return {}
        host = self._find(request["host"])
        if what == "connect":
            if not 0 <= request["nic"] < self._network.nics:
                raise ValueError(f"{host} has no interface eth{request['nic']}")
            self._network.connect(host, request["nic"], request["on"])
            return {}
        return {"code": self._run(host, request, connection, descriptors)}

    def _find(self, host: str) -> str:
        """Return the host of that name or address, possibly after a user's name."""
        wanted = host.rpartition("@")[2]
        for h, name in enumerate(self._network.names, 1):
            known = [name]
            for nic in range(self._network.nics):
                known += [address(h, nic), f"{name}-eth{nic}"]
            if wanted in known:
                return name
        raise ValueError(
            f"the host {host} does not exist; the hosts are {', '.join(self._network.names)}"
        )

    def _run(
        self,
        host: str,
        request: dict[str, Any],
        connection: socket.socket,
        descriptors: list[int],
    ) -> int:
        given = request["environment"]
        environment = self._fresh() if given is None else given
        own = {"TMPDIR": str(self._network.temporary(host)), **agent_environment(self._agent)}
        enter = [sys.executable, "-I", "-S", str(_HERE / "enter.py")]
        process = subprocess.Popen(
            [*enter, str(self._network.init(host)), request["folder"], *request["command"]],
            env={**environment, **own},
            stdin=descriptors[0],
            stdout=descriptors[1],
            stderr=descriptors[2],
            start_new_session=True,
        )
        while descriptors:
            os.close(descriptors.pop())
        watcher = threading.Thread(target=_watch, args=(connection, process), daemon=True)
        watcher.start()
        return process.wait()

    def _fresh(self) -> dict[str, str]:
        kept = ("HOME", "USER", "LOGNAME", "SHELL", "LANG")
        own = {name: os.environ[name] for name in kept if name in os.environ}
        return {"HOME": os.path.expanduser("~"), "PATH": _LIBRARIES, **own}


def _watch(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Forward the client's signals. End the command when the client disconnects."""
    with contextlib.suppress(OSError):
        while numbers := connection.recv(16):
            for number in numbers:
                os.killpg(process.pid, number)
        if process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGHUP)
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    folder, hosts, nics, rate, life = sys.argv[1:]
    path = Path(folder)
    network = Network(int(hosts), int(nics), rate, path)
    daemon = _Daemon(path, network)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: daemon.over.set())
    try:
        network.build()
        script = path / "rsh"
        reach = f"{sys.executable} -I -S {_HERE / 'reach.py'} {path / 'socket'} rsh"
        script.write_text(f'#!/bin/sh\nexec {reach} "$@"\n')
        script.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path / "socket"))
            listener.listen(128)
            threading.Thread(target=daemon.serve, args=(listener,), daemon=True).start()
            if life == "tied":
                threading.Thread(target=_until_stdin_ends, args=(daemon,), daemon=True).start()
            print("ready", flush=True)
            daemon.over.wait()
        return 0
    except (NetworkError, OSError, subprocess.TimeoutExpired) as error:
        print(str(error), flush=True)
        return 1
    finally:
        network.close()
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".lock").unlink(missing_ok=True)


def _until_stdin_ends(daemon: _Daemon) -> None:
    sys.stdin.read()
    daemon.over.set()


if __name__ == "__main__":
    sys.exit(main())
