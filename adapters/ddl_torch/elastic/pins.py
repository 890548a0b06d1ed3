# SPDX-License-Identifier: Apache-2.0
"""Settings that make the bits of PyTorch's results reproducible."""

from __future__ import annotations

import random

import numpy as np
import torch

from ddl_elastic.base import environment
from ddl_torch.elastic.environment import describe

__all__ = ["describe", "pin", "refuse_fork", "seed"]


def pin(threads: int) -> None:
    """Fix the number of threads and the algorithms, which affect the bits of gradients."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # the benchmark would choose algorithms by their speed
    environment.fix_cublas()


def seed(seed: int) -> None:
    """Seed the generators of PyTorch, NumPy and Python with a 64-bit seed."""
    # torch.manual_seed is slow: it formats a stack for CUDA on each call, even without CUDA.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def refuse_fork() -> None:
    """Do nothing: PyTorch on the CPU works in forked processes."""
