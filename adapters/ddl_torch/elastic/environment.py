# SPDX-License-Identifier: Apache-2.0
"""The versions and the hardware that affect the bits of PyTorch's results, in addition to the
program."""

from __future__ import annotations

import re

import numpy as np
import torch

from ddl_elastic.base import environment


def describe(model: torch.nn.Module) -> dict[str, str]:
    """Return the versions and the hardware by name; see
    ddl_elastic.frameworks.protocol.Framework.environment."""
    built = torch.__config__.show()
    found = {
        "PyTorch": torch.__version__,
        "number of threads": str(torch.get_num_threads()),
        "instruction set": f"{torch.backends.cpu.get_cpu_capability()}",
        "oneDNN": _version(built, r"MKL-DNN v([\d.]+)"),
        "MKL": _version(built, r"Math Kernel Library Version ([\d.]+)"),
    }
    if any(parameter.is_cuda for parameter in model.parameters()):
        found["GPU"] = torch.cuda.get_device_name()
        found["CUDA"] = str(torch.version.cuda)
        found["cuDNN"] = str(torch.backends.cudnn.version())
    return {**found, "NumPy": np.__version__, **environment.processor()}


def _version(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else "none"
