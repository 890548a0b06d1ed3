# SPDX-License-Identifier: Apache-2.0
"""The backend "ddl" under PyTorch 2.14 or later: changing a group's members (make
test-torch-latest, whose environment has such a PyTorch).

    SUITE=PATH    PyTorch's own test/distributed/test_c10d_fault_tolerance.py, which is in no wheel
    KILLS=50      the number of members to kill
"""

import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

PROGRAM = Path(__file__).parent / "programs" / "torch_reconfigure.py"
LIMIT = 180.0
# Moments at which a member dies: between two reconfigurations, or during one, see
# torch_reconfigure.py.
MOMENTS = ("sum", "exchange", "call", "creation", "return")


@pytest.fixture
def store() -> Iterator[dist.TCPStore]:
    """A store that outlives every member."""
    yield dist.TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False
    )


def start(
    part: str, store: dist.TCPStore, number: int, size: int, backend: str = "ddl"
) -> subprocess.Popen[str]:
    command = [sys.executable, PROGRAM, part, str(store.port), str(number), str(size), backend]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if backend != "ddl":
        env["DDL_TORCH_SERVE"] = backend
    return subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def end(members: Iterable[subprocess.Popen[str]]) -> None:
    """Kill the running members, and close the pipes of all members."""
    for member in members:
        member.kill()
        member.communicate()


@pytest.mark.parametrize("backend", ["ddl", "gloo"])
@pytest.mark.parametrize("part", ["lives", "arguments", "failures", "concurrent", "extensions"])
def test_part(store: dist.TCPStore, part: str, backend: str) -> None:
    members = [start(part, store, number, 3, backend) for number in range(3)]
    try:
        ended = [member.communicate(timeout=LIMIT) for member in members]
    finally:
        end(members)
    errors = "\n".join(err for _, err in ended)
    assert [out for out, _ in ended] == ["done\n"] * len(members), errors


def test_kills(store: dist.TCPStore) -> None:
    """Kill a member at each moment of a reconfiguration and between two, and add a new member.

    The time that counts is from the kill until all survivors have the next sum.
    """
    count, chance = int(os.environ.get("KILLS", str(len(MOMENTS)))), random.Random(7)
    size = 4
    members: dict[int, subprocess.Popen[str]] = {}
    dead: list[subprocess.Popen[str]] = []
    uuid, current = 0, 0
    times: dict[str, list[float]] = {moment: [] for moment in MOMENTS}

    def add(number: int) -> None:
        store.set(f"first/{number}", str(current + 1))
        members[number] = start("training", store, number, size)

    def order(numbers: list[int]) -> None:
        nonlocal uuid, current
        uuid, current = uuid + 1, current + 1
        store.set(f"round/{current}", ",".join(str(each) for each in (uuid, *numbers)))

    def trained(numbers: list[int]) -> float | None:
        """Return the times at which these members had the round's sum; None if one of them failed
        before."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            if any(store.check([f"failed/{current}/{number}"]) for number in numbers):
                return None
            keys = [f"trains/{current}/{number}" for number in numbers]
            if store.check(keys):
                return max(float(store.get(key).decode()) for key in keys)
            time.sleep(0.005)
        raise AssertionError(f"round {current} of {numbers} hangs")

    try:
        for number in range(size):
            add(number)
        order(list(members))
        assert trained(list(members)) is not None
        for kill in range(count):
            victim, moment = chance.choice(list(members)), MOMENTS[kill % len(MOMENTS)]
            dead.append(members[victim])
            if moment == "sum":
                time.sleep(chance.random() * 0.05)
                begun = time.time()
                members.pop(victim).kill()
            else:
                delay = chance.random() * 0.01  # seconds of a reconfiguration of four members
                store.set(f"dies/{current + 1}/{victim}", f"{moment},{delay}")
                order(list(members))
                members.pop(victim).wait(LIMIT)
                begun = float(store.get(f"died/{victim}").decode())
            while True:
                order(list(members))
                ended = trained(list(members))
                if ended is not None:
                    break
            times[moment].append(ended - begun)
            add(size + kill)
            order(list(members))
            assert trained(list(members)) is not None
        store.set(f"round/{current + 1}", "stop")
        for member in members.values():
            out, err = member.communicate(timeout=LIMIT)
            assert (member.returncode, out) == (0, "done\n"), err
    finally:
        end([*dead, *members.values()])
    print(f"\n{count} kills: seconds until the survivors' next sum")
    times["all"] = [each for moment in MOMENTS for each in times[moment]]
    for moment, some in times.items():
        if some:
            median, worst = statistics.median(some), max(some)
            print(f"  {moment:9} median {median:.3f}, worst {worst:.3f}")


def test_suite_of_pytorch(tmp_path: Path) -> None:
    """Run PyTorch's own tests of the contract, with "ddl" in place of Gloo in their list of
    backends."""
    if not os.environ.get("SUITE"):
        pytest.skip("SUITE=PATH of PyTorch's test_c10d_fault_tolerance.py is not set")
    text = Path(os.environ["SUITE"]).read_text()
    changed, found = re.subn(r'\("gloo", "cpu"\)', '("ddl", "cpu")', text)
    assert found == 1
    suite = tmp_path / "test_c10d_fault_tolerance.py"
    suite.write_text(changed)
    ended = subprocess.run(
        [sys.executable, suite, "-v"], cwd=tmp_path, text=True, capture_output=True, timeout=900
    )
    print(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    assert "test_reconfigure_merge_split" in ended.stderr
