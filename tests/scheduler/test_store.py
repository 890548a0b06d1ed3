# SPDX-License-Identifier: Apache-2.0
"""The scheduler's data survives the scheduler, and changes that are not consistent raise errors."""

import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from conftest import Run

from ddl_scheduler.base.store import JobRecord, Store, StoreError

PROGRAM = Path(__file__).parent / "programs" / "store_kills.py"
MEMORY = Path("/dev/shm")
ADD = """
import sys
from pathlib import Path
from ddl_scheduler.base.store import Store

store = Store(Path(sys.argv[1]))
store.tenant_put("other")
store.close()
"""
COUNT = """
import sqlite3, sys

print(*sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM jobs").fetchone())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    made = Store(path)
    made.tenant_put("t", cap=8)
    yield made
    made.close()


def states(store: Store) -> dict[int, str]:
    return {record.id: record.state for record in store.jobs()}


def test_killed_at_every_statement(run_here: Run, tmp_path: Path) -> None:
    """No job is lost, and none runs twice. A killed process loses nothing that it has written, so
    the files need no disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as folder:
        ended = run_here([sys.executable, str(PROGRAM), folder])
        points = int(ended.expect_success().out.split()[0])
    assert points > 100


def test_everything_is_there_when_opened_again(store: Store, path: Path) -> None:
    job = store.job_submit("t", "key", {"program": "train.py", "least": 2}, 10.0)
    store.plan_write({job: ("s1", "s2")}, 12.0)
    token = store.token_create("t", "user")
    before = (store.jobs(), store.slots(), store.intents(), store.events(), store.tenants())
    store.close()
    with closing(Store(path)) as again:
        assert before == (
            again.jobs(),
            again.slots(),
            again.intents(),
            again.events(),
            again.tenants(),
        )
        assert again.token_find(token) == ("t", "user")
        assert again.slots() == {job: ("s1", "s2")}
        (record,) = again.jobs("running")
        assert record.spec == {"program": "train.py", "least": 2}
        assert (record.epoch, record.changed) == (1, 12.0)


def test_a_process_that_ends_leaves_the_others_their_changes(
    store: Store, path: Path, run_here: Run
) -> None:
    with closing(Store(path)):
        run_here([sys.executable, "-c", ADD, path]).expect_success()
        store.job_submit("t", "key", {}, 1.0)
        done = run_here([sys.executable, "-c", COUNT, path]).expect_success()
    assert done.out.split() == ["1"]


def test_a_new_file_is_its_users_alone(store: Store, path: Path) -> None:
    store.tenant_put("t2")
    assert {each.stat().st_mode & 0o777 for each in path.parent.glob("store.db*")} == {0o600}


def test_sizes_change_and_the_submission_stays_the_same(store: Store) -> None:
    for number, spec in enumerate(({"min": 1, "max": 8, "x": 1}, {"x": 1})):
        job = store.job_submit("t", f"scaled{number}", spec, 10.0)
        for least in (2, 3):
            store.job_scale(job, least, 4, 11.0)
            found = store.job_find(job)
            assert found and (found.spec["min"], found.spec["max"]) == (least, 4)
            assert store.job_submit("t", f"scaled{number}", spec, 12.0) == job
        with pytest.raises(StoreError, match="with other values"):
            store.job_submit("t", f"scaled{number}", {**spec, "min": 3, "max": 4}, 12.0)
    store.job_move(job, "cancelled", 13.0)
    for wrong, why in ((job, "is cancelled"), (99, "job 99 does not exist")):
        with pytest.raises(StoreError, match=why):
            store.job_scale(wrong, 1, 2, 14.0)


def test_jobs_and_events_are_read_by_tenant_and_page(store: Store) -> None:
    store.tenant_put("u")
    jobs = [store.job_submit("tu"[n % 2], str(n), {}, float(n)) for n in range(6)]
    store.job_move(jobs[0], "cancelled", 7.0)
    assert [each.id for each in store.jobs_page()] == jobs[::-1]
    assert [each.id for each in store.jobs_page("t", limit=2)] == [jobs[4], jobs[2]]
    assert [each.id for each in store.jobs_page("t", before=jobs[2])] == [jobs[0]]
    assert [each.id for each in store.jobs_page("t", ("cancelled",))] == [jobs[0]]
    assert {each[2] for each in store.events(tenant="u")} == set(jobs[1::2])
    assert [each[3] for each in store.events(job=jobs[0])] == ["submitted", "cancelled"]
    assert [each[3] for each in store.events_last(jobs[0], 1)] == ["cancelled"]
    assert store.event_last() == store.events()[-1][0] == 7
    assert ("t", "cancelled", 1, 0.0) in store.jobs_count()
    assert store.job_find(99) is None
    store.plan_write({jobs[1]: ("s1", "s2"), jobs[2]: ("s3",)}, 8.0)
    owners = {"s1": (jobs[1], "u"), "s2": (jobs[1], "u"), "s3": (jobs[2], "t")}
    assert store.slots_owners() == owners


