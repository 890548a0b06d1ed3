# SPDX-License-Identifier: Apache-2.0
"""`ddl submit`, `ps`, `logs`, `top`, `scale`, `cancel`, `pause`, `resume`, `token`: what a user of
`ddl serve` asks for.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddl_elastic.scheduler import requests
from ddl_elastic.scheduler.access import DEFAULT, Access, AccessError, access_write
from ddl_elastic.scheduler.requests import RequestError, spec_read
from ddl_elastic.scheduler.text import printable, printable_line, sizes_text
from ddl_launch.commands.quantities import parse_bytes
from ddl_launch.errors import SCHEDULER_EXTRA, CommandError

if TYPE_CHECKING:  # it takes long to import, and `ddl` has other commands
    from ddl_elastic.scheduler.client import Client, ServerError

ENDED = ("done", "failed", "cancelled")
_REFUSED, _SILENT, _FORBIDDEN, _UNKNOWN = 1, 3, 4, 5
_CODES = {0: _SILENT, 401: _FORBIDDEN, 403: _FORBIDDEN, 404: _UNKNOWN}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_CONNECTION = f"""\

Where `ddl serve` is, and the token, are in ~/.config/ddl/server.toml, of mode 600:
  address = "{DEFAULT}"
  token = "..."
DDL_SERVER, DDL_TOKEN and DDL_SERVER_CA count before the file; DDL_SERVER_FILE names another one.

exit code: 0; 1: refused, or the job that was followed did not end as done; 2: wrong usage; 3: the
server does not answer; 4: the token is not valid, or may not do this; 5: there is no such job
"""
_SUBMIT = """\
examples:
  ddl submit -- python train.py --lr 0.1             from 1 slot on, as many as it can use
  ddl submit --min 4 --max 16 --tier 2 -- train.py   waits until it gets 4 slots, before lower tiers
  ddl submit --min 0 --deadline 8h -- train.py       may be paused for others; should end in 8 hours
  job=$(ddl submit -- train.py) && ddl logs -f "$job"
The number of the job is printed. It runs in this folder, or in --folder.
"""


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add them by `add`, which makes parsers of ddl's commands."""
    _add_submit(add)
    ps = _command(add, "ps", _ps, "list the jobs of ddl serve")
    ps.add_argument("--all", action="store_true", help="also those that have ended")
    logs = _command(add, "logs", _logs, "print what a job's workers wrote")
    logs.add_argument("job", metavar="JOB", type=_job, help="its number")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    logs.add_argument("--worker", metavar="N", type=int, help="of this worker only")
    top = _command(add, "top", _top, "watch slots, jobs and tenants")
    top.add_argument("--once", action="store_true", help="print it once, and end")
    scale = _command(add, "scale", _scale, "give a job other sizes")
    scale.add_argument("job", metavar="JOB", type=_job, help="its number")
    scale.add_argument("sizes", metavar="N|MIN:MAX", type=_sizes, help="slots, as in 4 or 2:8")
    for action, text in (
        ("cancel", "end jobs of ddl serve forever"),
        ("pause", "take the slots of jobs away, until they are resumed"),
        ("resume", "let paused jobs go on, and failed ones begin from their checkpoints"),
    ):
        parser = _command(add, action, _act, text)
        parser.add_argument("jobs", metavar="JOB", type=_job, nargs="+", help="their numbers")
        parser.set_defaults(action=action)
    _add_token(add)


