# SPDX-License-Identifier: Apache-2.0
"""The explorer of schedules (libddl/tests/explore) finds faults that are put into libddl's
membership on purpose, so each invariant is really checked."""

import shutil
import subprocess
from datetime import date
from pathlib import Path

import pytest

LIBDDL = Path(__file__).parents[2] / "libddl"
COMPILE = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-w", "-Wl,--wrap=ddl__is_sparse"]

# For each fault: the file, the right text, the wrong one, and how the explorer's finding begins.
FAULTS = {
    "a_witness_proves_too_much": (
        "members.c",
        "peer->confirmed_attempt <= peer->done && ",
        "",
        "S1",
    ),
    "a_reset_proves_a_death": ("members.c", "local || is_proven(peer), error", "true, error", "S1"),
    "an_expulsion_from_the_survivors_is_ignored": (
        "members.c",
        "    ddl__member_mark_continues(m, from, now);\n    if (was_alive && !message->flag)",
        "    if (was_alive && !message->flag)",
        "S1",
    ),
    "half_without_the_lowest_continues": (
        "agreement.c",
        "2 * surviving == possible && ddl__set_has(live, lowest)",
        "2 * surviving == possible",
        "S1",
    ),
    "an_expelled_member_that_continues_does_not_count": (
        "agreement.c",
        "!peer->may_continue && (peer->state == DDL__LEFT || (peer->expelled && waited))",
        "(peer->state == DDL__LEFT && !peer->may_continue) || (peer->expelled && waited)",
        "S1",
    ),
    "a_minority_continues": (
        "agreement.c",
        "return 2 * surviving > possible ||",
        "return surviving > 0 ||",
        "S1",
    ),
    "returns_before_all_have_created": (
        "agreement.c",
        "if (all || is_committed(m))",
        "if (true)",
        "S3",
    ),
    "a_lost_member_does_not_end_a_creation": (
        "agreement.c",
        "peer->joined > m->attempt || (dead && !has_done(m, rank)) ||",
        "",
        "L1",
    ),
    "the_accuser_is_left_out_at_once": ("agreement.c", " && !awaits_news(m, now)", "", "L3"),
    "a_member_that_is_left_out_continues": (
        "agreement.c",
        "ddl__set_has(live, m->rank) ? begin_creation(m)",
        "true ? begin_creation(m)",
        "S2",
    ),
    "an_expulsion_reaches_only_some": (
        "members.c",
        "    else\n        ddl__member_broadcast(m, e);",
        "",
        "S1",
    ),
    "a_death_is_not_announced": (
        "members.c",
        "ddl__member_send(m, i, &(ddl__member_msg){.kind = DDL__DEAD});",
        "(void)was_told;",
        "L",
    ),
    "an_attempt_is_not_followed": (
        "agreement.c",
        "m->peers[rank].joined > m->gathering)",
        "false)",
        "L1",
    ),
    "two_survivors_that_cannot_connect_try_again_and_again": (
        "members.c",
        "(!has_heartbeats && !has_joined)",
        "!has_heartbeats",
        "L1",
    ),
    "the_highest_member_in_dispute_is_left_out": (
        "agreement.c",
        "            most = m->peers[rank].disputes;\n",
        "",
        "S4",
    ),
    "a_leader_does_not_await_a_late_commit": ("agreement.c", " && !is_loss_unseen(m)", "", "L3"),
    "the_leader_is_never_left_out": (
        "agreement.c",
        "if (waited && is_cut_off(m, may_continue ? count(m, live) : 0, now))",
        "if (false)",
        "L4",
    ),
    "a_leader_that_resigns_ends_its_followers": (
        "agreement.c",
        "is_empty(m, message->set)",
        "false && is_empty(m, message->set)",
        "L4",
    ),
    "a_leader_decides_before_its_followers_have_seen_its_losses": (
        "agreement.c",
        ": can_continue(m, lost);",
        ": false;",
        "L4",
    ),
    "no_follower_vouches": ("agreement.c", "peer->vouched_at = m->gathering;", "continue;", "L4"),
    "a_follower_vouches_to_one_leader": (
        "agreement.c",
        " && peer->vouched_to == leader)",
        ")",
        "L4",
    ),
    "disputes_remain_among_the_survivors": (
        "agreement.c",
        "int found = -1, most = 1;",
        "int found = -1, most = 2;",
        "S5",
    ),
    "a_new_leader_waits_for_a_survivor_dead_by_report": (
        "agreement.c",
        "(!peer->by_report || leads)",
        "!peer->by_report",
        "L1",
    ),
}
# A fault that another rule hides: that rule is broken, too.
HIDDEN = {"a_member_that_is_left_out_continues": "a_leader_that_resigns_ends_its_followers"}
SEARCHES = (["4", "2", "20000"], ["3", "2", "40000"])
SEEDS = {  # of rare schedules that find them: members, faults, schedules, seed
    "the_leader_is_never_left_out": ["4", "2", "1", "49284"],
    "no_follower_vouches": ["4", "2", "1", "27300"],
    "a_follower_vouches_to_one_leader": ["6", "1", "1", "104225"],
    "a_leader_that_resigns_ends_its_followers": ["4", "2", "1", "45204"],
    "an_expulsion_from_the_survivors_is_ignored": ["3", "2", "1", "15"],
    "an_expelled_member_that_continues_does_not_count": ["4", "3", "1", "1795968972691953"],
    "an_expulsion_reaches_only_some": ["4", "2", "1", "6575"],
    "the_accuser_is_left_out_at_once": ["3", "2", "1", "120555"],
    "a_witness_proves_too_much": ["3", "2", "1", "153223"],
    "two_survivors_that_cannot_connect_try_again_and_again": ["6", "4", "1", "1016"],
    "a_new_leader_waits_for_a_survivor_dead_by_report": ["6", "4", "1", "31076"],
}
IN_ALL_OF_TWO = {  # found among all schedules of two members with two faults
    "a_reset_proves_a_death",
    "half_without_the_lowest_continues",
    "a_minority_continues",
    "returns_before_all_have_created",
    "a_lost_member_does_not_end_a_creation",
    "a_death_is_not_announced",
}
# Found among all schedules only: members, faults, states, layout.
IN_ONE_LAYOUT = {"a_leader_does_not_await_a_late_commit": ["3", "2", "1e7", "6"]}
# Members and schedules of new ones each day, sparse comms among them.
DAILY = (["4", "20000"], ["6", "4000"], ["9", "1000"], ["33", "20"])


