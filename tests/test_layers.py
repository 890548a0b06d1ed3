# SPDX-License-Identifier: Apache-2.0
"""The layer checker accepts this tree and finds each kind of violation."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_layers import check, long_files

pytestmark = pytest.mark.pure

HEADER = "DDL_API ddl_status ddl_barrier(ddl_comm *comm);\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree without violations."""
    write(tmp_path, "libddl/include/ddl/ddl.h", HEADER)
    write(
        tmp_path,
        "libddl/src/api/operations.c",
        '#include "comm/comm.h"\nddl_status ddl_barrier(ddl_comm *comm)\n{\n}\n',
    )
    write(
        tmp_path,
        "libddl/src/engine/executor/run.c",
        '#include "plan/plan.h"\n#include "net/link.h"\n',
    )
    write(tmp_path, "libddl/src/device/device.c", '#include "device/core/chunks.h"\n')
    write(tmp_path, "libddl/src/plan/ring.c", '#include "plan/plan.h"\n#include <stdlib.h>\n')
    write(tmp_path, "ddl_core/_build.py", 'ffi.set_source("ddl_core._bind", "")\n')
    write(tmp_path, "ddl_core/base/_lib.py", "from ddl_core._bind import ffi, lib\n")
    write(tmp_path, "ddl_launch/jobs/local_job.py", "import ddl_core\n")
    write(tmp_path, "adapters/ddl_x/__init__.py", "import ddl_core\n")
    write(tmp_path, "tests/tsan.supp", "")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_tree() -> None:
    assert check(Path(__file__).parent.parent) == []


def test_clean_tree(tree: Path) -> None:
    assert check(tree) == []


