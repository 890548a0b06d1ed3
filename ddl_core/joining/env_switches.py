# SPDX-License-Identifier: Apache-2.0
"""The effects of environment variables on a process that joins a job.

Every adapter calls these functions, so the variables have the same effect with each of them.
Importing this file imports almost nothing, because PyTorch's adapter needs it in each job.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddl_core import metrics

_log = logging.getLogger("ddl_core")

_DUMP_SIGNALS = ("USR1", "USR2", "QUIT", "HUP")

_lock = threading.Lock()
_joined: set[str] = set()  # the packages that have joined this process to a job
_server: metrics.Server | None = None  # exists if DDL_METRICS_PORT is set
_handled: set[str] = set()  # the values of DDL_DUMP_SIGNAL that were applied
_warned = False  # whether misspelt variables were reported; once is enough


def check(rank: int) -> None:
    """Apply DDL_DUMP_SIGNAL before this process joins a job, and warn of misspelt variables, unless
    another rank does so.

    rank   the number of this rank, negative if it is not known yet. Only rank 0 and ranks without
           a number warn

    Raises InvalidArgument if DDL_METRICS_PORT is not a port, or DDL_DUMP_SIGNAL not a signal.
    """
    global _warned
    _first_port()
    handle_dump_signal()
    if not _warned and rank <= 0:
        from ddl_core.joining import variables

        for message in variables.misspelt(os.environ):
            _log.warning(message)
    _warned = True


def joined(package: str, rank: int, local_rank: int) -> None:
    """Serve metrics if DDL_METRICS_PORT is set. If that fails, the job continues without metrics.

    package   the package that joined the job. The server closes when every package that joined has
              called `left`
    """
    global _server
    first = _first_port()
    with _lock:
        _joined.add(package)
        if first is None or _server is not None:
            return
        from ddl_core import metrics  # importing http takes as long as the rest of ddl_core

        try:
            _server = metrics.serve(first + local_rank)
        except (OSError, OverflowError) as error:
            _log.warning(
                "rank %d cannot serve metrics on port %d + %d: %s; set DDL_METRICS_PORT to"
                " free ports",
                *(rank, first, local_rank, error),
            )


def left(package: str) -> None:
    """Close the metrics server if no other package of this process is in a job."""
    global _server
    with _lock:
        _joined.discard(package)
        if not _joined and _server is not None:
            _server.close()
            _server = None


def handle_dump_signal() -> None:
    """Install the handler that prints the comms' state on the signal DDL_DUMP_SIGNAL. `check` calls
    this. Raises InvalidArgument if it is not a signal."""
    name = os.environ.get("DDL_DUMP_SIGNAL", "")
    if not name or name in _handled:
        return
    if name.upper().removeprefix("SIG") not in _DUMP_SIGNALS:
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(
            f"DDL_DUMP_SIGNAL is {name}; must be one of {', '.join(_DUMP_SIGNALS)}"
        )
    from ddl_core.diagnosis.dump import dump_on_signal

    dump_on_signal(signal.Signals["SIG" + name.upper().removeprefix("SIG")])
    _handled.add(name)


def _first_port() -> int | None:
    if not os.environ.get("DDL_METRICS_PORT"):
        return None
    from ddl_core.joining.environment import metrics_port

    return metrics_port(os.environ)


def _forked() -> None:
    """Forget the parent's jobs. The server belongs to the parent."""
    global _lock, _server
    _lock = threading.Lock()
    _joined.clear()
    _server = None


os.register_at_fork(after_in_child=_forked)
