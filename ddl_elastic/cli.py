"""`ddl elastic`: elastic jobs of programs with a loop of their own."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ddl_elastic import environment, program, timeline
from ddl_elastic.cli_agent import add_agent, listen, read_token
from ddl_elastic.coordinator import Coordinator, JobFailed
from ddl_elastic.engines import AgentSpec, Program
from ddl_elastic.engines.dialed import DialedEngine
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.job import parse_workers
from ddl_elastic.messages import Channel
from ddl_elastic.progress import Progress
from ddl_launch.errors import CommandError

_DESCRIPTION = """\
Run a program as several workers on this machine, which train one model together. If a worker dies
or hangs, the others go on, and the result is the same to the last bit.
"""

_EPILOG = """\
examples:
  ddl elastic run -n 4 train.py --lr 0.1        four workers
  ddl elastic run -n 1:16 train.py              as many as there are cores for, at most 16
  ddl elastic run --listen 29400 --token-file job.token -n 2:8 train.py
                                                workers on other machines, by their agents
  ddl elastic run --report job.json train.py    write what has happened, as JSON

The program is an ordinary one. What makes it elastic:
  import ddl_torch.elastic as elastic

  job = elastic.Job(model, optimizer, batch=256, logical=16)
  for step in job.steps(train_set, passes=10):
      for x, y in step:                              # this worker's shares of the step
          step.backward(loss_fn(model(x), y))        # instead of loss.backward()
      optimizer.step()
  if job.is_writer:                                  # on one of the workers
      torch.save(model.state_dict(), "model.pt")

Each worker runs the whole program, as `python train.py` would. Seed the generators before the model
is made: all workers have to start with the same one. What the workers write appears on stdout, with
their numbers in front, and the events and the progress on stderr.

exit code: that of the first worker that did not end with 0; one that died while the others went on
does not count; 2: wrong usage
"""


def add_elastic(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `elastic` to ddl's commands by `add`, which makes their parsers."""
    elastic = add("elastic", help="train with workers that may die", allow_abbrev=False)
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
        help='workers: a number, or "least:most", and then as many as there are cores for (default:'
        " one for each core)",
    )
    run.add_argument(
        "--threads", metavar="T", type=int, default=1, help="of each worker (default: 1)"
    )
    run.add_argument(
        "--preload",
        metavar="MODULE,...",
        help="import these once, before the workers are forked (default: the frameworks that the"
        " program names)",
    )
    run.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        help="run the workers where agents dial in from, see `ddl elastic agent`, instead of on"
        " this machine; port 0: a free one, which is said",
    )
    run.add_argument(
        "--token-file", metavar="FILE", type=Path, help="what agents have to know; for --listen"
    )
    run.add_argument("--report", metavar="FILE", type=Path, help="write job.report() as JSON")
    run.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="write a timeline of the operations, with recoveries marked, for ui.perfetto.dev or"
        " chrome://tracing",
    )
    run.add_argument("--quiet", action="store_true", help="show neither progress nor events")
    run.add_argument("program", metavar="PROGRAM.py", type=Path)
    run.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(run=_run)
    add_agent(commands)


def _run(arguments: argparse.Namespace) -> int:
    path: Path = arguments.program
    if not path.is_file():
        raise CommandError(f"{path}: there is no such program; give a file, as in: train.py --lr 1")
    low, high = _range(arguments.workers, arguments.threads)
    traces = timeline.make_folder(arguments.trace)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    progress = Progress(shown=not arguments.quiet, output=sys.stdout)
    engine: LocalEngine | DialedEngine
    if arguments.listen:
        engine = _listen(arguments, low, progress.event)
    else:
        count = max(low, min(high, environment.cores() // arguments.threads))
        engine = _stay(arguments, count, traces)
    with engine, progress:
        workers = sum(slot.state == "free" for slot in engine.slots())
        job = Coordinator(engine, min(workers, high), arguments.threads, progress)
        try:
            job.run(lambda: program.wait_for_end(job))
            code = 0
        except JobFailed as error:
            code = error.code
            if str(error):
                progress.event(str(error))
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        finally:
            if arguments.report:
                text = json.dumps(job.report(), indent=1) + "\n"
                _check("--report", arguments.report, lambda: arguments.report.write_text(text))
    if traces:
        _check("--trace", arguments.trace, lambda: job.write_trace(arguments.trace, traces))
    return code


def _stay(arguments: argparse.Namespace, workers: int, traces: Path | None) -> LocalEngine:
    """The engine of this machine. The program's modules are imported here."""
    secret = secrets.token_hex()
    try:
        program.preload(
            arguments.preload.split(",") if arguments.preload else None, arguments.program
        )
    except ImportError as error:
        raise CommandError(f"--preload {arguments.preload}: {error}") from None

    def work(spec: AgentSpec, channel: Channel) -> None:
        program.work(spec, channel, arguments.program, arguments.arguments, secret, traces)

    return LocalEngine(work, workers, arguments.threads)


def _listen(arguments: argparse.Namespace, least: int, show: Callable[[str], None]) -> DialedEngine:
    """The engine of agents that dial in, once the least number of slots is there."""
    if arguments.trace:
        raise CommandError("--trace: the workers of --listen leave no timeline here")
    if not arguments.token_file:
        raise CommandError("--listen: give --token-file too; agents have to know what is in it")
    preload = arguments.preload.split(",") if arguments.preload else []
    order = Program(str(arguments.program), arguments.arguments, str(Path.cwd()), preload)
    return listen(arguments.listen, read_token(arguments.token_file), order, least, show)


def _range(workers: str, threads: int) -> tuple[int, int]:
    try:
        if threads < 1:
            raise ValueError(f"threads is {threads}; at least 1 is needed")
        return parse_workers(workers)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _check(option: str, path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise CommandError(f"{option} {path}: {error.strerror}") from None