def build(membership: Path, to: Path) -> Path:
    """Compile the explorer with the membership of this folder."""
    sources = [
        *(LIBDDL / "tests" / "explore").glob("*.c"),
        *(membership / "membership").glob("*.c"),
    ]
    includes = [membership, LIBDDL / "src", LIBDDL / "include", LIBDDL / "tests"]
    subprocess.run(
        [*COMPILE, *(f"-I{folder}" for folder in includes), *map(str, sources), "-o", str(to)],
        check=True,
    )
    return to


def search(explorer: Path, *searches: list[str]) -> str:
    """Return the invariant that one of the searches finds broken, with the seed, or ""."""
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


def explore_all_of_two(explorer: Path) -> str:
    command = [str(explorer), "all", "2", "2", "1e5"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def plant(folder: Path, file: str, right: str, wrong: str) -> None:
    path = folder / "membership" / file
    text = path.read_text()
    assert text.count(right) == 1, right
    path.write_text(text.replace(right, wrong))


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The explorer of libddl as it is."""
    return build(LIBDDL / "src", tmp_path_factory.mktemp("explorer") / "explore")


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    file, right, wrong, finding = FAULTS[name]
    shutil.copytree(LIBDDL / "src" / "membership", tmp_path / "membership")
    plant(tmp_path, file, right, wrong)
    if name in HIDDEN:
        plant(tmp_path, *FAULTS[HIDDEN[name]][:3])
    seeds = [SEEDS[name]] if name in SEEDS else []
    explorer = build(tmp_path, tmp_path / "explore")
    if name in IN_ONE_LAYOUT:
        assert f"broken: {finding}" in explore_layout(explorer, IN_ONE_LAYOUT[name])
        return
    assert f"broken: {finding}" in search(explorer, *seeds, *SEARCHES)
    if name in IN_ALL_OF_TWO:
        assert f"broken: {finding}" in explore_all_of_two(explorer)


def test_all_schedules_of_two_members_keep_the_invariants(explorer: Path) -> None:
    assert "all, no broken invariant" in explore_all_of_two(explorer)


def test_rare_schedules_keep_the_invariants(explorer: Path) -> None:
    assert not search(explorer, *SEEDS.values())


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
