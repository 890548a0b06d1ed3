# SPDX-License-Identifier: Apache-2.0
"""Runs one rank that mpirun or srun started for a ddlrun on another host.

A script: remote_rank.py [--] PROGRAM ARGS... It imports only the modules in its folder. The
environment has

    DDL_HOST_LIST   the ranks of all hosts, "h1:0,1;h2:2,3"
    DDL_CONTROL     where ddlrun listens, "address,address:port"; without it, PROGRAM runs at once
    DDL_SECRET      the job's secret
    DDL_BIND        how to bind to cores: numa, core, none; or "0-3/all", the cores of each rank

and the launcher's number of the rank. The rank connects to ddlrun, which sends GO when all ranks
have connected. It then sends the output to ddlrun, and receives signals. It ends if ddlrun is
silent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import frames  # type: ignore[import-not-found, unused-ignore]
import library  # type: ignore[import-not-found, unused-ignore]
import placement  # type: ignore[import-not-found, unused-ignore]
import reports  # type: ignore[import-not-found, unused-ignore]
import sockets  # type: ignore[import-not-found, unused-ignore]
import witness  # type: ignore[import-not-found, unused-ignore]

_CHUNK = 64 * 1024
_CONNECT = 5.0  # seconds for each of ddlrun's addresses
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_HIDDEN = ("DDL_CONTROL", "DDL_BIND")  # variables that the program does not get
_INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


class _Identity:
    """The number of this rank and its host, from DDL_HOST_LIST and the launcher."""

    def __init__(self) -> None:
        lists: dict[str, list[int]] = {}
        for item in os.environ.get("DDL_HOST_LIST", "").split(";"):
            host, _, numbers = item.rpartition(":")
            lists[host] = [int(rank) for rank in numbers.split(",") if rank]
        self.size = sum(map(len, lists.values()))
        self.rank = _first_number(_RANKS)
        seen = _first_number(_SIZES, self.size)
        if not 0 <= self.rank < self.size or seen != self.size:
            sys.exit(
                f"ddlrun: the launcher started this process as rank {self.rank} of {seen}, but"
                f" ddlrun started {self.size} ranks: check that mpirun, or srun --mpi=...,"
                " matches the program's MPI"
            )
        self.host, ranks = next((h, r) for h, r in lists.items() if self.rank in r)
        self.first = next(h for h, r in lists.items() if 0 in r)
        self.local_rank, self.local_size = ranks.index(self.rank), len(ranks)


def _first_number(names: tuple[str, ...], default: int = -1) -> int:
    for name in names:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return default


def main() -> int:
    command = sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:]
    identity = _Identity()
    nodes, limit = placement.look()
    cores, cores_wanted = _cores(identity, nodes)
    threads = placement.threads(limit, identity.local_size)
    os.environ.update(placement.thread_variables(os.environ, threads))
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.update(_variables(identity))
    if "DDL_CONTROL" not in os.environ:
        os.sched_setaffinity(0, cores)
        os.execvp(command[0], command)
    hello = frames.RankHello(
        identity.rank,
        socket.gethostname(),
        _why_not(command) or cores_wanted or _no_way(identity) or _no_interface(),
        {**library.identify_library(), "program": _digest_program(command)},
        _free_ports() if identity.rank == 0 else [],
        placement.format_cores(cores),
        sum(map(len, nodes)),
        os.environ[placement.THREADS[0]],
    )
    connection = _connect(os.environ.pop("DDL_CONTROL"))
    if folder := os.environ.get("DDL_TIMELINE_DIR"):
        with contextlib.suppress(OSError):  # the rank reports that it cannot write there
            os.makedirs(folder, exist_ok=True)
    rank = _Rank(connection, os.environ.get("DDL_SECRET", ""), command, cores)
    return rank.run(hello)


def _free_ports() -> list[int]:
    """Return two ports for the rendezvous and PyTorch's store, or fewer if they are not free."""
    with contextlib.suppress(OSError):  # the ranks report a wrong DDL_PORTS
        ports: list[int] = sockets.free_ports(2, sockets.allowed_ports() or ())
        return ports
    return []


def _variables(identity: _Identity) -> dict[str, str]:
    own = {
        "RANK": str(identity.rank),
        "SIZE": str(identity.size),
        "LOCAL_RANK": str(identity.local_rank),
        "LOCAL_SIZE": str(identity.local_size),
    }
    torchs = {name.replace("SIZE", "WORLD_SIZE"): value for name, value in own.items()}
    return torchs | {f"DDL_{name}": value for name, value in own.items()}