def test_a_full_disk_changes_nothing(store: Store, path: Path) -> None:
    store.close()
    with closing(Store(path)) as full:
        pages = full._one("PRAGMA page_count")
        full._one(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            for number in range(1000):
                full.job_submit("t", f"key{number}", {"text": "x" * 1000}, 1.0)
        assert len(full.jobs()) == number
        full._one(f"PRAGMA max_page_count = {pages + 1000}")
        full.job_submit("t", "later", {}, 2.0)  # it continues when there is space again
        assert len(full.jobs()) == number + 1


def test_every_change_is_on_disk(path: Path, store: Store) -> None:
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    seen: list[str] = []
    store.close()
    Store(path, seen.append).close()
    assert "PRAGMA synchronous = FULL" in seen


def test_a_submission_is_one_job_however_often_it_comes(store: Store) -> None:
    first = store.job_submit("t", "key", {"a": 1, "b": 2}, 1.0)
    assert store.job_submit("t", "key", {"b": 2, "a": 1}, 5.0) == first
    store.tenant_put("other")
    assert store.job_submit("other", "key", {"a": 1, "b": 2}, 1.0) != first
    with pytest.raises(StoreError, match="submitted as 'key' with other values"):
        store.job_submit("t", "key", {"a": 2}, 1.0)
    assert len(store.jobs()) == 2


def test_tokens_are_not_in_the_file(store: Store, path: Path) -> None:
    token, other = store.token_create("t", "admin"), store.token_create("t", "viewer")
    assert token != other
    assert store.token_find(token) == ("t", "admin")
    assert store.token_find(token[:-1]) is None
    store.token_revoke(token)
    assert store.token_find(token) is None
    assert store.token_find(other) == ("t", "viewer")
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"viewer" in files
    assert token.encode() not in files and other.encode() not in files


def test_plans_become_intents(store: Store) -> None:
    one, two = (store.job_submit("t", key, {}, 0.0) for key in "ab")
    store.plan_write({one: ("s1", "s2", "s3")}, 1.0)
    assert [(i.kind, i.agent) for i in store.intents()] == [
        ("start", f"{one}-1-s1"),
        ("start", f"{one}-1-s2"),
        ("start", f"{one}-1-s3"),
    ]
    for intent in store.intents():
        store.intent_close(intent)
    store.plan_write({one: ("s1",), two: ("s3", "s4")}, 2.0)
    # A slot is released before it is allocated to another job; agents are stopped by their names.
    assert [(i.kind, i.agent) for i in store.intents()] == [
        ("stop", f"{one}-1-s2"),
        ("stop", f"{one}-1-s3"),
        ("start", f"{two}-1-s3"),
        ("start", f"{two}-1-s4"),
    ]
    store.plan_write({one: ("s1",), two: ("s3", "s4")}, 3.0)
    assert len(store.intents()) == 4  # nothing has changed
    assert states(store) == {one: "running", two: "running"}


def test_the_end_of_a_job_gives_its_slots_back(store: Store) -> None:
    job = store.job_submit("t", "a", {}, 0.0)
    store.plan_write({job: ("s1", "s2")}, 1.0)
    store.job_move(job, "failed", 4.0, "exit code 3")
    assert store.slots() == {}
    assert [intent.kind for intent in store.intents()] == ["start", "start", "stop", "stop"]
    assert [text for *_, text in store.events()] == [
        *("submitted", "has 2 slots", "running", "failed: exit code 3", "has 0 slots")
    ]


def test_time_is_counted(store: Store) -> None:
    one, two = (store.job_submit("t", key, {}, 0.0) for key in "ab")
    store.plan_write({one: ("s1", "s2")}, 10.0)
    store.plan_write({one: ("s1",), two: ("s2",)}, 30.0)
    store.plan_write({two: ("s2",)}, 40.0)  # the policy pauses `one`
    store.job_move(two, "done", 50.0)
    first, second = store.jobs()
    assert (first.state, first.used, first.waited, first.changed) == ("waiting", 50.0, 20.0, 40.0)
    assert (second.state, second.used, second.waited) == ("done", 20.0, 30.0)


def test_a_pause_is_no_waiting(store: Store) -> None:
    job = store.job_submit("t", "a", {}, 0.0)
    store.job_move(job, "paused", 10.0)
    store.plan_write({}, 20.0)
    store.job_move(job, "waiting", 100.0)
    store.plan_write({job: ("s1",)}, 105.0)
    assert store.jobs()[0].waited == 15.0


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_what_has_ended_stays_so(store: Store, state: str) -> None:
    job = store.job_submit("t", "a", {}, 0.0)
    store.plan_write({job: ("s1",)}, 1.0)
    store.job_move(job, state, 2.0)
    with pytest.raises(StoreError, match=f"job {job} is {state} and cannot become running"):
        store.job_move(job, "running", 3.0)
    with pytest.raises(StoreError, match="have slots in the plan, but are not active"):
        store.plan_write({job: ("s1",)}, 3.0)
    assert store.slots() == {} and states(store) == {job: state}


def test_a_refused_plan_changes_nothing(store: Store) -> None:
    one, two = (store.job_submit("t", key, {}, 0.0) for key in "ab")
    store.plan_write({one: ("s1",)}, 1.0)
    before = (store.jobs(), store.slots(), store.intents(), store.events())
    with pytest.raises(StoreError, match="slots s2 are allocated twice"):
        store.plan_write({one: ("s2",), two: ("s2", "s3")}, 2.0)
    with pytest.raises(StoreError, match="jobs \\[99\\] have slots"):
        store.plan_write({99: ("s4",)}, 2.0)
    assert (store.jobs(), store.slots(), store.intents(), store.events()) == before


def test_what_does_not_exist(store: Store, path: Path) -> None:
    with pytest.raises(StoreError, match="tenant 'x' does not exist"):
        store.job_submit("x", "a", {}, 0.0)
    with pytest.raises(StoreError, match="tenant 'x' does not exist"):
        store.token_create("x", "user")
    with pytest.raises(StoreError, match="the role is 'root'; must be one of viewer, user, admin"):
        store.token_create("t", "root")
    with pytest.raises(StoreError, match="job 7 does not exist"):
        store.job_move(7, "done", 0.0)
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 9")
    with pytest.raises(StoreError, match="has version 9; this program needs 1"):
        Store(path)


def test_store_of_another_version_is_left_as_it_is(path: Path, store: Store) -> None:
    store.close()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 9")
        file.execute("DROP TABLE archived")
        file.commit()
        before = list(file.iterdump())
    with pytest.raises(StoreError, match="has version 9; this program needs 1"):
        Store(path)
    with closing(sqlite3.connect(path)) as file:
        assert list(file.iterdump()) == before


def test_store_without_additions_is_upgraded(path: Path, store: Store) -> None:
    token, job = store.token_create("t", "user"), store.job_submit("t", "a", {}, 0.0)
    with closing(sqlite3.connect(path)) as file:
        whole = set(file.execute("SELECT name FROM sqlite_master"))
    store.close()
    with closing(sqlite3.connect(path)) as file:
        for name in ("jobs_live", "jobs_used", "jobs_ended", "intents_job", "events_job"):
            file.execute(f"DROP INDEX {name}")
        for name in ("archived", "suspects", "clock"):
            file.execute(f"DROP TABLE {name}")
        file.commit()
    with closing(Store(path)) as opened:
        assert opened.token_find(token) == ("t", "user")
        assert [record.id for record in opened.jobs()] == [job]
    with closing(sqlite3.connect(path)) as file:
        assert set(file.execute("SELECT name FROM sqlite_master")) == whole


def test_backup_of_an_open_store_has_everything(path: Path, store: Store, tmp_path: Path) -> None:
    token, job = store.token_create("t", "user"), store.job_submit("t", "a", {}, 0.0)
    store.plan_write({job: ("s1",)}, 1.0)
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"VACUUM INTO '{copy}'")
    with closing(Store(copy)) as opened:
        assert (opened.jobs(), opened.slots()) == (store.jobs(), store.slots())
        assert opened.token_find(token) == ("t", "user")


