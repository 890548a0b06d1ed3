"""`python -m ddl_core.launch` is ddlrun."""

import sys

from ddl_core.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
