# SPDX-License-Identifier: Apache-2.0
"""The program `python -m bench COMMAND [OPTION ...]`. COMMANDS lists the commands."""

import importlib
import signal
import sys
from collections.abc import Sequence

from bench.cases import UsageError

# Each command is a module of this package with main(argv) -> exit code.
COMMANDS = {
    "creation": "time of init and of creating groups: libddl and Gloo",
    "collectives": "time and bandwidth of operations: libddl, Gloo, Open MPI, MPICH, Intel MPI",
    "targets": "libddl's performance targets, and which of them are met",
    "elastic": "cost of elastic training compared with DistributedDataParallel, with PyTorch",
    "recovery": "time from a kill -9 to the next step: ddl_elastic, torchrun and others",
    "resize": "pause of the other workers when elastic workers join and leave",
    "members": "cost and latency of a coordinator of 1000 elastic workers",
    "unequal": "samples per second of elastic workers of unequal speed, together and alone",
    "gpu": "all-reduces of tensors on a GPU that the ranks share",
    "slow": "speed and accuracy of training over slow links, by method, with PyTorch",
    "training": "training steps per second, by framework and backend",
}


def usage() -> str:
    lines = [f"  {name:13}{what}" for name, what in COMMANDS.items()]
    head = "usage: python -m bench COMMAND [OPTION ...]    (from the root of the repository)"
    tail = [
        "Run nothing else on the machine. All libraries take turns in one run, so that every",
        "disturbance affects all of them equally.",
        "",
        "`python -m bench COMMAND --help` explains a command and its tables.",
        "docs/performance.md has the figures and the method.",
    ]
    return "\n".join([head, "", *lines, "", *tail])


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        print(f"bench: unknown command {argv[0]!r}\n{usage()}", file=sys.stderr)
        return 2
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # handled like Ctrl-C, which ends the ranks, too
    try:
        return int(importlib.import_module(f"bench.{argv[0]}").main(argv[1:]))
    except UsageError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    # Prefer the installed packages to the sources in the repository's root, which are not built.
    sys.path.append(sys.path.pop(0))
    sys.exit(main(sys.argv[1:]))