def test_long_file_is_reported_and_no_violation(tree: Path) -> None:
    write(tree, "tests/core/test_x.py", "\n" * 601)
    assert check(tree) == []
    assert long_files(tree) == ["warning: tests/core/test_x.py: 601 lines"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("libddl/src/net/tcp.c", '#include "comm/comm.h"\n', 'net may not include "comm/comm.h"'),
        ("libddl/src/net/tcp.c", '#include "reduce/reduce.h"\n', "below net there is base"),
        ("libddl/src/comm/comm.c", '#include "plan/plan.h"\n', "comm may not include"),
        ("libddl/src/plan/ring.c", '#include "net/link.h"\n', "plan may not include"),
        ("libddl/src/base/log.c", '\n#include "net/link.h"\n', "log.c:2: base may not include"),
        ("libddl/src/net/tcp.c", '#include "../comm/comm.h"\n', "write the path from src"),
        ("libddl/src/net/tcp.c", '#include "link.h"\n', "write the path from src"),
        ("libddl/src/misc/tcp.c", "", "not in a layer"),
        ("libddl/src/net/attic/tcp.c", "", "net/attic is not a room"),
        ("libddl/src/connect/reach.c", "", "connect/ is not a room"),
        (
            "libddl/src/connect/endpoint/race.c",
            '#include "connect/wireup/reach.h"\n',
            "wireup is above endpoint",
        ),
        (
            "libddl/src/device/core/pinned.c",
            '#include "device/device.h"\n',
            'may not include "device/device.h": device is above core',
        ),
        (
            "libddl/src/device/core/pinned.c",
            '#include "device/nccl/nccl.h"\n',
            'may not include "device/nccl/nccl.h": nccl is above core',
        ),
        ("libddl/src/plan/ring.c", "#include <unistd.h>\n", "pure and may not include <unistd.h>"),
        ("libddl/src/plan/ring.c", "#include <sys/socket.h>\n", "may not include <sys/socket.h>"),
        ("libddl/src/topo/hosts.c", "#include <pthread.h>\n", "may not include <pthread.h>"),
        ("libddl/src/membership/a.c", "#include <stdlib.h>\n", "may not include <stdlib.h>"),
        ("libddl/src/membership/a.c", "#include <sys/socket.h>\n", "include <sys/socket.h>"),
        ("libddl/src/membership/a.c", "x = malloc(1);\n", "no memory and no clock: malloc"),
        ("libddl/src/membership/a.c", "x = ddl__now();\n", "no memory and no clock: ddl__now"),
        ("libddl/src/topo/hosts.c", '#include "base/clock.h"\n', 'may not include "base/clock.h"'),
        ("libddl/src/reduce/avx2.c", 'int x(void)\n{ getenv("X"); }\n', "may not call getenv"),
        ("libddl/src/comm/comm.c", 'char *x = getenv("X");\n', "read the environment"),
        (
            "libddl/src/comm/comm.c",
            "ddl_status ddl_barrier(ddl_comm *comm)\n{\n}\n",
            "ddl_barrier is public",
        ),
        (
            "ddl_core/comm.py",
            "from ddl_core._bind import lib\n",
            "only ddl_core/base/_lib.py imports",
        ),
        ("ddl_core/comm.py", "from . import _bind\n", "only ddl_core/base/_lib.py imports"),
        ("adapters/ddl_x/work.py", "import ddl_core._bind\n", "only ddl_core/base/_lib.py imports"),
        ("ddl_core/comm.py", "def f():\n    import torch.nn\n", "comm.py:2: ddl_core imports no"),
        (
            "ddl_launch/jobs/local_job.py",
            "import torch\n",
            "job.py:1: ddl_launch imports no framework",
        ),
        (
            "ddl_core/comm.py",
            "import ddl_launch.jobs.local_job\n",
            "comm.py:1: ddl_core does not import ddl_launch",
        ),
        (
            "ddl_core/comm.py",
            "def f():\n    from ddl_launch import job\n",
            "comm.py:2: ddl_core does",
        ),
        ("adapters/ddl_x/work.py", "import ddl_launch\n", "ddl_x does not import ddl_launch"),
        ("adapters/ddl_x/work.py", "import os\nos.environ['X']\n", "work.py:2: an adapter reads"),
        ("adapters/ddl_x/work.py", "from os import getenv\n", "an adapter reads no environment"),
        ("adapters/ddl_x/work.c", 'char *x = getenv("X");\n', "an adapter reads no environment"),
        ("adapters/ddl_jax/work.py", "import torch\n", "ddl_jax does not import torch"),
        ("adapters/ddl_x/work.cpp", 'auto x = getenv("X");\n', "an adapter reads no environment"),
        ("ddl_elastic/shares/assign.py", "import socket\n", "is pure and does not import socket"),
        (
            "ddl_elastic/step/step.py",
            "from ddl_elastic.worker import loop\n",
            "step.py:1: step may not import worker",
        ),
        ("ddl_elastic/new/part.py", "", "part.py: not in a layer of ddl_elastic"),
        ("ddl_elastic/job.py", "import torch\n", "ddl_elastic imports no framework"),
        ("ddl_elastic/job.py", "import os\nos.environ\n", "reads the environment"),
        ("adapters/ddl_torch/state.py", "import ddl_elastic\n", "does not import ddl_elastic"),
        ("adapters/ddl_torch/elastic/__init__.py", "\n" * 251, "251 lines; split above 250"),
        (
            "ddl_launch/jobs/local_job.py",
            "import ddl_elastic\n",
            "ddl_launch does not import ddl_elastic",
        ),
        ("ddl_elastic/job.py", "import ddl_scheduler\n", "does not import ddl_scheduler"),
        ("ddl_scheduler/web/app.py", "import os\nos.environ\n", "reads the environment"),
        ("tests/tsan.supp", "race:everything\n", "must stay empty"),
    ],
)
def test_violation_is_found(tree: Path, name: str, text: str, message: str) -> None:
    write(tree, name, text)
    found = check(tree)
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    ("folder", "suffix", "message"),
    [
        ("ddl_elastic/step", ".py", "ddl_elastic/step: 21 Python files; at most 20"),
        ("libddl/src/net/shm", ".c", "libddl/src/net/shm: 21 C modules; at most 20"),
    ],
)
def test_full_folder_is_found(tree: Path, folder: str, suffix: str, message: str) -> None:
    for i in range(20):
        write(tree, f"{folder}/part{i}{suffix}", "")
        write(tree, f"libddl/src/net/shm/part{i}.h", "")  # belongs to the source of its name
    assert check(tree) == []
    write(tree, f"{folder}/part20{suffix}", "")
    assert check(tree) == [message]


def test_import_cycle_is_found(tree: Path) -> None:
    write(tree, "ddl_core/calls/a.py", "def f():\n    from ddl_core.calls.b import B\n")
    write(tree, "ddl_core/calls/b.py", "from ddl_core.calls import a\n")
    (found,) = check(tree)
    assert found.startswith("ddl_core: imports in a cycle: ddl_core.")


def test_calls_and_comments_are_no_violations(tree: Path) -> None:
    write(
        tree,
        "libddl/src/comm/comm.c",
        '/* see\n#include "plan/plan.h"\n*/\nint f(void)\n{\n    return ddl_barrier(0);\n}\n',
    )
    assert check(tree) == []
