# SPDX-License-Identifier: Apache-2.0
"""Checks that the programs share."""

from collections.abc import Callable
from typing import Any

import numpy as np


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


def operand(worker: int, shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng(worker)
    return (random.standard_normal(shape) * 10.0 ** random.integers(-6, 7, shape)).astype("f")


def tree(operands: list[Any]) -> Any:
    """Return the sum of arrays in the order of ddl.h's "Ordered sums"."""
    if len(operands) == 1:
        return operands[0]
    half = 1 << (len(operands) - 1).bit_length() - 1
    return tree(operands[:half]) + tree(operands[half:])
