# SPDX-License-Identifier: Apache-2.0
"""The environment variables of libddl, and a warning about misspelt ones.

GROUPS is the only table. The site's page of environment variables is generated from it, and a test
compares it with the variables that the sources read. The file imports nothing of the package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Group -> name -> effect, in Markdown.
GROUPS: dict[str, dict[str, str]] = {
    "Connections": {
        "DDL_INTERFACES": "selects network interfaces by name, exclusion or network, such as"
        " `eth,^eth3,10.1.0.0/16`. libddl uses all of the selected ones at once. Default: all that"
        " are up, except those of containers and virtual machines, and 169.254.0.0/16.",
        "DDL_PORTS": "selects the ports to listen on, such as `20000-20100`. ddlrun on several"
        " hosts, `ddl serve --agents` and `ddl elastic run --listen 0` use them, too. Default:"
        " any.",
        "DDL_SOCKETS": "is the number of sockets between each pair of interfaces, from 1 to 16."
        " Default: 1.",
        "DDL_LINKS": "lists the kinds of links that may be used: `inproc`, `shm`, `tcp` and `ucx`."
        " Default: all but `ucx`, which needs UCX (the page Installing).",
        "DDL_TOPOLOGY": "describes how the hosts are grouped, such as `2,2`. The ranks use it for"
        " hierarchical algorithms. Every rank must have the same value.",
    },
    "Security": {
        "DDL_SECRET": "is the job's secret, which all ranks must know. Every program that can read"
        " the environment can read it: `DDL_SECRET_FILE` is safer.",
        "DDL_SECRET_FILE": "names a file with the job's secret. No other user may have access to"
        " it: mode 600 or 400.",
        "DDL_ENCRYPT": "encrypts the data sent over TCP if it is `1`. Default: `0`.",
    },
    "Failures and messages": {
        "DDL_LOG": "is the level of messages: `off`, `warn`, `info`, `plan` or `debug`."
        " Default: `warn`.",
        "DDL_HEARTBEAT_MS": "is the time between two heartbeats, in milliseconds. Default: 100.",
        "DDL_SUSPECT_MS": "is the silence after which a rank is suspected. Negative: never."
        " Default: 1000.",
        "DDL_DEAD_MS": "is the silence after which a rank is declared dead. Negative: never."
        " Default: 3000.",
        "DDL_STALL_WARN_MS": "is the time until libddl warns of a waiting operation. Negative:"
        " never."
        " Default: 10000.",
        "DDL_TRACE_DIR": "names a folder to which each rank writes its flight record when its comm"
        " fails. The folder must exist.",
        "DDL_TIMELINE_DIR": "names a folder to which each rank writes all operations of its comms"
        " as they end; `ddlrun --timeline` sets it. The folder must exist. `DDL_TRACE_DIR` then has"
        " no effect.",
        "DDL_DUMP_SIGNAL": "is a signal, such as `USR1`, at which a rank prints the operations that"
        " it waits for and the stacks of its threads. Default: none.",
        "DDL_METRICS_PORT": "is the port at which local rank 0 serves metrics. The next local ranks"
        " use the next ports. Default: no metrics.",
    },
    "Algorithms": {
        "DDL_OPTIONS": "holds the options of IBM's DDL: `-mode`, `-dump_iter`, `-dbg_level`."
        " `-mode p:N` measures the algorithms for N ranks and takes the fastest.",
        "DDL_GPU_DIRECT_BYTES": "is the size from which NCCL carries out operations on GPUs within"
        " a host, if it can. Every rank must have the same value. 0: never. Default: 262144.",
        "DDL_GPU_NCCL": "is 0 to disable NCCL for operations within a host. Default: 1.",
        "DDL_INVARIANT": "is the order of additions. `size`: the bits of a sum of floats depend on"
        " the number of ranks only. `ranks:8`: a sum has 8 logical workers, whose parts each rank"
        " passes. Every rank must have the same value. Default: `none`, the quickest"
        " order.",
        "DDL_WIRE": "is the format of what all-reduces and reduce-scatters of float32 send between"
        " hosts: `bf16`, `int8` and `int4` send a half, a quarter and an eighth of the bytes, and"
        " round. Every rank must have the same value. Default: `f32`.",
        "DDL_PLAN_FILE": "names a file with the chosen algorithms. It is read if it exists, and"
        " written after measurement.",
    },
    "Adapters": {
        "DDL_CACHE": "names the folder of the adapters' compiled parts. Default: `libddl` in the"
        " user's cache folder.",
        "DDL_TORCH_SHARED": "places PyTorch's tensors in memory that the ranks of a host share: `1`"
        " for the buckets of `DistributedDataParallel` and the buffers of `fully_shard`, `all` also"
        " for all CPU tensors of 1 MiB and more, `0` for none. Default: `1` if ranks share a host.",
        "DDL_TORCH_NATIVE": "is `0` to compile no native part, so that PyTorch's adapter works in"
        " Python, and slower. Default: `1`.",
        "DDL_TORCH_SERVE": "makes ddl replace another backend of PyTorch. The only one is `gloo`.",
    },
    "Elastic jobs and the scheduler": {
        "DDL_ELASTIC_TOKEN": "proves to a job that a host may join it.",
        "DDL_ELASTIC_CHECKPOINTS": "is set by `ddl elastic run`: the folder of its checkpoints.",
        "DDL_ELASTIC_AUDIT": "is set by `ddl elastic run`: `--audit` and its action.",
        "DDL_ELASTIC_RECORDING": "is set by `ddl elastic verify`: the folder of its records.",
        "DDL_ELASTIC_AGENT": "is set by `ddl elastic run`: a worker's channel to its agent.",
        "DDL_SERVER": "is the address of the scheduler. It overrides the file of"
        " `DDL_SERVER_FILE`.",
        "DDL_TOKEN": "is the user's token at the scheduler.",
        "DDL_SERVER_CA": "names the certificate of the authority that signed the scheduler's.",
        "DDL_SERVER_FILE": "names a file with address, token and certificate. Default:"
        " `~/.config/ddl/server.toml`.",
    },
    "Launching": {
        "DDL_RANK": "is this process's rank. The launcher sets it.",
        "DDL_SIZE": "is the number of ranks. The launcher sets it.",
        "DDL_RENDEZVOUS": "is the address at which the ranks meet, such as `tcp://host:port`. The"
        " launcher sets it.",
        "DDL_LOCAL_RANK": "is the rank within the host. The launcher sets it.",
        "DDL_LOCAL_SIZE": "is the number of ranks on the host. The launcher sets it.",
        "DDL_LAUNCHER": "names the launcher's socket, to which a rank reports its uncaught"
        " exception.",
        "DDL_WITNESS": "names the launcher's socket that reports to ranks which processes have"
        " ended.",
        "DDL_RSH": "is a program to use instead of `ssh`.",
        "DDL_HOST_LIST": "is set by ddlrun for its helpers: the ranks of each host.",
        "DDL_CONTROL": "is set by ddlrun for its helpers: the address at which it listens.",
        "DDL_BIND": "is set by ddlrun for its helpers: how to bind ranks to cores.",
    },
}

NAMES = frozenset(name for group in GROUPS.values() for name in group)


def is_of_service(env: Mapping[str, str], name: str) -> bool:
    """Return True if Kubernetes has set the variable `name` for a Service. For a Service
    `ddl-metrics`, it sets DDL_METRICS_PORT=tcp://10.0.0.1:9400 and others in every pod."""
    found = re.fullmatch(
        r"(\w+?)_(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_(TCP|UDP|SCTP)\w*)", name
    )
    if not found or f"{found[1]}_SERVICE_HOST" not in env:
        return False
    return found[2] != "PORT" or "://" in env[name]  # a pod may set such a name itself


def misspelt(env: Mapping[str, str]) -> list[str]:
    """Return a message for each variable `DDL_...` that is unknown but resembles a known one. Other
    unknown variables may be the user's own."""
    out = []
    for name in sorted(env):
        if name.startswith("DDL_") and name not in NAMES and not is_of_service(env, name):
            import difflib  # takes milliseconds, and most programs do not need it

            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.8)
            if near:
                out.append(f"{name} is set, but libddl does not read it: did you mean {near[0]}?")
    return out
