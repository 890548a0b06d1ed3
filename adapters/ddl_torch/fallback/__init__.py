# SPDX-License-Identifier: Apache-2.0
"""The backend "ddl" without a compiler: a process group in Python over ddl_core.

Its results are those of the native part. Each operation takes some tenths of a millisecond longer.
Two things need the native part: DDP's built-in hooks in C++, and coalescing into one operation.
"""

from ddl_torch.fallback.group import ProcessGroup

__all__ = ["ProcessGroup"]