def test_events_are_read_in_parts(store: Store) -> None:
    for key in "abc":
        store.job_submit("t", key, {}, 0.0)
    (first, *_), *rest = store.events(limit=2)
    assert len(rest) == 1
    assert [text for *_, text in store.events(after=first)] == ["submitted", "submitted"]


# ---- growth of the file, and the clock ----


def add_ended(store: Store, count: int) -> None:
    spec = json.dumps({"command": ["train.py", *"abcdefgh"]})
    rows = (("t", f"ended {number}", spec) for number in range(count))
    with store._change():
        store._db.executemany(
            "INSERT INTO jobs (tenant, key, spec, state, arrival, epoch, used, waited, counted)"
            " VALUES (?, ?, ?, 'done', 0, 0, 1, 0, 0)",
            rows,
        )


def test_plan_with_100_000_ended_jobs_is_quick(store: Store) -> None:
    add_ended(store, 100_000)
    job = store.job_submit("t", "live", {}, 0.0)

    def plan(number: int) -> float:
        began = time.monotonic()
        store.plan_write({job: ("s1",)} if number % 2 else {}, float(number))
        assert [record.id for record in store.jobs("waiting", "running", "paused")] == [job]
        return time.monotonic() - began

    assert min(map(plan, range(20))) < 0.05


