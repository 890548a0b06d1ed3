# SPDX-License-Identifier: Apache-2.0
"""`ddlrun --submit`: writes a batch script, or a Kubeflow MPIJob, that runs the same ddlrun in a
job.

The file depends only on the options, so writing it again changes nothing. Slurm's file is tested
with a real Slurm. The others follow the documentation and are untested:

    LSF         IBM Spectrum LSF 10.1, "bsub" and "Resource requirement strings" (span[ptile=N])
    PBS         PBS Professional, User's Guide, "Requesting Resources" (select=N:mpiprocs=M)
    Kubernetes  Kubeflow MPI Operator, kubeflow.org/v2beta1, "MPIJob"
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ddl_launch.errors import FAILED, NOT_FOUND, USAGE, LaunchError
from ddl_launch.hosts.topology import count_hosts
from ddl_launch.jobs.console import Console

_SUBMIT = {
    "slurm": ["sbatch"],
    "lsf": ["bsub"],
    "pbs": ["qsub"],
    "k8s": ["kubectl", "apply", "-f"],
}
_PACKAGES = {"slurm": "Debian: slurm-client", "k8s": "kubectl"}
_OWN = ("--submit", "--submitarg", "--image", "--name")  # options with a value
_LIMIT = 120.0  # seconds for the scheduler to accept the job
_MARK = "# written by ddlrun --submit, digest"


def submit(
    arguments: argparse.Namespace, words: Sequence[str], command: list[str], console: Console
) -> int:
    """Write the job, and show or submit it. Return the exit code."""
    hosts, ranks = _shape(arguments)
    kind = arguments.submit
    if arguments.host or arguments.hostfile or arguments.rankfile:
        raise LaunchError(
            USAGE,
            "--submit: the scheduler chooses the hosts; omit -H, -hostfile and -rankfile",
        )
    name = arguments.name or _name_of(command)
    inner = _inner(words)
    if kind == "k8s":
        if not arguments.image:
            raise LaunchError(USAGE, "--submit k8s requires --image")
        text = manifest(name, arguments.image, hosts, ranks, inner)
        path = Path(f"{name}.mpijob.yaml")
    else:
        text = script(kind, name, hosts, ranks, inner, arguments.submitarg, arguments.image)
        path = Path(f"{name}.{kind}")
    if arguments.dry_run:
        print(text, end="")
        return 0
    program = _SUBMIT[kind]
    if not shutil.which(program[0]):
        hint = _PACKAGES.get(kind, "the scheduler's own")
        raise LaunchError(NOT_FOUND, f"--submit {kind}: {program[0]} is not in PATH ({hint})")
    try:
        _write(path, text)
        done = subprocess.run(
            program if kind == "lsf" else [*program, str(path)],
            stdin=path.open() if kind == "lsf" else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
        )
    except OSError as error:
        raise LaunchError(FAILED, f"--submit {kind}: {path}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(
            FAILED,
            f"{program[0]} did not answer within {_LIMIT:.0f} s; check whether it accepted {path}",
        ) from None
    said = (done.stdout + done.stderr).strip()
    if done.returncode:
        raise LaunchError(FAILED, f"{program[0]} rejected {path}: {said}")
    console.log(f"{path}: {said}")
    return 0


def _write(path: Path, text: str) -> None:
    """Write the file, with a digest by which a later run recognises it. Raises LaunchError if the
    user has changed the file."""
    if path.exists() and not _is_unchanged(path.read_text(errors="replace")):
        raise LaunchError(
            USAGE,
            f"--submit: {path} already exists, and was changed or written by another program:"
            " rename it, or give another --name",
        )
    first, rest = text.split("\n", 1)
    path.write_text(f"{first}\n{_MARK} {_digest(text)}\n{rest}")


def _is_unchanged(text: str) -> bool:
    first, _, rest = text.partition("\n")
    mark, _, rest = rest.partition("\n")
    whole = "\n".join([first, rest])
    return mark == f"{_MARK} {_digest(whole)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def script(
    kind: str,
    name: str,
    hosts: int,
    ranks: int,
    inner: list[str],
    more: Sequence[str],
    image: str | None,
) -> str:
    """Return a batch script that runs the ddlrun `inner`, with `ranks` ranks on each of `hosts`
    hosts."""
    if kind == "slurm":
        own = [f"--job-name={name}", f"--nodes={hosts}", f"--ntasks-per-node={ranks}"]
        own += [f"--output={name}.%j.out", *more]
        lines = [f"#SBATCH {option}" for option in own]
        if image:  # an option of the pyxis plugin
            inner = [*inner[:3], f"--mpiarg=--container-image={image}", *inner[3:]]
        begin: list[str] = []
    elif image:
        raise LaunchError(USAGE, f"--image is not supported with --submit {kind}")
    elif kind == "lsf":
        own = [f"-J {name}", f"-n {hosts * ranks}", f'-R "span[ptile={ranks}]"']
        own += [f"-o {name}.%J.out", *more]
        lines = [f"#BSUB {option}" for option in own]
        begin = []
    else:
        own = [f"-N {name}", f"-l select={hosts}:ncpus={ranks}:mpiprocs={ranks}"]
        own += ["-j oe", *more]
        lines = [f"#PBS {option}" for option in own]
        begin = ['cd "$PBS_O_WORKDIR"']
    return "\n".join(["#!/bin/sh", *lines, "", *begin, f"exec {shlex.join(inner)}"]) + "\n"


def manifest(name: str, image: str, hosts: int, ranks: int, inner: list[str]) -> str:
    """Return a Kubeflow MPIJob. The image must contain libddl, Open MPI, and sshd for the
    workers."""
    command = ["ddlrun", *inner[3:]]
    return f"""\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: {name}
