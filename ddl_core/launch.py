# SPDX-License-Identifier: Apache-2.0
"""Deprecated: `python -m ddl_launch` has replaced `python -m ddl_core.launch`."""

import sys
import warnings

from ddl_launch.cli import main

if __name__ == "__main__":
    warnings.warn("ddl_core.launch is ddl_launch now", DeprecationWarning, stacklevel=1)
    sys.exit(main())
