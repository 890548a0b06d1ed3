# SPDX-License-Identifier: Apache-2.0
"""`ddl lab`: simulates several hosts on one machine."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable

from ddl_launch.base.quantities import parse_count
from ddl_launch.lab.client import Lab, LabError

_DESCRIPTION = """\
Simulate several hosts on this machine, to test jobs that need more than one. Each host has its own
name, processes, /dev/shm and network interfaces. The hosts share the files, and communicate only
over the network between them. ddl lab needs root and iproute2.
"""

_EPILOG = """\
examples:
  ddl lab up 4 --rate 1gbit --nics 2      hosts h1 to h4, eth0 and eth1 in each
  ddl lab exec h1 ip addr                 run a command on h1, in this folder and environment
  ddl lab exec h1 ddlrun -H h1:2,h2:2 train.py
  ddl lab exec h1 mpirun -H h1,h2 python train.py
  ddl lab cut h2                          cut the link of eth0 of h2
  ddl lab mend h2                         restore it
  ddl lab show                            print the hosts and their addresses
  ddl lab down                            end all processes of the lab, and remove it

ddlrun and the mpirun of Open MPI, MPICH and Intel MPI reach the other hosts without ssh: DDL_RSH,
and each MPI's variable for its remote shell, name a program of the lab.

exit code: 0, or 2 after an error; of exec, the command's
"""


def add_lab(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `lab` to the commands of ddl. `add` creates its parser."""
    lab = add(
        "lab",
        help="simulate several hosts on this machine",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    lab.add_argument("--name", default="lab", help="name of the lab (default: lab)")
    commands = lab.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser(
        "up",
        help="create a lab",
        epilog="example: ddl lab up 4 --rate 1gbit --nics 2",
        allow_abbrev=False,
    )
    up.add_argument("hosts", metavar="N", type=parse_count, help="number of hosts")
    up.add_argument(
        "--rate", metavar="RATE", type=_rate, help="rate of each interface, such as 1gbit"
    )
    up.add_argument(
        "--nics",
        metavar="N",
        type=parse_count,
        default=1,
        help="number of interfaces of each host (default: 1)",
    )
    up.set_defaults(run=_up)
    execute = commands.add_parser(
        "exec",
        help="run a command on a host",
        epilog="example: ddl lab exec h1 ddlrun -H h1:2,h2:2 train.py",
        allow_abbrev=False,
    )
    execute.add_argument("host", metavar="HOST")
    execute.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER)
    execute.set_defaults(run=_exec)
    for word, on, effect in (("cut", False, "cut a link"), ("mend", True, "restore a link")):
        cut = commands.add_parser(
            word, help=effect, epilog=f"example: ddl lab {word} h2 --nic 1", allow_abbrev=False
        )
        cut.add_argument("host", metavar="HOST")
        cut.add_argument(
            "--nic",
            metavar="K",
            type=int,
            default=0,
            help="number K of the interface ethK (default: 0)",
        )
        cut.set_defaults(run=_connect, on=on)
    for word, effect, run in (
        ("show", "print the lab's hosts and their addresses", _show),
        ("down", "remove the lab", _down),
    ):
        commands.add_parser(
            word, help=effect, epilog=f"example: ddl lab {word}", allow_abbrev=False
        ).set_defaults(run=run)


def _rate(text: str) -> str:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[kmgt]?(bit|bps)", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate such as 100mbit or 1gbit")
    return text


def _up(arguments: argparse.Namespace) -> None:
    lab = Lab(
        arguments.hosts,
        rate=arguments.rate,
        nics=arguments.nics,
        name=arguments.name,
        keep=True,
    )
    _print_hosts(lab)


def _show(arguments: argparse.Namespace) -> None:
    _print_hosts(Lab.find(arguments.name))


def _print_hosts(lab: Lab) -> None:
    for host in lab.hosts:
        print(host.name, *host.addresses)


def _exec(arguments: argparse.Namespace) -> None:
    if not arguments.command:
        raise LabError("COMMAND is missing (see ddl lab --help)")
    command = Lab.find(arguments.name).at(arguments.host, *arguments.command)
    os.execv(command[0], command)


def _connect(arguments: argparse.Namespace) -> None:
    Lab.find(arguments.name).connect(arguments.host, arguments.on, arguments.nic)


def _down(arguments: argparse.Namespace) -> None:
    Lab.find(arguments.name).down()