def _add_submit(add: Callable[..., argparse.ArgumentParser]) -> None:
    submit = _command(add, "submit", _submit, "submit a job to ddl serve", _SUBMIT)
    submit.add_argument("--min", metavar="N", type=int, help="slots that it needs (default: 1)")
    submit.add_argument("--max", metavar="N", type=int, help="slots that it can use")
    submit.add_argument("--tier", metavar="T", type=int, help="0 to 9; higher ones come first")
    submit.add_argument(
        "--deadline",
        metavar="WHEN",
        type=_deadline,
        help="when it should have ended: from now on, as in 90m, 8h, 2d, or a time, as in"
        " 2030-01-31T18:00",
    )
    submit.add_argument("--name", help="of the job (default: that of the program)")
    submit.add_argument(
        "--folder", default=str(Path.cwd()), help="in which it runs (default: this one)"
    )
    submit.add_argument(
        "--env",
        metavar="NAME=VALUE",
        type=_variable,
        action="append",
        default=[],
        help="a variable of its environment; may be repeated",
    )
    submit.add_argument("--threads", metavar="N", type=int, help="of each worker (default: 1)")
    submit.add_argument("--logical", metavar="V", type=int, help="its logical workers")
    submit.add_argument("--batch", metavar="B", type=int, help="samples of a step")
    submit.add_argument(
        "--weight", metavar="X", type=float, help="share among the tenant's jobs (default: 1)"
    )
    submit.add_argument(
        "--memory",
        metavar="WORKER,GRADIENT",
        type=_memory,
        help="bytes that a worker takes, and one gradient, as in 2GiB,400MiB: the job gets only"
        " numbers of slots at which its shares fit them",
    )
    submit.add_argument(
        "--key", default="", help="the same key is the same job, however often it is submitted"
    )
    submit.add_argument("command", metavar="-- COMMAND", nargs=argparse.REMAINDER)


def _add_token(add: Callable[..., argparse.ArgumentParser]) -> None:
    token = add(
        "token",
        help="make a token for ddl serve",
        description="Make a token of a tenant, in the store of ddl serve on this machine. Whoever"
        " can write the store may do that.",
        epilog="example: ddl token --store jobs.db --file ~/.config/ddl/server.toml vision admin",
        allow_abbrev=False,
    )
    token.add_argument("tenant", help="whose it is; added if it is not there")
    token.add_argument("role", choices=("viewer", "user", "admin"), help="what it allows")
    token.add_argument("--store", metavar="FILE", type=Path, required=True, help="of ddl serve")
    token.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        help="write it there, as ddl submit and others read it (default: print it)",
    )
    token.add_argument("--server", metavar="URL", default=DEFAULT, help="(default: %(default)s)")
    token.set_defaults(run=_token)


