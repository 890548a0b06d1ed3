# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine, for tests: `ddl lab`, and `Lab` for programs."""

from ddl_launch.lab.client import Lab, LabError, missing

__all__ = ["Lab", "LabError", "missing"]
