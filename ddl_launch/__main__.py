# SPDX-License-Identifier: Apache-2.0
"""The program `python -m ddl_launch`, which is ddlrun."""

import sys

from ddl_launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
