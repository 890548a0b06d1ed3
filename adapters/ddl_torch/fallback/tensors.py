# SPDX-License-Identifier: Apache-2.0
"""The conversion of PyTorch's tensors and reductions to ddl_core's."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddl_core.calls import dtypes
from ddl_core.calls.buffer import Buffer
from ddl_torch.ops import OPS

_DTYPES = {
    getattr(torch, dtype.name): dtype for dtype in dtypes.TABLE if hasattr(torch, dtype.name)
}


def reduction_of(options: Any, tensor: Tensor) -> dict[str, Any]:
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"ddl: cannot reduce tensors of type {tensor.dtype}")
    op = dist.ReduceOp.SUM if options is None else getattr(options, "reduceOp", options)
    op = dist.ReduceOp(op) if isinstance(op, dist.ReduceOp.RedOpType) else op
    for ours, name in OPS.items():
        if op == getattr(dist.ReduceOp, name):
            return {"op": ours}
    if op != dist.ReduceOp.PREMUL_SUM:
        raise ValueError(f"ddl: {op} is not a ReduceOp")
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise NotImplementedError(
            f"ddl: ReduceOp.PREMUL_SUM of {tensor.dtype}; only floats and complex numbers can be"
            " scaled"
        )
    _, factor = op.__getstate__()  # a number or a tensor of one; there is no public accessor
    return {"op": "sum", "prescale": float(factor)}


def scaled(memory: Tensor, keywords: dict[str, Any]) -> Tensor:
    """Return the memory. First multiply it by 0 if the prescale is 0, which ddl_core rejects."""
    if keywords.get("prescale") == 0:
        del keywords["prescale"]
        own = memory.detach()
        with torch.inference_mode(own.is_inference()):
            own.copy_(own.to(torch.float32).mul_(0) if own.element_size() == 1 else own * 0)
    return memory


def _is_plain(tensor: Tensor) -> bool:
    if tensor.layout != torch.strided:
        raise ValueError(f"ddl: a tensor has layout {tensor.layout}; convert it by to_dense()")
    is_ready = not tensor.is_conj() and not tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and is_ready


def bytes_each(tensor: Tensor) -> int:
    """Return the number of ddl_core elements per tensor element. Tensors of types that ddl_core
    lacks are sent as bytes."""
    return 1 if tensor.dtype in _DTYPES else tensor.element_size()


def as_buffer(tensor: Tensor) -> Buffer:
    """Return the memory of a contiguous tensor. This does not use DLPack, which older versions of
    PyTorch lack for some types."""
    count = tensor.numel() * bytes_each(tensor)
    dtype = _DTYPES.get(tensor.dtype, _DTYPES[torch.uint8])
    return Buffer(tensor.data_ptr(), count, dtype, True, tensor)


def contiguous(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy of it, in contiguous host memory."""
    return tensor if _is_plain(tensor) else _scratch(tensor.shape, tensor).copy_(tensor.detach())


def _scratch(shape: Any, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device="cpu")


def writable(tensor: Tensor, copies: list[tuple[Tensor, Tensor]], filled: bool = False) -> Tensor:
    """Return the tensor, or scratch memory with an entry in `copies` that copies it back later."""
    if _is_plain(tensor):
        return tensor
    scratch = _scratch(tensor.shape, tensor)
    if filled or tensor.device.type != "cpu":  # waits for the accelerator's pending work
        scratch.copy_(tensor.detach())
    copies.append((tensor, scratch))
    return scratch


def separate(input: Tensor, output: Tensor) -> Tensor:
    """Return the input, or a copy of it if it shares memory with the output."""
    begin, end = input.data_ptr(), input.data_ptr() + input.nbytes
    shared = begin < output.data_ptr() + output.nbytes and output.data_ptr() < end
    return input.detach().clone() if shared else input


def concatenated(parts: list[Tensor]) -> Tensor:
    return torch.cat([contiguous(part).detach().reshape(-1) for part in parts])


def require_alike(outputs: list[Tensor], inputs: list[Tensor]) -> None:
    if len(outputs) != len(inputs):
        raise ValueError(f"ddl: there are {len(outputs)} outputs, but {len(inputs)} inputs")
    for output, input in zip(outputs, inputs, strict=True):
        if output.dtype != input.dtype:
            raise TypeError(f"ddl: an output is of type {output.dtype}, its input {input.dtype}")
        if output.numel() != input.numel():
            raise ValueError(
                f"ddl: an output has {output.numel()} elements, but its input has {input.numel()}"
            )


def copy_into(to: Tensor, part: Tensor) -> None:
    with torch.inference_mode(to.is_inference()):
        to.detach().copy_(part)


def scratch_of(parts: list[Tensor], copies: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return scratch memory for all parts. `copies` gets the later copies from it to the parts."""
    counts = [part.numel() for part in parts]
    whole = _scratch(sum(counts), parts[0])
    rows = whole.split(counts)
    copies += [(part, row.view(part.shape)) for part, row in zip(parts, rows, strict=True)]
    return whole
