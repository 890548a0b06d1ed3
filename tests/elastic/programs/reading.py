# SPDX-License-Identifier: Apache-2.0
"""One member of an elastic job, with loader processes: reading.py WHAT LOADER_WORKERS [THREAD].

WHAT   all     every sample can be read
       fail    sample 5 cannot
       block   what is read ahead takes for ever

THREAD "main", or another one as in the workers of Job.train

Prints the process ids of its loader processes after the first share, waits for a line if it blocks,
and prints "done" at the end.
"""

import json
import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import ddl_core
import ddl_torch.elastic as elastic


class Samples:
    def __init__(self, what: str) -> None:
        self.what, self.read = what, 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.what == "fail" and index == 5:
            raise OSError(f"{index} is missing")
        self.read += 1
        if self.what == "block" and self.read > 4:  # per process: a share has 4
            threading.Event().wait()
        return torch.full((3,), float(index))


def main() -> None:
    what, loader_workers = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddl_core.Endpoint(secret="") as endpoint:
        comm = endpoint.connect([endpoint.address], 0)
        job = elastic.Job(model, optimizer, batch=16, logical=4, comm=comm)
        shares = 0
        for step in job.steps(Samples(what), passes=4, loader_workers=loader_workers):
            for x in step:
                step.backward(model(x).sum())
                shares += 1
                if shares == 1:
                    loaders = multiprocessing.active_children()
                    print(json.dumps([each.pid for each in loaders]), flush=True)
                    if what == "block":
                        sys.stdin.readline()
            optimizer.step()
        print(json.dumps("done"), flush=True)
        sys.stdin.read()
        job.close()


if __name__ == "__main__":
    if "main" in sys.argv[3:]:
        main()
    else:
        ThreadPoolExecutor(1).submit(main).result()
