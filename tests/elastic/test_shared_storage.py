# SPDX-License-Identifier: Apache-2.0
"""The check that all ranks have the same storage."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddl_elastic.frameworks.protocol import Tensor
from ddl_elastic.step.admission import AdmissionError
from ddl_elastic.storage.checkpoint import Folder
from ddl_elastic.storage.saving import Policy, Saver
from ddl_elastic.worker import shared_storage


def make_saver(folder: Path, token: int = 0) -> Saver:
    saver = Saver(Policy(Folder(folder), 1), {})
    saver.token = token
    return saver


def start_job(saver: Saver) -> None:
    """Check the storage of a job of one rank."""
    group: Any = SimpleNamespace(members=[0], member=0)
    shared_storage.check(saver, group, lambda compute, *_: [*compute(0)], lambda told: told)


def fail(*_: Any) -> Any:
    raise OSError(errno.EIO, "no answer")


def test_a_joining_worker_finds_this_job_s_file(tmp_path: Path) -> None:
    """Not that of an earlier job whose hosts had different folders."""
    job, here, there = make_saver(tmp_path / "a"), tmp_path / "a", tmp_path / "b"
    start_job(make_saver(there))
    start_job(job)
    shared_storage.check_joining(make_saver(here, job.token), 1)
    with pytest.raises(AdmissionError, match="rank 1 cannot join: it does not find the job's"):
        shared_storage.check_joining(make_saver(there, job.token), 1)


def test_a_joining_worker_is_not_checked_if_the_job_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_saver(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "write", fail)
        start_job(job)
    shared_storage.check_joining(make_saver(tmp_path, job.token), 1)


def test_a_file_that_cannot_be_read_now_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "read", fail)
    job = make_saver(tmp_path)
    start_job(job)
    shared_storage.check_joining(job, 1)


def test_files_of_earlier_jobs_are_removed(tmp_path: Path) -> None:
    for _ in range(2):
        job = make_saver(tmp_path)
        start_job(job)
    assert len([*tmp_path.glob("job-*")]) == 2
    job.begin({"a": Tensor("uint8", (1,), np.zeros(1, np.uint8))}, 1, 0, 1)
    job.wait()
    job.agree(job.word)
    job.wait()
    assert [each.name for each in tmp_path.glob("job-*")] == [job.mark]
