# SPDX-License-Identifier: Apache-2.0
"""What the bits of PyTorch's results depend on, and how it is fixed."""

from __future__ import annotations

import random

import numpy as np
import torch

from ddl_elastic.base import environment
from ddl_torch.elastic.environment import describe

__all__ = ["describe", "pin", "refuse_fork", "seed"]


def pin(threads: int) -> None:
    """Fix what changes the bits of a share's gradients."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # it chooses algorithms by their times
    environment.fix_cublas()


def seed(seed: int) -> None:
    """Seed all generators. 64 bits."""
    # torch.manual_seed formats a stack for CUDA's sake on each call, initialized or not.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def refuse_fork() -> None:
    """PyTorch on a processor may be forked."""
