# SPDX-License-Identifier: Apache-2.0
"""The names that arguments may have, for type checkers, which detect a misspelt name before the
program runs."""

from __future__ import annotations

from typing import Literal

Op = Literal[
    "sum",
    "average",
    "min",
    "max",
    "product",
    "bit_and",
    "bit_or",
    "bit_xor",
    "logical_and",
    "logical_or",
]
GradientOp = Literal["average", "sum"]
Compression = Literal["f16", "bf16"]  # the type that gradients are sent in
AnyCompression = Literal["f16", "bf16", "int8", "int4"]  # or their wire format
Wire = Literal["f32", "bf16", "int8", "int4"]  # what is sent between hosts in place of float32
