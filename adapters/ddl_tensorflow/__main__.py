"""python -m ddl_tensorflow build | info"""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ddl_tensorflow", description="The TensorFlow adapter of libddl."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="compile the native part now, and print its file")
    commands.add_parser("info", help="print versions, and where the native part lies")
    arguments = parser.parse_args()

    import tensorflow as tf

    from ddl_core import native
    from ddl_tensorflow import _build

    framework = f"TensorFlow {tf.__version__}"
    part = (_build.path(), _build.build)
    return native.answer(arguments.command, "ddl_tensorflow", framework, [part])


if __name__ == "__main__":
    sys.exit(main())
