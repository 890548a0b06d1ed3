# SPDX-License-Identifier: Apache-2.0
"""Digests of what logical workers compute, by which two computations of a share are compared."""

from __future__ import annotations

import hashlib

from ddl_elastic.frameworks.protocol import Share


def digest_share(share: Share) -> str:
    """Return the SHA-256 of a share: its gradients, buffers, loss and weight, to the bit."""
    found = hashlib.sha256()
    for array in share:
        found.update(array.data)
    return found.hexdigest()
