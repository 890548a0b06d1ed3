# SPDX-License-Identifier: Apache-2.0
"""The digest of a computed share. Pure.

Each tensor has a CRC-32, which takes a quarter of SHA-256's time. It detects bits that a machine
has changed, but does not protect against attackers.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ddl_elastic.frameworks.protocol import Array

BITS = 62  # of a share's digest: the number and its negative fit in 64 bits


@dataclass(frozen=True)
class ShareDigest:
    """The CRC-32 of each tensor of a share, by the tensor's name."""

    tensors: Mapping[str, int]

    @cached_property
    def word(self) -> int:
        """The digest of the whole share."""
        data = struct.pack(f"<{len(self.tensors)}I", *self.tensors.values())
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 64 - BITS

    def first_difference(self, other: ShareDigest) -> str:
        """Return the name of the first tensor that differs, or "" if none does."""
        names = {**self.tensors, **other.tensors}
        return next((n for n in names if self.tensors.get(n) != other.tensors.get(n)), "")


def digest_share(tensors: Iterable[tuple[str, Array]]) -> ShareDigest:
    """Return the digest of a share's tensors, which are contiguous."""
    return ShareDigest({name: zlib.crc32(tensor.reshape(-1).data) for name, tensor in tensors})
