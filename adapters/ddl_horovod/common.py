# SPDX-License-Identifier: Apache-2.0
"""What the modules for all frameworks share: reductions, errors, and answers about the build."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NoReturn


class HorovodInternalError(RuntimeError):
    """An operation failed: the ranks called different things, a rank ended, or the time passed."""


@dataclass(frozen=True)
class Reduction:
    """How the ranks' values are combined."""

    name: str


Average = Reduction("Average")
Sum = Reduction("Sum")
Adasum = Reduction("Adasum")
Min = Reduction("Min")
Max = Reduction("Max")
Product = Reduction("Product")


def reduction(average: bool | None, op: Reduction | None) -> Reduction:
    """The one that was asked for. ValueError for both, or for what is none."""
    if average is not None and op is not None:
        raise ValueError("average: give op alone; average is its former name")
    if op is None:
        return Sum if average is False else Average
    if not isinstance(op, Reduction):
        raise ValueError(f"op: {op!r} is none of Average, Sum, Adasum, Min, Max, Product")
    return op


def handle_average_backwards_compatibility(op: Reduction | None, average: bool | None) -> Reduction:
    """The reduction that the arguments op and average of an operation mean."""
    return reduction(average, op)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether it is one of 1, 2, 4, 8, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def no_elastic(replacement: str) -> Callable[[str], NoReturn]:
    """The attributes of a module in the place of Horovod's `elastic`, which is not served."""

    def refuse(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"Horovod's elastic.{name} is not served: its states are committed and restored by the"
            f" program. Use {replacement}, which keeps them itself (docs/elastic/)"
        )

    return refuse


class Compressor:
    """Changes a tensor before it is sent, and back."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """What is sent for the tensor, and what `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in its own type."""
        return tensor


def parts(rows: int, size: int) -> list[int]:
    """The rows of each member's part of a tensor; the first have one more."""
    return [rows // size + (number < rows % size) for number in range(size)]


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Does nothing: Horovod looks here whether it was built for a framework."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """False: no operation runs on GPUs."""
    return False


def split_list(l: list[Any], n: int) -> list[list[Any]]:  # noqa: E741, Horovod's name
    """Return n parts of a list; the first ones have one item more."""
    ends = [0, *accumulate(parts(len(l), n))]
    return [l[begin:end] for begin, end in pairwise(ends)]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version, such as "2.21.0", is another one or later."""
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> list[int]:
    parts = re.findall(r"\d+", version)[:3]
    if len(parts) < 3:
        raise ValueError(f"ver, target: {version!r} is no version of three numbers")
    return [int(each) for each in parts]
