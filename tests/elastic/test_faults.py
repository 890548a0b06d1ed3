# SPDX-License-Identifier: Apache-2.0
"""Members are killed, stopped, hang, fail or are expelled, in every phase of a step. The others
continue within 10 s, with the undisturbed result (Members.check). Members that were counted as dead
but live get an error, and end."""

from typing import Any

import pytest

STEP = 5
PHASES = ["compute", "reduce", "vote", "apply", "reform"]
HOWS = ["kill", "segv", "exception", "expel", "stop", "stop and continue", "gil"]
WATCHDOG = 3  # seconds


def strike(how: str, phase: str, member: int = 1, **more: Any) -> list[dict[str, Any]]:
    if how == "expel":
        more["target"] = 2
    found = [{"member": member, "step": STEP, "phase": phase, "how": how, **more}]
    if phase in ("reform", "shrink"):
        found.insert(0, {"member": 0, "step": STEP, "phase": "compute"})
    return found


@pytest.mark.parametrize(
    ("how", "phase"), [("gil", "compute"), ("stop and continue", "reduce"), ("expel", "vote")]
)
def test_sample(members: Any, how: str, phase: str) -> None:
    members.check(members=4, watchdog=WATCHDOG, kills=strike(how, phase))


@pytest.mark.slow
@pytest.mark.parametrize("links", ["shm", "tcp"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", HOWS)
def test_every_fault_in_every_phase(members: Any, how: str, phase: str, links: str) -> None:
    members.check(members=4, watchdog=WATCHDOG, kills=strike(how, phase), links=[links])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop", "gil"])
def test_while_the_comm_is_shrunk(members: Any, how: str) -> None:
    members.check(members=4, watchdog=WATCHDOG, kills=strike(how, "shrink"))


@pytest.mark.slow
@pytest.mark.parametrize("links", ["shm", "tcp"])
@pytest.mark.parametrize("who", [[1, 2], [0, 1, 3]])
@pytest.mark.parametrize("how", ["segv", "stop", "gil"])
def test_several_at_once(members: Any, how: str, who: list[int], links: str) -> None:
    """Nobody knows whether a stopped member lives, so a majority must remain."""
    if how == "stop" and who[0] == 0:
        who = [3]
    kills = [each for member in who for each in strike(how, "reduce", member)]
    members.check(members=4, watchdog=WATCHDOG, kills=kills, links=[links])


def test_a_slow_first_step_is_no_hang(members: Any) -> None:
    kills = [{"member": 1, "step": 0, "phase": "compute", "how": "gil", "harmless": True}]
    members.check(members=2, watchdog=WATCHDOG, kills=kills)
