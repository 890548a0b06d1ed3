# SPDX-License-Identifier: Apache-2.0
"""Run several of these programs in one process, which imports their framework once.

python several.py "NAME..." ARGUMENT...

A name may also be VARIABLE=VALUE, which sets an environment variable for the programs after it.
"""

import os
import runpy
import sys
from pathlib import Path

for name in sys.argv[1].split():
    variable, is_variable, value = name.partition("=")
    if is_variable:
        os.environ[variable] = value
    else:
        runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))
