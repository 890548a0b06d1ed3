# SPDX-License-Identifier: Apache-2.0
"""Deprecated: `python -m ddl_launch.commands` has replaced `python -m ddl_core.tools`."""

import sys
import warnings

from ddl_launch.commands.cli import main

if __name__ == "__main__":
    warnings.warn("ddl_core.tools is ddl_launch.commands now", DeprecationWarning, stacklevel=1)
    sys.exit(main())
