# SPDX-License-Identifier: Apache-2.0
"""Counters of comms in Prometheus' format.

    from ddl_core import metrics

    metrics.serve(9400)        # http://127.0.0.1:9400/metrics, from a thread
    print(metrics.text())      # or export the text in another way

If DDL_METRICS_PORT=9400 is set, ddl_core.init and every adapter's init serve them: local rank 0 of
each host at 9400, local rank 1 at 9401 and so on.

Labels: `rank` and `size` of the comm, and `comm`, its number in this process. The process groups of
torch.distributed are included.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from weakref import WeakKeyDictionary, WeakSet

from ddl_core.diagnosis.latencies import Latencies
from ddl_core.diagnosis.live_objects import live_comms
from ddl_core.diagnosis.readings import Readings
from ddl_core.errors import InvalidState

__all__ = ["Server", "serve", "text"]

_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Name, field of Comm.counters, the number of the field's units in one unit of the metric, kind,
# help.
_METRICS = (
    ("ddl_operations_total", "operations", 1, "counter", "Successful operations."),
    ("ddl_operation_bytes_total", "bytes", 1, "counter", "Bytes of successful operations."),
    ("ddl_pending_operations", "pending", 1, "gauge", "Pending operations."),
    ("ddl_deaths_total", "deaths", 1, "counter", "Detected deaths of members."),
    (
        *("ddl_detection_seconds", "detection_ns", 1e9, "gauge"),
        "Longest silence of a member before its death was detected.",
    ),
)

_HISTOGRAM = "ddl_operation_seconds"
_HISTOGRAM_HELP = "Duration of operations in the record when it was read."
_latencies: WeakKeyDictionary[Readings, Latencies] = WeakKeyDictionary()
_reading = threading.Lock()


def text(comms: Iterable[Readings] | None = None) -> str:
    """Return the counters of these comms (None: all live comms of this process) in Prometheus' text
    format. Skips closed comms. Does not block."""
    known = {id(comm): number for number, comm in live_comms.items()}
    given = [comm for _, comm in live_comms.items()] if comms is None else list(comms)
    found = []
    histogram = []
    for comm in given:
        try:
            counters = comm.counters()
            with _reading:
                latencies = _latencies.setdefault(comm, Latencies())
                latencies.add(comm.trace()["traceEvents"])
        except InvalidState:  # closed
            continue
        labels = f'comm="{known.get(id(comm), "")}",rank="{comm.rank}",size="{comm.size}"'
        found.append((labels, counters))
        histogram += latencies.lines(_HISTOGRAM, labels)
    lines = []
    for name, key, unit, kind, told in _METRICS:
        lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
        for labels, counters in found:
            value = counters[key] if unit == 1 else counters[key] / unit
            lines.append(f"{name}{{{labels}}} {value}")
    head = [f"# HELP {_HISTOGRAM} {_HISTOGRAM_HELP}", f"# TYPE {_HISTOGRAM} histogram"]
    return "\n".join([*lines, *head, *histogram]) + "\n"


class Server:
    """An HTTP server that serves `text()` at /metrics until it is closed; a context manager.

    host, port   its address
    """

    def __init__(self, port: int, host: str) -> None:
        self._http = ThreadingHTTPServer((host, port), _Handler)
        self._http.daemon_threads = True
        self.host, self.port = host, int(self._http.server_address[1])
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="ddl metrics", daemon=True
        )
        self._thread.start()
        _servers.add(self)

    def close(self) -> None:
        """Stop the server and free the port. A second call does nothing."""
        if self in _servers:
            _servers.discard(self)
            self._http.shutdown()
            self._http.server_close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        self.close()


_servers: WeakSet[Server] = WeakSet()


def serve(port: int, host: str = "127.0.0.1") -> Server:
    """Serve the metrics of this process over HTTP from a daemon thread.

    port   0 means any free port; the server's `port` has its number
    host   the address to listen at; any program that can connect to it can read the metrics

    Raises OSError if the port is not available, OverflowError if it is not a port.
    """
    return Server(port, host)


class _Handler(BaseHTTPRequestHandler):
    timeout = 10  # seconds for a client's request

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404)
            return
        body = text().encode()
        self.send_response(200)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing: scrapes are not logged."""


def _forked() -> None:
    """Close the parent's sockets: a child has no thread to answer, and must not keep the port."""
    for server in list(_servers):
        server._http.socket.close()
    _servers.clear()


os.register_at_fork(after_in_child=_forked)
