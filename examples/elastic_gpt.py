# SPDX-License-Identifier: Apache-2.0
"""Train the transformer of gpt_text.py, with processes that may die.

    python examples/elastic_gpt.py                               one process
    ddl elastic run -n 4 examples/elastic_gpt.py --kill 2        four; two are killed meanwhile
    ddl elastic run -n 4 examples/elastic_gpt.py --shard         each holds a part of the state

The state's hash at the end is the same for any number of processes and any deaths, with and without
--shard. With --large the model has 100 million parameters.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import time

import torch
from gpt_text import Transformer, read
from torch import Tensor
from torch.nn.functional import cross_entropy

import ddl_torch.elastic as elastic

HELD_OUT = 100  # the last pieces, for evaluation
LARGE = {"width": 768, "layers": 14}


class Pieces:
    """The text in pieces, each with the byte that follows it."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, number: int) -> Tensor:
        begin = number * self.context
        return self.text[begin : begin + self.context + 1].long()


def main() -> None:
    arguments = parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    pieces = Pieces(read(arguments.megabytes), arguments.context)
    held_out = [pieces[number] for number in range(len(pieces) - HELD_OUT, len(pieces))]
    pieces.text = pieces.text[: -HELD_OUT * arguments.context]

    model = Transformer(arguments.width, arguments.layers, arguments.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm_up = max(1, arguments.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1, (t + 1) / warm_up))
    job = elastic.Job(
        model,
        optimizer,
        batch=arguments.batch,
        logical=arguments.logical,
        also={"schedule": schedule},
        shard=arguments.shard,
        copies=arguments.copies,
    )

    def losses(batch: Tensor) -> Tensor:
        predicted = model(batch[:, :-1])
        return cross_entropy(predicted.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")

    began, first = 0.0, 0
    for step in job.steps(pieces, steps=arguments.steps, loader_workers=arguments.loader_workers):
        for batch in step:
            step.backward(losses(batch).mean())
        optimizer.step()
        schedule.step()
        if not began:
            began, first = time.monotonic(), step.number
        if (step.number + 1) % arguments.evaluate == 0:
            table = job.map(held_out, lambda batch: losses(batch).sum(), batch=10)
            loss = table.sum() / (HELD_OUT * arguments.context)
            job.log(f"step {step.number}", loss=job.loss, held_out=loss)
        if step.number + 1 in range(15, 15 * arguments.kill + 1, 15) and job.is_writer:
            os.kill(os.getpid(), signal.SIGKILL)

    took = (time.monotonic() - began) / max(1, arguments.steps - 1 - first)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    count = sum(each.numel() for each in model.parameters()) / 1e6
    job.log(f"{count:.1f} million parameters, {took:.2f} s a step, {memory:.2f} GiB at most")
    if job.is_writer:
        print(model.write("def ", arguments.write).decode(errors="replace"))
    job.log(f"state {job.hash()[:16]}")
    job.close()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small transformer on Python's sources.")
    parser.add_argument("--steps", type=int, default=300, metavar="N")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="pieces in a step")
    parser.add_argument("--logical", type=int, default=8, metavar="N", help="logical workers")
    parser.add_argument("--context", type=int, default=128, metavar="N", help="bytes of a piece")
    parser.add_argument("--width", type=int, default=128, metavar="N")
    parser.add_argument("--layers", type=int, default=4, metavar="N")
    parser.add_argument(
        "--large", action="store_true", help="width 768 and 14 layers: 100 million parameters"
    )
    parser.add_argument("--shard", action="store_true", help="shard the optimizer's state")
    parser.add_argument(
        "--copies", type=int, default=1, metavar="N", help="with --shard: deaths at once to survive"
    )
    parser.add_argument(
        "--megabytes", type=float, default=4.0, metavar="N", help="size of the text"
    )
    parser.add_argument(
        "--evaluate", type=int, default=50, metavar="N", help="evaluate after every N steps"
    )
    parser.add_argument(
        "--write", type=int, default=200, metavar="N", help="bytes to write at the end"
    )
    parser.add_argument("--loader-workers", type=int, default=0, metavar="N")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill N processes")
    arguments = parser.parse_args()
    if arguments.large:
        vars(arguments).update(LARGE)
    return arguments


if __name__ == "__main__":
    main()
