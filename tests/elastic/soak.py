# SPDX-License-Identifier: Apache-2.0
"""Short jobs, one after the other, each of which loses all of its workers but one.

    python tests/elastic/soak.py [--seconds 60] [--seed 1]

The others are killed (kill -9) at random moments. The one that is left is the same process in all
jobs: each ends with the state of an undisturbed one, within a time limit, and the process's memory
and descriptors stay as they are.
"""

import argparse
import json
import os
import random
import selectors
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent / "programs"))

from members import Samples, make_cnn, read_line
from torch import manual_seed, nn, optim

import ddl_core
import ddl_torch.elastic as elastic
from ddl_launch.rank.witness import Witness

SIZE = 4
LIMIT = 60.0  # seconds for a job of a few, on a busy machine
SETTLED = 10  # jobs after which there are as many descriptors as later
# KiB by which the memory may grow in the second half of the jobs. In 3779 jobs it grew by 20 MiB in
# the first 1316, and not after that.
GROWTH = 4096


def train(comm: ddl_core.Comm) -> str:
    manual_seed(0)
    model = make_cnn()
    optimizer = optim.AdamW(model.parameters(), lr=2e-3)
    job = elastic.Job(model, optimizer, batch=32, logical=8, seed=5, comm=comm)
    for step in job.steps(Samples()):
        for x, y, _ in step:
            step.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    found = job.hash()
    job.close()
    return found


def work(hear: int, tell: int) -> NoReturn:
    """A process that, for each job, sends its address, receives all addresses, and trains."""

    def say(value: Any) -> None:
        os.write(tell, json.dumps(value).encode() + b"\n")

    with suppress(EOFError):
        while True:
            endpoint = ddl_core.Endpoint(secret="")
            say(endpoint.address.hex())
            rank, links, addresses = json.loads(read_line(hear))
            config = ddl_core.Config(links=links, timeout=LIMIT)
            members = [bytes.fromhex(each) for each in addresses]
            comm = endpoint.connect(members, rank, config, owned=True)
            say("connected")
            began = time.monotonic()
            found = train(comm)
            say([found, time.monotonic() - began, descriptors(), memory()])
    os._exit(0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


class Process:
    """Start a process that runs `work`."""

    def __init__(self, witness: Witness) -> None:
        (hear, self.give), (self.get, tell) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            witness.close()
            os.close(self.give)
            os.close(self.get)
            work(hear, tell)
        os.close(hear)
        os.close(tell)
        self._said = b""  # and nobody has read its message yet

    def say(self, value: Any) -> None:
        os.write(self.give, json.dumps(value).encode() + b"\n")

    def hear(self, selector: selectors.BaseSelector, limit: float = LIMIT) -> Any:
        until = time.monotonic() + limit
        with registered(selector, self.get):
            while b"\n" not in self._said:
                if time.monotonic() > until:
                    raise SystemExit(f"process {self.pid} said nothing for {limit} s")
                for key, _ in selector.select(0.1):
                    if key.data:
                        key.data()
                    elif not (said := os.read(self.get, 1 << 16)):
                        raise SystemExit(f"process {self.pid} has ended")
                    else:
                        self._said += said
        line, _, self._said = self._said.partition(b"\n")
        return json.loads(line)

    def end(self, selector: selectors.BaseSelector) -> None:
        """Kill it; the witness serves until it has ended. On a busy machine this takes long, and a
        witness is believed for a second only."""
        os.kill(self.pid, signal.SIGKILL)
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            for key, _ in selector.select(0.01):
                key.data()
        os.close(self.give)
        os.close(self.get)


@contextmanager
def registered(selector: selectors.BaseSelector, file: int) -> Iterator[None]:
    selector.register(file, selectors.EVENT_READ)
    try:
        yield
    finally:
        selector.unregister(file)


class Soak:
    def __init__(self, seed: int) -> None:
        self.selector = selectors.PollSelector()
        self.witness = Witness(self.selector)
        os.environ["DDL_WITNESS"] = self.witness.name
        os.environ.setdefault("DDL_LOG", "off")
        self.random = random.Random(seed)
        self.survivor = Process(self.witness)

    def run(self, others: int, over: float) -> list[Any]:
        links = self.random.choice([["shm"], ["tcp"]])
        rank = self.random.randrange(others + 1)
        processes = [Process(self.witness) for _ in range(others)]
        processes.insert(rank, self.survivor)
        addresses = [each.hear(self.selector) for each in processes]
        for number, each in enumerate(processes):
            each.say([number, links, addresses])
        for each in processes:
            assert each.hear(self.selector) == "connected"
        moments = sorted(self.random.uniform(0, over) for _ in range(others))
        began, victims = time.monotonic(), [p for p in processes if p is not self.survivor]
        for moment, victim in zip(moments, victims, strict=True):
            while (left := began + moment - time.monotonic()) > 0:
                for key, _ in self.selector.select(left):
                    key.data()
            victim.end(self.selector)
        found: list[Any] = self.survivor.hear(self.selector)
        return found

    def close(self) -> None:
        self.survivor.end(self.selector)
        self.witness.close()


def check(rounds: list[list[Any]]) -> None:
    hashes = {each[0] for each in rounds}
    if len(hashes) > 1:
        raise SystemExit(f"the final states differ: {sorted(hashes)}")
    if len(rounds) <= SETTLED:
        return
    _, _, files, memories = zip(*rounds, strict=True)
    if max(files[SETTLED:]) > max(files[:SETTLED]):
        raise SystemExit(f"descriptors grew: {files[:: len(files) // SETTLED]}")
    if memories[-1] - memories[max(SETTLED, len(memories) // 2)] > GROWTH:
        raise SystemExit(f"memory grew, in KiB: {memories[:: len(memories) // SETTLED]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train jobs that lose all workers but one.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    soak, rounds, began = Soak(arguments.seed), [], time.monotonic()
    rounds.append(soak.run(0, 0.0))  # the first process is alone
    over = 1.5 * soak.run(0, 0.0)[1] + 0.1
    while len(rounds) < 2 or time.monotonic() - began < arguments.seconds:
        rounds.append(soak.run(SIZE - 1, over))
    soak.close()
    check(rounds)
    times = sorted(each[1] for each in rounds[1:])
    _, _, files, kib = rounds[-1]
    print(
        f"{len(rounds)} jobs, one hash; each took {times[0]:.2f} to {times[-1]:.2f} s; at the end"
        f" {files} descriptors, {kib} KiB, after {min(SETTLED, len(rounds))} jobs"
        f" {rounds[:SETTLED][-1][3]} KiB"
    )


if __name__ == "__main__":
    main()
