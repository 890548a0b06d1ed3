"""Several hosts on one machine, to try things on: `ddl lab`, and `Lab` for programs."""

from ddl_launch.lab.client import Lab, LabError, missing

__all__ = ["Lab", "LabError", "missing"]
