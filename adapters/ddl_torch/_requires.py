# SPDX-License-Identifier: Apache-2.0
"""Imported before everything that imports PyTorch."""

from ddl_core.frameworks import require

require("ddl_torch", "torch", "PyTorch")
