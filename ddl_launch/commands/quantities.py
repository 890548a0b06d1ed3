# SPDX-License-Identifier: Apache-2.0
"""Numbers with units, read and written."""

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
    """Of "64 MiB" or "8196000"."""
    number = round(_parse(str(text), _BYTES, "a number of bytes", "64 MiB"))
    if number > _BYTES_MAX:
        raise ValueError(f"{text!r} is more than {show_bytes(_BYTES_MAX)}")
    return number


def parse_rate(text: object) -> float:
    """Bytes per second of "100 Gbit/s" or "8 GB/s"."""
    rate = _parse(text, _RATES, "a rate", "100 Gbit/s")
    if rate == 0:
        raise ValueError(f"{text!r} is not a rate above 0, such as '100 Gbit/s'")
    return rate


def parse_seconds(text: object) -> float:
    """Of "5 us"."""
    return _parse(text, _SECONDS, "a time", "5 us")


def parse_count(text: str) -> int:
    """An argument of a command line, from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1 on")
    return int(text)


def show_bytes(number: float) -> str:
    """In the largest binary unit that fits."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"


def show_seconds(seconds: float) -> str:
    """With three digits."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
