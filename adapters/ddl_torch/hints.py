# SPDX-License-Identifier: Apache-2.0
"""A line for DDL_LOG=info at the start of a DistributedDataParallel job on several hosts: how long
its gradients occupy the wire, and the command that compares ways to send fewer bytes."""

from __future__ import annotations

import functools
import logging
import weakref
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ddl_core.frameworks import torch_choices
from ddl_torch._autoload import is_ddl
from ddl_torch.world import local_numbers

_log = logging.getLogger("ddl_torch")
_SHARES = {"f32": 1.0, "int8": 129 / 512, "int4": 65 / 512}  # of the bytes of float32
_RATE = 0.949 * 125e6  # payload of 1 Gbit/s Ethernet, in bytes per second

_reported: Any = weakref.WeakSet()  # process groups


@functools.cache
def watch() -> None:
    """Make rank 0 log the line before the first forward pass of each process group's first
    DistributedDataParallel. Its communication hook is known by then. Runs once."""
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def initialize(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        group = self.process_group
        if not is_ddl(group) or group.rank() or group in _reported:
            return
        _reported.add(group)

        def report(model: Any, inputs: Any) -> None:
            handle.remove()
            _report(model)

        handle = self.register_forward_pre_hook(report)

    DistributedDataParallel.__init__ = initialize


def _report(model: Any) -> None:
    ranks = local_numbers(model.process_group)[1]
    hosts = -(-model.process_group.size() // ranks)
    if hosts == 1:
        return
    trained = [each for each in model.parameters() if each.requires_grad]
    nbytes = sum(each.numel() * each.element_size() for each in trained)
    wire = getattr(model, "_ddl_wire", None) or torch_choices.wire()
    if not _log.hasHandlers():  # the program has not configured logging
        _log.addHandler(logging.StreamHandler())
    if not _log.isEnabledFor(logging.INFO):
        _log.setLevel(logging.INFO)
    _log.info("%s", describe(nbytes, hosts, ranks, wire))


def describe(nbytes: int, hosts: int, ranks: int, wire: str) -> str:
    """Return the line for gradients of `nbytes` on `hosts` hosts with `ranks` ranks each, which are
    sent in the format `wire`."""
    sent = 2 * (hosts - 1) / hosts * nbytes
    each = [
        f"{name} {sent * share / (1 << 20):.3g} MiB ({sent * share / _RATE * 1e3:.3g} ms)"
        for name, share in _SHARES.items()
    ]
    return (
        f"DistributedDataParallel: {hosts} hosts, gradients of {nbytes / (1 << 20):.3g} MiB, {wire}"
        f" on the wire. Sent by a host in a step, with the time at 1 Gbit/s: {', '.join(each)}."
        f" To compare: ddl plan --model-bytes {nbytes} --hosts {hosts} --ranks {ranks}"
        " --step-ms MS --rate RATE"
    )
