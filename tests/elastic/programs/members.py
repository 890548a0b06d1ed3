# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs with loops of their own, as processes, for tests.

    python members.py FOLDER

Imports everything once. Then each line of stdin is a case, as JSON: its members are forked, connect
and train. A fault strikes a member where the case says so, see strikes.py. Each writes what it does
to FOLDER/<case>.<member> line by line, so that the dead ones' lines are there as well. A line of
stdout says how each member has ended. This process is the witness of the members' ends.
"""

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

import numpy as np
import torch
from member_loops import CLASSES, Layers, Loop, Transformer
from torch import nn
from torch.nn.functional import cross_entropy

import ddl_core
import ddl_torch.elastic as elastic
from ddl_core.errors import Minority
from ddl_elastic.frameworks.protocol import digest
from ddl_elastic.sharded.reads import Reads
from ddl_elastic.step import step as steps
from ddl_elastic.worker import loop as loops
from ddl_launch.rank.witness import Witness

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[3] / "examples"))

from fashion import resnet8
from strikes import strike

SAMPLES = 203
READING = ("passes", "steps", "loader_workers")
REFUSED = 3  # the exit code of a member that the others counted as dead
NEW_NETWORK = 0x40000000  # for setns

Sample = tuple[torch.Tensor, torch.Tensor, int]


class Samples:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(SAMPLES, 1, 8, 8, generator=generator)
        self.labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        chance = random.random() + np.random.rand() + 0.1 * torch.rand(())
        return self.images[index % SAMPLES] + chance, self.labels[index % SAMPLES], index


class Stream:
    def __init__(self) -> None:
        self._samples, self._position = Samples(), -1

    def seek(self, position: int) -> None:
        self._position = position

    def __next__(self) -> Sample:
        self._position += 1
        return self._samples[self._position - 1]


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


def make_resnet() -> nn.Module:
    """A ResNet-8, contiguous because jobs with shard=True refuse other layouts."""
    return resnet8(4, seed=0).to(memory_format=torch.contiguous_format)


MODELS = {
    "mlp": make_mlp,
    "cnn": make_cnn,
    "resnet": make_resnet,
    "transformer": Transformer,
    "layers": Layers,
}
OWNERS = {"even": loops.even_owners, "random": random_owners, "changing": changing_owners}


class Deaths:
    """Strikes this process where the case says so: by member, step and phase. `how` is one of
    strikes.py, by default "kill".

    compute    after its first share of the step, which nobody else gets
    local      in the last local step of its first share of a round
    outer      in the step of the outer optimizer, which has changed the parameters
    adopt      after the first share that it has adopted
    answer     when another rank reads parameters of a block from it
    backward   in the backward pass of its last share, between the first and the second ordered sum
    reduce     after that, between the first and the second ordered sum
    average    between the two exchanges of an average in a wire format
    vote       when all ranks have the result and none has voted
    apply      when it has voted
    finish     when the last vote has ended, which is that of no step
    evaluate   in the second batch that it evaluates, in the evaluation after this step
    reform     when it is about to shrink the comm, because another has died
    shrink     while it shrinks the comm
    behind     not killed: this member's vote fails although it was held, because another died
    slow       not killed: this member's first share of the step takes until the next member has
               computed a share that it has adopted
    hold       not killed: the backward pass of this member's last share takes until it is noticed
               that another died, after the first ordered sum has started
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
        steps.Watch.submit = self._wrap(steps.Watch.submit, self._submit)
        comms = ddl_core.Comm
        comms.shrink = self._wrap(comms.shrink, self._shrink)
        steps.Sums.start = self._wrap(steps.Sums.start, self._sum)
        steps.PackedAverage._add = self._wrap(steps.PackedAverage._add, self._average)
        Reads._reply = self._wrap(Reads._reply, self._reply)
        self._step, self._phase, self._sums = 0, "backward", 0
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
        self._phase, self._sums = "reduce", 0
        try:
            function(step)
        finally:
            self._phase, self._sums = "backward", 0

    def _sum(self, function: Any, *arguments: Any, **options: Any) -> Any:
        if self._sums == 1:
            self.at(self._phase, self._step)
        self._sums += 1
        return function(*arguments, **options)

    def _average(self, function: Any, *arguments: Any) -> Any:
        self.at("average", self._step)
        return function(*arguments)

    def _reply(self, function: Any, *arguments: Any) -> None:
        self.at("answer", self._step)
        function(*arguments)

    def _submit(self, function: Any, watch: Any, start: Any) -> None:
        function(watch, start)
        if self._kills.get("hold") == self._step:
            while not watch.noticed:
                time.sleep(0.001)
            del self._kills["hold"]

    def _vote(self, function: Any, step: Any) -> None:
        comm = step._group.comm
        if step.number in self._together:
            comm.barrier()  # all ranks have the result
        self.at("vote", step.number)
        function(step)
        self.at("finish", step.number)
        if self._kills.get("behind") == step.number:
            while comm.error is None:
                time.sleep(0.001)
            step.phase = steps.Phase.VOTE
            del self._kills["behind"]
            raise comm.error