def _cores(identity: _Identity, nodes: list[list[int]]) -> tuple[list[int], str]:
    """Return the cores of this rank, and the reason if it cannot get the requested ones, else
    ""."""
    binding = os.environ.get("DDL_BIND", "numa")
    if binding in placement.BINDINGS:
        return placement.share(nodes, identity.local_rank, identity.local_size, binding), ""
    everything = [core for node in nodes for core in node]
    mine = binding.split("/")[identity.rank]
    wanted = everything if mine == "all" else placement.parse_cores(mine)
    if set(wanted) - set(everything):
        return everything, (
            f"-rankfile gives it cores {placement.format_cores(wanted)}, but it may use only"
            f" {placement.format_cores(everything)}"
        )
    return wanted, ""


def _why_not(command: list[str]) -> str:
    """Return the reason why the program cannot run on this host, or ""."""
    program = command[0]
    if not shutil.which(program):
        where = "" if "/" in program else f" in PATH ({os.environ.get('PATH', '')})"
        return f"the program {program} does not exist{where}"
    script = next((word for word in command[1:2] if word.endswith(".py")), None)
    if script and not os.path.isfile(script):
        return f"the file {script} does not exist in {os.getcwd()}"
    return ""


def _digest_program(command: list[str]) -> str:
    """Return the digest of the program's file, if it is a script, else ""."""
    script = next((word for word in command[1:2] if word.endswith(".py")), None)
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest() if script else ""
    except OSError:
        return ""


def _no_way(identity: _Identity) -> str:
    """Return the reason why this host cannot reach the rendezvous' host, or ""."""
    if identity.host == identity.first:
        return ""
    try:
        mine, address = sockets.addresses_to(identity.first)
    except OSError as error:
        return f"it has no route to {identity.first}: {error.strerror}; correct its DNS or routes"
    if sockets.is_loopback(mine):
        return f"it resolves {identity.first} to itself ({address}); correct its /etc/hosts"
    return ""


def _no_interface() -> str:
    """Return which of the configured interfaces this host lacks, or ""."""
    there = [name for _, name in socket.if_nameindex()]
    for variable in _INTERFACES:
        for name in filter(None, os.environ.get(variable, "").split(",")):
            if name not in there:
                return f"{variable} is {name}, but the host has only {', '.join(there)}"
    return ""


def _connect(control: str) -> socket.socket:
    addresses, _, port = control.rpartition(":")
    why: object = ""
    for address in addresses.split(","):
        try:
            connection = socket.create_connection((address, int(port)), _CONNECT)
        except OSError as error:
            why = error
            continue
        connection.settimeout(frames.TICK)
        frames.enable_keepalive(connection)
        return connection
    sys.exit(f"ddlrun: {socket.gethostname()} cannot reach ddlrun at {control}: {why}")


