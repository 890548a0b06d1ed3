# SPDX-License-Identifier: Apache-2.0
"""The faults, one function each. A function runs one case and returns the time until the survivors
knew, or raises Wrong."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from job import DEAD_S, SILENT_S, Build, Case, Job, Outcome, Probe, Wrong, free_port, judge
from lab import Lab, sh
from tqdm import tqdm

CREATION_S = 10.0  # chaos_rank.c's limit
LONG = 60.0  # from this many seconds of garbage on, the promised rate is required, otherwise ENOUGH
PROMISED, ENOUGH = 0.8, 0.6  # fraction of the rate with the garbage sent elsewhere

SIGNALS = {
    "kill": signal.SIGKILL,
    "segv": signal.SIGSEGV,
    "abort": signal.SIGABRT,
    "exit": signal.SIGUSR1,
    "workers": signal.SIGKILL,
    "two": signal.SIGKILL,
}


def die(build: Build, probe: Probe, case: Case) -> Outcome:
    """The last rank dies during an operation; with two deaths, the rank before it, too."""
    dead = [case.size - 2, case.size - 1] if case.fault == "two" else [case.size - 1]
    with Job(build, case) as job:
        job.start_all(*(["workers=2"] if case.fault == "workers" else []))
        job.await_word("ready")
        time.sleep(random.Random(case.seed).uniform(0.005, 0.03))
        began = min(job.signal(rank, SIGNALS[case.fault]) for rank in dead)
        job.finish([rank for rank in range(case.size) if rank not in dead])
        return judge(job, probe, began, dead, DEAD_S)


def stop(build: Build, probe: Probe, case: Case) -> Outcome:
    """A rank is silent, is given up, and continues: it gets an error, and does not disturb the
    others."""
    victim = case.size - 1
    with Job(build, case) as job:
        job.start_all("linger_ms=600")
        job.await_word("ready")
        began = job.signal(victim, signal.SIGSTOP)
        job.await_word("shrunk", range(victim))
        awake = job.signal(victim, signal.SIGCONT)
        job.finish(range(case.size))
        outcome = judge(job, probe, began, [victim], SILENT_S)
        refused, failed = job.find(victim, "minority"), job.find(victim, "failed")
        if not refused or not failed:
            raise Wrong(f"the zombie was not refused: {job.words_of(victim)}")
        if (failed.at - awake) * 1e-9 > 1.0 + 3 * probe.worst(awake, failed.at):
            raise Wrong(f"the zombie knew it after {(failed.at - awake) * 1e-9:.3f} s")
        return outcome


def steps(build: Build, probe: Probe, case: Case, number: int) -> tuple[Outcome, bool]:
    """A rank dies right after one of the steps of a plan; false if the plan has fewer steps."""
    victim = case.size - 1
    with Job(build, case) as job:
        for rank in range(case.size):
            job.start(rank, f"step={number}" if rank == victim else "step=-1")
        job.await_word("began")
        while job.read(victim):
            pass
        if job.find(victim, "complete"):
            job.finish(range(case.size))
            return Outcome(case), False
        dies = job.find(victim, "dies")
        if not dies:
            raise Wrong(f"rank {victim}: {job.words_of(victim)}")
        job.finish(range(victim))
        return judge(job, probe, dies.at, [victim], DEAD_S), True


def create(build: Build, probe: Probe, case: Case) -> Outcome:
    """A rank dies while the comm is created. If it had reached the rendezvous, the others report it
    soon. If not, they wait for it until the time limit, and then name it."""
    victim, outcome = case.size - 1, Outcome(case)
    with Job(build, case) as job:
        job.start_all()
        job.await_word("meets", [victim])
        time.sleep(case.seed % 40 * 0.0005)
        began = job.signal(victim, signal.SIGKILL)
        job.finish(range(victim))
        told = ""
        for rank in range(victim):
            failed = job.find(rank, "uncreated") or job.find(rank, "failed")
            if not failed:
                raise Wrong(f"rank {rank}: {job.words_of(rank)}")
            told += f"rank {rank}: {failed.rest}\n"
            outcome.seconds.append((failed.at - began) * 1e-9)
        # If it had not come far, other ranks may only know that one of them has given up.
        named = rf"rank {victim}\b|time: {victim}\b|waiting for (\d+[-,] ?)*{victim}\b"
        if not re.search(named, told) or any("rank" not in line for line in told.splitlines()):
            raise Wrong(f"rank {victim} is not named: {told}")
        if max(outcome.seconds) > CREATION_S + 1:
            raise Wrong(f"after {max(outcome.seconds):.1f} s: {told}")
    return outcome


def join_late(build: Build, _probe: Probe, case: Case) -> Outcome:
    """A rank that arrives two seconds later causes no error."""
    with Job(build, case) as job:
        for rank in range(case.size):
            job.start(rank, "times=2", *(["pause_ms=2000"] if rank == case.size - 1 else []))
        job.finish(range(case.size))
    return Outcome(case)


def leave(build: Build, _probe: Probe, case: Case) -> Outcome:
    """A rank that leaves right after its last operation disturbs no other rank."""
    with Job(build, case) as job:
        job.start_all(f"times={1 + case.seed % 2}")
        job.finish(range(case.size))
    return Outcome(case)


def repeat(build: Build, _probe: Probe, case: Case, cycles: int) -> Outcome:
    """Memory and descriptors after many deaths."""
    with Job(build, case) as job:
        job.timer.cancel()
        for rank in range(2):
            job.start(rank, f"cycles={cycles}")
        job.finish(range(2))
        for rank in range(2):
            found = [e.rest.split() for e in job.events[rank] if e.word == "cycle"]
            files = [int(words[2]) for words in found]
            memory = [int(words[4]) for words in found]
            settled = len(found) // 4
            if len(found) != cycles or max(files[settled:]) > max(files[:settled]):
                raise Wrong(f"rank {rank}: descriptors {files}")
            if memory[-1] - memory[settled] > 1024:
                raise Wrong(f"rank {rank}: memory grew, in KiB: {memory}")
    return Outcome(case)


GIL_PROGRAM = """
import ctypes, sys, time
import numpy as np
import ddl_core
comm = ddl_core.init()
comm.barrier()
if comm.rank == comm.size - 1:
    ctypes.PyDLL(None).sleep(20)  # which, unlike CDLL, keeps Python's lock
