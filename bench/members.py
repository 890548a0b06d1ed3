# SPDX-License-Identifier: Apache-2.0
"""`python -m bench members`: measures the cost and latency of a coordinator of many members.

The coordinator is `ddl elastic run --listen`, which is killed later, and `ddl elastic resume`. The
members do not train: this process connects like their agents, on as many connections, and reports
like them. The time in which members read a plan is not measured, since each has its own core.
"""

import argparse
import functools
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ddl_core
from bench.cases import make_parser
from ddl_elastic.base import environment, messages, protocol
from ddl_elastic.base.messages import Channel
from ddl_elastic.base.protocol import TO_WORKER
from ddl_elastic.coordinator import control
from ddl_elastic.engines import protocol as agents
from ddl_elastic.engines.dialing import dial
from ddl_elastic.engines.host_agent import JoinRefused
from ddl_elastic.engines.worker_record import WorkerRecord

DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic"]
NAME = f"bench-members-{os.getpid()}"
TOKEN = "bench"
LIMIT = 120.0  # seconds
DIALS = 64  # agents that connect at a time
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(eq=False)
class Member:
    """A worker and its slot."""

    agent: str
    slot: int
    link: protocol.JobChannel
    memory: WorkerRecord | None = None
    due: float = 0.0  # the time of its next report
    steps: int = 0


@dataclass(eq=False)
class Members:
    """All agents and workers. `step`: seconds."""

    port: int
    hosts: int
    slots: int
    step: float
    controls: dict[str, Channel[agents.ToAgent]] = field(default_factory=dict)
    members: dict[tuple[str, int], Member] = field(default_factory=dict)
    counts: dict[type, int] = field(default_factory=dict)  # received messages by type
    reports: int = 0  # sent reports
    largest: int = 0  # bytes of the addresses in the first message

    def dial_all(self) -> None:
        self.close()
        with ThreadPoolExecutor(DIALS) as threads:
            list(threads.map(self._dial, range(self.hosts)))

    def _dial(self, number: int) -> None:
        agent = f"agent{number}"
        about = agents.AgentGreeting(agent, f"host{number}", "cpu1", 1, self.slots)
        self.controls[agent] = Channel(self._reach(about), agents.TO_AGENT)
        for slot in range(self.slots):
            old = self.members.get((agent, slot))
            memory = old.memory if old else None
            number = memory.member if memory else -1
            link = Channel(self._reach(agents.SlotGreeting(agent, slot, number)), TO_WORKER)
            self.members[agent, slot] = Member(agent, slot, link, memory)
            if memory:
                link.send(memory.snapshot())

    def _reach(self, greeting: agents.Greeting) -> socket.socket:
        until = time.monotonic() + LIMIT
        while True:
            try:
                return dial(("127.0.0.1", self.port), TOKEN, greeting, LIMIT, LIMIT)[0]
            except JoinRefused:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def close(self) -> None:
        for each in self.controls.values():
            each.close()
        for member in self.members.values():
            member.link.close()

    def serve(self, until: Callable[[], bool], limit: float = LIMIT) -> float:
        """Read, answer and report, until `until()` returns True. Return the seconds."""
        began = time.monotonic()
        poll = select.poll()
        channels: dict[int, tuple[Channel[Any], Member | None]] = {}
        for agent in self.controls.values():
            channels[agent.fileno()] = (agent, None)
        for each in self.members.values():
            channels[each.link.fileno()] = (each.link, each)
        for number in channels:
            poll.register(number, select.POLLIN)
        while not until():
            if time.monotonic() > began + limit:
                raise SystemExit(
                    f"the members did not get there within {limit} s; messages: {self.counts}"
                )
            for number, _ in poll.poll(5):
                channel, member = channels[number]
                try:
                    for message in channel.poll():
                        self._take(channel, member, message)
                except EOFError:
                    poll.unregister(number)
            self._report()
        return time.monotonic() - began

    def _take(self, channel: Channel[Any], member: Member | None, message: Any) -> None:
        self.counts[type(message)] = self.counts.get(type(message), 0) + 1
        if member is None:
            if isinstance(message, agents.StartWorker):
                agent = next(name for name, each in self.controls.items() if each is channel)
                started = self.members[agent, message.slot]
                started.memory = WorkerRecord(message.member)
                self._say(started, protocol.WorkerReady(address(), 1))
            return
        assert member.memory
        member.memory.ordered(message)
        if isinstance(message, protocol.ConnectGroup):
            total, logical = 1 << 20, len(message.members)
            self._say(member, protocol.TrainingBegun(total, total, logical, 600.0))
            member.due = time.monotonic() + self.step * (member.memory.member % 97) / 97
            # Only the first message counts.
            self.largest = self.largest or sum(map(len, message.addresses))

    def _say(self, member: Member, message: protocol.Kept) -> None:
        assert member.memory
        member.link.send(message)
        member.memory.told(message, True)

    def _report(self) -> None:
        now = time.monotonic()
        for member in self.members.values():
            if member.memory and member.memory.state == "running" and now >= member.due:
                member.due += self.step * max(1, round((now - member.due) / self.step))
                member.steps += 1
                self.reports += 1
                steps, busy = member.steps, 0.5 * self.step * member.steps
                self._say(member, protocol.StepCommitted(steps, 1.0, steps, busy, 0))


