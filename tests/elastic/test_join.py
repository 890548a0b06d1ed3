# SPDX-License-Identifier: Apache-2.0
"""Workers join a running job between two steps; the result is the same as of one worker alone. Some
die at every moment of the join, by a real kill -9.

Some die at every moment of it, by a real kill -9.
"""

import contextlib
import itertools
import json
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import join, together

from ddl_core import Endpoint
from ddl_core.errors import PeerLost
from ddl_elastic.frameworks.protocol import State, Tensor, digest
from ddl_elastic.step import transfer

# Moments at which a worker dies: a joining worker before the others have switched, or while it
# observes; or a member.
NEWCOMERS = ["start", "warm-up", "creation, by a newcomer", "hello, by a newcomer"]
OBSERVERS = ["receiving", "observing", "loading", "catching up", "arrival"]
MEMBERS = [
    *("creation, by a member", "agreement", "switch", "hello, by a member"),
    *("copying", "sending", "telling"),
]
SAMPLE = "switch"


def events(report: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each for each in report["events"] if each["kind"] == kind]


def test_newcomers_join(jobs: Any) -> None:
    _, report = jobs.train({"workers": "2:4", "start": 2, "resize": [[3, 4]], "changes": 2})
    joined = events(report, "joined")
    assert sorted(each["member"] for each in joined) == [2, 3]
    for each in joined:
        assert 3 < each["step"] < 75
        assert report["workers"][str(each["member"])]["shares"] >= 3
    assert not events(report, "died")


@pytest.mark.parametrize(
    "moment",
    [
        SAMPLE,
        *(
            pytest.param(moment, marks=pytest.mark.slow)
            for moment in sorted({*NEWCOMERS, *OBSERVERS, *MEMBERS} - {SAMPLE})
        ),
    ],
)
def test_a_death_at_any_moment(jobs: Any, tmp_path: Path, moment: str) -> None:
    case = {"workers": "2:4", "start": 2, "resize": [[3, 3, moment]]}
    _, report = jobs.train({**case, "changes": 2 if moment in MEMBERS else 1})
    died = events(report, "died")
    assert [each["cause"] for each in died] == ["SIGKILL"]
    assert (died[0]["member"] == 2) == (moment not in MEMBERS)
    assert not (tmp_path / f"die in {moment}").exists()
    joined = [each["member"] for each in events(report, "joined")]
    # The others may report that a worker has joined that dies at once.
    assert joined == [2] or (moment in (*NEWCOMERS, *OBSERVERS) and joined == [])
    assert moment not in NEWCOMERS[:3] or not joined


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "hang"])
@pytest.mark.parametrize("moment", ["start", *NEWCOMERS[1:]])
def test_a_newcomer_that_hangs(jobs: Any, tmp_path: Path, moment: str, how: str) -> None:
    slow = {str(member): 0.03 for member in range(5)}
    case = {"workers": "2:4", "start": 2, "resize": [[3, 3, moment]], "how": how, "slow": slow}
    _, report = jobs.train({**case, "watchdog": 0.5, "replace": True})
    assert not (tmp_path / f"die in {moment}").exists()
    (died,) = events(report, "died")
    assert died["member"] == 2
    assert died["cause"].startswith("hung: ")
    joined = [each["member"] for each in events(report, "joined")]
    # The others may report that a worker has joined that hangs at once.
    assert joined[-1:] == [3] and joined in ([3], [2, 3])
    assert joined == [3] or moment.startswith("hello")


@pytest.mark.slow
def test_all_others_die_and_nobody_has_the_state(jobs: Any) -> None:
    always = ["wait in sending", "die in telling"]
    report = jobs.fail({"workers": "2:4", "start": 2, "resize": [[3, 3]], "always": always})
    assert sorted(each["member"] for each in events(report, "died")) == [0, 1, 2]
    assert "NoSurvivorHasState: no process is left that has the state" in report["error"]


@pytest.mark.slow
def test_all_others_die_and_an_observer_has_the_state(jobs: Any, tmp_path: Path) -> None:
    deaths = {f"die in voting, member {member}": "" for member in (0, 1)}
    (tmp_path / "at loading").write_text(json.dumps(deaths))
    _, report = jobs.train({"workers": "2:4", "start": 2, "resize": [[3, 3]], "passes": 60})
    assert sorted(each["member"] for each in events(report, "died")) == [0, 1]
    assert report["workers"]["2"]["state"] == "done"