def test_oldest_ended_jobs_are_archived(store: Store) -> None:
    early = store.job_submit("t", "early", {}, 0.0)
    add_ended(store, 300)
    paused = store.job_submit("t", "paused", {}, 0.0)
    store.job_move(paused, "paused", 1.0)
    add = [store.job_submit("t", f"new {number}", {}, 2.0) for number in range(3)]
    for job in add:
        store.job_move(job, "cancelled", 3.0 + job)
    store.job_move(early, "done", 999.0)  # the oldest one, but the last to end
    counts = store.jobs_count()
    written: list[JobRecord] = []
    removed: list[int] = []
    while more := store.archive(written.extend, keep=3):
        removed += more
    assert sorted(removed) == [*range(2, 302), add[0]] == sorted(each.id for each in written)
    assert [record.id for record in store.jobs()] == [early, paused, *add[1:]]
    assert store.jobs_count() == counts
    assert {job for *_, job, _ in store.events()} == {early, paused, *add[1:]}


def test_tenant_has_a_number_of_jobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddl_scheduler.base.store.JOBS", 3)
    jobs = [store.job_submit("t", key, {}, 0.0) for key in "abc"]
    with pytest.raises(StoreError, match="tenant t has 3 jobs that wait, run or are paused"):
        store.job_submit("t", "d", {}, 0.0)
    assert store.job_submit("t", "c", {}, 0.0) == jobs[2]
    store.job_move(jobs[0], "cancelled", 1.0)
    assert store.job_submit("t", "d", {}, 2.0) == 4


@pytest.mark.parametrize("jump", [86400.0, -86400.0])
def test_jump_of_the_wall_clock_is_not_counted(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    real = time.time
    job, other = (store.job_submit("t", key, {}, real()) for key in "ab")
    store.plan_write({job: ("s1", "s2")}, real())
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    store.plan_write({job: ("s1", "s2")}, time.time())
    with closing(Store(path)) as again:  # a service that starts after the jump
        again.plan_write({other: ("s1", "s2")}, time.time())
        monkeypatch.setattr(time, "time", real)
        again.plan_write({}, time.time())
        first, second = again.jobs()
    assert 0 <= first.used < 60 and 0 <= first.waited < 60
    assert 0 <= second.used < 60 and 0 <= second.waited < 60
    assert abs((second.changed or 0) - real()) < 60


def test_time_in_which_the_machine_was_off_is_not_counted(path: Path, store: Store) -> None:
    now = time.time()
    job = store.job_submit("t", "a", {}, now - 1000)
    store.plan_write({job: ("s1",)}, now - 900)
    store._db.execute("UPDATE clock SET boot = 'before'")
    with closing(Store(path)) as again:
        again.plan_write({job: ("s1",)}, time.time())
        assert again.jobs()[0].used < 60 and again.jobs()[0].waited == pytest.approx(100)


def test_failed_job_may_begin_again(store: Store) -> None:
    job = store.job_submit("t", "a", {}, 0.0)
    store.job_move(job, "failed", 1.0)
    store.job_move(job, "waiting", 2.0)
    store.plan_write({job: ("s1",)}, 3.0)
    assert states(store) == {job: "running"}
