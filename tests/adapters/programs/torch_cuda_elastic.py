# SPDX-License-Identifier: Apache-2.0
"""A worker of an elastic job whose model is on a device: prints the final state's hash.

    torch_cuda_elastic.py FOLDER DEVICE MEMBER

FOLDER: see torch_cuda_device.py. The worker MEMBER kills itself in the middle of a share; -1: none.
"""

import os
import signal
import sys

from torch_cuda_device import install

FOLDER, DEVICE, MEMBER = sys.argv[1:]
if DEVICE == "cuda":
    install(FOLDER)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import ddl_torch.elastic as elastic  # noqa: E402

PASSES, STRUCK = 4, 7

torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(150, 8), torch.randint(3, (150,)))
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = elastic.Job(model, optimizer, batch=24, logical=6)
for step in job.steps(data, passes=PASSES):
    for x, y in step:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        if step.number == STRUCK and job.group.member == int(MEMBER):
            os.kill(os.getpid(), signal.SIGKILL)
        step.backward(loss)
    optimizer.step()
if job.is_writer:
    print(f"state {job.hash()} {next(model.parameters()).device.type}")
job.close()
