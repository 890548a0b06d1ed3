# SPDX-License-Identifier: Apache-2.0
"""Threads beside a job's steps, and those of frameworks that start them with their first
computation. Bits depend on the number of these, and a process that has them cannot be forked."""

from __future__ import annotations

import logging
import os
import threading

from ddl_elastic.base import environment

_BACK = 5  # by which a thread is less urgent than the process, as `nice` counts

_log = logging.getLogger("ddl_elastic")


def stand_back() -> None:
    """Where the steps need all cores, they get more of them than this thread from now on."""
    own = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, os.getpid()) + _BACK)


def pin(framework: str, has_started: bool, threads: int, variable: str) -> None:
    """Let the framework start so many, or warn that it is too late. `variable`: of its environment,
    which says how many."""
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
    """Raises RuntimeError if children of this process could not use the framework. `given`: how the
    program is to give what it trains, so that nothing is computed before."""
    if has_started:
        raise RuntimeError(
            f"{framework} has computed something in this process already, and cannot be forked"
            f" then. Train before anything else uses {framework}, with {given}; or start the"
            " program by `ddl elastic run`"
        )
