# SPDX-License-Identifier: Apache-2.0
"""Deprecated: ddl_launch.lab has replaced ddl_core.lab."""

import warnings

from ddl_launch.lab import Lab, LabError, missing

__all__ = ["Lab", "LabError", "missing"]

warnings.warn("ddl_core.lab is ddl_launch.lab now", DeprecationWarning, stacklevel=2)
