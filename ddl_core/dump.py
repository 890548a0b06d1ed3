"""On a signal, tell what this process waits for.

Design notes. Python runs signal handlers in its main thread between two bytecodes, so not before a
blocking call into the library has returned, which is when one wants to know. What acts at once is C
code: faulthandler's. It writes the threads' stacks into a pipe from within the signal; a thread of
ours waits at the other end, and prints them after the comms' reports, which it can take at any
time. The other ways: signal.set_wakeup_fd writes at once as well, but there is one such descriptor
in a process, and asyncio takes it; signal.sigwait needs the signal blocked in all threads, also
those that other libraries started before.

The pipe's writing end does not block: a thread that waits for room in it might hold the GIL, which
the reader needs. Stacks that do not fit (64 KiB) are cut off.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from typing import Any

from ddl_core.comm import live_comms
from ddl_core.errors import DdlError

_STACK_TIMEOUT = 0.05  # seconds for the rest of the stacks

_writers: dict[int, int] = {}  # the pipes' ends that faulthandler writes to, by signal


def dump_on_signal(signum: int = signal.SIGUSR1) -> None:
    """From now on, print to stderr (descriptor 2), whenever this process gets the signal, what each
    living comm waits for and which ranks are missing, and then the stack of each Python thread.
    Also while all threads are in blocking calls; the program goes on as if nothing had happened.

    Replaces another handler of this signal; faulthandler.unregister(signum) ends it,
    and calling this again begins it anew. From any thread. In a forked child, the signal prints
    the stacks only. Raises ValueError for what is no signal, or one that cannot be handled, and
    RuntimeError for those that faulthandler itself uses (SIGSEGV and the like).
    """
    signum = int(signum)
    if signum in _writers:
        faulthandler.register(signum, file=_writers[signum], all_threads=True, chain=False)
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        faulthandler.register(signum, file=writer, all_threads=True, chain=False)
    except BaseException:
        os.close(reader)
        os.close(writer)
        raise
    _writers[signum] = writer
    threading.Thread(target=_wait, args=(reader,), name="ddl dump", daemon=True).start()


def report() -> str:
    """What each living comm of this process waits for, in a line or some."""
    lines = []
    for number, comm in live_comms.items():
        with contextlib.suppress(DdlError):  # closed meanwhile
            lines += _describe(number, comm.report())
    return "".join(
        f"libddl[{os.getpid()}]: {line}\n" for line in lines or ["this process has no comm"]
    )


def _describe(number: int, told: dict[str, Any]) -> list[str]:
    lines = [
        f"{told['name']}: comm {number} of {told['size']} ranks, {told['operations']} operations"
        f" done, {len(told['pending'])} pending"
        + (f"; dead: {told['message']}" if told["status"] else "")
    ]
    for pending in told["pending"]:
        which = (
            f'named "{pending["name"]}"'
            if "name" in pending
            else f"as operation {pending['sequence']}"
        )
        lines.append(
            f"  {pending['operation']} {which} has waited for {pending['waiting_s']:.1f} s"
        )
    for member in told["members"]:
        if member["rank"] in told["missing"]:
            lines.append(f"  missing: {member['name']} ({member['state']}), {_last(member)}")
    return lines


def _last(member: dict[str, Any]) -> str:
    """What a member was last in, as far as it has told."""
    if member.get("last_name"):
        return f'which has called "{member["last_name"]}" last'
    if not member["operation"]:
        return "which has not told what it is in"
    verb = "has ended" if member["ended"] else "is in"
    return f"which {verb} {member['operation']} as operation {member['sequence']}"


def _wait(reader: int) -> None:
    while stacks := os.read(reader, 1 << 16):
        time.sleep(_STACK_TIMEOUT)
        os.set_blocking(reader, False)
        with contextlib.suppress(BlockingIOError):
            stacks += os.read(reader, 1 << 16)
        os.set_blocking(reader, True)
        _print(report().encode() + stacks)


def _print(text: bytes) -> None:
    """Past sys.stderr, whose lock a thread that is stuck may hold."""
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(2, text) :]


def _forked() -> None:
    """A child would write into its parent's pipe. It must not die of the signal either."""
    for signum, writer in _writers.items():
        faulthandler.register(signum, file=2, all_threads=True, chain=False)
        os.close(writer)
    _writers.clear()


os.register_at_fork(after_in_child=_forked)
