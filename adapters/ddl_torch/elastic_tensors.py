# SPDX-License-Identifier: Apache-2.0
"""What elastic sums know of tensors, and the values of a state as bytes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddl_elastic import framework

# What gradients and buffers are added in; half types are rounded once, at the end.
WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


# ---- tensors in flat arrays ----


def is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def wide(tensor: Tensor) -> torch.dtype:
    """What tensors like this one are added up in."""
    if tensor.dtype not in WIDE and not is_integer(tensor):
        raise NotImplementedError(f"elastic training has no sums of {tensor.dtype}")
    return WIDE.get(tensor.dtype, torch.int64)


# ---- the state's values as bytes ----

_JSON = "json"
_NUMBERS = {"bool": bool, "int": int, "float": float, "tuple": tuple, "NoneType": None}


def pack(name: str, value: Any) -> framework.Tensor:
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype in _NUMBERS:  # bool, which Python has as well
            dtype = str(value.dtype)
        return framework.Tensor(dtype, tuple(value.shape), data)
    kind = type(value).__name__
    try:
        numbers = np.array([] if value is None else value, np.float64).reshape(-1)
    except (TypeError, ValueError):
        kind = ""
    if kind not in _NUMBERS:
        return _pack_json(name, value)
    return framework.Tensor(kind, numbers.shape, numbers.view(np.uint8))


def _pack_json(name: str, value: Any) -> framework.Tensor:
    """Lists and dictionaries of numbers and texts, as schedules have them."""
    try:
        text = json.dumps(value, sort_keys=True)
        if json.loads(text) != value:
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {value!r} cannot be part of an elastic job's state") from None
    data = np.frombuffer(text.encode(), np.uint8)
    return framework.Tensor(_JSON, data.shape, data)


def unpack(name: str, packed: framework.Tensor) -> Any:
    if packed.dtype in _NUMBERS:
        numbers = packed.data.view(np.float64).tolist()
        kind = _NUMBERS[packed.dtype]
        return None if kind is None else tuple(numbers) if kind is tuple else kind(numbers[0])
    if packed.dtype == _JSON:
        return json.loads(packed.data.tobytes())
    dtype = getattr(torch, packed.dtype.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name}: there is no dtype {packed.dtype!r}")
    if not packed.data.size:  # which frombuffer refuses
        return torch.empty(packed.shape, dtype=dtype)
    flat = torch.from_numpy(np.array(packed.data).reshape(-1).view(np.uint8))
    return flat.view(dtype).view(packed.shape)
