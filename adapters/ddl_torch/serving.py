# SPDX-License-Identifier: Apache-2.0
"""Replacement of the backend "gloo" by ddl, for programs that support only Gloo on CPUs."""

from __future__ import annotations

import functools
import logging
from typing import Any

from ddl_torch._autoload import cpu_backend

_GLOO, _DDL = "gloo", "ddl"

_log = logging.getLogger("ddl_torch")
_chosen: str | None = None  # the backend given to `serve`; "" for none; None: the environment's


def serve(backend: str | None) -> None:
    """Use ddl for this process's later requests for the backend "gloo".

    Programs that name Gloo then use libddl unchanged: init_process_group("gloo"),
    new_group(backend="gloo"), "cpu:gloo,cuda:nccl", and no backend on a machine without
    accelerators, create groups of ddl. torch.distributed.get_backend returns the name that the
    program requested, and get_backend_config the backend in use. Accelerator tensors keep the
    backend that the program chose.

    backend: "gloo", or None (the default) to leave requests unchanged. DDL_TORCH_SERVE=gloo in the
    environment does the same as serve("gloo"). A call overrides the variable.

    All ranks make the same choice before torch.distributed is initialized. Raises
    ddl_core.errors.InvalidArgument for another name, and InvalidState if a group of Gloo exists.
    """
    global _chosen
    from ddl_core.errors import InvalidArgument

    if backend not in (_GLOO, None):
        raise InvalidArgument(f'backend is {backend!r}; must be "gloo" or None')
    if backend == _GLOO:
        import torch.distributed as dist

        _refuse_gloo_groups(dist)
    _chosen = backend or ""


def open_gloo_requests(dist: Any) -> None:
    """Make torch.distributed consult this module before it creates a group, so that a request for
    Gloo may create a group of ddl."""
    c10d = dist.distributed_c10d
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def _new_process_group_helper(
        size: int, rank: int, ranks: list[int], backend: Any, *rest: Any, **options: Any
    ) -> Any:
        devices = _served_devices(dist, backend)
        if devices is None:
            return original(size, rank, ranks, backend, *rest, **options)
        serving = ",".join(f"{device}:{name}" for device, name in devices.items())
        serving = dist.Backend(_DDL if list(devices) == ["cpu"] else serving)
        group, store = original(size, rank, ranks, serving, *rest, **options)
        if group in c10d._world.pg_map:  # this process is a member
            c10d._world.pg_map[group] = (dist.Backend(backend), store)
        if rank == 0 and not ranks:
            _log.warning("the %d ranks requested the backend gloo; ddl serves it instead", size)
        return group, store

    c10d._new_process_group_helper = _new_process_group_helper


def is_for_ddl(backend: Any) -> bool:
    """Return True if a request for this backend may create a group of ddl."""
    name = "" if backend is None else str(backend).lower()
    return _DDL in name or ((not name or _GLOO in name) and _is_serving())


def _served_devices(dist: Any, backend: Any) -> dict[str, str] | None:
    """Return the backend for each device type, with ddl for the CPU. Return None if the request is
    not for Gloo, or `serve` is off."""
    if str(backend) != dist.Backend.UNDEFINED and _GLOO not in str(backend):
        return None
    if not _is_serving():
        return None
    devices = dict(dist.distributed_c10d.BackendConfig(backend).get_device_backend_map())
    if devices.get("cpu") != _GLOO:
        return None
    if ":" not in str(backend):  # the map then has Gloo's devices, which may not exist here
        devices = {device: name for device, name in devices.items() if _exists(device)}
    return {**devices, "cpu": _DDL}


def _exists(device: str) -> bool:
    import torch

    return device == "cpu" or bool(getattr(torch, device).is_available())


def _is_serving() -> bool:
    if _chosen is not None:
        return _chosen == _GLOO
    try:
        from ddl_core.frameworks import torch_choices
    except ImportError:  # libddl is broken, but Gloo must still work
        _log.exception("DDL_TORCH_SERVE is ignored, because ddl_core cannot be imported")
        return False
    return torch_choices.served_backend() == _GLOO


def _refuse_gloo_groups(dist: Any) -> None:
    from ddl_core.errors import InvalidState

    groups = dist.distributed_c10d._world.pg_map
    names = [group.group_name for group in groups if _cpu_backend_name(group) == _GLOO]
    if names:
        raise InvalidState(
            f"process groups of Gloo already exist, named {', '.join(names)}: call"
            ' ddl_torch.serve("gloo") before init_process_group, or set DDL_TORCH_SERVE=gloo'
        )


def _cpu_backend_name(group: Any) -> str:
    try:
        return str(cpu_backend(group).name())
    except RuntimeError:  # the group has no backend for the CPU
        return ""
