# SPDX-License-Identifier: Apache-2.0
"""Measure the processor time that checks for hidden state and audits add to the steps of a job.

    python tests/elastic/audit_overhead.py [STEPS]

One process trains a transformer layer in three jobs, in turns of one step: without checks, with
checks, and with checks and audits. Prints the ratios of the times, and their 95 % intervals (by
resampling the turns).
"""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import ddl_core
import ddl_torch.elastic as elastic

LOGICAL, SHARE, LENGTH, WIDTH, RATE, SKIPPED = 8, 4, 32, 128, 0.01, 2


def train(steps: int, checks: bool, rate: float) -> Iterator[bool]:
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(256, LENGTH, WIDTH), torch.arange(256) % 3)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(LENGTH * WIDTH, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.001)
    sizes: dict[str, Any] = {"batch": LOGICAL * SHARE, "logical": LOGICAL}
    with ExitStack() as stack:
        endpoint = stack.enter_context(ddl_core.Endpoint(secret=""))
        comm = endpoint.connect([endpoint.address], 0)
        job = elastic.Job(model, optimizer, **sizes, comm=comm, audit=rate)
        stack.callback(job.close)
        if not checks:
            job.checks.committed = lambda: None  # type: ignore[method-assign]
        for step in job.steps(data, steps=steps):
            for x, y in step:
                step.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            assert step._step
            yield step._step.has_audits


def show(name: str, times: Any, others: Any) -> None:
    random = np.random.default_rng(0)
    rows = random.integers(len(times), size=(2000, len(times)))
    low, high = np.quantile(times[rows].sum(1) / others[rows].sum(1), [0.025, 0.975])
    ratio = times.sum() / others.sum()
    print(f"{name}: {ratio:.4f} ({low:.4f} to {high:.4f})", flush=True)


def main(steps: int) -> None:
    jobs = [train(steps, *case) for case in ((False, 0.0), (True, 0.0), (True, RATE))]
    times, audited = np.zeros((steps, 3)), np.zeros(steps, bool)
    for number in range(steps):
        for job in range(3):
            began = time.process_time()
            audited[number] |= next(jobs[job])
            times[number, job] = time.process_time() - began
    times, audited = times[SKIPPED:], audited[SKIPPED:]
    plain, checked, with_audits = times.T
    print(f"a step: {1000 * np.median(plain):.2f} ms; {audited.sum()} of {len(audited)} audited")
    show("checks", checked, plain)
    show(f"audit={RATE}", with_audits, checked)
    longer = np.median(with_audits[audited] / checked[audited])
    print(f"an audited step: {longer:.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
