# SPDX-License-Identifier: Apache-2.0
"""The local control socket of a job, through which `ddl elastic scale` resizes the job.

Only this user can enter the socket's folder. A file in it contains the job's secret, which each
request must include.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ddl_elastic.base import environment
from ddl_elastic.base.messages import Channel
from ddl_elastic.base.protocol import SCALE_REPLY, SCALE_REQUEST, ScaleReply, ScaleRequest

LIMIT = 10.0  # seconds for a request


class ControlError(RuntimeError):
    """The error for a job that does not exist, or that refused a request."""


class Control:
    """The server of a job's control socket. A context manager.

    name    the job's name, unique on this machine
    resize  called with the new number of workers, in another thread. Raises ValueError to refuse
    """

    def __init__(self, name: str, secret: str, resize: Callable[[int], None]) -> None:
        self._secret, self._resize = secret, resize
        self._paths = _paths(name)
        path, secret_path = self._paths
        if _answers(path):
            raise ControlError(f"a job named {name} is already running; give another --name")
        for each in self._paths:
            each.unlink(missing_ok=True)
        with open(os.open(secret_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, name="ddl control", daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(LIMIT)
                with connection, suppress(EOFError, OSError, ValueError):
                    self._answer(Channel(connection, SCALE_REQUEST))

    def _answer(self, channel: Channel[ScaleRequest]) -> None:
        request, error = channel.receive(), ""
        if not hmac.compare_digest(request.secret.encode(), self._secret.encode()):
            error = "the secret differs from the job's"
        else:
            try:
                self._resize(request.workers)
            except ValueError as wrong:
                error = str(wrong)
        channel.send(ScaleReply(error))

    def close(self) -> None:
        # shutdown wakes a thread that waits in accept, close does not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._paths:
            each.unlink(missing_ok=True)

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def scale(name: str, workers: int) -> None:
    """Resize the job of this name to `workers` workers. Raises ControlError."""
    path, secret_path = _paths(name)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT)
        try:
            connection.connect(str(path))
            channel = Channel(connection, SCALE_REPLY)
            channel.send(ScaleRequest(secret_path.read_text(), workers))
            error = channel.receive().error
        except (OSError, EOFError):
            there = ", ".join(names()) or "none"
            raise ControlError(f"there is no job {name} on this machine; jobs: {there}") from None
    if error:
        raise ControlError(error)


def names() -> list[str]:
    """Return the names of the running jobs."""
    folder = environment.runtime_folder()
    return sorted(path.stem for path in folder.glob("*.socket") if _answers(path))


def _paths(name: str) -> tuple[Path, Path]:
    if not name or not all(each.isalnum() or each in "-_." for each in name):
        raise ControlError(f"a job's name consists of letters, digits and -_., so not {name!r}")
    folder = environment.runtime_folder()
    return folder / f"{name}.socket", folder / f"{name}.secret"


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
