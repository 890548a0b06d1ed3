"""Workers that are killed, by themselves, at certain moments of a change of the group.

While there is a file "die in MOMENT", the first process that comes to this moment is killed, and
each one if the file is "always die in MOMENT"; it waits for ever if it is "always wait in MOMENT".
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddl_elastic import change, joining, membership, transfer


def die_once(moment: str) -> None:
    if Path(f"always wait in {moment}").exists():
        threading.Event().wait()
    if Path(f"always die in {moment}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    with suppress(FileNotFoundError):
        Path(f"die in {moment}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def before(function: Callable[..., Any], moment: Callable[..., str]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        die_once(moment(*arguments))
        return function(*arguments, **options)

    return run


def after(function: Callable[..., Any], moment: Callable[..., str]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        found = function(*arguments, **options)
        die_once(moment(*arguments))
        return found

    return run


def agreed(held: Any, *_: Any) -> str:
    return "agreement" if held.is_agreed else "no moment"


def by(kind: str, is_new: bool) -> str:
    return f"{kind}, by a {'newcomer' if is_new else 'member'}"


class Rehearsal(threading.local):
    """Whether this thread is in one."""

    is_on = False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self.is_on = True
            try:
                return function(*arguments)
            finally:
                self.is_on = False

        return run

    def name(self, moment: str) -> str:
        return f"rehearsal, {moment}" if self.is_on else moment


rehearsal = Rehearsal()


def install() -> None:
    joining.create = before(joining.create, lambda *_: "connect")
    change.join = before(change.join, lambda *_: "warm-up")
    member = membership.Membership
    member._create = before(member._create, lambda held, *_: by("creation", held.is_new))
    member.voted = after(member.voted, agreed)
    member.switch = after(member.switch, lambda *_: "switch")
    change.gather = before(change.gather, lambda _, own, *__: by("hello", not own.whole))
    transfer.send_piece = after(transfer.send_piece, lambda *_: rehearsal.name("sending"))
    transfer.receive_piece = after(transfer.receive_piece, lambda *_: rehearsal.name("receiving"))
    transfer.rehearse = rehearsal.around(transfer.rehearse)
    change.join_rehearsal = rehearsal.around(change.join_rehearsal)
    change.assign_shares = before(change.assign_shares, lambda job, _: by("end", job.is_new))
