# SPDX-License-Identifier: Apache-2.0
"""Why ddlrun does not start a job, or a command of ddl stops."""

from __future__ import annotations

FAILED, USAGE, NOT_EXECUTABLE, NOT_FOUND = 1, 2, 126, 127

SCHEDULER_EXTRA = "pip install 'libddl[scheduler]'"  # for a package that is missing


class LaunchError(Exception):
    """Why nothing was started, and the exit code that says so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class CommandError(Exception):
    """Why a command of `ddl` stops. `ddl` prints it and exits with code 2."""
