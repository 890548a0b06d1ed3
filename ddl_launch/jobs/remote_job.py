# SPDX-License-Identifier: Apache-2.0
"""The ranks of several hosts: started by mpirun or srun, supervised over TCP.

Design notes. The launcher starts remote_rank.py once for each rank. Each rank connects back and
reports its rank, its host, and the reason if it cannot run. When all have connected, ddlrun sends
each the command to start and the address of the rendezvous. From then on these connections carry
output, ends and signals; the launcher only keeps the processes. So with every launcher one report
names the rank that failed first, and all ranks are ended at once. If a connection breaks or is
silent, the rank is lost, and the other side ends its program. Each rank has its own witness
(witness.py), whose reports are forwarded to all other ranks.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ddl_launch.errors import FAILED, INTERRUPTED, USAGE, LaunchError
from ddl_launch.hosts.launchers import Launcher, LaunchRequest, Start, start
from ddl_launch.hosts.layout import Layout
from ddl_launch.jobs.console import Console
from ddl_launch.jobs.failure import Failure
from ddl_launch.jobs.local_job import has_input
from ddl_launch.jobs.supervisor import CHUNK, Output, Supervisor, output_files
from ddl_launch.rank import frames, reports, sockets, witness
from ddl_launch.rank.library import compare_libraries, describe_library

_REMOTE_RANK = Path(frames.__file__).with_name("remote_rank.py")  # a script, not for import
_LAUNCHER_TIMEOUT = 2.0  # seconds for the launcher to exit after its ranks
_MOST_INPUT = 1 << 20  # bytes of input sent to rank 0 that it has not taken
# Variables that ranks on other hosts get from our environment, in addition to those of -x.
_PREFIXES = (
    "DDL_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "GOMP_",
    "TORCH",
    "PYTORCH_",
    "GLOO_",
    "NCCL_",
    "TF_",
    "XLA_",
    "JAX_",
    "KERAS_",
    "CUDA_",
    "PYTHON",
    "LC_",
    "CONDA_",
)
_NAMES = (
    "PATH",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "LANG",
    "TZ",
    "MASTER_ADDR",
    "MPI4PY_LIBMPI",
    "HOROVOD_TIMELINE",
)
_OURS = ("DDL_RSH", "DDL_RANK", "DDL_LOCAL_RANK")


@dataclass(frozen=True)
class RemotePlan:
    """The description of a run on several hosts.

    environment     the launcher's environment: ddlrun's own, with changes
    exported        variables that all ranks get in addition to the usual ones
    rsh             the program that reaches other hosts; None: the launcher's default, ssh
    more            further arguments of the launcher
    start_timeout   seconds for all ranks to start
    verbose         show the hosts of the ranks, and the launcher's output
    repeat_last     show the last lines of the rank that failed first once more, at the end
    """

    launcher: Launcher
    layout: Layout
    command: list[str]
    environment: dict[str, str]
    exported: list[str]
    binding: str
    rsh: str | None
    more: list[str]
    prefix: bool
    output_dir: Path | None
    grace: float
    start_timeout: float
    verbose: bool
    keep_going: bool = False
    repeat_last: bool = True


def exported_names(environment: Mapping[str, str], more: list[str]) -> list[str]:
    """Return the names of the variables that ranks get."""
    usual = [
        name
        for name in environment
        if (name.startswith(_PREFIXES) or name in _NAMES) and name not in _OURS
    ]
    return list(dict.fromkeys([*sorted(usual), *more]))


def start_of(plan: RemotePlan, environment: Mapping[str, str], folder: Path) -> Start:
    """Return how the launcher starts a plan's ranks in `environment`, with its files in
    `folder`."""
    names = exported_names(environment, plan.exported)
    return start(LaunchRequest(plan.launcher, plan.layout, names, plan.rsh, plan.more, folder))


def _wrapped(command: list[str]) -> list[str]:
    if ":" in command:
        raise LaunchError(
            USAGE, 'an argument of the program is ":", with which mpirun and srun separate programs'
        )
    return [sys.executable, "-I", "-S", str(_REMOTE_RANK), "--", *command]


def preview(plan: RemotePlan, ports: Sequence[int]) -> str:
    """Return a shell script that starts the ranks as ddlrun would, without supervision."""
    folder = Path("ddlrun.d")
    first = plan.layout.host_of[0]
    own = {
        "DDL_HOST_LIST": plan.layout.text,
        "DDL_BIND": plan.binding,
        "DDL_RENDEZVOUS": f"tcp://{first}:{ports[0]}",
        "MASTER_ADDR": first,
        "MASTER_PORT": str(ports[1]),
    }
    environment = {**plan.environment, **own, "DDL_SECRET": ""}
    begin = start_of(plan, environment, folder)
    own = {k: v for k, v in {**environment, **begin.environment}.items() if os.environ.get(k) != v}
    own.pop("DDL_SECRET")
    lines = [f"mkdir -p {folder}"]
    for name, text in begin.files.items():
        lines += [f"cat >{folder / name} <<'END'", text + "END"]
    draw = "export DDL_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n')"
    names = sorted(own)
    lines += [draw, *(f"export {n}={shlex.quote(own[n])}" for n in names if n.isidentifier())]
    # A shell has no variables such as FOO.BAR.
    others = [f"{name}={own[name]}" for name in names if not name.isidentifier()]
    command = [*(["env", *others] if others else []), *begin.command, *_wrapped(plan.command)]
    return "\n".join([*lines, shlex.join(command)])


class _Connection:
    """A connection to a rank. The rank is unknown until its `hello`."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.frames = frames.Frames()
        self.nonce = secrets.token_bytes(32)
        self.hello: frames.RankHello | None = None
        self.queued = b""
        self.pid = 0


