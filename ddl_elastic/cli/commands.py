# SPDX-License-Identifier: Apache-2.0
"""The command `ddl elastic`, which runs elastic jobs of programs with their own training loop."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from ddl_elastic.base import environment, timeline
from ddl_elastic.base.audits import ACTIONS, check_options
from ddl_elastic.base.protocol import JobChannel
from ddl_elastic.cli.agent import (
    StartedAgents,
    add_agent,
    agents_engine,
    parse_address,
    read_token,
)
from ddl_elastic.cli.program import add_program, check_program
from ddl_elastic.cli.resume import add_resume, check, run_job
from ddl_elastic.cli.verify import add_verify
from ddl_elastic.coordinator.control import ControlError, scale
from ddl_elastic.coordinator.coordinator import Coordinator
from ddl_elastic.coordinator.job_file import JobFile
from ddl_elastic.coordinator.progress import Progress
from ddl_elastic.coordinator.worker_registry import Size
from ddl_elastic.engines import AgentSpec, Program, program
from ddl_elastic.engines.dialed import DialedEngine
from ddl_elastic.engines.hosts import HostAgents
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.engines.ray_cluster import RayAgents
from ddl_elastic.hidden.recording import watch_clock
from ddl_elastic.job import parse_workers
from ddl_launch.arguments import explain_misplaced
from ddl_launch.errors import USAGE, CommandError
from ddl_launch.hosts.layout import parse_hosts

_RAY_SLOTS = 1024

_DESCRIPTION = """\
Run a program as several workers on this machine, which train one model together. If a worker dies
or hangs, the others go on, and the result is the same to the last bit.
"""

_EPILOG = """\
examples:
  ddl elastic run -n 4 train.py --lr 0.1        four workers
  ddl elastic run -n 1:16 train.py              as many as there are cores for, at most 16
  ddl elastic run -H h1:2,h2:2 train.py         two workers on each of these hosts
  ddl elastic run --ray auto -n 2:8 train.py    on a Ray cluster, of whatever nodes it has
  ddl elastic run --listen 29400 --token-file job.token -n 2:8 train.py
                                                workers on other machines, by their agents
  ddl elastic run --report job.json train.py    write what has happened, as JSON
  ddl elastic run -n 1:8 --name digits train.py, and then
  ddl elastic scale digits 3                    three workers from now on

The program is an ordinary one. What makes it elastic:
  import ddl_torch.elastic as elastic

  job = elastic.Job(model, optimizer, batch=256, logical=16, also={"schedule": schedule})
  for step in job.steps(train_set, passes=10):
      for x, y in step:                              # this worker's shares of the step
          step.backward(loss_fn(model(x), y))        # instead of loss.backward()
      optimizer.step()
      schedule.step()
  if job.is_writer:                                  # on one of the workers
      torch.save(model.state_dict(), "model.pt")

Each worker runs the whole program, as `python train.py` would. Seed the random generators before
you make the model: all workers must start with the same model. Pass the objects with state that the
loop changes, such as schedules and averaged models, in `also`: workers that join get their state
from the others. The output of the workers appears on stdout, with their numbers in front. Events
and progress appear on stderr.

exit code: 0, or the code of the first worker that failed; a worker that died does not count if the
others continued. 2: wrong usage; 65: an audit has stopped the job
"""


def add_elastic(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `elastic` to the commands of `ddl`. `add` creates the parser of a command."""
    elastic = add(
        "elastic",
        help="train with workers that may die",
        epilog="example: ddl elastic run -n 1:16 train.py",
        allow_abbrev=False,
    )
    commands = elastic.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run a program as workers of an elastic job",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument(
        "-n",
        dest="workers",
        metavar="N",
        default="1:4096",
        help='number of workers, or "least:most" for as many as there are cores (default: one for'
        " each core)",
    )
    run.add_argument(
        "--no-replace",
        dest="replace",
        action="store_false",
        help="do not start a new worker when one has died",
    )
    run.add_argument(
        "--name",
        default=str(os.getpid()),
        help="name of the job, for `ddl elastic scale` (default: this process's id)",
    )
    run.add_argument(
        "--threads", metavar="T", type=int, default=1, help="threads per worker (default: 1)"
    )
    run.add_argument(
        "--preload",
        metavar="MODULE,...",
        help="modules to import once, before the workers are forked (default: the frameworks that"
        " the program names)",
    )
    run.add_argument(
        "-H",
        "--hosts",
        metavar="HOST[:N],...",
        help="run the workers on these hosts, N on each; mpirun or srun reaches them",
    )
    run.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run the workers on the Ray cluster at this address; auto finds a running one",
    )
    run.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        help="listen here for agents (see `ddl elastic agent`) and run the workers on their"
        " machines, not on this one; port 0 picks a free port and logs it",
    )
    run.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="file with the secret token by which agents prove that they may join; for --listen",
    )
    run.add_argument(
        "--report", metavar="FILE", type=Path, help="write job.report() to this file, as JSON"
    )
    run.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="write a timeline of the operations, with recoveries marked, for ui.perfetto.dev or"
        " chrome://tracing",
    )
    run.add_argument(
        "--audit",
        metavar="F",
        type=float,
        default=0.0,
        help="fraction of shares that a second worker computes again, such as 0.01, to find"
        " machines that compute wrongly (default: 0)",
    )
    run.add_argument(
        "--audit-action",
        choices=ACTIONS,
        default="rollback",
        help="action if committed steps may be wrong: go back to a checkpoint before them"
        " (rollback), continue with them (continue), or stop (default: rollback)",
    )
    run.add_argument("--quiet", action="store_true", help="show neither progress nor events")
    add_program(run)
    run.set_defaults(run=lambda arguments: _run(arguments, run))
    add_agent(commands)
    add_resume(commands)
    add_verify(commands, lambda words: _run(run.parse_args(words[1:]), run))
    scaled = commands.add_parser(
        "scale",
        help="change the number of workers of a job that runs on this machine",
        description="Change the number of workers of a job that `ddl elastic run` runs on this"
        " machine. Workers join and leave between two steps. No other worker restarts, and the"
        " result stays the same. The command returns at once.",
        epilog="example: ddl elastic scale digits 3",
        allow_abbrev=False,
    )
    scaled.add_argument("job", metavar="JOB", help="name of the job, or the id of its process")
    scaled.add_argument(
        "workers", metavar="N", type=int, help="new number of workers, within the job's least:most"
    )
    scaled.set_defaults(run=_scale)


