# SPDX-License-Identifier: Apache-2.0
"""Threads that run in parallel with training, and the computing threads of frameworks. The number
of computing threads changes the bits, and a process that has started them cannot be forked."""

from __future__ import annotations

import logging
import os
import threading

from ddl_elastic.base import environment

_BACK = 5  # increase of a background thread's `nice` value

_log = logging.getLogger("ddl_elastic")


def stand_back() -> None:
    """Lower the priority of this thread, so that the steps get more of the cores."""
    own = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, os.getpid()) + _BACK)


def pin(framework: str, has_started: bool, threads: int, variable: str) -> None:
    """Set the number of threads of a framework, or log a warning if it has started already.
    `variable` is the environment variable that sets this number."""
    if has_started and not environment.has_threads(threads):
        _log.warning(
            "%s has started before its number of threads was set to %d, so it has one for each"
            " core; processes with other numbers of cores may compute other bits. Train before %s"
            " computes anything, or set %s=%d",
            *(framework, threads, framework, variable, threads),
        )
        return
    environment.limit_threads(threads)


def refuse_fork(framework: str, has_started: bool, given: str) -> None:
    """Raise RuntimeError if children of this process could not use the framework. `given` is the
    form in which the program should pass its model, so that nothing is computed before the fork."""
    if has_started:
        raise RuntimeError(
            f"{framework} has already computed in this process, which therefore cannot be forked."
            f" Train before anything else uses {framework}, with {given}; or start the program by"
            " `ddl elastic run`"
        )
