# SPDX-License-Identifier: Apache-2.0
"""Code that the modules for all frameworks share: reductions, errors, build options."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NoReturn


class HorovodInternalError(RuntimeError):
    """An operation failed: calls did not match, a rank exited, or the operation timed out."""


@dataclass(frozen=True)
class Reduction:
    """A way to combine the ranks' values."""

    name: str


Average = Reduction("Average")
Sum = Reduction("Sum")
Adasum = Reduction("Adasum")
Min = Reduction("Min")
Max = Reduction("Max")
Product = Reduction("Product")


def reduction(average: bool | None, op: Reduction | None) -> Reduction:
    """Return the reduction that these arguments name. Raises ValueError if both are given, or if
    `op` is not a Reduction."""
    if average is not None and op is not None:
        raise ValueError("average and op are both given; average is deprecated: pass op only")
    if op is None:
        return Sum if average is False else Average
    if not isinstance(op, Reduction):
        raise ValueError(f"op is {op!r}; must be one of Average, Sum, Adasum, Min, Max, Product")
    return op


def handle_average_backwards_compatibility(op: Reduction | None, average: bool | None) -> Reduction:
    """Return the reduction that an operation's arguments `op` and `average` name."""
    return reduction(average, op)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return True if the number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def no_elastic(replacement: str) -> Callable[[str], NoReturn]:
    """Return a module's `__getattr__` that rejects the names of Horovod's `elastic`, which is not
    supported."""

    def refuse(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"Horovod's elastic.{name} is not supported: there, the program commits and restores"
            f" its state. Use {replacement}.elastic.Job, which does this itself, and start the"
            " program with ddl elastic run (help({replacement}.elastic))"
        )

    return refuse


class Compressor:
    """A conversion of tensors before they are sent, and back. This one changes nothing."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and the context that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its original type."""
        return tensor


class PackedCompressor(Compressor):
    """A wire format for float32 gradients of a DistributedOptimizer, which keeps the rounding
    errors for the next step. Other gradients are sent without compression."""

    wire: str

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        raise ValueError(
            f"compression is Compression.{cls.wire}, which is only for the gradients of a"
            " DistributedOptimizer; use fp16"
        )


class Int8Compressor(PackedCompressor):
    wire = "int8"


class Int4Compressor(PackedCompressor):
    wire = "int4"


def is_packed(compression: Any, op: Reduction, predivide: float) -> bool:
    """Return True for a compressor that packs. Raises ValueError if it does not support the
    reduction."""
    packs = isinstance(compression, type) and issubclass(compression, PackedCompressor)
    if packs and (op == Adasum or predivide != 1.0):
        raise ValueError(
            f"compression is Compression.{compression.wire}, which supports neither Adasum nor"
            " gradient_predivide_factor"
        )
    return packs


def parts(rows: int, size: int) -> list[int]:
    """Return the number of rows in each member's part of a tensor. The first parts may have one row
    more than the others."""
    return [rows // size + (number < rows % size) for number in range(size)]


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Do nothing. Horovod's version checks that the framework's extension was built."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return False: no operation runs on GPUs."""
    return False


def split_list(l: list[Any], n: int) -> list[list[Any]]:  # noqa: E741, Horovod's name
    """Return n parts of a list. The first parts may have one item more than the others."""
    ends = [0, *accumulate(parts(len(l), n))]
    return [l[begin:end] for begin, end in pairwise(ends)]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return True if version `ver`, such as "2.21.0", is `target` or later."""
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> list[int]:
    parts = re.findall(r"\d+", version)[:3]
    if len(parts) < 3:
        raise ValueError(f"ver or target is {version!r}; must have three numbers, such as 2.21.0")
    return [int(each) for each in parts]
