"""`ddl serve`: many elastic jobs on one machine's slots."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddl_elastic import environment
from ddl_elastic.cli_agent import parse_address
from ddl_elastic.scheduler.jobs import Slot
from ddl_elastic.scheduler.service import Service
from ddl_elastic.scheduler.starter import Starter
from ddl_elastic.scheduler.store import Store, StoreError
from ddl_launch.errors import CommandError

_DESCRIPTION = """\
Run elastic jobs of several tenants on the slots of this machine. Each job gets as many slots as the
policy gives to it, and more or fewer later on, without a restart.
"""

_EPILOG = """\
examples:
  ddl serve --store jobs.db                          a slot for each core; a tenant "default"
  ddl serve --store jobs.db --slots 8 --tenant vision --tenant speech

When the service ends, or is killed, its jobs go on. Started again with the same --store, it has
them again. docs/scheduler.md tells what the policy does.

exit code: 0: it was asked to end; 1: the store cannot be used; 2: wrong usage
"""

_log = logging.getLogger("ddl_elastic")


def add_serve(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `serve` to ddl's commands by `add`, which makes their parsers."""
    serve = add(
        "serve",
        help="run many elastic jobs, which share this machine's slots",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    serve.add_argument(
        "--store",
        metavar="FILE",
        type=Path,
        required=True,
        help="where everything is kept; the jobs' folders are in FILE.jobs",
    )
    serve.add_argument(
        "--slots",
        metavar="N",
        type=int,
        default=environment.cores(),
        help="places for workers (default: one for each core)",
    )
    serve.add_argument(
        "--slot-memory", metavar="BYTES", type=int, default=0, help="of each slot, where it matters"
    )
    serve.add_argument(
        "--tenant",
        metavar="NAME",
        action="append",
        default=[],
        help='add this tenant, if it is not there; may be repeated (default: "default")',
    )
    serve.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        default="127.0.0.1:8470",
        help="where the page and the REST interface are (default: %(default)s)",
    )
    serve.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.slots < 1:
        raise CommandError(f"--slots {arguments.slots}: at least 1 is needed")
    address = parse_address(arguments.listen, "--listen", "127.0.0.1")
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    _log.setLevel(logging.INFO)
    host = socket.gethostname()
    names = [f"{host}/{number}" for number in range(arguments.slots)]
    slots = [Slot(name, host, memory=arguments.slot_memory) for name in names]
    with Starter() as starter:  # before there are threads
        try:
            _add_tenants(arguments.store, arguments.tenant)
            service = Service(arguments.store, slots, starter)
        except (StoreError, sqlite3.Error, OSError) as error:
            print(f"ddl: --store {arguments.store}: {error}", file=sys.stderr)
            return 1
        with service:
            _serve(service, arguments.store, address)
    return 0


def _serve(service: Service, store: Path, address: tuple[str, int]) -> None:
    asked = threading.Event()

    def ask(*_: object) -> None:
        asked.set()
        service.wake()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    web = _web(service, store, address)
    _log.info("serves %d slots; process %d", len(service.slots()), os.getpid())
    try:
        service.run(asked.is_set)
    finally:
        if web:
            web.should_exit = True
    _log.info("ends; jobs that run go on")


def _web(service: Service, store: Path, address: tuple[str, int]) -> Any:
    """The page and the REST interface, in a thread; None if they are not installed."""
    try:
        from ddl_elastic.web.app import make_app
        from ddl_elastic.web.server import make_server
    except ImportError as error:
        _log.info("no page and no REST interface: %s", error)
        return None
    host, port = address
    try:
        app = make_app(store, service.live, service.slots, service.wake)
        server = make_server(app, host, port)
    except ValueError as error:
        raise CommandError(f"--listen {host}:{port}: {error}") from None
    threading.Thread(target=server.run, name="ddl web", daemon=True).start()
    _log.info("listens on http://%s:%d", host, port)
    return server


def _add_tenants(path: Path, names: list[str]) -> None:
    store = Store(path)
    try:
        there = {name for name, *_ in store.tenants()}
        for name in names or ([] if there else ["default"]):
            if name not in there:
                store.tenant_put(name)
    finally:
        store.close()
