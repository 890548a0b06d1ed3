# SPDX-License-Identifier: Apache-2.0
"""`ddl serve` and the process that starts its runs. A framework that cannot be imported, or
crashes, costs at most one request. The process that runs a job has no connection over which
requests arrive."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waits import wait_until

from ddl_elastic.engines import program
from ddl_scheduler.runner import runner, starter
from ddl_scheduler.runner.protocol import RunSpec
from ddl_scheduler.runner.starter import Starter, StarterLost
from ddl_scheduler.service.service import LOOK_EVERY, Service

# Runs a request whose program has this text.
Start = Callable[[str], None]


def order_sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as each:
                found += each.type == socket.SOCK_SEQPACKET
        except OSError:  # it is not a request
            continue
    return found


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Start]:
    """The text of a program is the name of the framework that it imports. Each run writes a file
    "ran N", with its number of sockets for requests."""

    def preload(_modules: Any, path: Path) -> None:
        text = path.read_text()
        if text == "broken":
            raise TypeError("a descriptor cannot be created directly")
        if (tmp_path / "crash").exists():
            (tmp_path / "crash").unlink()
            os._exit(7)

    def run(order: RunSpec, _listener: socket.socket) -> None:
        new = tmp_path / f"new {order.job}"
        new.write_text(str(order_sockets()))
        new.rename(tmp_path / f"ran {order.job}")

    monkeypatch.setattr(program, "named", lambda text: [text])
    monkeypatch.setattr(program, "preload", preload)
    monkeypatch.setattr(runner, "run", run)
    numbers = iter(range(1, 100))
    with Starter() as made:

        def start_one(text: str) -> None:
            job = next(numbers)
            path = tmp_path / f"{text}.py"
            path.write_text(text)
            order = RunSpec(str(tmp_path / "jobs.db"), job, {"command": [str(path)]}, [], [])
            order.job_folder.make()
            lock = order.job_folder.lock()
            assert lock is not None
            with order.job_folder.listen() as listener:
                made.start(order, lock, listener)
            os.close(lock)

        yield start_one


def test_runs_have_no_connection_for_orders(start: Start, tmp_path: Path) -> None:
    for text in ("one", "another", "one"):
        start(text)
    ran = [tmp_path / f"ran {job}" for job in (1, 2, 3)]
    wait_until(lambda: all(each.exists() for each in ran))
    assert [each.read_text() for each in ran] == ["0"] * 3


def test_a_framework_that_cannot_be_imported(start: Start, tmp_path: Path) -> None:
    start("broken")
    wait_until((tmp_path / "ran 1").exists)


def test_a_framework_that_crashes(start: Start, tmp_path: Path) -> None:
    """The request for which it was started is lost. The lock of its job shows this."""
    (tmp_path / "crash").touch()
    start("one")
    wait_until(lambda: not (tmp_path / "crash").exists())
    folder = RunSpec(str(tmp_path / "jobs.db"), 1, {}, [], []).job_folder

    def is_free() -> bool:
        lock = folder.lock()
        if lock is None:
            return False
        os.close(lock)
        return True

    wait_until(is_free)
    start("one")
    wait_until((tmp_path / "ran 2").exists)
    assert not (tmp_path / "ran 1").exists()


def test_a_program_that_is_no_file(start: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert starter._read(tmp_path / "pipe") == ""
    assert starter._read(Path("/dev/zero")) == ""


def test_a_starter_that_has_ended(tmp_path: Path) -> None:
    with Starter() as made:
        made._connection.shutdown(socket.SHUT_RDWR)
        with socket.socket() as any_socket, pytest.raises(StarterLost, match="restart ddl serve"):
            order = RunSpec(str(tmp_path / "jobs.db"), 1, {}, [], [])
            made.start(order, any_socket.fileno(), any_socket)


def test_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service continues to read its store."""
    with Starter() as made, Service(tmp_path / "jobs.db", [], made) as service:
        service.turn()
        looked, then = service._looked, time.time() - 3600
        monkeypatch.setattr(time, "time", lambda: then)
        time.sleep(LOOK_EVERY)
        service.turn()
        assert service._looked > looked