def _run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    environment.fix_hashes()
    check_program(arguments)
    size = _size(arguments)
    variables = _audit_variables(arguments)
    secret = secrets.token_hex()
    traces = timeline.make_folder(arguments.trace)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    engine: AbstractContextManager[LocalEngine | DialedEngine]
    if _is_remote(arguments):
        order, token, address = _order(arguments, variables)
        start, least = _agents(arguments, token, size)
        progress = _progress(arguments)
        engine = agents_engine(address, token, order, start, least, progress.event)
    else:
        engine = _stay(arguments, variables, size.most, secret, traces)
        progress = _progress(arguments)
    with engine as opened, progress:
        job = Coordinator(opened, size, arguments.threads, progress)
        file = None
        if isinstance(opened, DialedEngine):
            where = (address[0], opened.port)
            file = JobFile(where, token, opened.job, secret, arguments.threads, order, size)
        code = run_job(job, arguments.name, secret, file, progress, arguments.report)
    command = [str(arguments.program), *arguments.arguments]
    if code == USAGE and (hint := explain_misplaced(parser, command, progress.last_words)):
        print(f"ddl: {hint}", file=sys.stderr)
    if traces:
        check("--trace", arguments.trace, lambda: job.write_trace(arguments.trace, traces))
    return code


def _audit_variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables that pass --audit to workers. Raises CommandError."""
    try:
        check_options(arguments.audit, arguments.audit_action)
    except ValueError as error:
        raise CommandError(f"--{error}") from None
    rate: float = arguments.audit
    return environment.with_audit({}, rate, arguments.audit_action) if rate else {}


def _stay(
    arguments: argparse.Namespace,
    variables: dict[str, str],
    workers: int,
    secret: str,
    traces: Path | None,
) -> LocalEngine:
    """Import the program's modules, and return an engine with workers on this machine."""
    try:
        program.preload(
            arguments.preload.split(",") if arguments.preload else None, arguments.program
        )
    except ImportError as error:
        raise CommandError(f"--preload {arguments.preload}: {error}") from None

    def work(spec: AgentSpec, channel: JobChannel) -> None:
        if environment.recording():
            watch_clock()
        environment.give_variables(variables)
        program.work(spec, channel, arguments.program, arguments.arguments, secret, traces)

    return LocalEngine(work, workers, arguments.threads)


def _is_remote(arguments: argparse.Namespace) -> bool:
    return bool(arguments.listen or arguments.hosts or arguments.ray)


def _agents(
    arguments: argparse.Namespace, token: str, size: Size
) -> tuple[Callable[[int], StartedAgents] | None, int]:
    """Return a function that starts agents, or None, and the number of slots to wait for."""
    cores: int = arguments.threads
    if arguments.ray:
        if size.most > _RAY_SLOTS:
            raise CommandError(
                f"--ray: -n allows {size.most} workers; must be at most {_RAY_SLOTS}, because the"
                " job requests a slot for each"
            )
        return lambda port: RayAgents(arguments.ray, size.most, port, token, cores), size.least
    if arguments.hosts:
        hosts = parse_hosts(arguments.hosts, "-H")
        places = sum(host.ranks or 1 for host in hosts)
        least = max(size.least, min(size.most, places))
        return lambda port: HostAgents(hosts, port, token, cores), least
    return None, size.least


def _order(
    arguments: argparse.Namespace, variables: dict[str, str]
) -> tuple[Program, str, tuple[str, int]]:
    """Return the program for agents, the token, and the address at which agents connect."""
    if arguments.trace:
        raise CommandError(
            "--trace is not supported with --listen, -H and --ray: agents send no timeline"
        )
    if arguments.listen and not arguments.token_file:
        raise CommandError("--listen requires --token-file: agents authenticate with that token")
    preload = arguments.preload.split(",") if arguments.preload else []
    order = Program(
        str(arguments.program), arguments.arguments, str(Path.cwd()), preload, variables
    )
    token = read_token(arguments.token_file) if arguments.token_file else secrets.token_hex(32)
    return order, token, parse_address(arguments.listen or "0", "--listen", "0.0.0.0")


def _progress(arguments: argparse.Namespace) -> Progress:
    return Progress(shown=not arguments.quiet, output=sys.stdout)


def _scale(arguments: argparse.Namespace) -> int:
    try:
        scale(arguments.job, arguments.workers)
    except (ControlError, OSError) as error:
        raise CommandError(str(error)) from None
    return 0


def _size(arguments: argparse.Namespace) -> Size:
    """Return the range of worker counts that -n requests. Without agents, this machine's cores
    limit it."""
    threads: int = arguments.threads
    try:
        low, high = parse_workers(arguments.workers)
        if threads < 1:
            raise ValueError(f"threads is {threads}; must be at least 1")
    except ValueError as error:
        raise CommandError(str(error)) from None
    places = high if _is_remote(arguments) else environment.cores() // threads
    return Size(max(low, min(high, places)), low, high, arguments.replace)
