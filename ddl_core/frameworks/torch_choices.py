# SPDX-License-Identifier: Apache-2.0
"""The environment variables of ddl_torch. Every new process group imports this module, even
one of another backend. To save time, it imports nothing itself unless there is an error."""

from __future__ import annotations

import os
from collections.abc import Mapping

_SHARED = {"": "automatic", "0": "none", "1": "buffers", "all": "all"}


def shared(env: Mapping[str, str] = os.environ) -> str:
    """Return DDL_TORCH_SHARED: "none" (0), "buffers" (1) or "all"; "automatic" if it is not set.
    Raises InvalidArgument for another value."""
    text = env.get("DDL_TORCH_SHARED", "")
    if text not in _SHARED:
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(f'DDL_TORCH_SHARED is "{text}"; must be 0, 1 or all')
    return _SHARED[text]


def let_groups_allocate() -> None:
    """Make DistributedDataParallel allocate its buckets from the process group, unless the user has
    set PyTorch's variable."""
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")


def served_backend(env: Mapping[str, str] = os.environ) -> str:
    """Return DDL_TORCH_SERVE: the backend of PyTorch that ddl replaces, "gloo"; or "". Raises
    InvalidArgument for another value."""
    name = env.get("DDL_TORCH_SERVE", "")
    if name not in ("", "gloo"):
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(f'DDL_TORCH_SERVE is "{name}"; must be "gloo" or unset')
    return name


def local_rank(rank: int, env: Mapping[str, str] = os.environ) -> int:
    """Return LOCAL_RANK, set by torchrun and ddlrun, or `rank` if it is unset or not a number."""
    text = env.get("LOCAL_RANK", "")
    return int(text) if text.isdecimal() else rank


def native(env: Mapping[str, str] = os.environ) -> bool:
    """Return DDL_TORCH_NATIVE: False for 0, so that no native part is compiled and Python is used.
    Raises InvalidArgument for other values than 0 and 1."""
    text = env.get("DDL_TORCH_NATIVE", "")
    if text not in ("", "0", "1"):
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(f'DDL_TORCH_NATIVE is "{text}"; must be 0 or 1')
    return text != "0"
