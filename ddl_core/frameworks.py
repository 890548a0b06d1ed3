# SPDX-License-Identifier: Apache-2.0
"""What an adapter says where its framework is not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def require(adapter: str, module: str, name: str) -> None:
    """Raise ModuleNotFoundError with the remedy if a module of the framework `name` is missing, and
    in `python -m ADAPTER` end with that one line."""
    if find_spec(module):
        return
    text = f"{adapter}: {name} is not installed; pip install 'libddl[{adapter[4:]}]' brings it"
    if sys.argv[:1] == ["-m"] and adapter in sys.orig_argv:  # so it is while Python looks for it
        sys.exit(text)
    raise ModuleNotFoundError(text, name=module)