def train(case: dict[str, Any], comm: Any, path: Path, log: Any) -> None:
    torch.manual_seed(case.get("initial", [0] * comm.size)[comm.rank])
    model = MODELS[case["model"]]()
    data = Stream() if "steps" in case else Samples()
    make = getattr(torch.optim, case.get("optimizer", "AdamW"))
    more = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(model.parameters(), lr=2e-3, **more)
    loop = Loop(case.get("loop", "plain"), model, optimizer)
    saved = case.get("saved", f"{path.stem}.saved")
    job = elastic.Job(
        model,
        optimizer,
        batch=case["batch"],
        logical=case["logical"],
        seed=5,
        comm=comm,
        owners=OWNERS[case.get("owners", "even")],
        buffers=case.get("buffers", "average"),
        bucket_bytes=case.get("bucket_bytes", elastic.adapter.BUCKET_BYTES),
        watchdog=case.get("watchdog", 0),
        checkpoint=str(path.with_name(saved)) if "every" in case else None,
        every=case.get("every", 1),
        also={"schedule": loop.schedule},
        clip_norm=case.get("clip_norm"),
        shard=case.get("shard", False),
        copies=case.get("copies", 1),
        blocks=[model.get_submodule(each) for each in case.get("blocks", [])],
        strict=case.get("strict", False),
    )
    deaths = Deaths(case, path, log)
    deaths.group = job.group
    reading = {name: case[name] for name in READING if name in case}
    if "local_steps" in case:
        train_rounds(case, job, loop, data, deaths, log, reading)
    else:
        train_steps(case, job, loop, data, deaths, log, reading)
    state = digest(job.state() | loop.state())
    log("end", state, job.group.comm.size, job.is_writer)
    job.close()


def train_steps(
    case: dict[str, Any], job: Any, loop: Loop, data: Any, deaths: Deaths, log: Any, reading: Any
) -> None:
    model = job.framework.model
    for step in job.steps(data, **reading):
        deaths.begin(step.number)
        if step.number in case.get("top", []):
            log("hash", step.number, job.hash(), job.is_writer)
        for x, y, numbers in step:
            deaths.wait_for_adopter(step.number)
            if case.get("weighted"):
                counts = y != 0  # the same for few shares
                losses = cross_entropy(model(x), y, reduction="none") * counts
                step.backward(losses.sum(), weight=counts.sum())
            else:
                step.backward(loop.loss(x, y))
            if job.awaits_admission:
                continue
            log("share", step.number, step.worker, numbers.tolist())
            deaths.at("compute", step.number)
            if step.recovery:
                log("adopted", step.number)
                deaths.at("adopt", step.number)
        log("commit", step.number, job.loss, time.monotonic())
        log("norm", job.norm)
        assert not (job.group.shards and job.group.shards.reads.is_serving)
        deaths.at("apply", step.number)
        if step.number in case.get("early", []):
            log("hash", step.number, job.hash(), job.is_writer)
        loop.update()
        if step.recovery:
            log("recovery", vars(step.recovery))
        if step.number in case.get("evaluate", []):
            log("table", step.number, evaluate(job, step.number, deaths, log))
        if step.number in case.get("read", []):
            name, _ = next(model.named_parameters())
            weight = job.state()[f"model.{name}"].data.tolist()
            log("weight", step.number, weight, job.is_writer)
        if step.number == case.get("clamp"):
            clamp(job)


def clamp(job: elastic.Job) -> None:
    """Clamp the parameters after an operation, later on the first rank than on the others."""
    job.hash()
    if job.is_writer:
        time.sleep(0.3)
    with torch.no_grad():
        for each in job.framework.model.parameters():
            each.clamp_(-0.01, 0.01)


def train_rounds(
    case: dict[str, Any], job: Any, loop: Loop, data: Any, deaths: Deaths, log: Any, reading: Any
) -> None:
    """Train in rounds, whose outer optimizer is the default one; the schedule's step follows."""
    parameters = job.framework.model.parameters()
    outer = torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
    outer.register_step_post_hook(lambda *_: deaths.at("outer", round.number))
    if "steps" in reading:
        reading["rounds"] = reading.pop("steps")
    local_steps = case["local_steps"]
    more = {name: case[name] for name in ("moments", "wire") if name in case}
    for round in job.rounds(data, local_steps=local_steps, outer=outer, **more, **reading):
        deaths.begin(round.number)
        for batches in round:
            deaths.wait_for_adopter(round.number)
            used = []
            for x, y, numbers in batches:
                used += numbers.tolist()
                if len(used) == local_steps * len(numbers) and not job.awaits_admission:
                    deaths.at("local", round.number)
                round.backward(loop.loss(x, y))
                job.framework.optimizer.step()
            if job.awaits_admission:
                continue
            log("share", round.number, round.worker, used)
            deaths.at("compute", round.number)
            if round.recovery:
                log("adopted", round.number)
                deaths.at("adopt", round.number)
        log("commit", round.number, job.loss, time.monotonic())
        deaths.at("apply", round.number)
        loop.schedule.step()
        if round.recovery:
            log("recovery", vars(round.recovery))
        if round.number in case.get("evaluate", []):
            log("table", round.number, evaluate(job, round.number, deaths, log))


def evaluate(job: elastic.Job, step: int, deaths: Deaths, log: Any) -> list[list[float]]:
    """Return the losses and the number of samples of each batch, of the members' common data
    set."""
    batches = 0

    def measure(batch: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
        nonlocal batches
        batches += 1
        if batches == 2:
            deaths.at("evaluate", step)
        x, y, numbers = batch
        log("evaluated", step, numbers.tolist())
        return cross_entropy(job.framework.model(x), y, reduction="sum"), len(y)

    return job.map(Samples(), measure, batch=25).tolist()


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
    elastic.preload()
    print("ready", flush=True)
    for text in sys.stdin:
        print(json.dumps(run(json.loads(text), Path(sys.argv[1]))), flush=True)
