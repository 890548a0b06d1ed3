# SPDX-License-Identifier: Apache-2.0
"""`ddl serve`: runs many elastic jobs on a shared set of slots."""

from __future__ import annotations

import argparse
import fcntl
import logging
import math
import os
import secrets
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from ddl_elastic.base import environment
from ddl_elastic.cli.agent import parse_address, read_token
from ddl_elastic.engines.ray_cluster import RayAgents
from ddl_launch.errors import SCHEDULER_EXTRA, CommandError, LaunchError
from ddl_launch.rank import sockets
from ddl_scheduler.base.store import Store, StoreError
from ddl_scheduler.planning.jobs import PolicySlot, Settings
from ddl_scheduler.runner.starter import Starter, StarterLost
from ddl_scheduler.runner.user import user_find
from ddl_scheduler.service.agents import AgentPool
from ddl_scheduler.service.service import Service

_DESCRIPTION = """\
Run elastic jobs of several tenants on the slots of this machine, of other hosts, or of a Ray
cluster. The policy gives slots to each job, and changes their number later without a restart.
"""

_EPILOG = """\
examples:
  ddl serve --store jobs.db                          a slot for each core; a tenant "default"
  ddl serve --store jobs.db --slots 8 --tenant vision --tenant speech
  ddl serve --store jobs.db --agents 29400 --token-file agents.token
                                                     slots of agents, which may come and go:
    ddl elastic agent --join head:29400 --token-file agents.token
  ddl serve --store jobs.db --ray auto --slots 16    slots of a Ray cluster

When the service ends, or is killed, its jobs continue. A new service with the same --store adopts
them. The page "Many jobs on one cluster" describes the policy.

exit code: 0: it was asked to end; 1: the store cannot be used; 2: wrong usage, or a port is in use
"""

_log = logging.getLogger("ddl_scheduler")


