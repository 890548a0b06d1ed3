# SPDX-License-Identifier: Apache-2.0
"""Options of torchrun, horovodrun and mpirun: other names of ddlrun's options, and replacements for
options that ddlrun does not have."""

from __future__ import annotations

import re

_ONCE = "start ddlrun once, on one host; it starts the ranks of all hosts: ddlrun -H h1:4,h2:4 ..."
_LEAVE = f"leave it out: ddlrun connects the ranks; {_ONCE}"
_ELASTIC = "use `ddl elastic run` for jobs whose workers may die, join and leave"
_TUNING = "leave it out: libddl batches and schedules operations by itself"
_INTERFACES = "write DDL_INTERFACES={eth0} ddlrun ..."
_TRANSPORTS = "leave it out: libddl has its own transports"
_STAMPS = "leave it out: the lines of DDL_LOG have no timestamps"
_SSH_PORT = "write Port {22} into ~/.ssh/config"
_SSH_KEY = "write IdentityFile {KEY} into ~/.ssh/config"
_BIND = "write --bind core, --bind numa or --bind none"

# The names of both tables have two dashes, and - for _. A word in braces stands for the value that
# the user has given.
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
    "--module": "write the interpreter: ddlrun -n 4 python -m {MODULE}",
    "--no-python": "leave it out: ddlrun executes any program that does not end in .py",
    "--run-path": "leave it out: write the path of the program",
    "--max-restarts": _ELASTIC,
    "--monitor-interval": "leave it out: ddlrun notices the end of a rank at once",
    "--log-dir": "write --output-dir {DIR}",
    "--redirects": "write --output-dir DIR",
    "--tee": "leave it out: ddlrun shows the output of all ranks",
    # horovodrun
    "--min-np": _ELASTIC,
    "--max-np": _ELASTIC,
    "--min-num-proc": _ELASTIC,
    "--max-num-proc": _ELASTIC,
    "--slots-per-host": _ELASTIC,
    "--slots": _ELASTIC,
    "--cooldown-range": _ELASTIC,
    "--blacklist-cooldown-range": _ELASTIC,
    "--host-discovery-script": _ELASTIC,
    "--elastic-timeout": _ELASTIC,
    "--reset-limit": _ELASTIC,
    "--autotune": "write -mode p, which tries all algorithms and keeps the fastest",
    "--autotune-log-file": "write -mode p, and DDL_LOG=plan to log the choice",
    "--no-autotune": "leave it out: libddl tries algorithms only with -mode p",
    "--autotune-warmup-samples": _TUNING,
    "--autotune-steps-per-sample": _TUNING,
    "--autotune-bayes-opt-max-samples": _TUNING,
    "--autotune-gaussian-process-noise": _TUNING,
    "--fusion-threshold-mb": _TUNING,
    "--cycle-time-ms": _TUNING,
    "--cache-capacity": _TUNING,
    "--disable-cache": _TUNING,
    "--hierarchical-allreduce": "write -mode d:XxY, or leave it out: libddl chooses by itself",
    "--hierarchical-allgather": _TUNING,
    "--no-hierarchical-allreduce": _TUNING,
    "--no-hierarchical-allgather": _TUNING,
    "--num-nccl-streams": _TRANSPORTS,
    "--thread-affinity": _BIND,
    "--mpi-threads-disable": _TRANSPORTS,
    "--gloo-timeout-seconds": "write --start-timeout {30}",
    "--timeline-mark-cycles": "leave it out: libddl has no cycles",
    "--no-timeline-mark-cycles": "leave it out: libddl has no cycles",
    "--no-stall-check": "write DDL_STALL_WARN_MS=-1 ddlrun ...",
    "--stall-check-warning-time-seconds": "write DDL_STALL_WARN_MS={60}000 ddlrun ...",
    "--stall-check": "leave it out: it is on, see DDL_STALL_WARN_MS",
    "--stall-check-shutdown-time-seconds": "leave it out: an operation fails after 30 minutes",
    "--log-level": "write DDL_LOG=info ddlrun ...",
    "--log-with-timestamp": _STAMPS,
    "--log-without-timestamp": _STAMPS,
    "--log-hide-timestamp": _STAMPS,
    "--prefix-output-with-timestamp": "leave it out: lines begin with the rank only",
    "--check-build": "use `ddl doctor`",
    "--cb": "use `ddl doctor`",
    "--network-interfaces": _INTERFACES,
    "--network-interface": _INTERFACES,
    "--nics": _INTERFACES,
    "--gloo": _TRANSPORTS,
    "--mpi": _TRANSPORTS,
    "--mpi-args": "write --mpiarg {ARGS}",
    "--binding-args": _BIND,
    "--p": _SSH_PORT,
    "--ssh-port": _SSH_PORT,
    "--i": _SSH_KEY,
    "--ssh-identity-file": _SSH_KEY,
    "--config-file": "write the options on the command line",
    # mpirun
    "--bind-to": _BIND,
    "--map-by": "write -accelerators N for N ranks on each host, or -rankfile FILE",
    "--oversubscribe": "leave it out: ddlrun does not limit the number of ranks",
    "--allow-run-as-root": "leave it out",
}


def find_same(option: str) -> str:
    """Return ddlrun's name for an option of another launcher, or "" if ddlrun has no such
    option."""
    return _SAME.get(_normalize(option), "")


def find_replacement(option: str, value: str = "") -> str:
    """Return the replacement for an option of another launcher with this value, or "" if the option
    is unknown."""
    text = _INSTEAD.get(_normalize(option), "")
    return re.sub(r"\{(\w+)\}", lambda default: value or default[1], text)


def _normalize(option: str) -> str:
    return "--" + option.lstrip("-").replace("_", "-")
