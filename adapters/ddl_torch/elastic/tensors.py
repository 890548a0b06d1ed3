# SPDX-License-Identifier: Apache-2.0
"""The types in which elastic jobs add tensors, and the conversion of state values to bytes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddl_elastic.frameworks import protocol

# The types in which gradients and buffers are added. 16-bit types are rounded once, at the end.
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
    """Return the type in which tensors like this one are added."""
    if tensor.dtype not in WIDE and not is_integer(tensor):
        raise NotImplementedError(f"elastic training does not support tensors of {tensor.dtype}")
    return WIDE.get(tensor.dtype, torch.int64)


# ---- the state's values as bytes ----

_JSON = "json"
_NUMBERS = {"bool": bool, "int": int, "float": float, "tuple": tuple, "NoneType": None}


def pack(name: str, value: Any) -> protocol.Tensor:
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype in _NUMBERS:  # bool is also the name of a Python type
            dtype = str(value.dtype)
        return protocol.Tensor(dtype, tuple(value.shape), data)
    kind = type(value).__name__
    try:
        numbers = np.array([] if value is None else value, np.float64).reshape(-1)
    except (TypeError, ValueError):
        kind = ""
    if kind not in _NUMBERS:
        return _pack_json(name, value)
    return protocol.Tensor(kind, numbers.shape, numbers.view(np.uint8))


def _pack_json(name: str, value: Any) -> protocol.Tensor:
    """Pack lists and dictionaries of numbers and texts, such as the state of schedules."""
    try:
        text = json.dumps(_tag(value), sort_keys=True)
        if _untag(json.loads(text)) != value:
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: {value!r} cannot be part of an elastic job's state; must be a tensor, a"
            " number, a text, None, or a list, tuple, dictionary or Counter of these"
        ) from None
    data = np.frombuffer(text.encode(), np.uint8)
    return protocol.Tensor(_JSON, data.shape, data)


_TAG = "__kind__"  # the key that marks types that JSON lacks


def _tag(value: Any) -> Any:
    if isinstance(value, dict):
        if type(value) is dict and _TAG not in value and all(isinstance(k, str) for k in value):
            return {key: _tag(each) for key, each in value.items()}
        kind = "Counter" if isinstance(value, Counter) else "dict"
        return {_TAG: kind, "items": [[_tag(key), _tag(each)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {_TAG: "tuple", "items": [_tag(each) for each in value]}
    return [_tag(each) for each in value] if isinstance(value, list) else value


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _untag(each) for key, each in value.items()}
    items = _untag(value["items"])
    if value[_TAG] == "tuple":
        return tuple(items)
    return (Counter if value[_TAG] == "Counter" else dict)(dict(items))


def unpack(name: str, packed: protocol.Tensor) -> Any:
    if packed.dtype in _NUMBERS:
        numbers = packed.data.view(np.float64).tolist()
        kind = _NUMBERS[packed.dtype]
        return None if kind is None else tuple(numbers) if kind is tuple else kind(numbers[0])
    if packed.dtype == _JSON:
        return _untag(json.loads(packed.data.tobytes()))
    dtype = getattr(torch, packed.dtype.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name}: the dtype {packed.dtype!r} does not exist")
    if not packed.data.size:  # frombuffer rejects empty buffers
        return torch.empty(packed.shape, dtype=dtype)
    flat = torch.from_numpy(np.array(packed.data).reshape(-1).view(np.uint8))
    return flat.view(dtype).view(packed.shape)
