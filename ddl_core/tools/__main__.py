"""`python -m ddl_core.tools` is ddl."""

import sys

from ddl_core.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
