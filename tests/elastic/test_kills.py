# SPDX-License-Identifier: Apache-2.0
"""Members die by a real kill -9 in every phase of a step. The result is the undisturbed one, and
only the dead member's shares are computed again (Members.check)."""

from typing import Any

import pytest


def kill(member: int, step: int, phase: str) -> dict[str, Any]:
    return {"member": member, "step": step, "phase": phase}


def recoveries(logs: list[list[list[Any]]]) -> list[dict[str, Any]]:
    return [line[1] for log in logs for line in log if line[0] == "recovery"]


@pytest.mark.parametrize("phase", ["compute", "reduce"])
def test_before_all_have_the_result(members: Any, phase: str) -> None:
    logs = members.check(members=3, kills=[kill(1, 5, phase)])
    for each in recoveries(logs):
        assert (each["step"], each["died"], each["adopted"]) == (5, [1], 3)


@pytest.mark.parametrize("bucket_bytes", [1, 30])
def test_in_the_backward_pass(members: Any, bucket_bytes: int) -> None:
    logs = members.check(members=3, kills=[kill(1, 5, "backward")], bucket_bytes=bucket_bytes)
    for each in recoveries(logs):
        assert (each["step"], each["died"], each["adopted"]) == (5, [1], 3)


def test_the_others_are_in_the_backward_pass(members: Any) -> None:
    """Member 2 has started a sum, and learns of the death between two gradients. It adds the other
    gradients without starting their sums."""
    kills = [kill(1, 5, "backward"), kill(2, 5, "hold")]
    members.check(members=3, kills=kills, bucket_bytes=1)


def test_before_the_vote(members: Any) -> None:
    logs = members.check(members=3, kills=[kill(0, 5, "vote")])
    found = recoveries(logs)
    assert [(each["step"], each["adopted"]) for each in found] == [(5, 0), (5, 0)]


def test_after_the_vote(members: Any) -> None:
    logs = members.check(members=3, kills=[kill(0, 5, "apply")])
    assert {each["step"] for each in recoveries(logs)} == {6}


def test_one_survivor_is_behind(members: Any) -> None:
    """The vote ends on two survivors but not on the third, which applies the result it holds."""
    kills = [kill(0, 5, "apply"), kill(1, 5, "behind")]
    logs = members.check(members=4, owners="changing", kills=kills)
    found = [line[1]["step"] for line in logs[1] if line[0] == "recovery"]
    assert found == [5]
    assert [each["step"] for each in recoveries(logs)] == [5, 6, 6]


def test_nobody_waits_for_a_long_share(members: Any) -> None:
    members.check(members=3, kills=[kill(1, 5, "compute"), kill(2, 5, "slow")])


def test_all_but_one(members: Any) -> None:
    kills = [kill(0, 5, "reduce"), kill(1, 5, "adopt"), kill(2, 9, "compute")]
    logs = members.check(members=4, owners="changing", kills=kills)
    assert [each["died"] for each in recoveries(logs)[-2:]] == [[0, 1], [2]]


def test_all_but_one_at_once_over_tcp(members: Any) -> None:
    """The end of a TCP connection proves no death; the parent does, as a witness."""
    kills = [kill(member, 5, "reduce") for member in (0, 1, 3)]
    members.check(members=4, kills=kills, links=["tcp"])


def test_in_the_last_step(members: Any) -> None:
    """The steps are 0 to 12. A survivor that has completed the last one waits for the survivor that
    has not."""
    members.check(members=4, kills=[kill(0, 12, "apply"), kill(1, 12, "behind")])


def test_in_the_last_vote_of_all(members: Any) -> None:
    logs = members.check(members=3, kills=[kill(2, 14, "finish"), kill(1, 14, "behind")])
    assert [log[-1][3] for log in logs[:2]] == [True, False]


def test_the_writer_dies_in_the_last_vote_of_all(members: Any) -> None:
    logs = members.check(members=3, kills=[kill(0, 14, "finish"), kill(1, 14, "behind")])
    assert [log[-1][3] for log in logs[1:]] == [True, False]


@pytest.mark.parametrize("more", [{}, {"every": 13}])
def test_the_writer_fails_after_the_last_step(members: Any, more: dict[str, int]) -> None:
    fails = {**kill(0, 12, "apply"), "how": "fail"}
    logs = members.check(members=3, kills=[fails], **more)
    assert [log[-1][3] for log in logs[1:]] == [True, False]


def test_behind_in_the_last_step_whose_state_is_saved(members: Any) -> None:
    """Member 0 has begun the checkpoint, and member 1 has not. They still agree on it, so both take
    part in the last vote, and one writes."""
    kills = [kill(2, 12, "apply"), kill(1, 12, "behind")]
    logs = members.check(members=3, kills=kills, every=13)
    assert [log[-1][3] for log in logs[:2]] == [True, False]
    (saved,) = members.folder.glob(f"{members.name}.saved/steps-*.json")
    assert saved.stem == f"steps-{13:012}"


KILLED = [(links, who) for links in ("shm", "tcp") for who in ([0], [2], [1, 2], [0, 1, 3])]


@pytest.mark.slow
@pytest.mark.parametrize("owners", ["even", "random", "changing"])
@pytest.mark.parametrize("phase", ["compute", "backward", "reduce", "vote", "apply"])
@pytest.mark.parametrize(("links", "who"), KILLED)
def test_every_phase(members: Any, phase: str, who: list[int], owners: str, links: str) -> None:
    if phase in ("compute", "backward") and owners == "random":
        who = [member for member in who if member != 1]  # it owns no share
    kills = [kill(member, 7, phase) for member in who]
    members.check(members=4, owners=owners, kills=kills, links=[links], bucket_bytes=1)
