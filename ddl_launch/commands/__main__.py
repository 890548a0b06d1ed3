# SPDX-License-Identifier: Apache-2.0
"""The program `python -m ddl_launch.commands`, which is ddl."""

import sys

from ddl_launch.entry import ddl

if __name__ == "__main__":
    sys.exit(ddl())
