# SPDX-License-Identifier: Apache-2.0
"""`ddl elastic resume`, which starts a new coordinator for a job on several hosts whose coordinator
has exited."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from ddl_elastic.base import environment
from ddl_elastic.coordinator import job_file
from ddl_elastic.coordinator.control import Control, ControlError
from ddl_elastic.coordinator.coordinator import Coordinator, JobFailed, wait_for_end
from ddl_elastic.coordinator.job_file import JobFile
from ddl_elastic.coordinator.progress import Progress
from ddl_elastic.engines.dialed import DialedEngine
from ddl_launch.errors import CommandError

RETURNS = 30.0  # seconds in which the first agents must reconnect

_DESCRIPTION = """\
Replace a `ddl elastic run` that was killed, or whose machine was restarted. The job's workers have
continued and do not restart. Workers can then join and leave again, and this command shows and
reports the same as `ddl elastic run`. Call it on the machine on which `ddl elastic run` ran.
"""


def add_resume(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `resume` to the commands of `ddl elastic`."""
    resume = commands.add_parser(
        "resume",
        help="continue a job on several hosts whose `ddl elastic run` was killed",
        description=_DESCRIPTION,
        epilog="example: ddl elastic resume digits",
        allow_abbrev=False,
    )
    resume.add_argument(
        "job",
        metavar="JOB",
        help="name of the job, or the process id of the `ddl elastic run` that was killed",
    )
    resume.add_argument(
        "--report", metavar="FILE", type=Path, help="write job.report() to this file, as JSON"
    )
    resume.add_argument("--quiet", action="store_true", help="show neither progress nor events")
    resume.set_defaults(run=_run)


def run_job(
    job: Coordinator,
    name: str,
    secret: str,
    file: JobFile | None,
    progress: Progress,
    report: Path | None,
) -> int:
    """Run a job to its end, with a control socket of this name, and return its exit code.

    file  the job file for a later coordinator; None if the job cannot be resumed
    """

    lock = threading.Lock()  # of the file, which Control's thread writes too

    def resize(workers: int) -> None:
        nonlocal file
        job.registry.resize(workers)
        with lock:
            if file:
                file = replace(file, size=replace(file.size, target=workers))
                file.write(name)

    def write_barred(hosts: Collection[str]) -> None:
        nonlocal file
        with lock:
            if file:
                file = replace(file, barred=sorted(hosts))
                try:
                    file.write(name)
                except OSError as error:
                    progress.event(
                        "these hosts compute wrongly, but a resumed job would use them again:"
                        f" {file.barred} ({error})"
                    )

    try:
        control = Control(name, secret, resize)
        if file:
            file.write(name)
            job.bar(file.barred, write_barred)
    except (ControlError, OSError) as error:
        raise CommandError(f"--name {name}: {error}") from None
    try:
        with control:
            job.run(lambda: wait_for_end(job))
        return 0
    except JobFailed as error:
        if str(error):
            progress.event(str(error))
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if file:
            job_file.remove(name)
        if report:
            text = json.dumps(job.report(), indent=1) + "\n"
            check("--report", report, lambda: report.write_text(text))


def check(option: str, path: Path, write: Callable[[], object]) -> None:
    """Call `write`, and report an OSError as a CommandError that names the option."""
    try:
        write()
    except OSError as error:
        raise CommandError(f"{option} {path}: {error.strerror}") from None


def _run(arguments: argparse.Namespace) -> int:
    name: str = arguments.job
    try:
        file = job_file.read(name)
    except (OSError, ValueError) as error:
        there = ", ".join(job_file.names()) or "none"
        raise CommandError(f"there is no job {name} to resume ({error}); jobs: {there}") from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    progress = Progress(shown=not arguments.quiet, output=sys.stdout)
    environment.allow_connections()
    try:
        engine = DialedEngine(file.address, file.token, file.program, progress.event, file.job)
    except OSError as error:
        host, port = file.address
        raise CommandError(
            f"{name}: cannot listen at {host}:{port}, where the job's agents connect:"
            f" {error.strerror}. Is its `ddl elastic run` still running?"
        ) from None
    with engine, progress:
        job = Coordinator(engine, file.size, file.threads, progress, RETURNS)
        return run_job(job, name, file.secret, file, progress, arguments.report)
