# SPDX-License-Identifier: Apache-2.0
"""The scheduler's persistent state, in SQLite: tenants, tokens, jobs, allocated slots and events.

Design notes
- Each change is one transaction, on disk before the method returns (WAL, synchronous FULL). A
  process that is killed at any point has made a change completely or not at all.
- An engine is called only for what is already stored. A plan writes the new allocation together
  with an intent for each agent to start or stop. Each intent is then carried out and closed. After
  a restart, the open intents are carried out again. An agent has the name of its intent, so a
  repeated intent can be recognised.
- A client chooses a key for each submission. A second submission with the key is the same job.
- A token has 256 random bits. Only its hash is stored.
- Only one thread uses a store.
- Plans read the unfinished jobs through an index. The store keeps the newest of the finished jobs,
  see `archive`.
- Times of events and arrivals are read from the wall clock. Durations are differences of times from
  `steady`, which no change of the wall clock affects.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddl_elastic.base.states import State

VERSION = 1
BUSY = 60.0  # seconds to wait while another process or thread changes the file
ROLES = ("viewer", "user", "admin")


class JobState(State):
    """The state of a job, in the store and in answers to requests."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = (JobState.WAITING, JobState.RUNNING)
UNFINISHED = (*ACTIVE, JobState.PAUSED)
ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
KEEP = 10_000  # finished jobs that stay in the file
# Jobs that one call of `archive` moves, so that other requests do not wait long for it.
ARCHIVE_AT_ONCE = 200
TOKEN_ID = 12  # characters of a token's hash that name it, which do not reveal the token
JOBS = 1000  # the most unfinished jobs of a tenant
# Seconds that the wall clock may differ from the steady clock before it counts as changed.
JUMP = 1.0
# The possible next states. A failed job may resume from its checkpoint. Other finished jobs keep
# their state. A running job may end at the moment when it is asked to release its last slot.
STATES: dict[JobState, set[JobState]] = {
    JobState.WAITING: {JobState.RUNNING, JobState.PAUSED, *ENDED},
    JobState.RUNNING: {JobState.WAITING, JobState.PAUSED, *ENDED},
    JobState.PAUSED: {JobState.WAITING, *ENDED},
    JobState.DONE: set(),
    JobState.FAILED: {JobState.WAITING},
    JobState.CANCELLED: set(),
}
# Parts of SQLite's messages if the disk is full or fails, or if the file is in use for too long.
_TROUBLES = ("disk is full", "disk I/O error", "unable to open", "database is locked")
_SCHEMA = """
CREATE TABLE tenants (
    name TEXT PRIMARY KEY, cap INTEGER, guarantee INTEGER NOT NULL, weight REAL NOT NULL
);
CREATE TABLE tokens (
    hash TEXT PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants, role TEXT NOT NULL
);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants, key TEXT NOT NULL,
    spec TEXT NOT NULL, state TEXT NOT NULL, arrival REAL NOT NULL, epoch INTEGER NOT NULL,
    used REAL NOT NULL, waited REAL NOT NULL, changed REAL, counted REAL NOT NULL,
    UNIQUE (tenant, key)
);
CREATE TABLE allocations (
    slot TEXT PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs, epoch INTEGER NOT NULL
);
CREATE TABLE intents (
    id INTEGER PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs, epoch INTEGER NOT NULL,
    kind TEXT NOT NULL, slot TEXT NOT NULL, open INTEGER NOT NULL
);
CREATE INDEX intents_open ON intents (open) WHERE open;
CREATE TABLE events (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, job INTEGER REFERENCES jobs, text TEXT NOT NULL
);
"""
# Additions for files of earlier releases.
_LIVE = "state IN ('waiting', 'running', 'paused')"
_ADDED = f"""
CREATE INDEX IF NOT EXISTS jobs_live ON jobs (state, id) WHERE {_LIVE};
CREATE INDEX IF NOT EXISTS jobs_used ON jobs (tenant, state, used);
CREATE INDEX IF NOT EXISTS jobs_ended ON jobs (counted) WHERE NOT {_LIVE};
CREATE INDEX IF NOT EXISTS allocations_job ON allocations (job);
CREATE INDEX IF NOT EXISTS intents_job ON intents (job);
CREATE INDEX IF NOT EXISTS events_job ON events (job);
CREATE TABLE IF NOT EXISTS archived (
    tenant TEXT NOT NULL REFERENCES tenants, state TEXT NOT NULL, count INTEGER NOT NULL,
    used REAL NOT NULL, PRIMARY KEY (tenant, state)
);
CREATE TABLE IF NOT EXISTS suspects (
    host TEXT PRIMARY KEY, time REAL NOT NULL, job INTEGER NOT NULL, text TEXT NOT NULL,
    cleared INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS clock (boot TEXT PRIMARY KEY, ahead REAL NOT NULL)
"""


