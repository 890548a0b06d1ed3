# SPDX-License-Identifier: Apache-2.0
"""Workers that strike themselves at certain moments of a change of the group.

While there is a file "die in MOMENT", the first process that comes to this moment is killed, or
struck as the file says (see strikes.py); a file "die in MOMENT, member N" is for this member. Each
one is killed if the file is "always die in MOMENT", and waits for ever if it is "always wait in
MOMENT". A file "at MOMENT" lists further files that are made at this moment, and what they say.
"""

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from strikes import strike

from ddl_elastic.step import membership, step, transfer
from ddl_elastic.storage import checkpoint, saving
from ddl_elastic.worker import change, checkpoint_writers, joining, observer, trainer

own = -1  # member


def die_once(moment: str) -> None:
    with suppress(FileNotFoundError):
        for name, text in json.loads(Path(f"at {moment}").read_text()).items():
            Path(name).write_text(text)
        Path(f"at {moment}").unlink()
    if Path(f"always wait in {moment}").exists():
        threading.Event().wait()
    if Path(f"always die in {moment}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    for name in (f"die in {moment}", f"die in {moment}, member {own}"):
        with suppress(FileNotFoundError):
            how = Path(name).read_text()
            Path(name).unlink()
            strike(how or "kill", None, None)


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


def kind_told(held: Any) -> str:
    return "observing" if isinstance(held, observer.ObservedStep) else "telling"


def by_member(moment: str) -> Callable[..., str]:
    return lambda held, *_: "no moment" if isinstance(held, observer.ObservedStep) else moment


def tells_failure(write: Callable[..., None]) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        try:
            write(*arguments)
        except OSError:
            die_once("failed write")
            raise

    return run


def knows_member(work: Callable[..., None]) -> Callable[..., None]:
    def run(spec: Any, *arguments: Any) -> None:
        global own
        own = spec.member
        work(spec, *arguments)

    return run


def install() -> None:
    checkpoint_writers.LATE = 2.0  # shorter than a strike "late"
    trainer.work = knows_member(trainer.work)
    joining.create = before(joining.create, lambda *_: "connect")
    change.join = before(change.join, lambda *_: "warm-up")
    member = membership.Membership
    member._create = before(member._create, lambda held, *_: by("creation", held.is_new))
    member.voted = after(member.voted, agreed)
    member.switch = after(member.switch, lambda *_: "switch")
    change.gather = before(change.gather, lambda _, own, *__: by("hello", not own.whole))
    transfer.Sender._copy = before(transfer.Sender._copy, lambda *_: "copying")
    transfer.send_piece = before(transfer.send_piece, lambda *_: "sending")
    step.Step._tell_kind = before(step.Step._tell_kind, kind_told)
    step.Step._vote = before(step.Step._vote, by_member("voting"))
    saving.Saver._write_part = before(saving.Saver._write_part, lambda *_: "writing")
    saving.Saver._write_manifest = before(saving.Saver._write_manifest, lambda _: "the manifest")
    checkpoint.Folder.write = tells_failure(checkpoint.Folder.write)
    watching = observer.Observer
    transfer.receive_piece = after(transfer.receive_piece, lambda *_: "receiving")
    watching.receive = after(watching.receive, lambda *_: "loading")
    watching.take = before(watching.take, lambda *_: "catching up")
    watching.take = after(watching.take, arrived)


def arrived(observed: Any, number: int) -> str:
    return "no moment" if observed._group.observes else "arrival"
