# SPDX-License-Identifier: Apache-2.0
"""A dump of the operations that this process waits for, printed on a signal.

Design notes. Python runs signal handlers in its main thread between two bytecodes. That is too late
while a call into the library blocks. Therefore, faulthandler's C code handles the signal: it writes
the threads' stacks into a pipe at once. A thread of this module reads the pipe. It prints the
comms' reports, which it can get at any time, and then the stacks. The alternatives do not work: a
process has only one signal.set_wakeup_fd, which asyncio takes; signal.sigwait needs the signal
blocked in all threads, including those of other libraries.

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

from ddl_core.diagnosis.live_objects import live_comms
from ddl_core.errors import DdlError

_STACK_TIMEOUT = 0.05  # seconds for the rest of the stacks

_writers: dict[int, int] = {}  # by signal: the end of the pipe to which faulthandler writes


def dump_on_signal(signum: int = signal.SIGUSR1) -> None:
    """Install a handler that prints the state of all comms to stderr (descriptor 2) when this
    process gets the signal.

    Prints for each live comm the operations that it waits for and the missing ranks, then the stack
    of each Python thread. Works even while all threads are in blocking calls. The program then
    continues.

    Replaces any other handler of this signal. faulthandler.unregister(signum) removes the new
    handler; to install it again, call this function again. May be called from any thread. In a
    forked child, the signal prints the stacks only. Raises ValueError if signum is not a signal or
    cannot be handled, and RuntimeError for signals that faulthandler itself uses (SIGSEGV and the
    like).
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
    """Describe the operations that each live comm of this process waits for."""
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
    """Describe the last operation of a member, with the details that are known."""
    if member.get("last_name"):
        return f'whose last call was "{member["last_name"]}"'
    if not member["operation"]:
        return "which has not reported its operation"
    verb = "has completed" if member["ended"] else "is in"
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
    """Write to descriptor 2. sys.stderr is avoided, since a stuck thread may hold its lock."""
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(2, text) :]


def _forked() -> None:
    """Restore a child's handlers. A child must not write into its parent's pipe, nor die of the
    signal."""
    for signum, writer in _writers.items():
        faulthandler.register(signum, file=2, all_threads=True, chain=False)
        os.close(writer)
    _writers.clear()


os.register_at_fork(after_in_child=_forked)
