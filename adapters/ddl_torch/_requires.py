# SPDX-License-Identifier: Apache-2.0
"""Imported before everything that imports PyTorch. PyTorch itself imports this package at its own
end, when nothing more of libddl is to be loaded."""

import sys

if not sys.modules.get("torch"):
    from ddl_core.frameworks import require

    require("ddl_torch", "torch", "PyTorch")