class RemoteJob(Supervisor):
    """A run of a plan on several hosts."""

    def __init__(self, plan: RemotePlan, console: Console) -> None:
        size = plan.layout.size
        super().__init__(size, console, plan.grace, plan.output_dir, True, plan.keep_going)
        self._plan = plan
        self._secret = secrets.token_hex(32)
        _allow_files(4 * size + 256)  # a connection for each, and two files with --output-dir
        try:
            self._listener = sockets.listen(min(size + 8, 4096), plan.environment)
        except OSError as error:
            raise LaunchError(FAILED, f"cannot listen for ranks: {error.strerror}") from None
        self._folder = Path(tempfile.mkdtemp(prefix="ddlrun-"))
        self._launcher: subprocess.Popen[bytes] | None = None
        self._said: list[bytes] = []  # the launcher's output
        self._connections: dict[socket.socket, _Connection] = {}
        self._ranks: dict[int, _Connection] = {}
        self._outputs: list[Output] = []
        self._files: list[tuple[IO[bytes], IO[bytes]]] = []
        self._ends: list[Failure] = []  # not yet returned by _ended
        self._give_up_at = time.monotonic() + plan.start_timeout
        self._started = False  # all ranks have been sent GO
        self._open_streams = 0
        self._input: IO[bytes] | None = None
        self._input_over = False
        self._input_sent = 0  # bytes that rank 0's program has not taken
        self._look_at = time.monotonic()

    # ---- the launcher ----

    def _command(self, own: Mapping[str, str]) -> tuple[Start, list[str], dict[str, str]]:
        plan = self._plan
        own = {"DDL_HOST_LIST": plan.layout.text, "DDL_BIND": plan.binding, **own}
        environment = {**plan.environment, **own}
        begin = start_of(plan, environment, self._folder)
        return begin, [*begin.command, *_wrapped(plan.command)], environment | begin.environment

    def _start(self) -> None:
        addresses = ",".join(_own_addresses(self._plan.layout.hosts))
        control = f"{addresses}:{self._listener.getsockname()[1]}"
        own = {"DDL_CONTROL": control, "DDL_SECRET": self._secret}
        begin, command, environment = self._command(own)
        for name, text in begin.files.items():
            (self._folder / name).write_text(text)
        if self._plan.verbose:
            self._console.log(f"{self._plan.launcher.title}: {shlex.join(command)}")
        self._make_outputs()
        self._running = set(range(self._size))
        self._launcher = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # we forward Ctrl-C to the ranks
        )
        pipe = self._launcher.stdout
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, selectors.EVENT_READ, lambda: self._read_launcher(pipe))
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _make_outputs(self) -> None:
        numbers = {host: i for i, host in enumerate(self._plan.layout.hosts)}
        for rank, host in enumerate(self._plan.layout.host_of):
            prefix = f"[{rank} {host}] " if self._plan.prefix else ""
            self._outputs.append(Output(self._console, rank, prefix, numbers[host]))
            if self._plan.output_dir:
                self._files.append(output_files(self._plan.output_dir, rank))

    def _read_launcher(self, pipe: IO[bytes]) -> None:
        data = os.read(pipe.fileno(), CHUNK)
        if not data:
            self._selector.unregister(pipe)
            return
        lines = data.splitlines()
        self._said = (self._said + lines)[-40:]
        if self._plan.verbose:
            name = Path(self._plan.launcher.program).name.encode()
            self._console.show([b"%s: %s" % (name, line) for line in lines])

    # ---- connections ----

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError:  # it has been closed already, or there are too many files
            return
        channel.setblocking(False)
        frames.enable_keepalive(channel)
        connection = _Connection(channel)
        self._connections[channel] = connection
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._ready(connection))
        self._send(connection, frames.frame(frames.NONCE, connection.nonce))

    def _ready(self, connection: _Connection) -> None:
        if connection.channel not in self._connections:
            return
        if connection.queued:
            self._flush(connection)
        try:
            data = connection.channel.recv(CHUNK)
            received = connection.frames.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            self._lose(connection, str(error))
            return
        for kind, payload in received:
            if connection.hello is None:
                self._authenticate(connection, payload)
                continue
            try:
                message = frames.decode(frames.FROM_RANK, kind, payload)
            except ValueError as error:
                self._lose(connection, f"it sent {error}")
                return
            self._take(connection, connection.hello.rank, kind, message)
        if not data:
            self._lose(connection, "its connection was closed")

    def _authenticate(self, connection: _Connection, payload: bytes) -> None:
        """Accept only a rank that knows the secret."""
        try:
            text = frames.open_proven(frames.HELLO, payload, connection.nonce, self._secret)
        except ValueError:
            self._drop(connection)
            return
        try:
            hello: frames.RankHello = frames.decode(frames.GREETINGS, frames.HELLO, text)
        except ValueError as error:
            why = f"a rank sent {error}: install one version of libddl on all hosts"
            raise LaunchError(FAILED, why) from None
        if hello.rank in self._ranks:
            self._drop(connection)
            return
        connection.hello = hello
        self._ranks[hello.rank] = connection
        if len(self._ranks) == self._size:
            self._go()

    def _go(self) -> None:
        problem = self._problem()
        if problem:
            raise LaunchError(FAILED, problem)
        if self._plan.verbose:
            self._show_map()
        self._started = True
        self._selector.unregister(self._listener)  # all ranks have connected
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)  # the launcher has read it
        first = self._plan.layout.host_of[0]
        ours, torchs = self._hello(0).ports
        # Intel MPI loses variables such as FOO.BAR.
        dotted = [name for name in self._plan.exported if not name.isidentifier()]
        exported = {name: self._plan.environment[name] for name in dotted}
        environment = exported | {
            "DDL_RENDEZVOUS": f"tcp://{first}:{ours}",
            "MASTER_ADDR": first,
            "MASTER_PORT": str(torchs),
        }
        if ports := sockets.allowed_ports(self._plan.environment):
            # Otherwise a rank might listen at the port of the rendezvous before rank 0 does.
            environment["DDL_PORTS"] = f"{max(ours, torchs) + 1}-{ports[-1]}"
        if not self._files and self._console.draws_on(self._console.err):  # for progress bars
            columns, lines = shutil.get_terminal_size()
            widest = max(len(output.out.mark) for output in self._outputs)
            environment |= {"COLUMNS": str(columns - widest), "LINES": str(lines)}
        self._feed_input()
        for rank, connection in self._ranks.items():
            has_input = rank == 0 and self._input is not None
            text = frames.encode(frames.StartProgram(environment, has_input))
            nonce = bytes.fromhex(self._hello(rank).nonce)
            self._open_streams += 2
            self._send(connection, frames.proven(frames.GO, text, nonce, self._secret))

    def _problem(self) -> str:
        """Return the reason why the ranks cannot start, or ""."""
        host_of = self._plan.layout.host_of
        for rank in sorted(self._ranks):
            if error := self._hello(rank).error:
                return f"rank {rank} on {host_of[rank]}: {error}"
        first, others = host_of[0], self._plan.layout.hosts[1:]
        own = self._library_of(first)
        for host in others:
            library = self._library_of(host)
            if library["speaks"] != own["speaks"]:
                return (
                    f"{first} has {describe_library(own)}, and {host} has"
                    f" {describe_library(library)}: install one version on all hosts"
                )
        for host in others:
            note = compare_libraries(first, own, host, self._library_of(host))
            if note:
                self._console.log(f"note: {note}")
                break
        for host in others:
            if self._library_of(host)["program"] != own["program"]:
                self._console.log(
                    f"note: {self._plan.command[1]} on {host} differs from its copy on {first}:"
                    " each host runs its own copy"
                )
                break
        ports = self._hello(0).ports
        if len(ports) < 2:
            return f"{host_of[0]} has no free port for the rendezvous"
        allowed = sockets.allowed_ports(self._plan.environment)
        if allowed and max(ports) == allowed[-1]:
            text = self._plan.environment.get("DDL_PORTS")
            return f"DDL_PORTS={text} leaves no port for the ranks; make the range larger"
        return ""

    def _hello(self, rank: int) -> frames.RankHello:
        hello = self._ranks[rank].hello
        assert hello is not None
        return hello

    def _library_of(self, host: str) -> dict[str, str]:
        return self._hello(self._plan.layout.ranks(host)[0]).library

    def _show_map(self) -> None:
        for host in self._plan.layout.hosts:
            ranks = self._plan.layout.ranks(host)
            hellos = [self._hello(rank) for rank in ranks]
            name = hellos[0].host
            where = host if name == host else f"{host} ({name})"
            self._console.log(f"{where}, {hellos[0].allowed} cores:")
            for rank, hello in zip(ranks, hellos, strict=True):
                text = f"  rank {rank} on cores {hello.cores}, {hello.threads} threads"
                self._console.log(text)

    def _take(self, connection: _Connection, rank: int, kind: bytes, payload: Any) -> None:
        if kind in (frames.OUT, frames.ERR):
            output = self._outputs[rank]
            stream = output.out if kind == frames.OUT else output.err
            if not payload:
                self._open_streams -= 1
            if self._files:
                self._files[rank][kind == frames.ERR].write(payload)
                self._files[rank][kind == frames.ERR].flush()
                output.last.extend(stream.lines.feed(payload))
            else:
                self._show(stream, payload)
        elif kind == frames.TAKEN and rank == 0:
            self._more_input(payload.size)
        elif kind == frames.REPORT:
            report = reports.parse(payload)
            if report is not None:
                self._take_report(report._replace(rank=rank))
        elif kind == frames.WITNESSED:
            self._spread(connection, payload)
        elif kind == frames.ENDED and rank in self._running:
            self._running.discard(rank)
            host = self._plan.layout.host_of[rank]
            end = Failure(rank, payload.pid, payload.code, payload.by_signal, host)
            self._ends.append(end)

    def _spread(self, origin: _Connection, report: bytes) -> None:
        """Forward a rank's witness report to all others, until the job is ended. Skips ranks that
        do not read."""
        if self._first is not None:
            return
        for other in self._ranks.values():
            if other is not origin and witness.is_report(report) and len(other.queued) < CHUNK:
                self._send(other, frames.frame(frames.WITNESSED, report))

    def _send(self, connection: _Connection, data: bytes) -> None:
        connection.queued += data
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            while connection.queued:
                sent = connection.channel.send(connection.queued)
                connection.queued = connection.queued[sent:]
        except BlockingIOError:
            pass
        except OSError:
            return  # the next read finds the error, too
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.queued else 0)
        if connection.channel in self._connections:
            key = self._selector.get_key(connection.channel)
            if key.events != events:
                self._selector.modify(connection.channel, events, key.data)

    def _lose(self, connection: _Connection, why: str) -> None:
        self._drop(connection)
        if connection.hello is None or connection.hello.rank not in self._running:
            return
        rank = connection.hello.rank
        self._running.discard(rank)
        host = self._plan.layout.host_of[rank]
        self._ends.append(
            Failure(rank, 0, FAILED, by_signal=False, host=host, lost=f"was lost: {why}")
        )

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.channel, None):
            self._selector.unregister(connection.channel)
            connection.channel.close()

    # ---- input ----

    def _feed_input(self) -> None:
        """Pass ddlrun's input to rank 0. A thread copies the input into a pipe, since not every
        file can be polled."""
        if not has_input():
            return
        ours, theirs = os.pipe()

        def pump() -> None:
            with contextlib.suppress(OSError), open(theirs, "wb") as to:
                while data := os.read(0, CHUNK):
                    to.write(data)
                    to.flush()

        threading.Thread(target=pump, daemon=True).start()
        self._input = open(ours, "rb", buffering=0)
        self._selector.register(self._input, selectors.EVENT_READ, self._pass_input)

    def _pass_input(self) -> None:
        assert self._input is not None
        data = self._input.read(CHUNK) or b""
        self._input_sent += len(data)
        self._send(self._ranks[0], frames.frame(frames.INPUT, data))
        if not data:
            self._input_over = True
        if not data or self._input_sent >= _MOST_INPUT:
            self._selector.unregister(self._input)

    def _more_input(self, taken: int) -> None:
        assert self._input is not None
        waits = self._input_sent >= _MOST_INPUT
        self._input_sent -= taken
        if waits and self._input_sent < _MOST_INPUT and not self._input_over:
            self._selector.register(self._input, selectors.EVENT_READ, self._pass_input)

    # ---- for Supervisor ----

    def _ended(self) -> list[Failure]:
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + frames.TICK
            for connection in list(self._connections.values()):
                if frames.is_silent(connection.channel):
                    self._lose(connection, "its host does not answer")
        if not self._started and self._running:
            self._check_start()
        ends, self._ends = self._ends, []
        return ends

    def _read_reports(self) -> None:
        """Do nothing: reports arrive as frames."""

    def _is_late(self) -> bool:
        """Return True if a host is slow to answer. The ranks may then notice its loss before ddlrun
        does."""
        return any(frames.is_late(connection.channel) for connection in self._connections.values())

    def _check_start(self) -> None:
        """Raise LaunchError if ranks are missing and the launcher has exited, the time is over,
        or the start was interrupted."""
        assert self._launcher is not None
        missing = [rank for rank in range(self._size) if rank not in self._ranks]
        hosts = list(dict.fromkeys(self._plan.layout.host_of[rank] for rank in missing))
        title = self._plan.launcher.title
        where = f"{len(missing)} ranks have not connected, on {', '.join(hosts[:8])}"
        if self._asked_to_end:
            raise LaunchError(
                INTERRUPTED if self._interrupted else FAILED,
                "interrupted before all ranks had started",
            )
        code = self._launcher.poll()
        if code is not None and len(missing) and not self._selector_has_more():
            self._console.log(f"{title} exited with code {code}; {where}; its output:")
            self._console.show([b"  | " + line for line in self._said if line.strip()][-20:])
            raise LaunchError(FAILED, "not all ranks started")
        if time.monotonic() >= self._give_up_at:
            raise LaunchError(FAILED, f"after {self._plan.start_timeout:g} s, {where}")

    def _selector_has_more(self) -> bool:
        """Return True if more of the ranks' or the launcher's output can be read."""
        return bool(self._selector.select(0.1))

    def _deadlines(self) -> list[float | None]:
        return [*super()._deadlines(), self._look_at, None if self._started else self._give_up_at]

    def _send_signal(self, number: int) -> None:
        for rank in self._running:
            if rank in self._ranks:
                self._send(self._ranks[rank], frames.frame(frames.SIGNAL, bytes([number])))

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._plan.layout.host_of[rank]}"

    def _last_lines(self, rank: int) -> list[bytes]:
        return list(self._outputs[rank].last)

    def _is_in_sight(self, rank: int) -> bool:
        return not self._plan.repeat_last

    def _has_output(self) -> bool:
        return self._open_streams > 0 and bool(self._connections)

    def _reader_has_gone(self, sink: Any) -> None:
        self._first = self._first or Failure(-1, 0, 128 + signal.SIGPIPE, by_signal=False)
        self._end()

    def _clean_up(self) -> None:
        well = self._first is None and not self._running
        finish = frames.frame(frames.FINISH, b"well" if well else b"failed")
        for connection in list(self._connections.values()):
            self._send(connection, finish)
            self._drop(connection)
        self._listener.close()
        for output in self._outputs:
            with contextlib.suppress(OSError):
                output.out.end()
                output.err.end()
        for files in self._files:
            for file in files:
                file.close()
        if self._launcher is not None:
            _end_process(self._launcher)
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _allow_files(number: int) -> None:
    """Let this process open `number` files, if the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Wait until the launcher exits after its ranks, or end it."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_LAUNCHER_TIMEOUT)
            break


def _own_addresses(hosts: list[str]) -> list[str]:
    """Return the addresses at which the hosts can reach this machine: the source addresses that the
    kernel uses for connections to them."""
    found: dict[str, None] = {}
    for host in hosts:
        try:
            found[sockets.addresses_to(host)[0]] = None
        except socket.gaierror as error:
            raise LaunchError(2, f"-H: unknown host {host} ({error.strerror})") from None
        except OSError as error:
            raise LaunchError(2, f"-H {host}: this host cannot be reached: {error}") from None
    return sorted(found, key=sockets.is_loopback)
