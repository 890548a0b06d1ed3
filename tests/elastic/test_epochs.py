# SPDX-License-Identifier: Apache-2.0
"""A program that calls `job.steps` once for each epoch, and runs code between the calls."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ddl_torch.elastic as elastic  # noqa: E402

EPOCHS, EPOCH = 4, 4  # each call has this many steps


class Interrupted(Exception):
    pass


def train(folder: Path, stop: int = -1) -> tuple[str, list[float]]:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randint(3, (96,)))
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    also: dict[str, Any] = {"schedule": schedule}
    saved: dict[str, Any] = {"checkpoint": str(folder), "every": 1}
    job = elastic.Job(model, optimizer, batch=24, logical=4, also=also, **saved)
    try:
        for _ in range(EPOCHS):
            for step in job.steps(data, passes=1):
                if step.number == stop:
                    raise Interrupted
                for x, y in step:
                    step.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
            schedule.step()
        return job.hash(), schedule.get_last_lr()
    finally:
        job.close()


# PyTorch warns if a schedule is stepped before the optimizer, as it is in skipped epochs.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("stop", [EPOCH, EPOCH + 3, 2 * EPOCH, 2 * EPOCH + 1, EPOCHS * EPOCH])
def test_a_schedule_is_stepped_once_after_each_epoch(tmp_path: Path, stop: int) -> None:
    """The same in a job that resumes from a checkpoint, including one of the end of an epoch or of
    the job."""
    undisturbed = train(tmp_path / "undisturbed")
    if stop < EPOCHS * EPOCH:
        with pytest.raises(Interrupted):
            train(tmp_path / "interrupted", stop)
    else:
        train(tmp_path / "interrupted")
    assert list((tmp_path / "interrupted").glob("*"))
    assert train(tmp_path / "interrupted") == undisturbed
    assert undisturbed[1] == [0.5**5]
