# SPDX-License-Identifier: Apache-2.0
"""Train a small transformer to sort digits, byte by byte, on any number of processes.

    python examples/gpt_text.py                     one process
    ddlrun -n 2 python examples/gpt_text.py         two

The text consists of lines such as "4071 is 0147 sorted". Each process draws its own pieces of it,
so more processes make the batch larger, and the learning rate rises with it. At the end the model
completes lines that are not in its text. The program prints some of them, the number of right ones,
the tokens per second of all processes, and the share of the time that communication took.

With --text python the text is the source of the installed Python standard library. A model of this
size needs hours to learn to write such text.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

import ddl_torch as ddl

BYTES = 256  # the tokens
RATE = 1e-3  # the learning rate that suits one process's batch
SAMPLE = 200  # bytes of Python at the end
DIGITS, LINES, ASKED = 4, 40_000, 200  # digits of a line, lines of the text, lines at the end
COMPARED = 10  # steps without communication, for comparison


def main() -> int:
    arguments = parse()
    ddl.init()
    torch.manual_seed(arguments.seed)
    text = read(arguments.megabytes) if arguments.text == "python" else sorting(arguments.seed)
    own = torch.Generator().manual_seed(1 + arguments.seed + 1000 * ddl.rank())
    pieces = draw(text, arguments.batch, arguments.context, own)

    model = Transformer(arguments.width, arguments.layers, arguments.context)
    ddl.broadcast_parameters(model)
    alone = torch.optim.AdamW(model.parameters(), lr=0.0)
    tokens = arguments.batch * arguments.context
    without = rate(model, alone, pieces, tokens)

    optimizer = ddl.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=RATE), compression=arguments.compression
    )
    # With Adam the learning rate grows with the square root of the batch.
    scale = ddl.size() ** 0.5
    schedule = ddl.scaled_warmup(optimizer, max(1, arguments.steps // 10), scale)
    losses = []
    start = time.monotonic()
    with tqdm(total=arguments.steps, unit="step", disable=ddl.rank() != 0) as bar:
        for _ in range(arguments.steps):
            loss = step(model, optimizer, next(pieces))
            schedule.step()
            losses.append(ddl.average_metrics({"loss": loss})["loss"])
            done = len(losses) * tokens * ddl.size() / (time.monotonic() - start)
            bar.set_postfix(loss=f"{losses[-1]:.3f}", tokens_per_s=f"{done:.0f}", refresh=False)
            bar.update()

    without = ddl.average_metrics({"rate": without})["rate"] * ddl.size()
    if ddl.rank() == 0:
        if arguments.curve:
            plot(losses, arguments.curve)
        if arguments.text == "python":
            print(model.write("def ", SAMPLE).decode(errors="replace"))
        else:
            examine(model, arguments.seed)
        print(
            f"loss {losses[0]:.3f} to {losses[-1]:.3f}  {done:.0f} tokens/s"
            f"  {min(100.0, 100 * done / without):.0f} % of the rate without communication"
            f"  {ddl.size()} processes"
        )
    ddl.shutdown()
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small transformer on Python's sources.")
    parser.add_argument("--text", choices=["sorting", "python"], default="sorting")
    parser.add_argument("--steps", type=int, default=600, metavar="N")
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="pieces per process")
    parser.add_argument("--context", type=int, default=128, metavar="N", help="bytes of a piece")
    parser.add_argument("--width", type=int, default=128, metavar="N")
    parser.add_argument("--layers", type=int, default=4, metavar="N")
    parser.add_argument(
        "--megabytes", type=float, default=4.0, metavar="N", help="size of the text"
    )
    parser.add_argument(
        "--compression", choices=["f16", "bf16"], help="type in which gradients are sent"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curve", metavar="FILE", help="plot the loss as PNG (needs matplotlib)")
    return parser.parse_args()


def read(megabytes: float) -> Tensor:
    """Return the concatenated modules of the standard library, as bytes."""
    text = bytearray()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += file.read_bytes()
        if len(text) >= megabytes * 1e6:
            break
    return torch.frombuffer(text, dtype=torch.uint8)


def line(digits: list[int]) -> str:
    return f"{''.join(map(str, digits))} is {''.join(map(str, sorted(digits)))} sorted\n"


def sorting(seed: int) -> Tensor:
    """Return lines of the task. Lines whose digits add up to a multiple of five are kept for the
    end."""
    chance = torch.Generator().manual_seed(seed)
    rows = torch.randint(10, (LINES, DIGITS), generator=chance)
    text = "".join(line(row) for row in rows[rows.sum(1) % 5 != 0].tolist())
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def examine(model: Transformer, seed: int) -> None:
    """Let the model complete lines that it has not seen."""
    chance = torch.Generator().manual_seed(seed + 1)
    rows = torch.randint(10, (20 * ASKED, DIGITS), generator=chance)
    asked = [line(row) for row in rows[rows.sum(1) % 5 == 0][:ASKED].tolist()]
    begins = [each[: DIGITS + 4] for each in asked]
    answers = [text.decode(errors="replace") for text in model.complete(begins, DIGITS)]
    for answer in answers[:5]:
        print(answer)
    right = sum(each.startswith(answer) for each, answer in zip(asked, answers, strict=True))
    print(f"{right} of {len(asked)} lines that were not in the text are right")


def draw(text: Tensor, batch: int, context: int, chance: torch.Generator) -> Iterator[Tensor]:
    """Yield pieces of the text, each with the byte that follows it."""
    while True:
        begins = torch.randint(len(text) - context - 1, (batch,), generator=chance)
        yield torch.stack([text[b : b + context + 1] for b in begins]).long()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, pieces: Tensor) -> float:
    optimizer.zero_grad()
    loss = cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss.item()


def rate(
    model: nn.Module, optimizer: torch.optim.Optimizer, pieces: Iterator[Tensor], tokens: int
) -> float:
    """Return the tokens per second of this process without communication, while all processes
    compute."""
    step(model, optimizer, next(pieces))
    ddl.barrier()
    start = time.monotonic()
    for _ in range(COMPARED):
        step(model, optimizer, next(pieces))
    return COMPARED * tokens / (time.monotonic() - start)


def plot(losses: list[float], file: str) -> None:
    from matplotlib import pyplot

    pyplot.plot(losses)
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.savefig(file)


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 32), 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(text) + self.places.weight[:length]
        result: Tensor = self.head(self.body(hidden, mask, is_causal=True))
        return result

    @torch.no_grad()
    def complete(self, begins: list[str], length: int) -> list[bytes]:
        """Return the texts, which have equal lengths, each with its most likely continuation."""
        text = torch.tensor([list(each.encode()) for each in begins])
        for _ in range(length):
            text = torch.cat([text, self(text[:, -self.context :])[:, -1:].argmax(2)], 1)
        return [bytes(row) for row in text.tolist()]

    @torch.no_grad()
    def write(self, start: str, length: int) -> bytes:
        text = torch.tensor(list(start.encode()))[None]
        for _ in range(length):
            chances = self(text[:, -self.context :])[:, -1].softmax(1)
            text = torch.cat([text, torch.multinomial(chances, 1)], 1)
        return bytes(text[0].tolist())


if __name__ == "__main__":
    sys.exit(main())