def _create(path: Path) -> None:
    """Create a file that only its user can read, since environments may be secret.

    Does not open an existing file: closing it would release the locks that this process's SQLite
    connections hold on it (POSIX). The next process that closes the database would then delete the
    data that these connections write afterwards.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def disk_trouble(error: BaseException) -> str:
    """Return the problem that prevents writing for now, such as a full disk, or "" for other
    errors."""
    if isinstance(error, sqlite3.OperationalError):
        return str(error) if any(each in str(error) for each in _TROUBLES) else ""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    return ""


class StoreError(Exception):
    """A request that the store cannot carry out. The message contains the reason."""


@dataclass(frozen=True)
class JobRecord:
    """A job as it is stored."""

    id: int
    tenant: str
    key: str
    spec: Mapping[str, Any]
    state: JobState
    arrival: float
    epoch: int  # how often its slots have changed
    used: float  # slot-seconds up to the last plan
    waited: float  # seconds without slots up to the last plan
    changed: float | None  # when its slots last changed, by the steady clock
    why: str | None = None  # the reason why it has failed


@dataclass(frozen=True)
class Intent:
    """A request to an engine to start or stop an agent on a slot."""

    id: int
    job: int
    epoch: int  # the job's epoch when the agent was started
    kind: str  # start, stop
    slot: str

    @property
    def agent(self) -> str:
        """The unique name of the agent to start or stop."""
        return f"{self.job}-{self.epoch}-{self.slot}"


class Store:
    """The scheduler's database. Times are read from the caller's clock, in seconds since 1970."""

    def __init__(self, path: Path, on_statement: Callable[[str], object] | None = None) -> None:
        """Open the store. `on_statement` is called with each statement before it runs."""
        self.path = path
        _create(path)
        self._db = sqlite3.connect(path, BUSY, isolation_level=None)
        self._db.set_trace_callback(on_statement)
        try:
            self._open(path)
        except BaseException:
            self._db.close()
            raise

    def _open(self, path: Path) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        with self._change():
            version = self._one("PRAGMA user_version")
            if version == 0:
                for statement in _SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise StoreError(f"{path} has version {version}; this program needs {VERSION}")
            for statement in _ADDED.split(";\n"):
                self._db.execute(statement)
            self._ahead = self._read_clock()

    def _read_clock(self) -> float:
        """Return the seconds by which the steady clock is ahead of the time since the machine's
        start. The first store that is opened after a start of the machine chooses them, so that the
        clock is not behind the newest stored time."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        if (ahead := self._one("SELECT ahead FROM clock WHERE boot = ?", boot)) is not None:
            return float(ahead)
        newest = self._one(
            f"SELECT MAX(MAX(counted, COALESCE(changed, 0))) FROM jobs WHERE {_LIVE}"
        )
        now = max(time.time(), newest or 0.0)
        self._db.execute(f"UPDATE jobs SET counted = ? WHERE {_LIVE} AND counted < ?", (now, now))
        self._db.execute("DELETE FROM clock")
        ahead = now - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._db.execute("INSERT INTO clock VALUES (?, ?)", (boot, ahead))
        return float(ahead)

    def steady(self, now: float) -> float:
        """Convert the wall clock's time `now` to the time of the steady clock, which is never set.
        All stores of a file share this clock."""
        jump = time.clock_gettime(time.CLOCK_BOOTTIME) + self._ahead - time.time()
        return now + jump if abs(jump) > JUMP else now

    def write_check(self) -> None:
        """Write the store's version again, which needs room on the disk like every change. Raises
        sqlite3.OperationalError."""
        with self._change():
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        """Close the file. It may be opened again."""
        self._db.close()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Run a block as one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite ends the transaction itself if the disk is full
                self._db.execute("ROLLBACK")
            raise

    def _one(self, question: str, *values: object) -> Any:
        row = self._db.execute(question, values).fetchone()
        return row[0] if row else None

    # Tenants and their tokens

    def tenant_put(
        self, name: str, cap: int | None = None, guarantee: int = 0, weight: float = 1.0
    ) -> None:
        """Add a tenant, or change its quota."""
        with self._change():
            self._db.execute(
                "INSERT INTO tenants VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                " cap = excluded.cap, guarantee = excluded.guarantee, weight = excluded.weight",
                (name, cap, guarantee, weight),
            )

    def tenants(self) -> list[tuple[str, int | None, int, float]]:
        """Return the name, cap, guarantee and weight of each tenant, by name."""
        return self._db.execute("SELECT * FROM tenants ORDER BY name").fetchall()

    def token_create(self, tenant: str, role: str) -> str:
        """Create a token and return it; the store keeps only its hash. Raises StoreError."""
        if role not in ROLES:
            raise StoreError(f"the role is {role!r}; must be one of {', '.join(ROLES)}")
        token = secrets.token_urlsafe(32)
        with self._change():
            self._tenant_check(tenant)
            self._db.execute("INSERT INTO tokens VALUES (?, ?, ?)", (_hash(token), tenant, role))
        return token

    def token_find(self, token: str) -> tuple[str, str] | None:
        """Return the tenant and the role of a token, or None if it is not valid."""
        row = self._db.execute(
            "SELECT tenant, role FROM tokens WHERE hash = ?", (_hash(token),)
        ).fetchone()
        return (row[0], row[1]) if row else None

    def tokens(self) -> list[tuple[str, str, str]]:
        """Return the id, the tenant and the role of each token, by tenant."""
        return self._db.execute(
            f"SELECT substr(hash, 1, {TOKEN_ID}), tenant, role FROM tokens ORDER BY 2, 3, 1"
        ).fetchall()

    def token_revoke(self, token: str) -> bool:
        """Make a token, or the token with this id, invalid. Return whether there was one."""
        with self._change():
            removed = self._db.execute(
                f"DELETE FROM tokens WHERE hash = ? OR substr(hash, 1, {TOKEN_ID}) = ?",
                (_hash(token), token),
            )
        return removed.rowcount > 0

    def _tenant_check(self, name: str) -> None:
        if self._one("SELECT 1 FROM tenants WHERE name = ?", name) is None:
            raise StoreError(f"tenant {name!r} does not exist")

    # Jobs

    def job_submit(self, tenant: str, key: str, spec: Mapping[str, Any], now: float) -> int:
        """Submit a job and return its number. If the key was submitted before, return that job.

        Raises StoreError, for example if the key was submitted with another specification.
        """
        text = json.dumps(spec, sort_keys=True)
        with self._change():
            self._tenant_check(tenant)
            row = self._db.execute(
                "SELECT id, spec FROM jobs WHERE tenant = ? AND key = ?", (tenant, key)
            ).fetchone()
            if row and _asked(row[1]) != json.loads(text):
                raise StoreError(
                    f"job {row[0]} was submitted as {key!r} with other values; use another key"
                )
            if row:
                return int(row[0])
            count = self._one(f"SELECT COUNT(*) FROM jobs WHERE {_LIVE} AND tenant = ?", tenant)
            if count >= JOBS:
                raise StoreError(
                    f"tenant {tenant} has {count} jobs that wait, run or are paused; the limit is"
                    f" {JOBS}: cancel some jobs, or wait until some have ended"
                )
            number = self._db.execute(
                "INSERT INTO jobs (tenant, key, spec, state, arrival, epoch, used, waited, counted)"
                " VALUES (?, ?, ?, 'waiting', ?, 0, 0, 0, ?)",
                (tenant, key, text, now, self.steady(now)),
            ).lastrowid
            assert number is not None
            self._event(number, now, "submitted")
        return number

    def jobs(self, *states: JobState) -> list[JobRecord]:
        """Return the jobs in these states (none: all jobs), by number."""
        marks = ", ".join("?" * len(states))
        live = f"{_LIVE} AND " if states and {*states} <= {*UNFINISHED} else ""  # for the index
        condition = f"{live}state IN ({marks})" if states else "TRUE"
        return self._records(f"{condition} ORDER BY id", *states)

    def _records(self, condition: str, *values: object) -> list[JobRecord]:
        rows = self._db.execute(
            "SELECT id, tenant, key, spec, state, arrival, epoch, used, waited, changed,"
            " CASE state WHEN 'failed' THEN (SELECT substr(text, 9) FROM events WHERE job = jobs.id"
            " AND text LIKE 'failed: %' ORDER BY id DESC LIMIT 1) END"
            f" FROM jobs WHERE {condition}",
            values,
        )
        return [
            JobRecord(number, name, key, json.loads(spec), JobState(state), *rest)
            for number, name, key, spec, state, *rest in rows
        ]

    def job_find(self, job: int) -> JobRecord | None:
        """Return the job with this number, or None."""
        found = self._records("id = ?", job)
        return found[0] if found else None

    def jobs_page(
        self,
        tenant: str | None = None,
        states: Sequence[JobState] = (),
        before: int = 0,
        limit: int = 100,
    ) -> list[JobRecord]:
        """Return a page of a tenant's jobs (None: of all tenants), the newest first. Unless
        `before` is 0, the page starts with the newest job that is older than job `before`."""
        marks = ", ".join("?" * len(states))
        return self._records(
            f"(? IS NULL OR tenant = ?) AND (? = 0 OR id < ?)"
            f"{f' AND state IN ({marks})' if states else ''} ORDER BY id DESC LIMIT ?",
            *(tenant, tenant, before, before, *states, limit),
        )

    def jobs_count(self) -> list[tuple[str, str, int, float]]:
        """Return the number of jobs and their slot-seconds, for each tenant and state."""
        return self._db.execute(
            "SELECT tenant, state, SUM(count), SUM(used) FROM"
            " (SELECT tenant, state, COUNT(*) AS count, SUM(used) AS used FROM jobs"
            " GROUP BY tenant, state UNION ALL SELECT * FROM archived) GROUP BY tenant, state"
        ).fetchall()

    def archive(
        self, write: Callable[[Sequence[JobRecord]], object], keep: int = KEEP
    ) -> list[int]:
        """Remove the oldest finished jobs and their events if more than `keep` have ended.

        Returns the numbers of the removed jobs. Calls `write` with their records first.
        `jobs_count` still includes them.
        """
        last = self._one(
            f"SELECT counted FROM jobs WHERE NOT {_LIVE} ORDER BY counted DESC LIMIT 1 OFFSET ?",
            keep,
        )
        if last is None:
            return []
        old = self._records(
            f"NOT {_LIVE} AND counted <= ? AND NOT EXISTS"
            " (SELECT 1 FROM intents WHERE job = jobs.id AND open)"
            f" ORDER BY counted LIMIT {ARCHIVE_AT_ONCE}",
            last,
        )
        if old:
            write(old)
        with self._change():
            for each in old:
                self._db.execute(
                    "INSERT INTO archived VALUES (?, ?, 1, ?) ON CONFLICT (tenant, state) DO UPDATE"
                    " SET count = count + 1, used = used + excluded.used",
                    (each.tenant, each.state, each.used),
                )
                for table in ("allocations", "intents", "events"):
                    self._db.execute(f"DELETE FROM {table} WHERE job = ?", (each.id,))
                self._db.execute("DELETE FROM jobs WHERE id = ?", (each.id,))
        return [each.id for each in old]

    def job_scale(self, job: int, least: int, most: int, now: float) -> None:
        """Change a job's sizes, from the next plan on. Raises StoreError."""
        with self._change():
            row = self._db.execute("SELECT state, spec FROM jobs WHERE id = ?", (job,)).fetchone()
            if row is None:
                raise StoreError(f"job {job} does not exist")
            if JobState(row[0]) in ENDED:
                raise StoreError(f"job {job} is {row[0]} and cannot be scaled")
            spec = json.loads(row[1])
            asked = spec.get("asked", {name: spec[name] for name in ("min", "max") if name in spec})
            text = json.dumps({**spec, "min": least, "max": most, "asked": asked}, sort_keys=True)
            self._db.execute("UPDATE jobs SET spec = ? WHERE id = ?", (text, job))
            self._event(job, now, f"scaled to {least}:{most}")

    def job_move(self, job: int, state: JobState, now: float, why: str = "") -> None:
        """Change a job's state. An inactive job loses its slots: writes the intents to stop its
        agents. Raises StoreError."""
        with self._change():
            self._count(now)
            self._move(job, state, now, why)
            steady = self.steady(now)
            self._db.execute("UPDATE jobs SET counted = ? WHERE id = ?", (steady, job))
            if state not in ACTIVE:
                self._assign(job, (), now)

    def _move(self, job: int, state: JobState, now: float, why: str = "") -> None:
        before = self._one("SELECT state FROM jobs WHERE id = ?", job)
        if before is None:
            raise StoreError(f"job {job} does not exist")
        if state not in STATES[JobState(before)]:
            raise StoreError(f"job {job} is {before} and cannot become {state}")
        self._db.execute("UPDATE jobs SET state = ? WHERE id = ?", (state, job))
        self._event(job, now, f"{state}: {why}" if why else state)

    # Hosts that compute wrongly

    def host_mark(self, host: str, when: float, job: int, text: str) -> None:
        """Mark a host where an audit of the job has found a worker that computed wrongly. A finding
        that is older than the recorded one is ignored."""
        with self._change():
            self._db.execute(
                "INSERT INTO suspects VALUES (?, ?, ?, ?, 0) ON CONFLICT (host) DO UPDATE SET"
                " time = excluded.time, job = excluded.job, text = excluded.text, cleared = 0"
                " WHERE excluded.time > suspects.time",
                (host, when, job, text),
            )

    def host_clear(self, host: str) -> None:
        """Remove the mark of a host. Raises StoreError."""
        with self._change():
            if host not in [each for each, *_ in self.hosts_marked()]:
                raise StoreError(f"the host {host} has no mark")
            self._db.execute("UPDATE suspects SET cleared = 1 WHERE host = ?", (host,))

    def hosts_marked(self) -> list[tuple[str, float, int, str]]:
        """Return each marked host by its name, with the time, the job and the text of the last
        finding."""
        marked = "SELECT host, time, job, text FROM suspects WHERE NOT cleared ORDER BY host"
        return self._db.execute(marked).fetchall()

    # Plans

    def plan_write(self, slots: Mapping[int, tuple[str, ...]], now: float) -> None:
        """Set the slots of each job. Writes an intent for each agent to start or stop; `intents`
        returns them until they are closed. Raises StoreError."""
        with self._change():
            self._count(now)
            states = dict(self._db.execute(f"SELECT id, state FROM jobs WHERE {_LIVE} ORDER BY id"))
            wrong = [job for job in slots if states.get(job) not in ACTIVE]
            if wrong:
                raise StoreError(f"jobs {wrong} have slots in the plan, but are not active")
            given = Counter(slot for own in slots.values() for slot in own)
            double = sorted(slot for slot, count in given.items() if count > 1)
            if double:
                raise StoreError(f"slots {', '.join(double)} are allocated twice in the plan")
            active = [job for job, state in states.items() if state in ACTIVE]
            for job in active:  # first the slots that jobs lose, as a slot belongs to one job
                self._assign(
                    job, tuple(s for s in self._slots(job) if s in slots.get(job, ())), now
                )
            for job in active:
                self._assign(job, slots.get(job, ()), now)
                state = JobState.RUNNING if slots.get(job) else JobState.WAITING
                if state != states[job]:
                    self._move(job, state, now)

    def slots(self) -> dict[int, tuple[str, ...]]:
        """Return the slots of each job that has slots."""
        found: dict[int, tuple[str, ...]] = {}
        for job, slot in self._db.execute("SELECT job, slot FROM allocations ORDER BY job, slot"):
            found[job] = (*found.get(job, ()), slot)
        return found

    def slots_owners(self) -> dict[str, tuple[int, str]]:
        """Return the job and the tenant of each allocated slot."""
        rows = self._db.execute("SELECT slot, job, tenant FROM allocations JOIN jobs ON id = job")
        return {slot: (job, tenant) for slot, job, tenant in rows}

    def _slots(self, job: int) -> list[str]:
        rows = self._db.execute("SELECT slot FROM allocations WHERE job = ? ORDER BY slot", (job,))
        return [row[0] for row in rows]

    def _assign(self, job: int, slots: tuple[str, ...], now: float) -> None:
        had = self._slots(job)
        new, old = [s for s in slots if s not in had], [s for s in had if s not in slots]
        if not new and not old:
            return
        self._db.execute(
            "UPDATE jobs SET epoch = epoch + 1, changed = ? WHERE id = ?", (self.steady(now), job)
        )
        epoch = self._one("SELECT epoch FROM jobs WHERE id = ?", job)
        for slot in old:
            started = self._one("SELECT epoch FROM allocations WHERE slot = ?", slot)
            self._db.execute("DELETE FROM allocations WHERE slot = ?", (slot,))
            self._intend(job, started, "stop", slot)
        for slot in new:
            self._db.execute("INSERT INTO allocations VALUES (?, ?, ?)", (slot, job, epoch))
            self._intend(job, epoch, "start", slot)
        self._event(job, now, f"has {len(slots)} slots")

    def _count(self, now: float) -> None:
        """Add the slot-seconds and the waiting time of active jobs since the last call."""
        held = "(SELECT COUNT(*) FROM allocations WHERE job = jobs.id)"
        steady = self.steady(now)
        self._db.execute(
            f"UPDATE jobs SET used = used + {held} * MAX(0, ? - counted),"
            f" waited = waited + ({held} = 0) * MAX(0, ? - counted), counted = ?"
            f" WHERE {_LIVE} AND state IN ('waiting', 'running')",
            (steady, steady, steady),
        )

    # Intents and events

    def _intend(self, job: int, epoch: int, kind: str, slot: str) -> None:
        self._db.execute(
            "INSERT INTO intents (job, epoch, kind, slot, open) VALUES (?, ?, ?, ?, 1)",
            (job, epoch, kind, slot),
        )

    def intents(self) -> list[Intent]:
        """Return the open intents, in the order in which they are to be carried out."""
        rows = self._db.execute(
            "SELECT id, job, epoch, kind, slot FROM intents WHERE open ORDER BY id"
        )
        return [Intent(*row) for row in rows]

    def intent_close(self, intent: Intent) -> None:
        """Close an intent that has been carried out."""
        with self._change():
            self._db.execute("UPDATE intents SET open = 0 WHERE id = ?", (intent.id,))

    def events(
        self, after: int = 0, limit: int = 1000, tenant: str | None = None, job: int | None = None
    ) -> list[tuple[int, float, int | None, str]]:
        """Return (number, time, job, text) of the events after the number `after`, in order.
        `tenant` and `job` restrict them to the events of one tenant and of one job."""
        return self._db.execute(
            "SELECT id, time, job, text FROM events WHERE id > ?"
            " AND (? IS NULL OR (SELECT tenant FROM jobs WHERE jobs.id = events.job) = ?)"
            " AND (? IS NULL OR job = ?) ORDER BY id LIMIT ?",
            (after, tenant, tenant, job, job, limit),
        ).fetchall()

    def events_last(self, job: int, limit: int = 200) -> list[tuple[int, float, int | None, str]]:
        """Return the newest events of a job, oldest first."""
        return self._db.execute(
            "SELECT id, time, job, text FROM events WHERE job = ? ORDER BY id DESC LIMIT ?",
            (job, limit),
        ).fetchall()[::-1]

    def event_last(self) -> int:
        """Return the number of the last event, or 0 if there is none."""
        return int(self._one("SELECT COALESCE(MAX(id), 0) FROM events"))

    def _event(self, job: int | None, now: float, text: str) -> None:
        self._db.execute("INSERT INTO events (time, job, text) VALUES (?, ?, ?)", (now, job, text))


def _asked(text: str) -> dict[str, Any]:
    """Return the specification as it was submitted, before its sizes were changed."""
    spec: dict[str, Any] = json.loads(text)
    asked = spec.pop("asked", None)
    if asked is None:
        return spec
    return {**{name: spec[name] for name in spec if name not in ("min", "max")}, **asked}


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
