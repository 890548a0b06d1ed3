# SPDX-License-Identifier: Apache-2.0
"""Options of torchrun, horovodrun and mpirun: other names of ddlrun's options, and replacements for
options that ddlrun does not have."""

from __future__ import annotations

_ONCE = "start ddlrun once, on one host; it starts the ranks of all hosts: ddlrun -H h1:4,h2:4 ..."
_LEAVE = f"leave it out: ddlrun connects the ranks; {_ONCE}"
_ELASTIC = "use `ddl elastic run` for jobs whose workers may die, join and leave"
_TUNING = "leave it out: libddl batches and schedules operations by itself"
_INTERFACES = "write DDL_INTERFACES=eth0 ddlrun ..."
_BIND = "write --bind core, --bind numa or --bind none"

# The names of both tables have two dashes, and - for _.
_SAME = {
    "--np": "-n",
    "--num-proc": "-n",
    "--nproc-per-node": "-accelerators",
    "--hosts": "-H",
    "--output-filename": "--output-dir",
}
_INSTEAD = {
    # torchrun
    "--node-rank": _ONCE,
    "--rdzv-backend": _LEAVE,
    "--rdzv-endpoint": _LEAVE,
    "--rdzv-id": _LEAVE,
    "--rdzv-conf": _LEAVE,
    "--master-addr": _LEAVE,
    "--master-port": _LEAVE,
    "--local-addr": _INTERFACES,
    "--standalone": "leave it out: ranks are on this machine unless you name hosts",
    "--module": "write the interpreter: ddlrun -n 4 python -m MODULE",
    "--no-python": "leave it out: ddlrun executes any program that does not end in .py",
    "--run-path": "leave it out: write the path of the program",
    "--max-restarts": _ELASTIC,
    "--monitor-interval": "leave it out: ddlrun notices the end of a rank at once",
    "--log-dir": "write --output-dir DIR",
    "--redirects": "write --output-dir DIR",
    "--tee": "leave it out: ddlrun shows the output of all ranks",
    # horovodrun
    "--min-np": _ELASTIC,
    "--max-np": _ELASTIC,
    "--min-num-proc": _ELASTIC,
    "--max-num-proc": _ELASTIC,
    "--slots-per-host": _ELASTIC,
    "--host-discovery-script": _ELASTIC,
    "--elastic-timeout": _ELASTIC,
    "--reset-limit": _ELASTIC,
    "--autotune": "write -mode p, which tries all algorithms and keeps the fastest",
    "--autotune-log-file": "write -mode p, and DDL_LOG=plan to log the choice",
    "--fusion-threshold-mb": _TUNING,
    "--cycle-time-ms": _TUNING,
    "--cache-capacity": _TUNING,
    "--disable-cache": _TUNING,
    "--hierarchical-allreduce": "write -mode d:XxY, or leave it out: libddl chooses by itself",
    "--hierarchical-allgather": _TUNING,
    "--timeline-mark-cycles": "leave it out: libddl has no cycles",
    "--no-stall-check": "write DDL_STALL_WARN_MS=-1 ddlrun ...",
    "--stall-check-warning-time-seconds": "write DDL_STALL_WARN_MS=60000 ddlrun ...",
    "--log-level": "write DDL_LOG=info ddlrun ...",
    "--check-build": "use `ddl doctor`",
    "--network-interfaces": _INTERFACES,
    "--network-interface": _INTERFACES,
    "--gloo": "leave it out: libddl has its own transports",
    "--mpi": "leave it out: libddl has its own transports",
    "--mpi-args": "write --mpiarg ARGS",
    "--binding-args": _BIND,
    "--ssh-port": "write the port into ~/.ssh/config",
    "--ssh-identity-file": "write the key into ~/.ssh/config",
    "--config-file": "write the options on the command line",
    # mpirun
    "--bind-to": _BIND,
    "--map-by": "write -accelerators N for N ranks on each host, or -rankfile FILE",
    "--oversubscribe": "leave it out: ddlrun does not limit the number of ranks",
    "--allow-run-as-root": "leave it out",
}


def find_same(option: str) -> str:
    """Return ddlrun's name of an option of another launcher, or "" if it has none."""
    return _SAME.get(_normalize(option), "")


def find_replacement(option: str) -> str:
    """Return the replacement for an option of another launcher, or "" if the option is unknown."""
    return _INSTEAD.get(_normalize(option), "")


def _normalize(option: str) -> str:
    return "--" + option.lstrip("-").replace("_", "-")
