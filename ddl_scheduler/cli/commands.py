# SPDX-License-Identifier: Apache-2.0
"""`ddl job`, `ddl top` and `ddl token`: the commands of the users of `ddl serve`."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddl_launch.base.quantities import parse_bytes
from ddl_launch.errors import SCHEDULER_EXTRA, CommandError
from ddl_scheduler.base import requests
from ddl_scheduler.base.requests import RequestError, spec_read
from ddl_scheduler.base.text import printable, printable_line, sizes_text
from ddl_scheduler.cli.access import DEFAULT, Access, AccessError, access_write

if TYPE_CHECKING:  # slow to import, and other commands of `ddl` do not need it
    from ddl_scheduler.cli.client import Client, ServerError

_REFUSED, _SILENT, _FORBIDDEN, _UNKNOWN = 1, 3, 4, 5
_CODES = {0: _SILENT, 401: _FORBIDDEN, 403: _FORBIDDEN, 404: _UNKNOWN}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_CONNECTION = f"""\

The file ~/.config/ddl/server.toml (mode 600) has the address of `ddl serve` and the token:
    address = "{DEFAULT}"
    token = "..."
DDL_SERVER, DDL_TOKEN and DDL_SERVER_CA override the file; DDL_SERVER_FILE names another file.

exit code: 0: success; 1: the request was rejected, or the followed job did not succeed; 2: wrong
usage; 3: the server does not answer; 4: the token is invalid, or lacks the permission; 5: the job
does not exist
"""
_SUBMIT = """\
examples:
  ddl job submit -- python train.py --lr 0.1        at least 1 slot, and as many as it can use
  ddl job submit --min 4 --max 16 --tier 2 -- train.py
                                                    waits for 4 slots, before lower tiers
  ddl job submit --min 0 --deadline 8h -- train.py  may be paused; should end within 8 hours
  job=$(ddl job submit -- train.py) && ddl job logs -f "$job"
The command prints the number of the job. The job runs in this folder, or in --folder.
"""
_TOKEN = """\
examples:
  ddl token --store jobs.db --file server.toml vision admin
  ddl token --store jobs.db --list
  ddl token --store jobs.db --revoke 5f2c81d09ab4
