# SPDX-License-Identifier: Apache-2.0
"""The packages by the names of ddl, as a user with a strict type checker writes them."""

from __future__ import annotations

import ddl.elastic
import ddl.horovod.torch as hvd
import ddl.paddle
import ddl.torch
import ddl.torch.elastic as elastic
import torch

import ddl

comm: ddl.Comm = ddl.init()
rank: int = comm.rank + ddl.torch.rank() + ddl.paddle.rank() + hvd.rank()
_ = ddl.torch.no_such_name  # type: ignore[attr-defined]
ddl.torch.allreduce(torch.ones(1), op="maximum")  # type: ignore[arg-type]
hvd.allreduce(torch.ones(1), name=1)  # type: ignore[arg-type]


def loop(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> elastic.Job:
    return elastic.Job(model, optimizer, batch=8, logical=4)
