# SPDX-License-Identifier: Apache-2.0
"""Support for a command that is process 1 of a container, the parent of all orphaned processes."""

from __future__ import annotations

import contextlib
import os
import signal

from ddl_launch.jobs.supervisor import FORWARDED


def leave_process_1() -> None:
    """Continue in a child process if this is process 1.

    Process 1 itself forwards signals to the child, reaps every process that ends, and exits with
    the child's exit code.
    """
    if os.getpid() != 1:
        return
    # SIGTTOU would stop the child, which is not yet in the foreground of a terminal.
    numbers = {*FORWARDED, signal.SIGTTOU}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # gets a terminal's signal once, not again from process 1
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, os.getpgrp())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        return
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    ended = 0
    while ended != child:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)
