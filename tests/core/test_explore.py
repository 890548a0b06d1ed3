# SPDX-License-Identifier: Apache-2.0
"""The explorers of schedules and of creations (libddl/tests/explore) find faults that are inserted
into libddl's membership, so each invariant is really checked."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from datetime import date
from pathlib import Path

import pytest

LIBDDL = Path(__file__).parents[2] / "libddl"
COMPILE = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-w"]


# For each fault: its name, the file, and how the finding begins; then the right text of the
# file and the wrong one. More words say where it is found:
#   seed            a rare schedule: members, faults, schedules, seed
#   layout          all schedules only, which takes long: members, faults, states, layout
#   in all of two   all schedules of two members with two faults
#   hidden by       with this other fault, too
TEXT = r"""
a_witness_proves_too_much members.c S1, seed 3 2 1 153223
    `peer->confirmed_attempt <= peer->done && ` -> ``
a_reset_proves_a_death members.c S1, in all of two
    `local || is_proven(peer), error` -> `true, error`
an_expulsion_from_the_survivors_is_ignored members.c S1, seed 3 2 1 15
    `    ddl__member_mark_continues(m, from, now);
    if (was_alive && !message->flag)` -> `    if (was_alive && !message->flag)`
half_without_the_lowest_continues agreement.c S1, in all of two
    `2 * surviving == possible && ddl__set_has(live, lowest)` -> `2 * surviving == possible`
an_expelled_member_that_continues_does_not_count agreement.c S1, seed 4 3 1 1795968972691953
    `!peer->may_continue && (peer->state == DDL__LEFT || (peer->expelled && waited))` ->
    `(peer->state == DDL__LEFT && !peer->may_continue) || (peer->expelled && waited)`
a_minority_continues agreement.c S1, in all of two
    `return 2 * surviving > possible ||` -> `return surviving > 0 ||`
returns_before_all_have_created agreement.c S3, in all of two
    `if (all || is_committed(m))` -> `if (true)`
a_lost_member_does_not_end_a_creation agreement.c L1, in all of two
    `peer->joined > m->attempt || (dead && !has_done(m, rank)) ||` -> ``
the_accuser_is_left_out_at_once agreement.c L3, seed 3 2 1 120555
    ` && !awaits_news(m, now)` -> ``
a_left_out_member_continues agreement.c S2, hidden by a_leader_that_resigns_ends_its_followers
    `ddl__set_has(live, m->rank) ? begin_creation(m)` -> `true ? begin_creation(m)`
an_expulsion_reaches_only_some members.c S1, seed 4 2 1 6575
    `    else
        ddl__member_broadcast(m, e);` -> ``
a_death_is_not_announced members.c L, in all of two
    `ddl__member_send(m, i, &(ddl__member_msg){.kind = DDL__DEAD});` -> `(void)was_told;`
an_attempt_is_not_followed agreement.c L1
    `m->peers[rank].joined > m->gathering)` -> `false)`
two_survivors_that_cannot_connect_try_again_and_again members.c L1, seed 6 4 1 1016
    `(!has_heartbeats && !has_joined)` -> `!has_heartbeats`
the_highest_member_in_dispute_is_left_out agreement.c S4
    `            most = m->peers[rank].disputes;
` -> ``
a_leader_does_not_await_a_late_commit agreement.c L3, layout 3 2 1e7 6
    ` && !is_loss_unseen(m)` -> ``
the_leader_is_never_left_out agreement.c L4, seed 4 2 1 49284
    `if (waited && is_cut_off(m, may_continue ? count(m, live) : 0, now))` -> `if (false)`
a_leader_that_resigns_ends_its_followers agreement.c L4, seed 4 2 1 45204
    `is_empty(m, message->set)` -> `false && is_empty(m, message->set)`
a_leader_decides_before_its_followers_have_seen_its_losses agreement.c L4
    `: can_continue(m, lost);` -> `: false;`
no_follower_vouches agreement.c L4, seed 4 2 1 27300
    `peer->vouched_at = m->gathering;` -> `continue;`
a_follower_vouches_to_one_leader agreement.c L4, seed 6 1 1 104225
    ` && peer->vouched_to == leader)` -> `)`
