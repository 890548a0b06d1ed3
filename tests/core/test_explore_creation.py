# SPDX-License-Identifier: Apache-2.0
"""The explorer of creations (libddl/tests/explore/creation) finds faults that are put into libddl's
decisions on purpose, so each invariant is really checked."""

import shutil
import subprocess
from pathlib import Path

import pytest

LIBDDL = Path(__file__).parents[2] / "libddl"
COMPILE = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-w"]

# For each fault: the right text of creation.c, the wrong one, and how the finding begins.
FAULTS = {
    "a_number_is_used_twice": ("seen : used + 1", "seen : used", "C1"),
    "a_lost_member_counts_as_dead_at_once": (
        "return now < c->doubted_until ? DDL__CREATION_LOOK : DDL__CREATION_FAIL;",
        "return DDL__CREATION_FAIL;",
        "C3",
    ),
    "waiting_members_are_dropped": ("return c->number && may_come(status);", "return false;", "C3"),
    "members_of_a_late_one_are_dropped": (
        "return c->number && may_come(status);",
        "return c->number && status == DDL__SUPERSEDED;",
        "C3",
    ),
    "a_superseded_member_gives_up": (
        "return status == DDL__SUPERSEDED && now < deadline;",
        "return false;",
        "C3",
    ),
    "a_later_creation_is_not_joined": (
        "is_missing   ? DDL__CREATION_YIELD",
        "false ? DDL__CREATION_YIELD",
        "C3",
    ),
    "an_earlier_creation_is_not_refused": (
        "theirs < own ? DDL__CREATION_REFUSE",
        "theirs < own ? DDL__CREATION_KEEP",
        "C4",
    ),
    "a_failure_is_not_sent": (": is_final ? DDL__CREATION_SEND_NOTICE", ": false ? 2", "C"),
}
SEARCHES = (["3", "2", "20000"], ["4", "3", "20000"])


def build(source: Path, to: Path) -> Path:
    """Compile the explorer with this source of the decisions."""
    sources = [*(LIBDDL / "tests" / "explore" / "creation").glob("*.c"), source]
    includes = [LIBDDL / "src", LIBDDL / "include", LIBDDL / "tests"]
    subprocess.run(
        [*COMPILE, *(f"-I{folder}" for folder in includes), *map(str, sources), "-o", str(to)],
        check=True,
    )
    return to


def search(explorer: Path) -> str:
    """Return the first finding of the searches, or "" if they have none."""
    for arguments in SEARCHES:
        command = [str(explorer), "random", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), (command, done)  # 1: a broken invariant
        if done.returncode:
            return done.stdout
    return ""


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    right, wrong, finding = FAULTS[name]
    source = Path(shutil.copy(LIBDDL / "src" / "membership" / "creation.c", tmp_path))
    text = source.read_text()
    assert text.count(right) == 1, right
    source.write_text(text.replace(right, wrong))
    found = search(build(source, tmp_path / "explore"))
    assert f"broken: {finding}" in found


def test_creations_keep_the_invariants(tmp_path: Path) -> None:
    """A sample of `make explore`: all schedules of two members, random ones of more."""
    explorer = build(LIBDDL / "src" / "membership" / "creation.c", tmp_path / "explore")
    whole = [str(explorer), "all", "2", "1"]
    done = subprocess.run(whole, capture_output=True, text=True, check=True)
    assert "all, no broken invariant" in done.stdout
    assert not search(explorer)
