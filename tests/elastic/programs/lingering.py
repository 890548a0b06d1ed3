# SPDX-License-Identifier: Apache-2.0
"""own_loop.py, whose two workers end some time after their training. Meanwhile a third worker
creates its job."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import own_loop

STARTED = 1.0  # seconds in which the third worker registers with its coordinator


def main() -> None:
    is_late = len([*Path().glob("here-*")]) >= 2
    Path(f"here-{os.getpid()}").touch()
    while is_late and not Path("trained").exists():
        time.sleep(0.01)
    own_loop.main()
    Path("trained").touch()
    time.sleep(STARTED)


if __name__ == "__main__":
    main()
