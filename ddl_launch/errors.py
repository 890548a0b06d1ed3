# SPDX-License-Identifier: Apache-2.0
"""The errors with which ddlrun and the commands of ddl end."""

from __future__ import annotations

FAILED, USAGE, NOT_EXECUTABLE, NOT_FOUND = 1, 2, 126, 127
INTERRUPTED = 130  # after Ctrl-C: 128 + SIGINT

SCHEDULER_EXTRA = "pip install 'libddl[scheduler]'"  # the remedy if a package is missing


class LaunchError(Exception):
    """An error that prevents the start of a job, with ddlrun's exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class CommandError(Exception):
    """An error of a command of `ddl`, which prints it and exits with code 2."""
