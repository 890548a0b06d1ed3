# SPDX-License-Identifier: Apache-2.0
"""Parsing and formatting of numbers with units."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_BYTES = {f"{p}B": f for p, f in {**_PREFIXES, **_BINARY}.items()} | _BINARY | {"": 1.0}
_BYTES_MAX = 2**40
_RATES = {f"{p}B/s": f for p, f in {**_PREFIXES, **_BINARY}.items()} | {
    f"{p}bit/s": f / 8 for p, f in _PREFIXES.items()
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _parse(text: object, units: Mapping[str, float], what: str, example: str) -> float:
    match = (
        re.fullmatch(r"([\d.]+)\s*([A-Za-z/]*)", text.strip()) if isinstance(text, str) else None
    )
    try:
        value = float(match[1]) * units[match[2]] if match else -1.0
    except (KeyError, ValueError):
        value = -1.0
    if value < 0:
        raise ValueError(f"{text!r} is not {what} such as {example!r}")
    return value


def parse_bytes(text: object) -> int:
    """Parse a size such as "64 MiB" or "8196000"."""
    number = round(_parse(str(text), _BYTES, "a number of bytes", "64 MiB"))
    if number > _BYTES_MAX:
        raise ValueError(f"{text!r} is above the limit of {show_bytes(_BYTES_MAX)}")
    return number


def parse_rate(text: object) -> float:
    """Parse a rate such as "100 Gbit/s" or "8 GB/s". Return bytes per second."""
    rate = _parse(text, _RATES, "a rate", "100 Gbit/s")
    if rate == 0:
        raise ValueError(f"{text!r} is not a rate above 0, such as '100 Gbit/s'")
    return rate


def parse_seconds(text: object) -> float:
    """Parse a time such as "5 us". Return seconds."""
    return _parse(text, _SECONDS, "a time", "5 us")


def parse_count(text: str) -> int:
    """Parse an integer >= 1 from the command line."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer >= 1")
    return int(text)


def show_bytes(number: float) -> str:
    """Format a size in the largest binary unit that fits, with four significant digits."""
    return _show(number, 1024, ".4g", "B", "KiB", "MiB", "GiB")


def show_seconds(seconds: float) -> str:
    """Format a duration with three significant digits."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def show_rate(rate: float) -> str:
    """Format bytes per second in the largest decimal unit that fits, with three digits."""
    return _show(rate, 1000, ".3g", "B/s", "KB/s", "MB/s", "GB/s")


def _show(number: float, step: int, digits: str, *units: str) -> str:
    """Format a number in the largest unit that fits. Each unit is `step` times the previous one."""
    power = 0
    while number >= step and power < len(units) - 1:
        number, power = number / step, power + 1
    return f"{number:{digits}} {units[power]}"