disputes_remain_among_the_survivors agreement.c S5
    `int found = -1, most = 1;` -> `int found = -1, most = 2;`
a_new_leader_waits_for_a_survivor_dead_by_report agreement.c L1, seed 6 4 1 31076
    `(!peer->by_report || leads)` -> `!peer->by_report`
a_number_is_used_twice creation.c C1
    `seen : used + 1` -> `seen : used`
a_lost_member_counts_as_dead_at_once creation.c C3
    `return now < c->doubted_until ? DDL__CREATION_LOOK : DDL__CREATION_FAIL;` ->
    `return DDL__CREATION_FAIL;`
waiting_members_are_dropped creation.c C3
    `return c->number && may_come(status);` -> `return false;`
members_of_a_late_one_are_dropped creation.c C3
    `return c->number && may_come(status);` -> `return c->number && status == DDL__SUPERSEDED;`
a_superseded_member_gives_up creation.c C3
    `return status == DDL__SUPERSEDED && now < deadline;` -> `return false;`
a_later_creation_is_not_joined creation.c C3
    `is_missing   ? DDL__CREATION_YIELD` -> `false ? DDL__CREATION_YIELD`
an_earlier_creation_is_not_refused creation.c C4
    `theirs < own ? DDL__CREATION_REFUSE` -> `theirs < own ? DDL__CREATION_KEEP`
a_failure_is_not_sent creation.c C
    `: is_final ? DDL__CREATION_SEND_NOTICE` -> `: false ? 2`
"""
FAULT = re.compile(r"^(\w+) (\w+\.c) (\w+)(.*)\n +`([^`]*)` ->\s+`([^`]*)`", re.M)


class Fault:
    def __init__(self, name: str, file: str, finding: str, more: str, right: str, wrong: str):
        self.name, self.file, self.finding = name, file, f"broken: {finding}"
        self.right, self.wrong, self.more = right, wrong, more

    def words(self, key: str) -> list[str]:
        """Return the words after this key; none if the key is missing."""
        return (re.findall(f"{key} ([^,]*)", self.more) or [""])[0].split()


ALL = [Fault(*found) for found in FAULT.findall(TEXT)]
FAULTS = [fault for fault in ALL if fault.file != "creation.c"]
OF_CREATIONS = [fault for fault in ALL if fault.file == "creation.c"]
assert TEXT.count("` ->") == len(ALL)
SEEDS = [fault.words("seed") for fault in FAULTS if fault.words("seed")]
SEARCHES = (["4", "2", "20000"], ["3", "2", "40000"])
SEARCHES_OF_CREATIONS = (["3", "2", "20000"], ["4", "3", "20000"])
# Members and schedules, with new schedules each day, including sparse comms.
DAILY = (["4", "20000"], ["6", "4000"], ["9", "1000"], ["33", "20"])


def compile_objects(sources: Iterable[Path], folder: Path) -> dict[str, Path]:
    """Compile these files into the folder, and return the objects by their names."""
    includes = [LIBDDL / "src" / "membership", LIBDDL / "src", LIBDDL / "include", LIBDDL / "tests"]
    command = [*COMPILE, "-c", *(f"-I{each}" for each in includes), *map(str, sources)]
    subprocess.run(command, cwd=folder, check=True)
    return {path.name: path for path in folder.glob("*.o")}


def link(objects: dict[str, Path], to: Path) -> Path:
    """Link an explorer."""
    command = ["gcc", "-Wl,--wrap=ddl__is_sparse", *map(str, objects.values()), "-o", str(to)]
    subprocess.run(command, check=True)
    return to


def build_creation(source: Path, folder: Path) -> Path:
    """Build the explorer of creations with this creation.c."""
    sources = (LIBDDL / "tests" / "explore" / "creation").glob("*.c")
    return link(compile_objects([*sources, source], folder), folder / "explore")


def search(explorer: Path, *searches: list[str]) -> str:
    """Return the broken invariant that one of the searches finds, with the seed, or ""."""
    for arguments in searches:
        command = [str(explorer), "random", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as done:
            assert done.stdout
            lines = [done.stdout.readline(), done.stdout.readline()]
            if lines[1]:  # the schedule is not shortened here
                done.kill()
                return "".join(lines)
        assert done.returncode == 0 and "no broken invariant" in lines[0], (command, lines)
    return ""


def explore_layout(explorer: Path, arguments: list[str]) -> str:
    """Return the first line about all schedules of a layout, before a schedule is shortened."""
    command = [str(explorer), "all", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as done:
        assert done.stdout
        line = done.stdout.readline()
        done.kill()
    return line


def explore_all(explorer: Path, *arguments: str) -> str:
    command = [str(explorer), "all", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def planted(folder: Path, *faults: Fault) -> set[Path]:
    """Write files of libddl's membership with these faults into the folder, and return them."""
    files = {folder / fault.file for fault in faults}
    for path in files:
        shutil.copy(LIBDDL / "src" / "membership" / path.name, path)
    for fault in faults:
        path = folder / fault.file
        text = path.read_text()
        assert text.count(fault.right) == 1, fault.right
        path.write_text(text.replace(fault.right, fault.wrong))
    return files


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The objects of the explorer and of libddl's membership."""
    parts = (LIBDDL / "tests" / "explore", LIBDDL / "src" / "membership")
    sources = [path for folder in parts for path in folder.glob("*.c")]
    return compile_objects(sources, tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def explorer(objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link(objects, tmp_path_factory.mktemp("explore") / "explore")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[pytest.mark.slow] * bool(fault.words("layout")))
        for fault in FAULTS
    ],
)
def test_planted_fault_is_found(fault: Fault, objects: dict[str, Path], tmp_path: Path) -> None:
    hiding = [other for other in FAULTS if other.name in fault.words("hidden by")]
    faulty = compile_objects(planted(tmp_path, fault, *hiding), tmp_path)
    explorer = link({**objects, **faulty}, tmp_path / "explore")
    if layout := fault.words("layout"):
        assert fault.finding in explore_layout(explorer, layout)
        return
    seeds = [fault.words("seed")] if fault.words("seed") else []
    assert fault.finding in search(explorer, *seeds, *SEARCHES)
    if "in all of two" in fault.more:
        assert fault.finding in explore_all(explorer, "2", "2", "1e5")


