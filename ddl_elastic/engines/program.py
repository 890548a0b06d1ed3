# SPDX-License-Identifier: Apache-2.0
"""The worker that runs a user's program in the same way as `python PROGRAM ARGUMENTS`, with the
framework already imported. The program joins the job when it creates its elastic.Job."""

from __future__ import annotations

import atexit
import importlib
import re
import runpy
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ddl_core.errors import Minority
from ddl_elastic.base import environment
from ddl_elastic.base.audits import AuditError
from ddl_elastic.base.messages import JobOver
from ddl_elastic.base.protocol import JobChannel, ProgramFailed
from ddl_elastic.engines import AgentSpec
from ddl_elastic.frameworks.protocol import ADAPTERS, loaded_adapters


class NoJob(RuntimeError):
    """The error for a program that ended without creating an elastic job."""


def preload(modules: Sequence[str] | None, path: Path) -> None:
    """Import these modules, and all modules that training with them needs. None means the installed
    frameworks that the program names."""
    for name in named(path.read_text(errors="replace")) if modules is None else modules:
        with suppress(*[ImportError] if modules is None else []):
            importlib.import_module(name)
    for adapter in loaded_adapters():
        adapter.preload()


def named(text: str) -> list[str]:
    """Return the frameworks that a program's text names, or PyTorch if it names none. If the
    program may set environment variables, return only PyTorch, because the other frameworks read
    variables when they are imported."""
    found = [name for name in ADAPTERS if re.search(rf"\b(ddl_)?{name}\b", text)]
    return [name for name in found if name == "torch" or "environ" not in text] or ["torch"]


def work(
    spec: AgentSpec,
    channel: JobChannel,
    path: Path,
    words: Sequence[str],
    secret: str,
    traces: Path | None,
) -> None:
    """Run the program as a worker, from start to exit. Raises SystemExit with its exit code."""
    environment.collect_traces(traces)
    environment.give_agent(channel.fileno(), spec.member, secret)
    sys.argv = [str(path), *words]
    sys.path[0] = str(path.parent.resolve())
    code: object = 0
    ended_early = False
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        code = end.code
        # An elastic program may exit before it creates its job, for example after --help.
        ended_early = "elastic" in path.read_text(errors="replace")
    except JobOver:  # the job ended without this worker, which is not an error
        pass
    except BaseException as error:
        code = 1
        _fail(channel, error)
    if not (code is None or isinstance(code, int)):
        print(code, file=sys.stderr)
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    if not (code or ended_early):
        try:
            _require_job(path)
        except NoJob as error:
            code = 1
            _fail(channel, error)
    atexit._run_exitfuncs()
    raise SystemExit(code or 0)


def _require_job(path: Path) -> None:
    """Raise NoJob if the program has not joined the job. In this case each worker has run the whole
    program alone."""
    if not environment.is_agent_taken():
        raise NoJob(
            f"{path} made no elastic job, so each worker ran it alone; make an elastic.Job in it,"
            " or run it by ddlrun"
        )


def _fail(channel: JobChannel, error: BaseException) -> None:
    """Print the error, and report it to the coordinator."""
    _show(error)
    with suppress(OSError):
        channel.send(ProgramFailed(f"{type(error).__name__}: {error}"))


def _show(error: BaseException) -> None:
    """Print an error and its traceback, without the frames of this file and runpy."""
    if isinstance(error, (Minority, NoJob, AuditError)):
        print(error, file=sys.stderr)  # no traceback: no line of the program is the cause
        return
    found = error.__traceback__
    while found and found.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        found = found.tb_next
    traceback.print_exception(type(error), error, found)
