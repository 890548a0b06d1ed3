# SPDX-License-Identifier: Apache-2.0
"""Workers that are killed, stopped or crash in every phase of a join.

They are the one that joins, one that was there, the one that writes the checkpoints, two at once,
and all but one. The others go on with the undisturbed result, and the dead ones are replaced.
"""

import json
from pathlib import Path
from typing import Any

import pytest

OLD = 3  # members 0, the writer, to 2
NEW = 3  # the member that joins
VICTIMS = {
    "newcomer": [NEW],
    "survivor": [1],
    "writer": [0],
    "two": [1, NEW],
    "all but one": [0, 1, NEW],
}
# For each phase: the place where the joining worker is struck, and the places of the others.
PHASES = {
    "boot": ("warm-up", "voting"),
    "switch": ("hello, by a newcomer", "switch"),
    "observe": ("observing", "telling"),
    "checkpoint": ("writing", "writing"),
}
TRIES = 3  # until all victims have reached the phase


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, str]:
    return {}


def strike(jobs: Any, folder: Path, phase: str, who: list[int], how: str) -> dict[str, Any]:
    by_newcomer, by_others = PHASES[phase]
    case = {"workers": "1:4", "start": OLD, "replace": True, "passes": 40, "how": how}
    if (phase, how) == ("boot", "stop") and NEW in who:  # only the watchdog finds these
        case.update(watchdog=0.5, slow={str(member): 0.03 for member in range(8)})
    for attempt in range(TRIES):
        names = [f"{by_newcomer if m == NEW else by_others}, member {m}" for m in who]
        if phase == "boot":  # the others are struck once the joining worker is there
            later = {f"die in {name}": how for name in names if by_others in name}
            (folder / f"at {by_newcomer}").write_text(json.dumps(later))
            names = [name for name in names if by_newcomer in name]
        elif phase == "checkpoint":
            case.update(checkpoint=f"saved{attempt}", every=5)
        (report,) = jobs.run({**case, "resize": [[3, OLD + 1, *names]]})
        left = [*folder.glob("die in *"), *folder.glob("at *")]
        if not left:
            return dict(report)
        for each in left:
            each.unlink()
    raise AssertionError(f"not struck in {TRIES} jobs: {left}")


def cases() -> list[tuple[str, str, str]]:
    found = [(p, v, how) for p in PHASES for v in VICTIMS for how in ("kill", "segv", "stop")]
    # Nobody knows whether a stopped member lives, so a majority must remain.
    return [each for each in found if each[1:] != ("all but one", "stop")]


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "victims", "how"), cases())
def test_every_victim_in_every_phase(
    jobs: Any, tmp_path: Path, undisturbed: dict[int, str], phase: str, victims: str, how: str
) -> None:
    if not undisturbed:
        (alone,) = jobs.run({"workers": 1, "passes": 40})
        undisturbed[40] = alone["hash"]
    who = VICTIMS[victims]
    report = strike(jobs, tmp_path, phase, who, how)
    jobs.check(report, undisturbed[40])
    died = [each["member"] for each in report["events"] if each["kind"] == "died"]
    assert sorted(died) == sorted(who)
    assert len(report["workers"]) >= OLD + 1 + len(who)
