# SPDX-License-Identifier: Apache-2.0
"""The command `python -m ddl_tensorflow build | info`."""

from __future__ import annotations

import sys

from ddl_core import native


def main() -> int:
    command = native.parser("ddl_tensorflow", "TensorFlow")[0].parse_args().command

    from ddl_tensorflow import _build

    return native.answer(command, [_build.part()])


if __name__ == "__main__":
    sys.exit(main())