class _Rank:
    def __init__(
        self, connection: socket.socket, secret: str, command: list[str], cores: list[int]
    ) -> None:
        self._connection = connection
        self._secret = secret
        self._command = command
        self._cores = cores
        self._nonce = secrets.token_bytes(32)
        self._frames = frames.Frames()
        self._selector = selectors.DefaultSelector()
        self._process: subprocess.Popen[bytes] | None = None
        self._open = 0  # the number of open pipes of its stdout and stderr
        self._input = bytearray()  # bytes for its stdin
        self._input_ends = False
        self._reported = False
        self._reports = reports.Reports()
        self._witness = witness.Witness(
            self._selector, lambda ended: self._send(frames.frame(frames.WITNESSED, ended))
        )

    def run(self, hello: Any) -> int:
        signal.signal(signal.SIGTERM, self._end_program)  # the launcher ends the job
        # Not SIG_IGN, since the program would inherit it.
        signal.signal(signal.SIGINT, lambda *_: None)
        wake, woken = socket.socketpair()
        woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        self._hello = replace(hello, nonce=self._nonce.hex())
        self._selector.register(self._connection, selectors.EVENT_READ, self._receive)
        self._selector.register(wake, selectors.EVENT_READ, lambda: wake.recv(_CHUNK) and None)
        while True:
            for key, _ in self._selector.select(frames.TICK):
                key.data()
            self._report_end()
            self._look()

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_CHUNK)
            received = self._frames.feed(data) if data else [(frames.FINISH, b"lost")]
            received = [
                (kind, frames.decode(frames.TO_RANK, kind, rest)) for kind, rest in received
            ]
        except (OSError, ValueError):
            self._give_up()
        for kind, payload in received:
            if kind == frames.NONCE:
                text = frames.encode(self._hello)
                self._send(frames.proven(frames.HELLO, text, payload, self._secret))
            elif kind == frames.GO:
                self._go(payload)
            elif kind == frames.SIGNAL:
                self._signal(payload[0])
            elif kind == frames.INPUT:
                self._take_input(payload)
            elif kind == frames.WITNESSED and witness.is_report(payload):
                self._witness.spread(payload)
            elif kind == frames.FINISH:
                if payload != b"well":
                    self._give_up()
                os._exit(0)

    def _go(self, payload: bytes) -> None:
        try:
            text = frames.open_proven(frames.GO, payload, self._nonce, self._secret)
            settings = frames.decode(frames.GREETINGS, frames.GO, text)
        except ValueError as error:
            sys.exit(f"ddlrun: the process at DDL_CONTROL is not ddlrun: {error}")
        for name in _HIDDEN:
            os.environ.pop(name, None)
        os.environ.update(settings.environment)
        for name, own in (
            (reports.VARIABLE, self._reports.name),
            (witness.VARIABLE, self._witness.name),
        ):
            os.environ.pop(name, None)
            if own:
                os.environ[name] = own
        if self._reports.socket is not None:
            self._selector.register(self._reports.socket, selectors.EVENT_READ, self._pass_reports)
        os.sched_setaffinity(0, self._cores)
        here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exec_rank.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", here, str(os.getpid()), "", *self._command],
            stdin=subprocess.PIPE if settings.input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=os.setpgrp,  # as in local_job.py
            close_fds=False,  # the program may need an MPI's descriptors
        )
        if self._process.stdin:
            os.set_blocking(self._process.stdin.fileno(), False)
        for pipe, kind in ((self._process.stdout, frames.OUT), (self._process.stderr, frames.ERR)):
            assert pipe is not None
            self._open += 1
            self._selector.register(
                pipe, selectors.EVENT_READ, lambda pipe=pipe, kind=kind: self._pass(pipe, kind)
            )

    def _pass(self, pipe: Any, kind: bytes) -> None:
        data = os.read(pipe.fileno(), _CHUNK)
        if not data:
            self._selector.unregister(pipe)
            self._open -= 1
        self._send(frames.frame(kind, data))

    def _pass_reports(self) -> None:
        for data in self._reports.read():
            self._send(frames.frame(frames.REPORT, data))

    def _report_end(self) -> None:
        process = self._process
        if process is None or self._reported:
            return
        # Not reaped before the job ends, so that no other process can get the number of the group.
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        self._reported = True
        self._pass_reports()
        for pipe, kind in ((process.stdout, frames.OUT), (process.stderr, frames.ERR)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            with contextlib.suppress(BlockingIOError):  # other processes hold the pipe open
                while data := os.read(pipe.fileno(), _CHUNK):
                    self._send(frames.frame(kind, data))
        by_signal = ended.si_code != os.CLD_EXITED
        message = frames.ProgramEnded(process.pid, ended.si_status, by_signal)
        self._send(frames.frame(frames.ENDED, frames.encode(message)))

    def _take_input(self, data: bytes) -> None:
        stdin = self._process.stdin if self._process else None
        if stdin is None or stdin.closed:
            return
        if not self._input:
            self._selector.register(stdin, selectors.EVENT_WRITE, self._feed)
        self._input += data
        self._input_ends = not data

    def _feed(self) -> None:
        """Write input to the program, and report to ddlrun how much it took, so that ddlrun sends
        more."""
        assert self._process and self._process.stdin
        stdin, taken = self._process.stdin, 0
        over = self._input_ends
        try:
            taken = os.write(stdin.fileno(), self._input) if self._input else 0
        except BlockingIOError:
            return
        except OSError:  # the program has closed its stdin
            self._input.clear()
            over = True
        del self._input[:taken]
        if not self._input:
            self._selector.unregister(stdin)
            if over:
                stdin.close()
        if taken:
            self._send(frames.frame(frames.TAKEN, frames.encode(frames.InputTaken(taken))))

    def _send(self, data: bytes) -> None:
        """Send data. Waits as long as ddlrun does not read but its host still answers."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._connection.send(rest) :]
            except TimeoutError:
                self._look()
            except OSError:
                self._give_up()

    def _look(self) -> None:
        if frames.is_silent(self._connection):
            self._give_up()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _end_program(self, *_: object) -> None:
        """End the program with SIGTERM, so that it can save its state. When its time is over, the
        launcher kills this process, and the kernel then kills the program."""
        if self._process is None or self._reported:
            self._give_up()
        self._signal(signal.SIGTERM)

    def _give_up(self) -> NoReturn:
        """Kill the program, and exit."""
        self._signal(signal.SIGKILL)
        os._exit(0 if self._reported else 1)


if __name__ == "__main__":
    sys.exit(main())
