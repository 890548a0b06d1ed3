# SPDX-License-Identifier: Apache-2.0
"""The options of audits, and the error and exit code after an audit; see step/audit.py."""

from __future__ import annotations

from typing import Literal, get_args

from ddl_elastic.base import environment

Action = Literal["rollback", "continue", "stop"]
ACTIONS: tuple[Action, ...] = get_args(Action)
EXIT_CODE = 65  # the exit code of a job that an audit has stopped


class AuditError(RuntimeError):
    """The error on ranks that computed wrongly, or on all ranks if the job cannot continue."""


def find_options(rate: float | None, action: str | None) -> tuple[float, Action]:
    """Return the rate and action of audits. Replace None by the value from the environment, or by
    the default: no audits. Raises ValueError if one of them is invalid."""
    given, then = environment.audit() or (0.0, "rollback")
    rate = given if rate is None else rate
    return rate, check_options(rate, action or then)


def check_options(rate: float, action: str) -> Action:
    """Return the action if both options are valid. Raises ValueError otherwise."""
    if not 0 <= rate <= 1:
        raise ValueError(f"audit is {rate}; must be a fraction from 0 to 1, such as 0.01")
    if action not in ACTIONS:
        raise ValueError(f"audit_action is {action!r}; must be one of {', '.join(ACTIONS)}")
    return action
