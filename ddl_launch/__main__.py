# SPDX-License-Identifier: Apache-2.0
"""The program `python -m ddl_launch`, which is ddlrun."""

import sys

from ddl_launch.entry import ddlrun

if __name__ == "__main__":
    sys.exit(ddlrun())
