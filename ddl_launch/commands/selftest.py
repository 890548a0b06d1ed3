"""Two real ranks on this machine, each a process: an all-reduce over shared memory and over TCP.

`run` starts them; this module is also the ranks' program. They write their addresses to stdout,
read those of all from stdin, and write what they measured.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ddl_core.config import Config
from ddl_core.endpoint import Endpoint
from ddl_core.errors import DdlError

LINKS = ("shm", "tcp")
BYTES = 1 << 20
_LIMIT = 30.0  # seconds for everything
_ROUNDS = 20


class SelfTestError(Exception):
    """Which rank failed, and why."""


def run() -> dict[str, tuple[float, float]]:
    """For each of LINKS the best time of an all-reduce of 8 bytes and of BYTES, in seconds."""
    command = [sys.executable, "-m", "ddl_launch.commands.selftest"]
    folder = Path(__file__).resolve().parents[2]  # where the packages are: what -m looks at first
    ranks = [
        subprocess.Popen(
            [*command, str(rank)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        for rank in ranks:
            rank.kill()

    timer = threading.Timer(_LIMIT, expire)
    timer.start()
    try:
        return _exchange(ranks)
    except SelfTestError as error:
        if expired.is_set():
            raise SelfTestError(f"not done within {_LIMIT:.0f} s: {error}") from None
        raise
    finally:
        timer.cancel()
        for rank in ranks:
            rank.kill()
            rank.wait()
            for pipe in (rank.stdin, rank.stdout, rank.stderr):
                assert pipe
                with contextlib.suppress(OSError):
                    pipe.close()


def _exchange(ranks: list[subprocess.Popen[str]]) -> dict[str, tuple[float, float]]:
    secret = secrets.token_hex(16)
    for rank in ranks:  # not by the command line or the environment, which others may read
        _send(rank, secret)
    addresses = [_receive(i, rank) for i, rank in enumerate(ranks)]
    for rank in ranks:
        _send(rank, json.dumps(addresses))
    answers = [_receive(i, rank) for i, rank in enumerate(ranks)]
    return {link: (small, large) for link, (small, large) in answers[0].items()}


def _send(rank: subprocess.Popen[str], line: str) -> None:
    assert rank.stdin
    with contextlib.suppress(BrokenPipeError):  # its answer says why
        rank.stdin.write(line + "\n")
        rank.stdin.flush()


def _receive(i: int, rank: subprocess.Popen[str]) -> Any:
    assert rank.stdout and rank.stderr
    line = rank.stdout.readline()
    if line:
        return json.loads(line)
    said = rank.stderr.read().strip().splitlines()
    raise SelfTestError(f"rank {i}: {said[-1] if said else f'exit code {rank.wait()}'}")


def _rank(rank: int) -> None:
    with Endpoint(secret=input(), host="127.0.0.1") as endpoint:
        print(json.dumps(endpoint.address.hex()), flush=True)
        addresses = [bytes.fromhex(text) for text in json.loads(input())]
        times = {}
        for link in LINKS:
            config = Config(links=[link], timeout=10, operation_timeout=10)
            with endpoint.connect(addresses, rank, config) as comm:
                times[link] = [_measure(comm, 8), _measure(comm, BYTES)]
        print(json.dumps(times), flush=True)


def _measure(comm: Any, nbytes: int) -> float:
    best = float("inf")
    for i in range(_ROUNDS):
        values = np.full(nbytes // 4, comm.rank + i, np.float32)
        comm.barrier()
        start = time.perf_counter()
        comm.allreduce(values)
        best = min(best, time.perf_counter() - start)
        if not (values == 2 * i + 1).all():
            raise SystemExit(f"wrong sums: {values[:4]}, not {2 * i + 1}")
    return best


if __name__ == "__main__":
    try:
        _rank(int(sys.argv[1]))
    except DdlError as error:
        raise SystemExit(str(error)) from None
