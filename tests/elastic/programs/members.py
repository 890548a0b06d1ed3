"""Elastic jobs with loops of their own, as processes, for tests.

    python members.py FOLDER

Imports everything once. Then each line of stdin is a case, as JSON: its members are forked, connect
and train. A fault strikes a member where the case says so, see strikes.py. Each writes what it does
to FOLDER/<case>.<member> line by line, so that the dead ones' lines are there as well. A line of
stdout says how each member has ended. This process is the witness of the members' ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import selectors
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ddl_core
import ddl_torch.elastic as elastic
from ddl_core.errors import Minority
from ddl_elastic import loop as loops
from ddl_elastic import step as steps
from ddl_elastic.framework import digest
from ddl_launch.witness import Witness

sys.path.insert(0, str(Path(__file__).parent))

from strikes import strike

SAMPLES, CLASSES = 203, 10
REFUSED = 3  # the exit code of a member that was counted as dead
NEW_NETWORK = 0x40000000  # for setns


class Samples:
    """Noise, augmented at random. `used` are the samples since it was last emptied."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(SAMPLES, 1, 8, 8, generator=generator)
        self.labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
        self.used: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.used.append(index)
        image = self.images[index] + random.random() + 0.1 * torch.rand(())
        return image, self.labels[index]


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(6 * 64, CLASSES),
    )


def changing_owners(step: int, ranks: int, workers: int) -> list[int]:
    return random.Random(f"{step} {ranks}").choices(range(ranks), k=workers)


def random_owners(_step: int, ranks: int, workers: int) -> list[int]:
    return changing_owners(0, ranks, workers)


MODELS = {"mlp": make_mlp, "cnn": make_cnn}
OWNERS = {"even": loops.even_owners, "random": random_owners, "changing": changing_owners}


class Deaths:
    """Strikes this process where the case says so: by member, step and phase. `how` is one of
    strikes.py, by default "kill".

    compute    after its first share of the step, which nobody else gets
    adopt      after the first share that it has adopted
    reduce     between the first and the second of the step's ordered sums
    vote       when all ranks have the result and none has voted
    apply      when it has voted
    reform     when it is about to shrink the comm, because another has died
    shrink     while it shrinks the comm
    behind     not killed: this member's vote fails although it was held, because another died
    slow       not killed: this member's first share of the step takes until the next member has
               computed a share that it has adopted
    """

    def __init__(self, case: dict[str, Any], path: Path, log: Any) -> None:
        member = int(path.suffix[1:])
        mine = [each for each in case.get("kills", []) if each["member"] == member]
        self._kills = {each["phase"]: each["step"] for each in mine}
        self._how = {each["phase"]: each.get("how", "kill") for each in mine}
        self._target = {each["phase"]: each.get("target", "") for each in mine}
        self._together = {each["step"] for each in case.get("kills", [])}
        steps.Step._reduce = self._wrap(steps.Step._reduce, self._reduce)
        steps.Step._vote = self._wrap(steps.Step._vote, self._vote)
        comms = ddl_core.Comm
        comms.shrink = self._wrap(comms.shrink, self._shrink)
        comms.allreduce_ordered = self._wrap(comms.allreduce_ordered, self._sum)
        self._step, self._sums = 0, 0
        self._log, self._path, self._member = log, path, member
        self._members = case["members"]
        self.group: Any = None

    def _wrap(self, function: Any, around: Any) -> Any:
        return lambda *arguments, **options: around(function, *arguments, **options)

    def at(self, phase: str, step: int) -> None:
        if self._kills.get(phase) == step:
            del self._kills[phase]
            self._log("kill", step, time.monotonic(), phase)
            strike(self._how[phase], self.group, self._target[phase])

    def wait_for_adopter(self, step: int) -> None:
        if self._kills.get("slow") == step:
            path, member = self._path.stem, (self._member + 1) % self._members
            log = self._path.with_name(f"{path}.{member}")
            while '["adopted"' not in log.read_text():
                time.sleep(0.001)
            del self._kills["slow"]

    def begin(self, step: int) -> None:
        self._step = step

    def _shrink(self, function: Any, *arguments: Any) -> Any:
        self.at("reform", self._step)
        threading.Thread(target=self.at, args=("shrink", self._step), daemon=True).start()
        return function(*arguments)

    def _reduce(self, function: Any, step: Any) -> None:
        self._step, self._sums = step.number, 0
        function(step)

    def _sum(self, function: Any, *arguments: Any, **options: Any) -> None:
        if self._sums == 1:
            self.at("reduce", self._step)
        self._sums += 1
        function(*arguments, **options)

    def _vote(self, function: Any, step: Any) -> None:
        comm = step._group.comm
        if step.number in self._together:
            comm.barrier()  # everybody has the result
        self.at("vote", step.number)
        function(step)
        if self._kills.get("behind") == step.number:
            while comm.error is None:
                time.sleep(0.001)
            step.phase = steps.Phase.VOTE
            del self._kills["behind"]
            raise comm.error