def address() -> bytes:
    random = secrets.token_bytes(24)
    return bytes(random) + ADDRESS[len(random) :]


ADDRESS = b""


@contextmanager
def process(words: Sequence[object], errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    with errors.open("w") as file:
        found = subprocess.Popen([*DDL, *map(str, words)], stdout=subprocess.DEVNULL, stderr=file)
    try:
        yield found
    finally:
        found.kill()
        found.wait()


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def main(argv: Sequence[str]) -> int:
    parser = make_parser("members", __doc__)
    add = parser.add_argument
    add("--hosts", type=int, default=125, help="hosts of the members (default: %(default)s)")
    add("--slots", type=int, default=8, help="members on each host (default: %(default)s)")
    add("--step", type=float, default=1.0, help="seconds between two reports (default: 1)")
    add("--seconds", type=float, default=10.0, help="seconds of reporting (default: 10)")
    options = parser.parse_args(argv)
    number = options.hosts * options.slots
    environment.allow_connections()
    # All members get the same plan, which is decoded once: real members decode it on their own
    # cores.
    messages._unpack = functools.lru_cache(maxsize=64)(messages._unpack)
    global ADDRESS
    endpoint = ddl_core.Endpoint()
    ADDRESS = bytes(endpoint.address)
    endpoint.close()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options, number)
    return 0


def measure(folder: Path, options: argparse.Namespace, number: int) -> None:
    program, token, errors = folder / "train.py", folder / "token", folder / "errors"
    program.write_text("raise SystemExit('the members of this job are not real')\n")
    token.write_text(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    members = Members(port, options.hosts, options.slots, options.step)
    run = ["run", "--listen", f"127.0.0.1:{port}", "--token-file", token, "--name", NAME]
    size = f"{number // 2}:{number}"
    with process([*run, "-n", size, "--no-replace", program], errors) as job:
        began = time.monotonic()
        members.dial_all()
        print(f"{number} members on {options.hosts} hosts; a report each {options.step:g} s")
        show("connected", time.monotonic() - began)
        took = members.serve(lambda: members.counts.get(protocol.ConnectGroup, 0) >= number)
        show("addresses received", took, f", {members.largest / 1e3:.0f} kB of addresses")
        members.serve(timer(2.0))
        show_cost(members, job.pid, options.seconds)
        control.scale(NAME, number - 1)
        show(
            "plan received",
            members.serve(lambda: members.counts.get(protocol.GroupPlan, 0) >= number),
        )
        began = time.monotonic()
        job.send_signal(signal.SIGKILL)
        job.wait()
        told = folder / "errors2"
        with process(["resume", NAME], told) as resumed:
            members.dial_all()
            show("connected after its kill", time.monotonic() - began)
            members.serve(lambda: "coordinator is back" in told.read_text())
            show("the next one is ready", time.monotonic() - began)
            show_cost(members, resumed.pid, options.seconds)


def show(what: str, seconds: float, more: str = "") -> None:
    print(f"{what:24} {seconds:6.2f} s{more}", flush=True)


def show_cost(members: Members, pid: int, seconds: float) -> None:
    before, reports = cpu(pid), members.reports
    seconds = members.serve(timer(seconds))
    used, rate = (cpu(pid) - before) / seconds, (members.reports - reports) / seconds
    print(
        f"{'while they report':24} {100 * used:6.1f} % of a core, {rate:.0f} reports/s,"
        f" {memory(pid):.0f} MiB"
    )


def timer(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until