def _command(
    add: Callable[..., argparse.ArgumentParser],
    name: str,
    run: Callable[[Client, argparse.Namespace], int],
    text: str,
    epilog: str = "",
) -> argparse.ArgumentParser:
    parser = add(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=epilog + _CONNECTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--server", metavar="URL", default="", help="instead of that of the file")
    parser.add_argument("--json", action="store_true", help="print JSON")

    def connected(arguments: argparse.Namespace) -> int:
        from ddl_elastic.scheduler.client import Client, ServerError

        try:
            return run(Client.from_environment(arguments.server), arguments)
        except AccessError as error:
            raise CommandError(str(error)) from None
        except ServerError as error:
            print(f"ddl {name}: {printable(str(error))}", file=sys.stderr)
            return _CODES.get(error.status, _REFUSED)
        except KeyboardInterrupt:
            return 130

    parser.set_defaults(run=connected)
    return parser


# ---- what they do ----


def _submit(client: Client, arguments: argparse.Namespace) -> int:
    command = arguments.command[arguments.command[:1] == ["--"] :]
    names = ("min", "max", "tier", "deadline", "name", "folder", "threads", "logical", "batch")
    given = {name: getattr(arguments, name) for name in (*names, "weight", "memory")}
    fields = {name: value for name, value in given.items() if value is not None}
    fields["environment"] = dict(arguments.env)
    try:
        spec_read({"command": command, **fields})
    except RequestError as error:
        raise CommandError(f"{error} (see ddl submit --help)") from None
    job = client.submit(command, arguments.key, **fields)
    print(json.dumps(job) if arguments.json else job["id"])
    return 0


def _ps(client: Client, arguments: argparse.Namespace) -> int:
    jobs = client.jobs("" if arguments.all else "active")
    print(json.dumps(jobs) if arguments.json else _table(_rows(jobs)))
    return 0


def _table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _rows(jobs: list[Any]) -> list[list[str]]:
    """A head, and one for each job."""
    rows = [["job", "name", "state", "tenant", "tier", "slots", "step", "loss", "waits because"]]
    for job in jobs:
        loss = "" if job["loss"] is None else f"{job['loss']:.4g}"
        step = "" if job["step"] is None else str(job["step"])
        if job["steps_total"]:
            step += f"/{job['steps_total']}"
        why = "; ".join(filter(None, (job["reason"], job["warning"])))
        row = [str(job["id"]), job["name"], job["state"], job["tenant"], str(job["tier"])]
        row.append(sizes_text(len(job["slots"]), job["min"], job["max"]))
        rows.append([printable_line(cell) for cell in (*row, step, loss, why)])
    return rows


def _logs(client: Client, arguments: argparse.Namespace) -> int:
    messages = (client.follow if arguments.follow else client.logs)(arguments.job)
    wanted = None if arguments.worker is None else f"worker{arguments.worker}"
    state = ""
    for message in messages:
        state = message.get("state", "")
        if state or wanted not in (None, message["log"]):
            continue
        if arguments.json:
            print(json.dumps(message), flush=True)
            continue
        head = "" if message["log"] == "job" else f"[{message['log'].removeprefix('worker')}] "
        for line in printable(message["text"]).removesuffix("\n").split("\n"):
            print(head + line, flush=True)
    if arguments.follow:
        state = state or client.job(arguments.job)["state"]
        print(f"job {arguments.job} is {state}", file=sys.stderr)
        return 0 if state == "done" else _REFUSED
    return 0


def _top(client: Client, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(client.overview()))
        return 0
    try:
        from ddl_elastic.scheduler.top import print_once, watch
    except ImportError as error:
        raise CommandError(f"ddl top: {error}; {SCHEDULER_EXTRA}") from None
    if arguments.once or not sys.stdout.isatty():
        print_once(client.overview())
    else:
        watch(client.stream("/v1/overview/stream"))
    return 0


def _scale(client: Client, arguments: argparse.Namespace) -> int:
    job = client.scale(arguments.job, *arguments.sizes)
    if arguments.json:
        print(json.dumps(job))
    return 0


def _act(client: Client, arguments: argparse.Namespace) -> int:
    """On each of them, even if one is refused; the first refusal counts."""
    from ddl_elastic.scheduler.client import ServerError

    refused: ServerError | None = None
    for number in arguments.jobs:
        try:
            job = client.act(number, arguments.action)
        except ServerError as error:
            if refused:
                print(f"ddl {arguments.action}: {printable(str(error))}", file=sys.stderr)
            refused = refused or error
        else:
            print(json.dumps(job) if arguments.json else f"job {number} is {job['state']}")
    if refused:
        raise refused
    return 0


def _token(arguments: argparse.Namespace) -> int:
    from ddl_elastic.scheduler.store import Store, StoreError

    try:
        requests.check(requests.NAME, arguments.tenant, "the tenant")
        access = Access(arguments.server, "none")
        if not arguments.store.exists():
            raise StoreError("there is none; `ddl serve` makes it")
        store = Store(arguments.store)
    except (RequestError, AccessError) as error:
        raise CommandError(str(error)) from None
    except (StoreError, OSError) as error:
        raise CommandError(f"--store {arguments.store}: {error}") from None
    try:
        if arguments.tenant not in {name for name, *_ in store.tenants()}:
            store.tenant_put(arguments.tenant)
        token = store.token_create(arguments.tenant, arguments.role)
    finally:
        store.close()
    if not arguments.file:
        print(token)
        return 0
    try:
        access_write(arguments.file, Access(access.address, token))
    except OSError as error:
        raise CommandError(f"--file {arguments.file}: {error.strerror}") from None
    return 0


# ---- values ----


def _job(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,14}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no job's number, as `ddl ps` shows them")
    return int(text)


def _sizes(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of slots, as in 4 or 2:8")
    return int(found[1]), int(found[2] or found[1])


def _memory(text: str) -> dict[str, int]:
    fixed, comma, gradient = text.partition(",")
    try:
        if not comma:
            raise ValueError(f"{text!r} are not two numbers of bytes, as in 2GiB,400MiB")
        return {"fixed": parse_bytes(fixed), "gradient": parse_bytes(gradient)}
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _deadline(text: str) -> float:
    if found := re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd])", text):
        return math.ceil(time.time() + float(found[1]) * _SECONDS[found[2]])
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time, as in 90m, 8h, 2d or 2030-01-31T18:00"
        ) from None