def train(case: dict[str, Any], comm: Any, path: Path, log: Any) -> None:
    torch.manual_seed(case.get("initial", [0] * comm.size)[comm.rank])
    model, data = MODELS[case["model"]](), Samples()
    make = getattr(torch.optim, case.get("optimizer", "AdamW"))
    more = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(model.parameters(), lr=2e-3, **more)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    job = elastic.Job(
        model,
        optimizer,
        batch=case["batch"],
        logical=case["logical"],
        seed=5,
        comm=comm,
        owners=OWNERS[case.get("owners", "even")],
        watchdog=case.get("watchdog", 0),
    )
    deaths = Deaths(case, path, log)
    deaths.group = job.group
    for step in job.steps(data, passes=case["passes"]):
        deaths.begin(step.number)
        for x, y in step:
            deaths.wait_for_adopter(step.number)
            step.backward(nn.functional.cross_entropy(model(x), y))
            log("share", step.number, step.worker, data.used)
            data.used = []
            deaths.at("compute", step.number)
            if step.recovery:
                log("adopted", step.number)
                deaths.at("adopt", step.number)
        log("commit", step.number, job.framework.loss, time.monotonic())
        deaths.at("apply", step.number)
        optimizer.step()
        schedule.step()
        if step.recovery:
            log("recovery", vars(step.recovery))
    log("end", digest(job.framework.state()), job.group.comm.size)
    job.close()


def member_main(case: dict[str, Any], member: int, path: Path, pipes: Any) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)

    def log(*line: Any) -> None:
        os.write(file, json.dumps(line).encode() + b"\n")

    try:
        if "hosts" in case:
            host = os.open(f"/run/netns/{case['hosts'][member]}", os.O_RDONLY)
            assert ctypes.CDLL(None).setns(host, NEW_NETWORK) == 0
        endpoint = ddl_core.Endpoint(secret="", interfaces=case.get("interfaces"))
        os.write(pipes[0], endpoint.address.hex().encode() + b"\n")
        addresses = [bytes.fromhex(each) for each in json.loads(read_line(pipes[1]))]
        links = case.get("links", ["shm"])
        comm = endpoint.connect(addresses, member, ddl_core.Config(links=links, timeout=60))
        train(case, comm, path, log)
    except Minority as error:
        log("refused", str(error))
        os._exit(REFUSED)
    except BaseException:
        log("error", traceback.format_exc())
        os._exit(1)
    os._exit(0)


def read_line(pipe: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(pipe, 1 << 16)
        if not more:
            raise EOFError("the other side is gone")
        line += more
    return line


def run(case: dict[str, Any], folder: Path) -> list[int]:
    """Fork the members, hand their addresses round, and wait for all to end."""
    selector = selectors.PollSelector()
    witness = Witness(selector)
    os.environ["DDL_WITNESS"] = "" if "hosts" in case else witness.name
    pids, answers = [], []
    for member in range(case["members"]):
        (get, tell), (hear, give) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            witness.close()
            member_main(case, member, folder / f"{case['name']}.{member}", (tell, hear))
        os.close(tell)
        os.close(hear)
        pids.append(pid)
        answers.append((get, give))
    addresses = [read_line(get).decode().strip() for get, _ in answers]
    for get, give in answers:
        os.write(give, json.dumps(addresses).encode() + b"\n")
        os.close(get)
        os.close(give)
    codes = wait_for(pids, selector, set(case.get("ends", [])))
    witness.close()
    return codes


def wait_for(pids: list[int], selector: selectors.BaseSelector, ends: set[int]) -> list[int]:
    """The exit codes. As an agent, it kills the members `ends` once all others have ended."""
    codes: dict[int, int] = {}
    files = {member: os.pidfd_open(pid) for member, pid in enumerate(pids)}

    def end(member: int) -> None:
        selector.unregister(files[member])
        os.close(files[member])
        codes[member] = os.waitstatus_to_exitcode(os.waitpid(pids[member], 0)[1])
        if len(codes) == len(pids) - len(ends - codes.keys()):
            for left in ends - codes.keys():
                os.kill(pids[left], signal.SIGKILL)

    for member, file in files.items():
        selector.register(file, selectors.EVENT_READ, lambda member=member: end(member))
    while len(codes) < len(pids):
        for key, _ in selector.select():
            key.data()
    return [codes[member] for member in range(len(pids))]


if __name__ == "__main__":
    print("ready", flush=True)
    for text in sys.stdin:
        print(json.dumps(run(json.loads(text), Path(sys.argv[1]))), flush=True)
