# SPDX-License-Identifier: Apache-2.0
"""Run several of these programs in one process, which imports PyTorch once.

python torch_several.py NAME...
"""

import runpy
import sys
from pathlib import Path

for name in sys.argv[1:]:
    runpy.run_path(str(Path(__file__).with_name(f"torch_{name}.py")))
