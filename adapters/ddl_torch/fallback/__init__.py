# SPDX-License-Identifier: Apache-2.0
"""The backend "ddl" without a compiler: a process group in Python over ddl_core.

It gives the same results as the native part. Each operation takes some tenths of a millisecond
longer. DDP's built-in C++ hooks and coalescing into one operation need the native part.
"""

from ddl_torch.fallback.group import ProcessGroup

__all__ = ["ProcessGroup"]
