# SPDX-License-Identifier: Apache-2.0
"""The error of an adapter whose framework is not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def require(adapter: str, module: str, name: str) -> None:
    """Raise ModuleNotFoundError with the remedy if the framework `name`, which has this module, is
    not installed. In `python -m ADAPTER`, exit with the same message instead."""
    if find_spec(module):
        return
    text = f"{adapter}: {name} is not installed: pip install 'libddl[{adapter[4:]}]'"
    # True while Python searches for the module.
    if sys.argv[:1] == ["-m"] and adapter in sys.orig_argv:
        sys.exit(text)
    raise ModuleNotFoundError(text, name=module)
