# SPDX-License-Identifier: Apache-2.0
"""Kill a small scheduler at every statement and around every call of its engine; argv: a folder.

For each of these points, a process is killed there by SIGKILL, for some of them also the next one,
and another one runs to the end. Then no job may be lost or done twice, and no agent either. Prints
how many points there were.
"""

import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ddl_scheduler.base.store import Intent, Store

KEYS = ("a", "b")
SLOTS = ("s0", "s1", "s2")


class Engine:
    """An engine whose agents are files. It outlives the scheduler, like real engines."""

    def __init__(self, folder: Path, point: Callable[[], None]) -> None:
        self._folder, self._point = folder, point
        for name in ("agents", "ended"):
            (folder / name).mkdir(exist_ok=True)

    def carry_out(self, intent: Intent) -> None:
        """Start or stop an agent, unless this has been done."""
        agent, ended = self._folder / "agents" / intent.agent, self._folder / "ended" / intent.agent
        self._point()
        if intent.kind == "start" and not agent.exists() and not ended.exists():
            taken = [
                path.name for path in agent.parent.iterdir() if path.name.endswith(intent.slot)
            ]
            assert not taken, f"{agent.name} beside {taken}"
            agent.touch()
            with (self._folder / "starts").open("a") as log:
                log.write(agent.name + "\n")
        elif intent.kind == "stop" and not ended.exists():
            agent.rename(ended)
        self._point()


def serve(folder: Path, kill_at: int) -> None:
    points = itertools.count(1)

    def point(_: str = "") -> None:
        if next(points) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    engine = Engine(folder, point)
    store = Store(folder / "store.db", point)

    def carry_out() -> None:
        for intent in store.intents():
            engine.carry_out(intent)
            store.intent_close(intent)

    carry_out()
    store.tenant_put("t")
    for key in KEYS:
        store.job_submit("t", key, {"program": key}, 1.0)
    while active := [record.id for record in store.jobs("waiting", "running")]:
        first, *others = active
        share = dict(zip(others, ((slot,) for slot in reversed(SLOTS)), strict=False))
        store.plan_write({first: SLOTS[: len(SLOTS) - len(share)], **share}, 2.0)
        carry_out()
        store.job_move(first, "done", 3.0)
        carry_out()
    store.close()


def check(folder: Path) -> None:
    store = Store(folder / "store.db")
    assert [(job.key, job.state) for job in store.jobs()] == [(key, "done") for key in KEYS]
    assert not store.slots() and not store.intents()
    done = Counter(job for _, _, job, text in store.events() if text == "done")
    assert sorted(done.values()) == [1] * len(KEYS)
    submitted = Counter(job for _, _, job, text in store.events() if text == "submitted")
    assert submitted == done
    store.close()
    assert not list((folder / "agents").iterdir())
    starts = (folder / "starts").read_text().split()
    assert len(starts) == len(set(starts)) == len(list((folder / "ended").iterdir()))


def run(folder: Path, kill_at: int) -> int:
    child = os.fork()
    if not child:
        try:
            serve(folder, kill_at)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(root: Path) -> None:
    for kill_at in itertools.count(1):
        folder = root / str(kill_at)
        folder.mkdir()
        first = run(folder, kill_at)
        assert first in (0, -signal.SIGKILL), kill_at
        if kill_at % 3 == 0:  # and then during recovery
            assert run(folder, 1 + 7 * kill_at % 40) in (0, -signal.SIGKILL), kill_at
        assert run(folder, 0) == 0, kill_at
        check(folder)
        if first == 0:
            print(f"{kill_at - 1} points")
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
