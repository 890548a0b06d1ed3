# SPDX-License-Identifier: Apache-2.0
"""What the environment tells ddl_torch. PyTorch waits for this in every new process group, also in
those of other backends, so this module imports nothing until there is an error."""

from __future__ import annotations

import os
from collections.abc import Mapping

_SHARED = {"": "none", "0": "none", "1": "buffers", "all": "all"}


def shared(env: Mapping[str, str] = os.environ) -> str:
    """DDL_TORCH_SHARED: "none", "buffers" (1) or "all"; "none" if it is not set. Raises
    InvalidArgument for another value."""
    text = env.get("DDL_TORCH_SHARED", "")
    if text not in _SHARED:
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(f'DDL_TORCH_SHARED is "{text}", and not 0, 1 or all')
    return _SHARED[text]


def served_backend(env: Mapping[str, str] = os.environ) -> str:
    """DDL_TORCH_SERVE: the backend of PyTorch in whose place ddl answers, "gloo"; or "". Raises
    InvalidArgument for another one."""
    name = env.get("DDL_TORCH_SERVE", "")
    if name not in ("", "gloo"):
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(f'DDL_TORCH_SERVE is "{name}"; the only backend to serve is "gloo"')
    return name


def local_rank(rank: int, env: Mapping[str, str] = os.environ) -> int:
    """Return LOCAL_RANK, which torchrun and ddlrun set, or `rank` if it is not set or no number."""
    text = env.get("LOCAL_RANK", "")
    return int(text) if text.isdecimal() else rank


def native(env: Mapping[str, str] = os.environ) -> bool:
    """DDL_TORCH_NATIVE: False for 0, so that nothing is compiled and Python does the work. Raises
    InvalidArgument for another value than 0 and 1."""
    text = env.get("DDL_TORCH_NATIVE", "")
    if text not in ("", "0", "1"):
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(f'DDL_TORCH_NATIVE is "{text}", and not 0 or 1')
    return text != "0"