spec:
  slotsPerWorker: {ranks}
  mpiImplementation: OpenMPI
  runPolicy:
    cleanPodPolicy: Running
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          containers:
          - name: launcher
            image: {json.dumps(image)}
            command: {json.dumps(command)}
    Worker:
      replicas: {hosts}
      template:
        spec:
          containers:
          - name: worker
            image: {json.dumps(image)}
"""


def _shape(arguments: argparse.Namespace) -> tuple[int, int]:
    hosts = count_hosts(arguments.nodes, arguments.racks, arguments.aisles)
    ranks, size = arguments.accelerators, arguments.n
    if hosts is None and size and ranks and size % ranks == 0:
        hosts = size // ranks
    if hosts and ranks is None and size and size % hosts == 0:
        ranks = size // hosts
    if hosts is None or ranks is None:
        raise LaunchError(
            USAGE,
            "--submit: give the number of hosts, and of ranks on each: -nodes 2 -accelerators 4",
        )
    if size not in (None, hosts * ranks):
        raise LaunchError(USAGE, f"-n {size} contradicts {hosts} hosts of {ranks} ranks; omit -n")
    return hosts, ranks


def _name_of(command: Sequence[str]) -> str:
    words = [word for word in command if word.endswith(".py")] or [command[0]]
    name = re.sub(r"[^a-z0-9]+", "-", Path(words[0]).stem.lower()).strip("-")
    return name[:50] or "ddlrun"


def _inner(words: Sequence[str]) -> list[str]:
    """Return the command line of the ddlrun in the job: this one without the options for
    submission."""
    rest, kept = list(words), []
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        plain = "--" + word.lstrip("-").partition("=")[0]
        if plain in _OWN:
            if "=" not in word and rest:
                rest.pop(0)
        elif plain not in ("--dry-run", "--t"):
            kept.append(word)
            if _takes_value(word) and rest:
                kept.append(rest.pop(0))
    return [sys.executable, "-m", "ddl_launch", *kept, *rest]


def _takes_value(word: str) -> bool:
    flags = ("tcp", "no_ddloptions", "v", "verbose", "no-prefix", "check", "")
    return "=" not in word and word.lstrip("-") not in flags
