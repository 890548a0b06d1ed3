# SPDX-License-Identifier: Apache-2.0
"""The framework that this process uses, PyTensor or one of its ancestors, and the parts of it that
the Ops need."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

_NAMES = ("pytensor", "aesara", "theano")


def _find() -> str:
    loaded = [name for name in _NAMES if name in sys.modules]
    installed = [name for name in _NAMES if importlib.util.find_spec(name)]
    if not loaded and not installed:
        raise ImportError(f"ddl_pytensor needs one of {', '.join(_NAMES)}, but none is installed")
    return (loaded or installed)[0]


name = _find()
framework: Any = importlib.import_module(name)
tensor: Any = importlib.import_module(f"{name}.tensor")
Op: Any = importlib.import_module(f"{name}.graph.op").Op
Apply: Any = importlib.import_module(f"{name}.graph.basic").Apply
_gradients: Any = importlib.import_module(f"{name}.gradient")
disconnected: Any = _gradients.DisconnectedType
not_implemented: Any = _gradients.grad_not_implemented


def register_numba(op: type) -> None:
    """Make Numba's mode run an Op through its `perform`, without the warning that this is slow: an
    operation waits for other processes in any case."""
    if name != "pytensor":
        return
    import warnings

    try:
        from pytensor.link.numba.dispatch import basic
    except ImportError:  # Numba is not installed
        return

    @basic.numba_funcify.register(op)
    def run_perform(op: Any, node: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return basic.generate_fallback_impl(op, node=node, **options)