@pytest.mark.parametrize("fault", OF_CREATIONS, ids=lambda fault: fault.name)
def test_planted_fault_of_creations_is_found(fault: Fault, tmp_path: Path) -> None:
    explorer = build_creation(*planted(tmp_path, fault), tmp_path)
    assert fault.finding in search(explorer, *SEARCHES_OF_CREATIONS)


def test_creations_keep_the_invariants(tmp_path: Path) -> None:
    """A sample of `make explore`: all schedules of two members, random ones of more."""
    explorer = build_creation(LIBDDL / "src" / "membership" / "creation.c", tmp_path)
    assert "all, no broken invariant" in explore_all(explorer, "2", "1")
    assert not search(explorer, *SEARCHES_OF_CREATIONS)


def test_all_schedules_of_two_members_keep_the_invariants(explorer: Path) -> None:
    assert "all, no broken invariant" in explore_all(explorer, "2", "2", "1e5")


def test_rare_schedules_keep_the_invariants(explorer: Path) -> None:
    assert not search(explorer, *SEEDS)


def test_schedules_of_the_day_keep_the_invariants(explorer: Path) -> None:
    """A sample of `make explore`. Each day has other seeds."""
    seed = str(date.today().toordinal() * 1_000_000)
    searches = [[members, "3", schedules, seed] for members, schedules in DAILY]
    print("members, faults, schedules, seed:", searches)
    assert not search(explorer, *searches)


def test_normal_forms_have_the_same_future(explorer: Path) -> None:
    """The exhaustive search skips no state that differs (reduce.c)."""
    for members in ("2", "3"):
        command = [str(explorer), "check", members, "2", "1000"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_normal_forms_of_a_sparse_comm_are_refused(explorer: Path) -> None:
    """In a sparse comm, the first message over a late connection has effects that reduce.c does not
    know, so DEAD may not be dropped."""
    command = [str(explorer), "check", "33", "4", "5", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "larger comms are sparse" in done.stderr, done