ones = np.ones(10, np.float32)
comm.allreduce(ones)
assert ones[0] == comm.size
"""


def hold_gil(_build: Build, _probe: Probe, case: Case) -> Outcome:
    """A thread that holds Python's lock for 20 s is alive."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "hold.py")
        program.write_text(GIL_PROGRAM)
        ddlrun = str(Path(sys.executable).with_name("ddlrun"))
        done = subprocess.run(
            [ddlrun, "-n", str(case.size), sys.executable, str(program)],
            env={**os.environ, "DDL_LINKS": case.link, "DDL_LOG": "error"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise Wrong(f"exit code {done.returncode}: {done.stderr.strip()}")
    return Outcome(case)


# ----------------------------------------------------------------------------------------- networks


REJECT = "meta l4proto tcp reject with tcp reset"
FIREWALL = f"""table inet ddl {{
  chain in {{ type filter hook input priority 0; iifname "eth0" {REJECT}; }}
  chain out {{ type filter hook output priority 0; oifname "eth0" {REJECT}; }}
}}"""


def cut(build: Build, probe: Probe, case: Case, lab: Lab, hosts: list[int]) -> Outcome:
    """The last host is cut off. Both sides detect it, and only one of them continues. With resets,
    half of the ranks are cut off, as by a firewall that answers for the other side."""
    place = [hosts[rank * len(hosts) // case.size] for rank in range(case.size)]
    victims = [rank for rank, host in enumerate(place) if host == hosts[-1]]
    if case.fault == "resets":
        victims = list(range(case.size // 2, case.size))
        place[victims[0] :] = [place[victims[0]]] * len(victims)
    cut_off = place[victims[0]]
    name = f"{lab.prefix}{cut_off}"
    with Job(build, case) as job:
        job.url = f"tcp://{lab.address(hosts[0])}:9999"
        for rank, host in enumerate(place):
            env = {"DDL_INTERFACES": "eth0"}
            job.start(rank, wrap=["nsenter", f"--net=/run/netns/{lab.prefix}{host}"], env=env)
        job.await_word("ready")
        began = time.monotonic_ns()
        if case.fault == "link down":
            sh(f"ip -n {name} link set eth0 down")
        elif case.fault == "resets":
            sh(f"ip netns exec {name} nft '{FIREWALL}'")
        else:
            lab.unplug(cut_off, 0)
        striking = (time.monotonic_ns() - began) * 1e-9  # the kernel's lock may take a second
        survivors = range(case.size)
        if case.fault == "half-open":
            survivors = range(victims[0])
            for rank in victims:
                job.signal(rank, signal.SIGKILL)
        job.finish(survivors)
        outcome = judge(job, probe, began, victims, SILENT_S, striking)
        for rank in victims if case.fault != "half-open" else []:
            if not job.find(rank, "minority"):
                raise Wrong(f"the cut side goes on: {job.words_of(rank)}")
        return outcome


# ------------------------------------------------------------------------------------------ garbage


def disturb(build: Build, _probe: Probe, case: Case, seconds: float) -> Outcome:
    """Garbage from 50 connections causes no wrong result, and hardly more time than garbage that is
    sent to another port of this machine. The two alternate."""
    slice_s = 1.5
    rates: dict[str, list[float]] = {"here": [], "elsewhere": []}
    with Job(build, case) as job, contextlib.ExitStack() as stack:
        job.timer.cancel()
        ports = [str(free_port()) for _ in range(case.size)]
        for rank, port in enumerate(ports):
            env = {"DDL_PORTS": f"{port}-{port}", "DDL_INTERFACES": "lo"}
            job.start(rank, "count_ms=100", env=env)
        job.await_word("ready")

        def listen() -> None:
            while job.read(0):
                pass

        threading.Thread(target=listen, daemon=True).start()
        bin_command = [build.load, "discard"]
        bin_process = stack.enter_context(
            subprocess.Popen(bin_command, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(bin_process.kill)
        assert bin_process.stdout
        targets = {"here": ports, "elsewhere": [bin_process.stdout.readline().strip()]}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for where, to in targets.items():
                load = [build.load, "garbage", str(slice_s), "127.0.0.1", *to]
                began = time.monotonic_ns()
                sent = subprocess.run(load, check=True, capture_output=True, text=True).stdout
                if int(sent) < 100_000:
                    raise Wrong(f"only {sent.strip()} bytes of garbage were sent {where}")
                after = began + int(0.3e9)  # the connections are established
                did = [e for e in job.events[0] if e.word == "did" and e.at > after]
                rates[where].append(sum(int(e.rest) for e in did) / (slice_s - 0.3))
        for rank, process in job.processes.items():
            if process.poll() is not None:
                raise Wrong(f"rank {rank} ended: {job.words_of(rank)}")
    here, elsewhere = (statistics.median(rates[where]) for where in ("here", "elsewhere"))
    # Compare turns that follow each other, since the machine's speed drifts.
    pairs = zip(rates["here"], rates["elsewhere"], strict=True)
    share = statistics.median(own / other for own, other in pairs)
    told = f"{here:,.0f} operations/s, {elsewhere:,.0f} with the garbage elsewhere: {share:.2f}"
    tqdm.write(f"{case}: {told}")
    if share < (PROMISED if seconds >= LONG else ENOUGH):
        raise Wrong(told)
    return Outcome(case)
