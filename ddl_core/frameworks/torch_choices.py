# SPDX-License-Identifier: Apache-2.0
"""The environment variables of ddl_torch. Every new process group imports this module, even
one of another backend. To save time, it imports nothing itself unless there is an error."""

from __future__ import annotations

import os
from collections.abc import Mapping

_SHARED = {"": "automatic", "0": "none", "1": "buffers", "all": "all"}


def shared(env: Mapping[str, str] = os.environ) -> str:
    """Return the choice in DDL_TORCH_SHARED: "none" for 0, "buffers" for 1, "all" for all, and
    "automatic" if it is unset. Raises InvalidArgument for any other value."""
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
    """Return the value of DDL_TORCH_SERVE: "gloo" if ddl replaces that PyTorch backend, or "" if it
    is unset. Raises InvalidArgument for any other value."""
    name = env.get("DDL_TORCH_SERVE", "")
    if name not in ("", "gloo"):
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(f'DDL_TORCH_SERVE is "{name}"; must be "gloo" or unset')
    return name


def logs_info(env: Mapping[str, str] = os.environ) -> bool:
    """Return True if DDL_LOG contains a level that includes information."""
    return env.get("DDL_LOG", "") in ("info", "plan", "debug")


def wire(env: Mapping[str, str] = os.environ) -> str:
    """Return the wire format in DDL_WIRE, which libddl has checked."""
    return env.get("DDL_WIRE", "") or "f32"


def local_rank(rank: int, env: Mapping[str, str] = os.environ) -> int:
    """Return LOCAL_RANK, set by torchrun and ddlrun, or `rank` if it is unset or not a number."""
    text = env.get("LOCAL_RANK", "")
    return int(text) if text.isdecimal() else rank


def native(env: Mapping[str, str] = os.environ) -> bool:
    """Return False if DDL_TORCH_NATIVE is 0: no native part is then compiled, and Python replaces
    it. Raises InvalidArgument for values other than 0 and 1."""
    text = env.get("DDL_TORCH_NATIVE", "")
    if text not in ("", "0", "1"):
        from ddl_core.errors import InvalidArgument

        raise InvalidArgument(f'DDL_TORCH_NATIVE is "{text}"; must be 0 or 1')
    return text != "0"
