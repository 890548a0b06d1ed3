# SPDX-License-Identifier: Apache-2.0
"""A process group whose members change, on PyTorch 2.14 or later.

Usage: torch_reconfigure.py PART PORT NUMBER SIZE [BACKEND], with a TCPStore at PORT that lives in
the test. The process prints "done" if all checks passed.
"""

import os
import random
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from checks import refused
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

STORE_LIMIT = timedelta(seconds=120)


class Member:
    """A process of the test, and the store by which the processes find each other."""

    def __init__(self, port: int, number: int, size: int, backend: str) -> None:
        self.number, self.size = number, size
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=STORE_LIMIT)
        group_store = dist.PrefixStore("group", self.store)
        dist.init_process_group(
            backend,
            store=group_store,
            rank=number,
            world_size=size,
            timeout=timedelta(seconds=20),
            enable_reconfigure=True,
        )
        self.backend = c10d._get_default_group()._get_backend(torch.device("cpu"))

    def exchange(self, key: str, numbers: list[int] | None = None) -> list[str]:
        self.store.set(f"{key}/{self.number}", dist._get_reconfigure_handle())
        asked = range(self.size) if numbers is None else numbers
        return [self.store.get(f"{key}/{number}").decode() for number in asked]

    def die(self, really: bool, delay: float = 0) -> None:
        """Kill this process if `really`, at once or after a delay in seconds."""
        if not really:
            return
        self.store.set(f"died/{self.number}", repr(time.time() + delay))
        if delay:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def reconfigure(self, uuid: int, handles: list[str] | set[str], seconds: float = 20) -> None:
        dist._reconfigure(uuid, handles, timeout=timedelta(seconds=seconds)).wait()


