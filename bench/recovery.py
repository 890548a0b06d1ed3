# SPDX-License-Identifier: Apache-2.0
"""`python -m bench recovery`: measures the time after a kill -9 until the survivors have committed
another step.

Each run starts a job of four processes (recovery_rank.py), kills one with SIGKILL once all have
made some steps, and waits until three others have committed a step that no process had committed
before. The systems take turns.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from tqdm import tqdm

from bench.cases import UsageError, free_port, make_parser
from bench.environments import interpreter

DESCRIPTION = """\
Measure the time from a kill -9 of one of four training processes until three others have committed
another step.

  ddl_elastic  the survivors go on
  torchrun     all are restarted, and load the checkpoint of the last step (DistributedDataParallel
               over Gloo, --monitor-interval 0.1)
  ray          Ray Train 2.60; the same as with torchrun, in a Ray of its own on one host, which
               looks after the processes each 0.1 s
  horovod      Horovod Elastic 0.28.1 over Gloo; the survivors initialize anew, on one host
               (--gloo-timeout-seconds 5)
  torchft      0.2.0; the survivors form another quorum (a replica group for each process, over
               Gloo; heartbeats of 50 ms, dead after 300, quorum tick 10)
  torchft_ddl  the same over libddl
"""

RANKS = 4
FIRST_STEPS = 15  # steps of all processes before one is killed
LIMIT = 120.0  # seconds for a run
RANK = Path(__file__).with_name("recovery_rank.py")
LIGHTHOUSE = ("--min_replicas=1", "--quorum_tick_ms=10", "--heartbeat_timeout_ms=300")

NAMES = ("localhost", "127.0.0.1", "127.0.1", "127.1")  # names of this machine
RAY = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass
class Hosts:
    name: str = "one host"
    enter: list[list[str]] = field(default_factory=lambda: [[]] * RANKS)
    addresses: list[str] = field(default_factory=lambda: ["127.0.0.1"] * RANKS)
    for_gloo: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    seconds: float
    pid: int
    step: int


class Run:
    def __init__(self, system: str, hosts: Hosts) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-recovery-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._output = open(self.folder / "output", "wb")
        SYSTEMS[system](self, hosts)

    def start(self, command: Sequence[str], **variables: str) -> None:
        environment = {**os.environ, "DDL_LOG": "off", "OMP_NUM_THREADS": "1", **variables}
        self._processes.append(
            subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        )

    def commits(self) -> list[Commit]:
        try:
            lines = (self.folder / "commits").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [Commit(float(at), int(pid), int(step)) for at, pid, step in whole]

    def wait(self, done: Callable[[list[Commit]], bool]) -> list[Commit]:
        deadline = time.monotonic() + LIMIT
        while not done(commits := self.commits()):
            if time.monotonic() > deadline:
                output = (self.folder / "output").read_text()[-4000:]
                raise UsageError(
                    f"a job made no progress within {LIMIT:.0f} s; its output:\n{output}"
                )
            time.sleep(0.002)
        return commits

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            for each in (process.pid, *(commit.pid for commit in self.commits())):
                with suppress(ProcessLookupError):
                    (os.killpg if each == process.pid else os.kill)(each, signal.SIGKILL)
            process.wait()
        self._output.close()
        shutil.rmtree(self.folder)


def start_elastic(run: Run, hosts: Hosts) -> None:
    where = f"tcp://{hosts.addresses[0]}:{free_port()}"
    for rank in range(RANKS):
        command = [*hosts.enter[rank], sys.executable, str(RANK), "ddl_elastic", str(run.folder)]
        run.start(command, DDL_RANK=str(rank), DDL_SIZE=str(RANKS), DDL_RENDEZVOUS=where)


def start_torchrun(run: Run, hosts: Hosts) -> None:
    first = {address: hosts.addresses.index(address) for address in hosts.addresses}
    port = free_port()
    for address, rank in first.items():
        processes = hosts.addresses.count(address)
        options = [f"--nnodes={len(first)}", f"--nproc-per-node={processes}"]
        options += ["--max-restarts=3", "--monitor-interval=0.1", "--rdzv-backend=c10d"]
        options += [f"--rdzv-endpoint={hosts.addresses[0]}:{port}", f"--rdzv-id={port}"]
        options += [f"--local-addr={address}", f"--rdzv-conf=is_host={int(rank == 0)}"]
        command = [*hosts.enter[rank], sys.executable, "-m", "torch.distributed.run", *options]
        # In the store that the agents share, Gloo would find the addresses from before a restart.
        variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **hosts.for_gloo}
        run.start([*command, str(RANK), "torchrun", str(run.folder)], **variables)


def start_torchft(run: Run, hosts: Hosts, system: str = "torchft") -> None:
    python = interpreter("torchft")
    port = free_port()
    where = f"http://{hosts.addresses[0]}:{port}"
    lighthouse = [str(python.with_name("torchft_lighthouse")), f"--bind=0.0.0.0:{port}"]
    run.start([*hosts.enter[0], *lighthouse, *LIGHTHOUSE, "--join_timeout_ms=1000"])
    for rank in range(RANKS):
        run.start(
            [*hosts.enter[rank], str(python), str(RANK), system, str(run.folder)],
            TORCHFT_LIGHTHOUSE=where,
            RANK=str(rank),
            WORLD_SIZE=str(RANKS),
            OWN_HOST=hosts.addresses[rank],
            **hosts.for_gloo,
        )


def start_ray(run: Run, hosts: Hosts) -> None:
    if len({*hosts.addresses}) > 1:
        raise UsageError("--systems ray: supported on one host only")
    command = [str(interpreter("ray")), str(RANK), "ray", str(run.folder)]
    run.start(command, **RAY)


def start_horovod(run: Run, hosts: Hosts) -> None:
    """Start Horovod. It gives up the whole host of a dead process, so each process has its own
    host, which is a name of this machine."""
    if len({*hosts.addresses}) > 1:
        raise UsageError("--systems horovod: supported on one host only")
    python, discover = interpreter("horovod"), run.folder / "hosts.sh"
    discover.write_text("#!/bin/sh\n" + "".join(f"echo {name}:1\n" for name in NAMES))
    discover.chmod(0o700)
    options = ["-np", str(RANKS), "--min-np", str(RANKS - 1), "--gloo", "--network-interface", "lo"]
    options += ["--gloo-timeout-seconds", "5", "--host-discovery-script", str(discover)]
    launcher = [str(python), str(python.with_name("horovodrun")), *options]
    run.start([*launcher, str(python), str(RANK), "horovod", str(run.folder)])


SYSTEMS = {
    "ddl_elastic": start_elastic,
    "torchrun": start_torchrun,
    "torchft": start_torchft,
    "torchft_ddl": partial(start_torchft, system="torchft_ddl"),
    "ray": start_ray,
    "horovod": start_horovod,
}


def recover(system: str, hosts: Hosts) -> tuple[float, float]:
    with Run(system, hosts) as run:

        def all_have_begun(commits: list[Commit]) -> bool:
            steps = [c.step for c in commits]
            return sorted(steps)[-RANKS:] >= [FIRST_STEPS] * RANKS

        before = run.wait(all_have_begun)
        victim = random.choice(sorted({commit.pid for commit in before}))
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        last = max(c.step for c in run.commits() if c.seconds <= killed)

        def beyond(commits: list[Commit]) -> dict[int, float]:
            new: dict[int, float] = {}
            for commit in commits:
                if commit.step > last + 1 and commit.pid != victim:
                    new.setdefault(commit.pid, commit.seconds)
            return new

        after = beyond(run.wait(lambda commits: len(beyond(commits)) >= RANKS - 1))
        times = sorted(c.seconds for c in before if c.pid == victim)
        usual = statistics.median(b - a for a, b in pairwise(times))
        return sorted(after.values())[RANKS - 2] - killed, usual


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("recovery", DESCRIPTION)
    add = parser.add_argument
    usual = "ddl_elastic,torchrun,torchft,torchft_ddl"
    more = "a list, also of ray and horovod (default: %(default)s)"
    add("--systems", default=usual, help=more)
    add("--runs", type=int, default=5, help="runs of each system (default: %(default)s)")
    add("--hosts", action="store_true", help="two hosts, made of network namespaces (needs root)")
    add("--json", type=Path, metavar="FILE", help="write all times as JSON")
    arguments = parser.parse_args(argv)
    arguments.systems = arguments.systems.split(",")
    for name in arguments.systems:
        if name not in SYSTEMS:
            parser.error(f"--systems: {name!r} must be one of {', '.join(SYSTEMS)}")
    return arguments


@contextmanager
def open_hosts(several: bool) -> Iterator[Hosts]:
    if not several:
        yield Hosts()
        return
    from bench.lab_hosts import open_lab

    with open_lab([2, 2], "unshaped") as (lab, _):
        places = [rank * 2 // RANKS for rank in range(RANKS)]
        enter = [lab.enter(host) for host in places]
        addresses = [lab.address(host) for host in places]
        yield Hosts("two hosts", enter, addresses, {"GLOO_SOCKET_IFNAME": lab.interface()})


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in arguments.systems}
    with open_hosts(arguments.hosts) as hosts:
        turns = [name for _ in range(arguments.runs) for name in arguments.systems]
        for name in tqdm(turns, unit="run"):
            found[name].append(recover(name, hosts))
    print(
        f"{hosts.name}; load {os.getloadavg()[0]:.1f}",
        "| system | runs | median | worst | a step takes | x ddl_elastic |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    medians = {name: statistics.median(t for t, _ in times) for name, times in found.items()}
    for name, times in found.items():
        ratio = medians[name] / medians.get("ddl_elastic", medians[name])
        print(
            f"| {name} | {len(times)} | {1e3 * medians[name]:.0f} ms"
            f" | {1e3 * max(t for t, _ in times):.0f} ms"
            f" | {1e3 * statistics.median(step for _, step in times):.0f} ms | {ratio:.1f} |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
