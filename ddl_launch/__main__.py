# SPDX-License-Identifier: Apache-2.0
"""`python -m ddl_launch` is ddlrun."""

import sys

from ddl_launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
