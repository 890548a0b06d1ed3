# SPDX-License-Identifier: Apache-2.0
"""Calls `job.steps` several times, with evaluations between the steps and between the calls; for
`ddl elastic run`. Each worker prints the hash of the final state and of what was evaluated between
the calls.

The state comes to a newcomer so many seconds late (`--late`): until then it observes.
A member of `--kills STEP:MEMBER,...` is killed by itself, from this step on, once another one has
shares too. All workers end with an error after step --end.
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
    parser.add_argument("--end", type=int)
    parser.add_argument("--checkpoint")
    parser.add_argument("--top", action="store_true", help="act before each step, too")
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
    saving = {"checkpoint": arguments.checkpoint, "every": 5}
    job = elastic.Job(model, optimizer, batch=24, logical=12, **saving)

    def measure(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    evaluated = hashlib.sha256()
    for _ in range(arguments.calls):
        for step in job.steps(data, passes=1):
            if arguments.top:
                optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step.number)
                job.map(data, measure, batch=50)
            for x, y in step:
                due = [member for begin, member in kills if step.number >= begin]
                if job.group.member in due and len(job.group.whole) > 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                step.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            if step.number == arguments.end:
                raise SystemExit("the end")
            if step.number % 3 == 0:
                tables = job.map(data, measure, batch=50)
                assert tables.max() < 2, tables
        evaluated.update(job.map(data, measure, batch=50).tobytes())
    print(f"state {digest(job.framework.state())} evaluated {evaluated.hexdigest()}")
    job.close()


if __name__ == "__main__":
    main()