def add_serve(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `serve` to the commands of ddl. `add` creates its parser."""
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
        help="file for all persistent state; the jobs' folders are in FILE.jobs",
    )
    serve.add_argument(
        "--slots",
        metavar="N",
        type=int,
        default=environment.cores(),
        help="slots for workers (default: one for each core)",
    )
    serve.add_argument(
        "--agents",
        metavar="[HOST:]PORT",
        help="listen here for agents and use their slots, not this machine's; port 0 picks a free"
        " port and logs it",
    )
    serve.add_argument(
        "--token-file", metavar="FILE", type=Path, help="secret of the agents; required by --agents"
    )
    serve.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="use --slots slots of one core each on the Ray cluster at this address; auto finds a"
        " running one",
    )
    serve.add_argument(
        "--slot-memory",
        metavar="BYTES",
        type=int,
        default=0,
        help="memory of each slot; jobs with --memory get only sizes that fit (default: unknown)",
    )
    serve.add_argument(
        "--ageing",
        metavar="SECONDS",
        type=float,
        default=math.inf,
        help="raise a job by one tier for each such waiting time (default: never)",
    )
    serve.add_argument(
        "--tenant",
        metavar="NAME",
        action="append",
        default=[],
        help='add this tenant if it does not exist; may be repeated (default: "default")',
    )
    serve.add_argument(
        "--user",
        metavar="TENANT=NAME",
        action="append",
        default=[],
        help="run the jobs of this tenant as this user, which needs root; may be repeated. Jobs of"
        " tenants without a user are then rejected (default: all jobs run as the current user)",
    )
    serve.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        default="127.0.0.1:8470",
        help="address of the page and of the REST interface; port 0 picks a free port and logs it"
        " (default: %(default)s)",
    )
    serve.add_argument(
        "--certificate",
        metavar="FILE",
        type=Path,
        help="TLS certificate, required unless --listen is a loopback address",
    )
    serve.add_argument("--key", metavar="FILE", type=Path, help="private key of the certificate")
    serve.add_argument(
        "--host-name",
        metavar="NAME",
        action="append",
        default=[],
        help="another name or address by which browsers and clients reach this machine; may be"
        " repeated. Requests for unknown names are rejected",
    )
    serve.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.slots < 1:
        raise CommandError(f"--slots is {arguments.slots}; must be at least 1")
    if not arguments.ageing > 0:
        raise CommandError(f"--ageing is {arguments.ageing}; must be above 0 seconds")
    address = parse_address(arguments.listen, "--listen", "127.0.0.1")
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    _log.setLevel(logging.INFO)
    token, dial_in = _agents_address(arguments)
    users = _users(arguments.user, has_agents=bool(token))
    host = socket.gethostname()
    names = [] if token else [f"{host}/{number}" for number in range(arguments.slots)]
    slots = [PolicySlot(name, host, memory=arguments.slot_memory) for name in names]
    found: list[AgentPool] = []

    def make_agents(known: Collection[str]) -> AgentPool:
        try:
            found.append(AgentPool(dial_in, token, arguments.slot_memory, known, _log.info))
        except OSError as error:
            where = f"{dial_in[0]}:{dial_in[1]}"
            raise CommandError(f"--agents {where}: {error.strerror}") from None
        return found[0]

    with ExitStack() as stack:
        starter = stack.enter_context(Starter())  # forked before this process has threads
        _import_web()
        try:
            stack.callback(os.close, _lock(arguments.store))
            _add_tenants(arguments.store, arguments.tenant)
            agents = make_agents if token else None
            settings = Settings(ageing=arguments.ageing)
            service = Service(
                *(arguments.store, slots, starter, settings),
                token=token,
                users=users,
                agents=agents,
            )
            stack.enter_context(service)
        except (StoreError, sqlite3.Error, OSError) as error:
            print(f"ddl: --store {arguments.store}: {error}", file=sys.stderr)
            return 1
        for each in found:
            _log.info("waiting for agents on port %d", each.port)
            if arguments.ray:
                stack.enter_context(_ray(arguments, each.port, token))
        try:
            _serve(service, arguments, address)
        except StarterLost as error:
            print(f"ddl: {error}", file=sys.stderr)
            return 1
    return 0


def _import_web() -> tuple[ModuleType, ModuleType]:
    """Return the modules of the page and of the REST interface.

    Raises CommandError if a package that they need is missing, since no client could reach the
    service.
    """
    try:
        from ddl_scheduler.web import app, server
    except ImportError as error:
        raise CommandError(f"ddl serve: {error}; {SCHEDULER_EXTRA}") from None
    return app, server


def _lock(path: Path) -> int:
    """Return a descriptor that locks the store: a second service would cut the first off from its
    jobs. Raises StoreError."""
    held = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process = os.read(held, 20).decode(errors="replace")
        os.close(held)
        raise StoreError(
            f"another ddl serve uses it, process {process}: stop it, or choose another store"
        ) from None
    os.ftruncate(held, 0)
    os.write(held, str(os.getpid()).encode())
    return held


def _users(given: Sequence[str], has_agents: bool) -> dict[str, str]:
    """Return the name of the user that runs each tenant's jobs. Raises CommandError."""
    if not given:
        return {}
    if has_agents:
        raise CommandError(
            "--user cannot be used with agents: they run jobs as the user that started them"
        )
    if os.geteuid() != 0:
        raise CommandError("--user requires root: only root can run jobs as other users")
    found = {}
    for text in given:
        tenant, _, name = text.partition("=")
        try:
            found[tenant] = user_find(name).pw_name
        except ValueError as error:
            raise CommandError(f"--user {text}: {error}") from None
    os.umask(0o077)  # no other user may read the store and the jobs' files
    return found


def _agents_address(arguments: argparse.Namespace) -> tuple[str, tuple[str, int]]:
    """Return the secret with which agents authenticate, and the address at which they connect. The
    secret is "" if there are no agents. Raises CommandError."""
    if arguments.ray and arguments.agents:
        raise CommandError("--ray and --agents exclude each other")
    if arguments.ray:
        return secrets.token_hex(32), ("0.0.0.0", 0)
    if not arguments.agents:
        return "", ("", 0)
    try:
        sockets.allowed_ports()  # the runs listen there for agents
    except OSError as error:
        raise CommandError(str(error.strerror)) from None
    if not arguments.token_file:
        raise CommandError("--agents requires --token-file: agents authenticate with that token")
    return read_token(arguments.token_file), parse_address(arguments.agents, "--agents", "0.0.0.0")


def _ray(arguments: argparse.Namespace, port: int, token: str) -> RayAgents:
    """Start agents of one slot each on a Ray cluster. Raises CommandError."""
    try:
        return RayAgents(arguments.ray, arguments.slots, port, token, 1)
    except LaunchError as error:
        raise CommandError(str(error)) from None


def _serve(service: Service, arguments: argparse.Namespace, address: tuple[str, int]) -> None:
    asked = threading.Event()

    def ask(*_: object) -> None:
        asked.set()
        service.wake()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    web = _web(service, arguments, address)
    _log.info("serving %d slots; process %d", len(service.slots()), os.getpid())
    try:
        service.run(asked.is_set)
    finally:
        web.should_exit = True
    _log.info("exiting; running jobs continue")


def _web(service: Service, arguments: argparse.Namespace, address: tuple[str, int]) -> Any:
    """Start the page and the REST interface in a thread. Return their server."""
    app, server = _import_web()
    host, port = address
    certificate, key = arguments.certificate, arguments.key
    calls = (service.live, service.slots, service.wake)
    try:
        names = server.host_names(host, arguments.host_name)
    except ValueError as error:
        raise CommandError(f"--host-name {error}") from None
    try:
        made = app.make_app(
            arguments.store,
            *calls,
            hosts=names,
            secure=certificate is not None,
            problem=service.problem,
            planner_age=service.planner_age,
        )
        web = server.make_server(made, host, port, certificate, key)
        got = server.start(web)
    except (ValueError, OSError) as error:
        raise CommandError(f"--listen {host}:{port}: {error}") from None
    _log.info("listening on http%s://%s:%d", "s" if certificate else "", host, got)
    return web


def _add_tenants(path: Path, names: list[str]) -> None:
    store = Store(path)
    try:
        there = {name for name, *_ in store.tenants()}
        for name in names or ([] if there else ["default"]):
            if name not in there:
                store.tenant_put(name)
    finally:
        store.close()
