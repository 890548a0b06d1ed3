# SPDX-License-Identifier: Apache-2.0
"""The entry points of ddlrun and ddl. Ctrl-C ends them without a traceback, even during the
imports, which take most of a second."""

# PYTHON_ARGCOMPLETE_OK: for shells that complete every Python program

from __future__ import annotations

import importlib
import os
import signal


def ddlrun() -> int:
    """Run ddlrun. Return its exit code."""
    return _run("ddlrun", "ddl_launch.cli")


def ddl() -> int:
    """Run ddl. Return its exit code."""
    return _run("ddl", "ddl_launch.commands.cli")


def _run(name: str, module: str) -> int:
    def stop(*_: object) -> None:
        os.write(2, f"{name}: interrupted\n".encode())
        os._exit(128 + signal.SIGINT)

    # A handler instead of KeyboardInterrupt, which imported code may catch or replace.
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:
        signal.signal(signal.SIGINT, stop)
    main = importlib.import_module(module).main
    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(main())
