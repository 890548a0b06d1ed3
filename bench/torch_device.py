# SPDX-License-Identifier: Apache-2.0
"""PyTorch's process groups and clocks on the CPU or on a GPU, for the programs of one rank."""

import torch


def backend_of_ddl(device: str) -> str:
    """Return libddl's backend for tensors on this device, in the form of init_process_group and
    new_group."""
    return "cpu:ddl" if device == "cpu" else f"cpu:ddl,{device}:ddl"


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
