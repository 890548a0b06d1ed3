# SPDX-License-Identifier: Apache-2.0
"""Checks that the programs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refused(
    kind: type[Exception], text: str, call: Callable[..., Any], *arguments: Any, **options: Any
) -> None:
    """Check that the call raises `kind` with a message that contains `text`."""
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind.__name__}: {text}")