@pytest.mark.slow
def test_an_observer_knows_how_long_steps_are(jobs: Any) -> None:
    """The observer's own steps are short, since it computes nothing, and longer than the watchdog's
    limit."""
    slow = {str(member): 0.15 for member in range(3)}
    case = {"workers": "2:3", "start": 2, "resize": [[2, 3]], "slow": slow, "watchdog": 0.5}
    _, report = jobs.train({**case, "passes": 3})
    assert [each["member"] for each in events(report, "joined")] == [2]
    assert not events(report, "died")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_changes(jobs: Any, seed: int) -> None:
    chance, cases = random.Random(seed), []
    for _ in range(5):
        sizes = sorted([chance.randrange(1, 70), chance.randint(2, 4)] for _ in range(4))
        kills = [[chance.randrange(10, 60), chance.randrange(2)]]
        cases.append({"workers": "2:4", "start": 3, "resize": sizes, "kill": kills})
    jobs.train(*cases)


def make_state() -> State:
    chance = np.random.default_rng(1)
    sizes = {"a": 5 << 20, "b": 0, "c": 3, "d": (4 << 20) - 3, "e": 1 << 20}
    return {
        name: Tensor("uint8", (size,), chance.integers(0, 256, size, np.uint8))
        for name, size in sizes.items()
    }


@pytest.mark.parametrize("whole", [[True, False], [True, True, False, True, False]])
def test_the_state_is_received(whole: list[bool]) -> None:
    state = make_state()
    senders = [rank for rank, has_state in enumerate(whole) if has_state]
    lacking = [rank for rank, has_state in enumerate(whole) if not has_state]
    group = join([Endpoint(secret="") for _ in whole])

    def run(rank: int) -> Any:
        if whole[rank]:
            sender = transfer.Sender()
            sender.reserve(state, len(senders))
            sender.send(group[rank], senders, lacking, state, {"next": 7})
            return sender.wait()
        return transfer.Receiver().receive(group[rank], senders)

    for rank, found in enumerate(together(run, len(whole))):
        if not whole[rank]:
            received, position = found
            assert digest(received) == digest(state)
            assert position == {"next": 7}


def test_a_later_plan_reserves_memory_beside_a_copy() -> None:
    values = np.random.default_rng(3).integers(0, 256, 5 * transfer.PIECE, np.uint8)
    state, rounds = {"all": Tensor("uint8", values.shape, values)}, 4
    group = join([Endpoint(secret="") for _ in range(2)])
    sender, over = transfer.Sender(), threading.Event()

    def reserve() -> None:
        for ranks in itertools.cycle([1, 4]):
            if over.is_set():
                return
            sender.reserve(state, ranks)

    def run(rank: int) -> None:
        receiver, found = transfer.Receiver(), set()
        with contextlib.closing(group[rank]) as comm:
            for _ in range(rounds):
                if rank == 0:
                    sender.send(comm, [0], [1], state, {})
                    sender.wait()
                else:
                    found.add(digest(receiver.receive(comm, [0])[0]))
        assert rank == 0 or found == {digest(state)}

    preparing = threading.Thread(target=reserve)
    preparing.start()
    try:
        together(run, 2)
    finally:
        over.set()
        preparing.join()


def test_a_tensor_that_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state()
    first, second = join([Endpoint(secret="") for _ in range(2)])

    def send_changed(comm: Any, rank: int, piece: Any, digests: Any) -> None:
        piece[-1] ^= len(digests) > 1
        comm.send(piece, rank, tag=2)
        comm.send(digests, rank, tag=3)

    def run(rank: int) -> None:
        if rank == 0:
            sender = transfer.Sender()
            sender.send(first, [0], [1], state, {})
            with pytest.raises(PeerLost):
                first.barrier()
            sender.wait()
        else:
            with pytest.raises(
                RuntimeError, match="d of the state was changed on the way from rank 0"
            ):
                transfer.Receiver().receive(second, [0])
            second.close()

    monkeypatch.setattr(transfer, "send_piece", send_changed)
    together(run, 2)