def summed() -> float:
    """All-reduce 1 + rank in a blocking call, and return the sum."""
    tensor = torch.full((4,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    assert (tensor == tensor[0]).all()
    return float(tensor[0])


def lives(member: Member) -> None:
    refused(RuntimeError, "call torch.distributed._reconfigure() first", summed)
    size, number = member.size, member.number
    everybody = size * (size + 1) / 2
    member.reconfigure(1, member.exchange("a"))
    assert (dist.get_rank(), dist.get_world_size(), summed()) == (number, size, everybody)
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    old = dist.new_group(list(range(size)))
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    model(torch.full((2, 64), float(number))).sum().backward()
    shared = model.module.weight.grad
    assert shared is not None
    expected = sum(2.0 * each for each in range(size)) / size
    assert torch.allclose(shared, torch.full_like(shared, expected))
    member.exchange("trained")

    if number < size - 1:  # without the last one
        member.reconfigure(2, member.exchange("b", list(range(size - 1))))
        assert (dist.get_world_size(), summed()) == (size - 1, everybody - size)
        text = "reconfigured with uuid 2"
        refused(dist.DistBackendError, text, lambda: dist.all_reduce(torch.ones(1), group=old))
        model.zero_grad()
        model(torch.full((2, 64), float(number))).sum().backward()
        expected = sum(2.0 * each for each in range(size - 1)) / (size - 1)
        shared = model.module.weight.grad
        assert shared is not None
        assert torch.allclose(shared, torch.full_like(shared, expected))
        subgroup = dist.new_group(list(range(size - 1)))
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=subgroup)
        assert tensor.item() == size - 1
        dist.monitored_barrier(timeout=timedelta(seconds=20))
    member.exchange("shrunk")

    handles = member.exchange("c")
    member.reconfigure(3, handles[::-1])  # all, with reversed ranks
    assert (dist.get_rank(), summed()) == (size - 1 - number, everybody)
    member.reconfigure(4, set(handles))
    ranked = sorted(handles)
    assert dist.get_rank() == ranked.index(dist._get_reconfigure_handle())
    assert summed() == everybody


def arguments(member: Member) -> None:
    handles = member.exchange("a")
    own = handles[member.number]
    member.reconfigure(1, handles)
    total = summed()
    member.exchange("created")
    again = (ValueError, "more than once", lambda: member.reconfigure(2, [own, own]))
    foreign = (ValueError, "not a handle of the backend ddl", ["gloo:0:1:localhost:1"])
    damaged = own[:-20] + own[-18:]
    others = [handle for handle in handles if handle != own]
    refused(*again)
    refused(*foreign[:2], lambda: member.reconfigure(2, [own, *foreign[2]]))
    refused(*foreign[:2], lambda: member.reconfigure(2, [own, damaged]))
    refused(ValueError, "own handle is not one of", lambda: member.reconfigure(2, others))
    refused(ValueError, "timeout is 0 ms", lambda: member.reconfigure(2, [own], 0))
    refused(RuntimeError, "uuid 1 was already used", lambda: member.reconfigure(1, handles))
    assert summed() == total
    if member.number:  # rank 0 does not take part
        begun = time.monotonic()
        refused(RuntimeError, "rank 0", lambda: member.reconfigure(5, handles, 1))
        assert 0.5 < time.monotonic() - begun < 15
    member.exchange("missed")
    refused(RuntimeError, "uuid 5 has not succeeded" if member.number else "left the comm", summed)
    member.exchange("noticed")
    member.reconfigure(6, handles)
    assert summed() == total
    fixed = dist.new_group(list(range(member.size)))
    refused(RuntimeError, "enable_reconfigure=True", lambda: dist._get_reconfigure_handle(fixed))


def failures(member: Member) -> None:
    handles = member.exchange("a")
    member.reconfigure(1, handles)
    total = summed()
    member.exchange("summed")  # an abort would end the sums of other ranks
    member.backend.abort()
    assert member.backend.get_error() == ErrorType.SUCCESS
    refused(dist.DistBackendError, "abort", summed)
    member.exchange("aborted")
    member.reconfigure(2, handles)
    assert summed() == total

    member.exchange("begun")
    failed = threading.Event()
    member.backend.register_abort_hook(3, lambda: 1 / 0)  # it is logged, and the other hooks run
    member.backend.register_abort_hook(7, failed.set)
    if member.number:
        member.backend.set_timeout(timedelta(seconds=1))
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert failed.wait(30), "the hook did not run, though no rank waits for the work"
        assert member.backend.get_error() != ErrorType.SUCCESS
        refused(dist.DistBackendError, "limit", work.wait)
        member.backend.set_timeout(timedelta(seconds=20))
    member.backend.unregister_abort_hook(3)
    member.backend.unregister_abort_hook(7)
    member.exchange("expired")
    member.reconfigure(3, handles)
    assert summed() == total

    member.exchange("again")
    if member.number == 0:
        pending = dist.all_reduce(torch.ones(1), async_op=True)
        member.reconfigure(4, handles[:1])
        refused(dist.DistBackendError, "reconfigured with uuid 4", pending.wait)
    member.exchange("left")


def concurrent(member: Member) -> None:
    chance = random.Random(member.number)
    handles, uuid, counted = member.exchange("a"), 0, {"sums": 0, "errors": 0, "callbacks": 0}
    for attempt in range(12):
        member.reconfigure(uuid := uuid + 1, handles)
        member.exchange(f"begun/{attempt}")
        caller = Caller()
        thread = threading.Thread(target=caller.run, args=(attempt % 2 == 0,))
        thread.start()
        time.sleep(chance.random() * 0.03)
        handles = handles[::-1]
        member.reconfigure(uuid := uuid + 1, handles)
        time.sleep(chance.random() * 0.005)
        caller.stop()
        member.reconfigure(uuid := uuid + 1, handles)  # ends what is pending in the one before
        thread.join(60)
        assert not thread.is_alive(), "an operation hangs"
        for key, count in caller.check(member.size).items():
            counted[key] += count
        member.exchange(f"ended/{attempt}")
        assert summed() == member.size * (member.size + 1) / 2
    assert all(counted.values()), counted


class Caller:
    """Runs operations from a thread and from callbacks of futures, until one fails or stop() is
    called."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # while an operation starts
        self.stopped = False
        self.works: list[tuple[dist.Work, torch.Tensor]] = []
        self.futures: list[torch.futures.Future[object]] = []
        self.refusals: list[str] = []
        self.callbacks = 0

    def start(self, callback: bool = False) -> dist.Work | None:
        with self.lock:
            if self.stopped:
                return None
            tensor = torch.ones(1000)
            try:
                work = dist.all_reduce(tensor, async_op=True)
            except dist.DistBackendError as error:
                self.refusals.append(str(error))
                return None
            assert work is not None
            self.works.append((work, tensor))
            if callback:
                self.futures.append(work.get_future().then(self.follow))
            return work

    def follow(self, _: object) -> None:
        self.callbacks += 1  # one thread runs all callbacks
        self.start()

    def run(self, callback: bool) -> None:
        try:
            while (work := self.start(callback)) is not None:
                work.wait()
        except dist.DistBackendError:
            pass  # check() reads it again

    def stop(self) -> None:
        with self.lock:
            self.stopped = True

    def check(self, size: int) -> dict[str, int]:
        errors, sums = list(self.refusals), 0
        for work, tensor in self.works:
            try:
                work.wait()
            except dist.DistBackendError as error:
                errors.append(str(error))
            else:
                assert (tensor == size).all(), tensor
                sums += 1
        for future in self.futures:
            future.wait()
        assert self.callbacks == len(self.futures)
        for error in errors:
            assert "reconfigur" in error or "left the comm" in error, error
        return {"sums": sums, "errors": len(errors), "callbacks": self.callbacks}


def extensions(member: Member) -> None:
    member.reconfigure(1, member.exchange("a"))
    member.backend.set_timeout(timedelta(seconds=1))
    c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=60))
    if member.number == 0:
        time.sleep(2)
    dist.barrier()  # longer than a second, but not longer than the extension allows
    dist.barrier()
    member.exchange("extended")
    begun = time.monotonic()
    if member.number:
        refused(dist.DistBackendError, "timeout", dist.barrier)
        assert time.monotonic() - begun < 30, "the extension did not end"
    member.exchange("ended")


def training(member: Member) -> None:
    """All-reduce until the test says stop; at each error or order, join the members it names.

    Store: "first/NUMBER" has a member's first round, "round/K" has "UUID,NUMBER,..." of the members
    of round K; both are set by the test. A member writes "trains/K/NUMBER" with the time of its
    first sum in round K, and "failed/K/NUMBER" at an error. It dies in round K if there is
    "dies/K/NUMBER", with MOMENT,SECONDS:

        exchange  before it looks for the handles
        call      before it calls reconfigure
        creation  SECONDS after calling it, but before the sum
        return    between its return and the sum
    """
    current = int(member.store.get(f"first/{member.number}")) - 1
    while True:
        current += 1
        order = member.store.get(f"round/{current}").decode()
        if order == "stop":
            return
        uuid, *numbers = (int(each) for each in order.split(","))
        key, moment, delay = f"dies/{current}/{member.number}", "", 0.0
        if member.store.check([key]):
            moment, text = member.store.get(key).decode().split(",")
            delay = float(text)
        try:
            member.die(moment == "exchange")
            handles = member.exchange("handle", numbers)
            member.die(moment == "call")
            member.die(moment == "creation", delay)
            member.reconfigure(uuid, handles, 10)
            if moment == "creation":
                time.sleep(60)
            member.die(moment == "return")
            summed()
            member.store.set(f"trains/{current}/{member.number}", repr(time.time()))
            while not member.store.check([f"round/{current + 1}"]):
                expected = len(numbers) * (len(numbers) + 1) / 2
                assert summed() == expected
        except RuntimeError as error:
            print(f"{time.time():.3f} {member.number} round {current}: {error}", file=sys.stderr)
            member.store.set(f"failed/{current}/{member.number}", repr(time.time()))


if __name__ == "__main__":
    part, port, number, size, *rest = sys.argv[1:]
    this = Member(int(port), int(number), int(size), *(rest or ["ddl"]))
    globals()[part](this)
    this.store.set(f"end/{number}", "")
    for each in range(int(size)):
        if part != "training":
            this.store.get(f"end/{each}")
    dist.destroy_process_group()
    print("done")
