"""Workers that are killed, by themselves, at certain moments of a change of the group.

While there is a file "die in MOMENT", the first process that comes to this moment is killed, and
each one if the file is "always die in MOMENT"; it waits for ever if it is "always wait in MOMENT".
A file "at MOMENT" names a file that is made at this moment.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddl_elastic import change, joining, membership, observer, step, transfer


def die_once(moment: str) -> None:
    with suppress(FileNotFoundError):
        Path(Path(f"at {moment}").read_text()).touch()
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


def by_member(moment: str) -> Callable[..., str]:
    """Of a step of one that does not observe."""
    return lambda held, *_: "no moment" if isinstance(held, observer.ObservedStep) else moment


def install() -> None:
    joining.create = before(joining.create, lambda *_: "connect")
    change.join = before(change.join, lambda *_: "warm-up")
    member = membership.Membership
    member._create = before(member._create, lambda held, *_: by("creation", held.is_new))
    member.voted = after(member.voted, agreed)
    member.switch = after(member.switch, lambda *_: "switch")
    change.gather = before(change.gather, lambda _, own, *__: by("hello", not own.whole))
    transfer.Sender._copy = before(transfer.Sender._copy, lambda *_: "copying")
    transfer.send_piece = before(transfer.send_piece, lambda *_: "sending")
    step.Step._tell_kind = before(step.Step._tell_kind, by_member("telling"))
    watching = observer.Observer
    transfer.receive_piece = after(transfer.receive_piece, lambda *_: "receiving")
    watching._take_part = after(watching._take_part, lambda *_: "observing")
    watching.receive = after(watching.receive, lambda *_: "loading")
    watching.take = before(watching.take, lambda *_: "catching up")
    watching.take = after(watching.take, arrived)


def arrived(observed: Any, number: int) -> str:
    return "no moment" if observed._group.observes else "arrival"
