# SPDX-License-Identifier: Apache-2.0
"""One member of an elastic job with its own loop: admitted.py NUMBER. Prints its address, reads the
addresses of all as JSON, trains, and prints the result.

Prints its address, reads those of all as JSON, trains, and prints what has come of it.
"""

import json
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import ddl_core
import ddl_torch.elastic as elastic


def main() -> None:
    number = int(sys.argv[1])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    data = [(torch.rand(64, generator=generator), n % 10) for n in range(64)]

    endpoint = ddl_core.Endpoint(secret="")
    print(endpoint.address.hex(), flush=True)
    addresses = [bytes.fromhex(each) for each in json.loads(sys.stdin.readline())]
    comm = endpoint.connect(addresses, number, ddl_core.Config(timeout=60))
    job = elastic.Job(model, optimizer, batch=16, logical=4, comm=comm)
    for step in job.steps(data):
        for x, y in step:
            step.backward(cross_entropy(model(x), y))
        optimizer.step()
        assert step.recovery is None, step.recovery
    told = {"state": job.hash(), "members": job.group.members}
    print(json.dumps(told))
    job.close()


if __name__ == "__main__":
    main()
