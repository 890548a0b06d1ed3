# SPDX-License-Identifier: Apache-2.0
"""Run several of these programs in one process, which imports their framework once.

python several.py "NAME..." ARGUMENT...
"""

import runpy
import sys
from pathlib import Path

for name in sys.argv[1].split():
    runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))
