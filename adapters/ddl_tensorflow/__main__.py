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

    import ddl_core
    from ddl_core import native
    from ddl_tensorflow import _build

    if arguments.command == "build":
        try:
            print(_build.build())
        except native.BuildError as error:
            print(f"ddl_tensorflow: {error}", file=sys.stderr)
            return 1
        return 0
    try:
        compiler = " ".join(native.compiler())
    except native.BuildError as error:
        compiler = str(error)
    module = _build.path()
    print(f"TensorFlow    {tf.__version__}")
    print(f"libddl        {ddl_core.version()}  {ddl_core.library_path()}")
    print(f"compiler      {compiler}")
    print(f"cache         {native.cache_folder()}")
    print(f"native part   {module}  {'built' if module.exists() else 'not built yet'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
