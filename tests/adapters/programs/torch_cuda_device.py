# SPDX-License-Identifier: Apache-2.0
"""The device "cuda" of the programs in this folder: a stand-in for it, or a GPU."""

import importlib
import sys
from typing import Any


class RealDevice:
    def new_stream(self) -> Any:
        import torch

        return torch.cuda.Stream()

    def use_stream(self, stream: Any) -> None:
        import torch

        torch.cuda.set_stream(stream or torch.cuda.default_stream())

    def sleep(self, microseconds: int) -> None:
        import torch

        torch.cuda._sleep(2000 * microseconds)  # cycles


def install(folder: str) -> Any:
    """Before PyTorch is imported. The folder has the extension of cuda_device.cpp, the stand-in; if
    it is "", this machine's GPU is used."""
    if not folder:
        return RealDevice()
    sys.path.insert(0, folder)
    device = importlib.import_module("cuda_device")  # PyTorch reads it when it is imported
    import torch

    # Replace functions that raise errors in a build for CPUs.
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_capability = lambda _=None: (7, 0)
    torch.cuda.get_device_name = lambda _=None: "stand-in"
    return device
