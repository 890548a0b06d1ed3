# SPDX-License-Identifier: Apache-2.0
"""Kill a service with real jobs at every change of its store, and around every call of a run; argv:
a folder, and the points, or none for all.

For each point a service is killed there by SIGKILL, for some of them also the next one, and another
one serves to the end. Then no job may be lost, and none may have run twice. Prints how many points
there were.
"""

import functools
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ddl_elastic.engines import program
from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.store import Store
from ddl_scheduler.planning.jobs import PolicySlot, Settings
from ddl_scheduler.runner.starter import Starter
from ddl_scheduler.service.service import Service

PROGRAM = Path(__file__).parent / "served.py"
SLOTS = [PolicySlot(f"h/{number}", "h") for number in range(2)]
LIMIT = 120  # seconds, on a busy machine
AT_ONCE = 4  # points; the jobs mostly wait


def submit(path: Path) -> None:
    store = Store(path)
    store.tenant_put("t")
    for key, steps, spec in (("a", 100, {"max": 2}), ("b", 20, {"max": 1, "tier": 1})):
        command = [str(PROGRAM), "--steps", str(steps)]
        store.job_submit("t", key, {"command": command, "logical": 12, **spec}, time.time())
    store.close()


def serve(path: Path, kill_at: int) -> None:
    points = itertools.count(1)

    def point(action: str) -> None:
        if not action.startswith(("SELECT", "PRAGMA")) and next(points) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    until, looks = time.monotonic() + LIMIT, Store(path)

    def is_over() -> bool:
        assert time.monotonic() < until, f"not ended within {LIMIT} s"
        return not looks.jobs("waiting", "running") and not looks.intents()

    with Starter() as starter, Service(path, SLOTS, starter, Settings(rest=0.0), point) as service:
        service.run(is_over)
    looks.close()


def check(path: Path) -> None:
    store = Store(path)
    records = store.jobs()
    assert [record.state for record in records] == ["done"] * 2, records
    assert not store.slots() and not store.intents()
    for record in records:
        folder = JobFolder(path, record.id)
        written = "".join(log.read_text() for log in folder.logs())
        assert "Error" not in written, written
        ends = [text for _, _, _, text in store.events(job=record.id) if text == "done"]
        assert len(ends) == 1
        assert len(re.findall(r"^state", written, re.M)) == 1, written
        if record.key == "b":  # one worker: a killed service is no reason to start another worker
            assert written.count("pid ") == 1, written
    store.close()


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return child


def end(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def try_point(path: Path, kill_at: int) -> None:
    submit(path)
    codes = [end(fork(lambda: serve(path, kill_at)))]
    if kill_at % 3 == 0:  # and then during recovery
        codes.append(end(fork(lambda: serve(path, 1 + 7 * kill_at % 20))))
    codes.append(end(fork(lambda: serve(path, 0))))
    assert {*codes} <= {0, -signal.SIGKILL} and codes[-1] == 0, (kill_at, codes)
    check(path)
    if codes[0] == 0:
        (path.parent / "no more points").touch()


def main(root: Path, points: list[int]) -> None:
    program.preload(None, PROGRAM)  # not once for each service
    left, running, done = iter(points or itertools.count(1)), dict[int, int](), 0
    while True:
        while len(running) < AT_ONCE and not (root / "no more points").exists():
            kill_at = next(left, 0)
            if not kill_at:
                break
            path = root / f"{kill_at}.db"
            running[fork(functools.partial(try_point, path, kill_at))] = kill_at
        if not running:
            break
        child, status = os.wait()
        assert status == 0, f"point {running[child]}"
        del running[child]
        done += 1
    print(f"{done} points")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]])
