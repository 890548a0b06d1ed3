# SPDX-License-Identifier: Apache-2.0
"""A check that PyTorch is installed, imported before all modules that import PyTorch.

PyTorch imports this package at the end of its own import. No more of libddl is then loaded.
"""

import sys

if not sys.modules.get("torch"):
    from ddl_core.frameworks.requirement import require

    require("ddl_torch", "torch", "PyTorch")