"""


Add = Callable[..., argparse.ArgumentParser]


@dataclass(frozen=True)
class _Command:
    """A command about jobs.

    epilog  examples
    run     carries out the command, and returns the exit code
    fill    adds its arguments to a parser
    former  its name as a command of `ddl`, which 0.3 will remove, or ""
    """

    text: str
    epilog: str
    run: Callable[[Client, argparse.Namespace], int]
    fill: Callable[[argparse.ArgumentParser], None]
    former: str = ""


def add_commands(add: Add) -> None:
    """Add `job`, `top` and `token` to the commands of ddl. `add` creates their parsers."""
    text = "submit, list and control jobs of ddl serve"
    job = add(
        "job",
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog="example: ddl job submit -- python train.py --lr 0.1",
        allow_abbrev=False,
    )
    commands = job.add_subparsers(required=True, metavar="COMMAND")
    for name, command in _commands().items():
        _add(commands.add_parser, name, command, help=command.text)
        if command.former:
            _add(add, command.former, command, instead=f"ddl job {name}")
    top = _Command(
        "watch slots, jobs and tenants of ddl serve", _example("top --once"), _top, _fill_top
    )
    _add(add, "top", top, help=top.text)
    _add_token(add)


def _commands() -> dict[str, _Command]:
    act = {name: partial(_act, action=name) for name in ("pause", "resume", "cancel")}
    pause = "take all slots from jobs until they are resumed"
    resume = "continue paused jobs, and restart failed jobs from their checkpoints"
    return {
        "submit": _Command("submit a job", _SUBMIT, _submit, _fill_submit, "submit"),
        "list": _Command(
            "list jobs, and why they wait or have failed",
            _example("job list --all"),
            _list,
            _fill_list,
            "ps",
        ),
        "show": _Command(
            "print all that is known of a job", _example("job show 17"), _show, _fill_show
        ),
        "logs": _Command(
            "print the output of a job's workers",
            _example("job logs -f 17"),
            _logs,
            _fill_logs,
            "logs",
        ),
        "scale": _Command(
            "change the sizes of a job",
            _example("job scale 17 2:8"),
            _scale,
            _fill_scale,
            "scale",
        ),
        "pause": _Command(pause, _example("job pause 17"), act["pause"], _fill_jobs, "pause"),
        "resume": _Command(resume, _example("job resume 17"), act["resume"], _fill_jobs, "resume"),
        "cancel": _Command(
            "cancel jobs; they cannot be resumed",
            _example("job cancel 17 18"),
            act["cancel"],
            _fill_jobs,
            "cancel",
        ),
    }


def _example(words: str) -> str:
    return f"example: ddl {words}\n"


def _add(add: Add, name: str, command: _Command, instead: str = "", **listed: str) -> None:
    """Add a command. `add` creates its parser.

    instead  the command that replaces this former name, or ""
    listed   its help in the list of commands; without it the command is hidden
    """
    parser = add(
        name,
        description=command.text[0].upper() + command.text[1:] + ".",
        epilog=command.epilog + _CONNECTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **listed,
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        default="",
        help="address of ddl serve (default: from the settings file)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    command.fill(parser)

    def connected(arguments: argparse.Namespace) -> int:
        from ddl_scheduler.cli.client import Client, ServerError

        if instead:
            print(f"{parser.prog}: use `{instead}`; 0.3 removes this name", file=sys.stderr)
        try:
            return command.run(Client.from_environment(arguments.server), arguments)
        except AccessError as error:
            raise CommandError(str(error)) from None
        except ServerError as error:
            print(f"{parser.prog}: {printable(str(error))}", file=sys.stderr)
            return _CODES.get(error.status, _REFUSED)
        except KeyboardInterrupt:
            return 130

    parser.set_defaults(run=connected, prog=parser.prog)


def _fill_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="include jobs that have ended")


def _fill_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", type=_job, help="number of the job")


def _fill_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", type=_job, help="number of the job")
    parser.add_argument("-f", "--follow", action="store_true", help="continue until the job ends")
    parser.add_argument("--worker", metavar="N", type=int, help="print the log of this worker only")


def _fill_top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print the state once, and exit")
    parser.add_argument(
        "--clear",
        metavar="HOST",
        help="remove the mark of a host where an audit has found a wrong worker; needs an admin's"
        " token",
    )


def _fill_scale(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", type=_job, help="number of the job")
    parser.add_argument("sizes", metavar="N|MIN:MAX", type=_sizes, help="slots, such as 4 or 2:8")


def _fill_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", metavar="JOB", type=_job, nargs="+", help="numbers of the jobs")


def _fill_submit(submit: argparse.ArgumentParser) -> None:
    submit.add_argument(
        "--min", metavar="N", type=int, help="slots that the job needs (default: 1)"
    )
    submit.add_argument("--max", metavar="N", type=int, help="slots that the job can use")
    submit.add_argument(
        "--tier", metavar="T", type=int, help="tier from 0 to 9; higher tiers come first"
    )
    submit.add_argument(
        "--deadline",
        metavar="WHEN",
        type=_deadline,
        help="time by which the job should end: a duration, such as 90m, 8h or 2d, or a time, such"
        " as 2030-01-31T18:00",
    )
    submit.add_argument("--name", help="name of the job (default: the program's name)")
    submit.add_argument(
        "--folder",
        default=str(Path.cwd()),
        help="working directory of the job (default: the current one)",
    )
    submit.add_argument(
        "--env",
        metavar="NAME=VALUE",
        type=_variable,
        action="append",
        default=[],
        help="environment variable for the job; may be repeated",
    )
    submit.add_argument(
        "--threads", metavar="N", type=int, help="threads of each worker (default: 1)"
    )
    submit.add_argument("--logical", metavar="V", type=int, help="number of logical workers")
    submit.add_argument("--batch", metavar="B", type=int, help="samples in a step")
    submit.add_argument(
        "--weight", metavar="X", type=float, help="share among the tenant's jobs (default: 1)"
    )
    submit.add_argument(
        "--memory",
        metavar="WORKER,GRADIENT",
        type=_memory,
        help="bytes for a worker and for one gradient, such as 2GiB,400MiB; the job then gets only"
        " sizes at which its shares fit into the slots' memory",
    )
    submit.add_argument(
        "--key", default="", help="submission key: the same key always names the same job"
    )
    submit.add_argument("command", metavar="-- COMMAND", nargs=argparse.REMAINDER)


def _add_token(add: Add) -> None:
    token = add(
        "token",
        help="make, list and revoke tokens for ddl serve",
        description="Make a token for a tenant, in the store of ddl serve on this machine, or list"
        " and revoke tokens. Requires write access to the store.",
        epilog=_TOKEN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    token.add_argument("tenant", nargs="?", help="name of the tenant; added if it does not exist")
    token.add_argument(
        "role", nargs="?", choices=("viewer", "user", "admin"), help="role of the token"
    )
    token.add_argument(
        "--list", action="store_true", help="print the id, tenant and role of each token"
    )
    token.add_argument(
        "--revoke",
        metavar="ID",
        help="revoke the token with this id, or this token; its streams and sessions end",
    )
    token.add_argument(
        "--store", metavar="FILE", type=Path, required=True, help="store of ddl serve"
    )
    token.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        help="settings file to write for ddl job (default: print the token)",
    )
    token.add_argument(
        "--server",
        metavar="URL",
        default=DEFAULT,
        help="address for the file (default: %(default)s)",
    )
    token.set_defaults(run=_token)


# ---- implementations ----


def _submit(client: Client, arguments: argparse.Namespace) -> int:
    command = arguments.command[arguments.command[:1] == ["--"] :]
    names = ("min", "max", "tier", "deadline", "name", "folder", "threads", "logical", "batch")
    given = {name: getattr(arguments, name) for name in (*names, "weight", "memory")}
    fields = {name: value for name, value in given.items() if value is not None}
    fields["environment"] = dict(arguments.env)
    try:
        spec_read({"command": command, **fields})
    except RequestError as error:
        raise CommandError(f"{error} (see {arguments.prog} --help)") from None
    job = client.submit(command, arguments.key, **fields)
    print(json.dumps(job) if arguments.json else job["id"])
    return 0


def _list(client: Client, arguments: argparse.Namespace) -> int:
    jobs = client.jobs("" if arguments.all else "active")
    print(json.dumps(jobs) if arguments.json else _table(_rows(jobs)))
    return 0


def _table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _rows(jobs: list[Any]) -> list[list[str]]:
    rows = [["job", "name", "state", "tenant", "tier", "slots", "step", "loss", "reason"]]
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


def _show(client: Client, arguments: argparse.Namespace) -> int:
    job = client.job(arguments.job)
    if arguments.json:
        print(json.dumps(job))
        return 0
    fields = {**job.pop("spec"), **job}
    rows = [[name, _value(name, value)] for name, value in fields.items() if value is not None]
    print(_table(rows))
    return 0


def _value(name: str, value: Any) -> str:
    """Return the text of a field of a job. Times are in seconds since 1970."""
    if name in ("arrival", "changed", "deadline"):
        value = datetime.fromtimestamp(value).isoformat(sep=" ", timespec="seconds")
    return printable_line(value if isinstance(value, str) else json.dumps(value))


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
    if arguments.clear:
        client.clear(arguments.clear)
        return 0
    if arguments.json:
        print(json.dumps(client.overview()))
        return 0
    try:
        from ddl_scheduler.cli.top import print_once, watch
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


def _act(client: Client, arguments: argparse.Namespace, action: str) -> int:
    """Act on each job, even if one is rejected. Raises the first rejection."""
    from ddl_scheduler.cli.client import ServerError

    refused: ServerError | None = None
    for number in arguments.jobs:
        try:
            job = client.act(number, action)
        except ServerError as error:
            if refused:
                print(f"{arguments.prog}: {printable(str(error))}", file=sys.stderr)
            refused = refused or error
        else:
            print(json.dumps(job) if arguments.json else f"job {number} is {job['state']}")
    if refused:
        raise refused
    return 0


def _token(arguments: argparse.Namespace) -> int:
    from ddl_scheduler.base.store import Store, StoreError

    makes = arguments.tenant is not None
    if makes + arguments.list + (arguments.revoke is not None) != 1:
        raise CommandError("ddl token: give TENANT and ROLE, or --list, or --revoke ID")
    if makes and arguments.role is None:
        raise CommandError("ddl token: the role is missing: viewer, user or admin")
    try:
        if makes:
            requests.check(requests.NAME, arguments.tenant, "the tenant")
        access = Access(arguments.server, "none")
        if not arguments.store.exists():
            raise StoreError("the file does not exist; `ddl serve` creates it")
        store = Store(arguments.store)
    except (RequestError, AccessError) as error:
        raise CommandError(str(error)) from None
    except (StoreError, OSError) as error:
        raise CommandError(f"--store {arguments.store}: {error}") from None
    try:
        if arguments.list:
            print(_table([["id", "tenant", "role"], *map(list, store.tokens())]))
            return 0
        if arguments.revoke is not None:
            if store.token_revoke(arguments.revoke):
                return 0
            raise CommandError("--revoke: the store has no such token; see --list")
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
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a job; see `ddl job list`")
    return int(text)


def _sizes(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of slots, such as 4 or 2:8")
    return int(found[1]), int(found[2] or found[1])


def _memory(text: str) -> dict[str, int]:
    fixed, comma, gradient = text.partition(",")
    try:
        if not comma:
            raise ValueError(f"{text!r} is not two numbers of bytes, such as 2GiB,400MiB")
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
            f"{text!r} is not a time such as 90m, 8h, 2d or 2030-01-31T18:00"
        ) from None
