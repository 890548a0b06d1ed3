# SPDX-License-Identifier: Apache-2.0
"""Calls `job.steps` several times, with evaluations between the steps and between the calls; for
`ddl elastic run`. Prints the hash of the final state and of what was evaluated between the calls.

The state comes to a newcomer so many seconds late (`--late`): until then it observes.
A member of `--kills STEP:MEMBER,...` is killed by itself, from this step on, once another one has
shares too.
"""

import argparse
import hashlib
import os
import signal
import time
from typing import Any

import torch
from torch import nn

import ddl_torch.elastic as elastic
from ddl_elastic.frameworks.protocol import digest
from ddl_elastic.step import transfer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--kills", default="")
    parser.add_argument("--late", type=float, default=0.0)
    arguments = parser.parse_args()
    receive = transfer.Receiver.receive

    def receive_late(*own: Any) -> Any:
        time.sleep(arguments.late)
        return receive(*own)

    transfer.Receiver.receive = receive_late
    kills = [tuple(map(int, each.split(":"))) for each in arguments.kills.split(",") if each]
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(150, 8), torch.randint(3, (150,)))
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job = elastic.Job(model, optimizer, batch=24, logical=12)

    def measure(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    evaluated = hashlib.sha256()
    for _ in range(arguments.calls):
        for step in job.steps(data, passes=1):
            for x, y in step:
                due = [member for begin, member in kills if step.number >= begin]
                if job.group.member in due and len(job.group.whole) > 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                step.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            if step.number % 3 == 0:
                job.map(data, measure, batch=50)
        evaluated.update(job.map(data, measure, batch=50).tobytes())
    if job.is_writer:
        print(f"state {digest(job.framework.state())} evaluated {evaluated.hexdigest()}")
    job.close()


if __name__ == "__main__":
    main()
