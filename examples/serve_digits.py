# SPDX-License-Identifier: Apache-2.0
"""Run three jobs of two tenants on four slots. One job is urgent, and one worker is killed, but no
surviving worker is restarted.

    python examples/serve_digits.py               one and a half minutes
    python examples/serve_digits.py --passes 20   shorter

Each job is examples/elastic_digits.py. The page of `ddl serve` shows the running jobs. At the end
each job has the same result, to the last bit, as when it runs undisturbed.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.store import ENDED, Store
from ddl_scheduler.planning.jobs import PolicySlot
from ddl_scheduler.runner.starter import Starter
from ddl_scheduler.service.service import Service

PROGRAM = Path(__file__).with_name("elastic_digits.py")
SLOTS = [PolicySlot(f"slot {number}", "here") for number in range(4)]
MOST = 2  # the most slots of a job
LIMIT = 1800  # seconds for an expected event


class Story:
    """The story of the example: submits jobs, waits for events, and prints them. The service works
    while it waits."""

    def __init__(self, path: Path, service: Service) -> None:
        self.path, self.service, self.store = path, service, Store(path)
        self.began = time.time()

    def tell(self, text: str) -> None:
        print(f"{time.time() - self.began:6.1f} s  {text}", flush=True)

    def submit(self, tenant: str, name: str, passes: int, **spec: int) -> int:
        command = [str(PROGRAM), "--passes", str(passes)]
        spec_of_all: dict[str, Any] = {"command": command, "logical": 16, "max": MOST, **spec}
        return self.store.job_submit(tenant, name, spec_of_all, time.time())

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            if all(each.state in ENDED for each in self.store.jobs()) and not condition():
                sys.exit("the jobs have ended before the event; increase --passes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the expected event did not happen within {LIMIT} s")
            self.service.turn()

    def report(self, job: int) -> dict[str, Any]:
        return self.service.live(job) or {"steps": 0, "workers": {}}

    def pids(self, job: int) -> list[int]:
        """Return the processes of the workers that train."""
        workers = self.report(job)["workers"].values()
        return [each["pid"] for each in workers if each["state"] in ("running", "done")]

    def has(self, job: int, size: int) -> bool:
        """Return True if the job has this number of slots and of training workers."""
        given = len(self.store.slots().get(job, ()))
        return given == size == len(self.pids(job)) and not self.store.intents()

    def state(self, job: int) -> str:
        return next((each.state for each in self.store.jobs() if each.id == job), "")

    def show_slots(self, names: dict[int, str]) -> None:
        jobs = [slot.job for slot in self.service.slots()]
        shown = "  ".join(f"[{names[job] if job else 'free':^6}]" for job in jobs)
        self.tell(f"          slots: {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve three jobs of two tenants.")
    parser.add_argument("--passes", type=int, default=40, help="passes of the two long jobs")
    passes = parser.parse_args().passes
    short = max(1, passes // 4)
    alone = {number: run_alone(number) for number in {passes, passes + 1, short}}
    # The starter comes first: jobs would inherit this process's exit handlers.
    with Starter() as starter, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "jobs.db")
        store = Store(path)
        for tenant in ("vision", "speech"):
            store.tenant_put(tenant)
        store.close()
        with Service(path, SLOTS, starter) as service:
            story = Story(path, service)
            with page(story):
                tell(story, alone, passes, short)


@contextmanager
def page(story: Story) -> Iterator[None]:
    """Serve the page for a browser while the jobs run. Without the packages of the extra
    `scheduler` there is no page."""
    try:
        from ddl_scheduler.web.app import make_app
        from ddl_scheduler.web.server import make_server
    except ImportError:
        yield
        return
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    service = story.service
    app = make_app(story.path, service.live, service.slots, service.wake)
    server = make_server(app, port=port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    token = story.store.token_create("vision", "viewer")
    story.tell(f"the page: http://127.0.0.1:{port}/ with the token {token}")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def run_alone(passes: int) -> str:
    """Return the hash of the final state of a job with one worker."""
    print(f"one worker alone, {passes} passes: ", end="", flush=True)
    command = [sys.executable, str(PROGRAM), "--workers", "1", "--passes", str(passes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"state (\w+)", done.stdout)[0]
    print(f"state {found}", flush=True)
    return str(found)


def tell(story: Story, alone: dict[int, str], passes: int, short: int) -> None:
    low = [story.submit("vision", "cats", passes), story.submit("speech", "words", passes + 1)]
    names = {low[0]: "cats", low[1]: "words"}
    story.tell("vision submits cats, and speech submits words")
    story.until(lambda: all(story.has(job, 2) and story.report(job)["steps"] > 5 for job in low))
    first = {job: story.pids(job) for job in low}
    story.show_slots(names)

    step = max(story.report(job)["seconds_per_step"] for job in low)
    submitted = time.time()
    urgent = story.submit("vision", "urgent", short, min=2, tier=1)
    names[urgent] = "urgent"
    story.tell("vision submits urgent, which is of a higher tier and needs two slots")
    story.until(lambda: {s.state for s in story.service.slots() if s.job == urgent} == {"used"})
    served, allowed = time.time() - submitted, 2 * step + 1
    story.tell(
        f"          urgent has its slots {served:.2f} s later; a step takes {step:.2f} s, and two"
        f" steps and a second {allowed:.2f} s"
    )
    story.until(lambda: all(story.has(job, 1) for job in low) and story.has(urgent, 2))
    story.show_slots(names)
    for job in low:
        assert story.pids(job)[0] in first[job], "nobody restarts"

    victim = story.pids(urgent)[0]
    os.kill(victim, signal.SIGKILL)
    story.tell(f"a worker of urgent is killed: process {victim}")
    story.until(lambda: story.state(urgent) == "done")
    story.tell("urgent has ended")
    story.until(lambda: all(story.has(job, 2) or story.state(job) == "done" for job in low))
    story.show_slots(names)
    story.until(lambda: all(story.state(job) == "done" for job in low))
    story.tell("all have ended")
    expected = {low[0]: alone[passes], low[1]: alone[passes + 1], urgent: alone[short]}
    if not table(story, names, expected, first):
        sys.exit("a job has another result, or was restarted")
    if served > allowed:
        sys.exit(f"urgent had its slots after {served:.2f} s, which is more than {allowed:.2f} s")
    if (share := busy(story.store)) < 0.95:
        sys.exit(f"only {share:.1%} of the slots were in use, which is less than 95%")


def table(
    story: Story, names: dict[int, str], expected: dict[int, str], first: dict[int, list[int]]
) -> bool:
    """Print the results. Return whether all are as expected. `first`: the workers with which jobs
    began, which they must still have at the end."""
    print("\njob     tenant  slots          steps  died  recomputed  state             as alone")
    good = True
    for record in story.store.jobs():
        texts = [text for *_, text in story.store.events(job=record.id)]
        sizes = ", ".join(re.findall(r"has (\d) slots", " ".join(texts)))
        report = JobFolder(story.path, record.id).result()["report"]
        died = sum(event["kind"] == "died" for event in report["events"])
        found = report["hash"][:16]
        same = found == expected[record.id]
        pids = [worker["pid"] for worker in report["workers"].values()]
        good = good and same and pids[:1] == first.get(record.id, pids)[:1]
        print(
            f"{names[record.id]:8}{record.tenant:8}{sizes:15}{report['steps']:<7}{died:<6}"
            f"{report['recomputed']:<12}{found:18}{'yes' if same else 'NO'}"
        )
    print(f"\nslots in use while a job had fewer than it could use: {busy(story.store):.1%}")
    return good


def busy(store: Store) -> float:
    """Return the share of the slots that jobs used while one of them had less than its maximum.
    The events in the store tell it."""
    sizes: dict[int, int] = {}
    used = there = last = 0.0
    for _, now, job, text in store.events():
        if sizes and min(sizes.values()) < MOST:
            used += sum(sizes.values()) * (now - last)
            there += len(SLOTS) * (now - last)
        last = now
        if job is None:
            continue
        if text == "submitted":
            sizes[job] = 0
        elif found := re.fullmatch(r"has (\d+) slots", text):
            sizes[job] = int(found[1])
        if text == "done":
            sizes.pop(job)
        elif job in sizes and text == "has 0 slots":
            del sizes[job]
    return used / there if there else 1.0


if __name__ == "__main__":
    main()
