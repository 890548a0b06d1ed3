# SPDX-License-Identifier: Apache-2.0
"""Train ResNet-50 or ResNet-101 on ImageNet with the published recipe for large batches, on any
number of processes.

    python examples/imagenet_resnet50.py DATA                    one process
    ddlrun -n 2 python examples/imagenet_resnet50.py DATA        two
    python examples/imagenet_resnet50.py --make-sample DATA      make a small DATA for a test

DATA has the folders train/CLASS and val/CLASS with images, as ImageNet is usually unpacked. The
recipe is that of Goyal and others, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour"
(2017): a learning rate of 0.1 for 256 images of all processes, approached during five epochs.

A step depends only on the options and on its number, so a run that resumes from a checkpoint ends
with the same weights as one that was never interrupted, to the last bit.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from resnet import BLOCKS, ResNet
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler
from tqdm import tqdm

import ddl_torch as ddl

RATE, RATE_BATCH = 0.1, 256  # the learning rate that suits a batch of this size
WARM_UP = 5  # epochs
DROPS = (1 / 3, 2 / 3, 8 / 9)  # parts of the training after which the rate falls to a tenth
MOMENTUM, DECAY = 0.9, 1e-4
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the colors in ImageNet
SUFFIXES = (".jpeg", ".jpg", ".png")
COMPARED = 4  # steps of one process alone, to compute the scaling
SAME_IN_BOTH = ("model", "batch", "size", "epochs", "schedule", "label_smoothing", "bf16", "seed")


def main() -> int:
    arguments = parse()
    if arguments.make_sample:
        make_sample(arguments.data, arguments.make_sample, arguments.seed)
        return 0
    ddl.init()  # join the other processes
    training = Training(arguments)
    alone = training.rate_alone()
    training.run()
    weights = hash_of(training.model.module)
    if len(set(ddl.allgather_object(weights))) > 1:
        print(f"rank {ddl.rank()}: the processes' weights differ", file=sys.stderr)
        return 1
    if ddl.rank() == 0:
        if arguments.curve:
            plot(training.losses, arguments.curve)
        rate, epoch = training.rate(), training.steps_per_epoch
        first, last = np.mean(training.losses[:epoch]), np.mean(training.losses[-epoch:])
        print(
            f"loss {first:.3f} to {last:.3f}"
            f"  accuracy {training.accuracy:.2f} %  {rate:.1f} images/s"
            f"  scaling efficiency {100 * rate / (alone * ddl.size()):.0f} %"
            f" of {ddl.size()} x {alone:.1f} images/s  weights {weights[:16]}"
        )
    ddl.shutdown()
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train ResNet-50 or ResNet-101 on ImageNet.")
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder with train and val")
    parser.add_argument("--model", choices=sorted(BLOCKS), default="resnet50")
    parser.add_argument("--epochs", type=int, default=90, metavar="N")
    parser.add_argument("--steps", type=int, metavar="N", help="stop after N steps")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="images per process")
    parser.add_argument("--size", type=int, default=224, metavar="N", help="pixels of an image")
    parser.add_argument("--schedule", choices=["step", "cosine"], default="step")
    parser.add_argument("--label-smoothing", type=float, default=0.0, metavar="X")
    parser.add_argument("--bf16", action="store_true", help="compute, and send gradients, in bf16")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that read images, per process"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="save one after each epoch")
    parser.add_argument("--save-every", type=int, metavar="N", help="and after every N steps")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="resume from a checkpoint")
    parser.add_argument("--curve", metavar="FILE", help="plot the loss as PNG (needs matplotlib)")
    parser.add_argument(
        "--make-sample",
        type=int,
        metavar="N",
        nargs="?",
        const=64,
        help="write N images of each class into DATA instead (scikit-learn's photographs and"
        " digits)",
    )
    return parser.parse_args()


# ---- training ----


class Training:
    """The state of a training and its steps, the same on all processes."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        torch.manual_seed(arguments.seed)  # the same weights on all processes
        images = Images(arguments.data / "train", arguments.size, arguments.seed, training=True)
        self.batch = arguments.batch * ddl.size()  # of all processes
        self.steps_per_epoch = len(images) // self.batch
        if not self.steps_per_epoch:
            sys.exit(
                f"{len(images)} images in {images.folder} are fewer than a batch of {self.batch}"
            )
        self.step = 0
        self.last_step = arguments.epochs * self.steps_per_epoch
        self.stop = min(self.last_step, arguments.steps or self.last_step)
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.accuracy = math.nan

        network = ResNet(arguments.model, len(images.classes))
        network.to(memory_format=torch.channels_last)  # as the images are
        self.optimizer = torch.optim.SGD(parameters(network), lr=RATE, momentum=MOMENTUM)
        if arguments.resume:
            self.load(network)
        self.model = DistributedDataParallel(network, gradient_as_bucket_view=True)
        if arguments.bf16:
            # DistributedDataParallel accepts the hook itself with NCCL only.
            self.model.register_comm_hook(
                None, lambda _, bucket: bf16_compress_hook(dist.group.WORLD, bucket)
            )

        load = partial(
            DataLoader,
            num_workers=workers(arguments.workers),
            collate_fn=collate,
            persistent_workers=workers(arguments.workers) > 0,
        )
        self.order = Order(len(images), self.batch, arguments.seed)
        self.images = load(images, batch_sampler=self.order)
        held_out = Images(arguments.data / "val", arguments.size, arguments.seed, training=False)
        if held_out.classes != images.classes:
            sys.exit(f"{held_out.folder} has other classes than {images.folder}")
        mine = range(ddl.rank(), len(held_out), ddl.size())
        self.held_out = load(held_out, batch_size=arguments.batch, sampler=[(0, i) for i in mine])

    def run(self) -> None:
        with tqdm(total=self.stop, initial=self.step, unit="step", disable=ddl.rank() != 0) as bar:
            while self.step < self.stop:
                self.order.start_at(self.step)
                self.run_epoch(bar)
                self.accuracy = self.validate()

    def run_epoch(self, bar: Any) -> None:
        """Train from the next step to the end of its epoch."""
        self.model.train()
        since = time.monotonic()
        for images, labels in self.images:
            loss = self.train(self.model, self.optimizer, images, labels)
            self.losses.append(ddl.allreduce(loss.detach(), op="average").item())
            self.step += 1
            self.seconds.append(time.monotonic() - since)
            bar.set_postfix(
                loss=f"{self.losses[-1]:.3f}", images_per_s=f"{self.rate():.1f}", refresh=False
            )
            bar.update()
            save_every = self.arguments.save_every or self.stop
            epoch_ends = self.step % self.steps_per_epoch == 0 or self.step == self.stop
            if epoch_ends or self.step % save_every == 0:
                self.save()
            if self.step == self.stop:
                return
            since = time.monotonic()

    def train(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
    ) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.arguments.bf16):
            predicted = model(images)
        loss = cross_entropy(
            predicted.float(), labels, label_smoothing=self.arguments.label_smoothing
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def learning_rate(self) -> float:
        """Return the learning rate of this step: it rises during the warm-up, then falls."""
        epochs, epoch = self.arguments.epochs, self.step / self.steps_per_epoch
        one, all_ = RATE * self.arguments.batch / RATE_BATCH, RATE * self.batch / RATE_BATCH
        if epoch < WARM_UP:
            return one + (all_ - one) * epoch / WARM_UP
        if self.arguments.schedule == "cosine":
            return all_ * 0.5 * (1 + math.cos(math.pi * (epoch - WARM_UP) / (epochs - WARM_UP)))
        return all_ * 0.1 ** sum(epoch >= drop * epochs for drop in DROPS)

    def rate(self) -> float:
        """Return the images per second of all processes, computed from the median step."""
        return self.batch / float(np.median(self.seconds))

    def rate_alone(self) -> float:
        """Return the images per second of process 0 alone, which trains a copy. The others wait."""
        rate = 0.0
        if ddl.rank() == 0:
            model, times = copy.deepcopy(self.model.module), [time.monotonic()]
            optimizer = torch.optim.SGD(parameters(model), lr=RATE, momentum=MOMENTUM)
            self.order.start_at(self.step)
            for images, labels in islice(self.images, COMPARED + 1):
                self.train(model, optimizer, images, labels)
                times.append(time.monotonic())
            seconds = np.diff(times)
            rate = self.arguments.batch / float(
                np.median(seconds[1:] if len(seconds) > 1 else seconds)
            )
        ddl.barrier()
        return rate

    @torch.no_grad()
    def validate(self) -> float:
        """The accuracy on the held-out images, in percent."""
        network = self.model.module.eval()
        # Uses batch norm's statistics of process 0, as each step does at its start.
        ddl.broadcast_parameters(dict(network.named_buffers()))
        right = total = 0
        for images, labels in self.held_out:
            right += int((network(images).argmax(1) == labels).sum())
            total += len(labels)
        right, total = ddl.allreduce(torch.tensor([right, total])).tolist()
        return 100 * right / max(1, total)

    def save(self) -> None:
        """Save a checkpoint, with the batch-norm statistics of process 0."""
        if ddl.rank() or not self.arguments.checkpoint:
            return
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "losses": self.losses,
            "options": self.options(),
        }
        unfinished = self.arguments.checkpoint.with_suffix(".partial")
        torch.save(state, unfinished)
        os.replace(unfinished, self.arguments.checkpoint)  # so a complete one exists at any time

    def load(self, network: nn.Module) -> None:
        state = torch.load(self.arguments.resume, weights_only=True)
        for name, value in self.options().items():
            if state["options"][name] != value:
                sys.exit(
                    f"{self.arguments.resume} was made with {name} {state['options'][name]},"
                    f" not {value}"
                )
        network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.losses = state["step"], state["losses"]
        if ddl.rank() == 0:
            print(f"resuming after step {self.step} of {self.arguments.resume}")

    def options(self) -> dict[str, Any]:
        """The options on which the steps depend."""
        given = {name: getattr(self.arguments, name) for name in SAME_IN_BOTH}
        return {**given, "processes": ddl.size(), "steps_per_epoch": self.steps_per_epoch}


def parameters(network: nn.Module) -> list[dict[str, Any]]:
    """Return the parameter groups: weights with weight decay, biases and batch norm without."""
    with_decay = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    return [{"params": with_decay, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]


def hash_of(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def plot(losses: list[float], file: str) -> None:
    from matplotlib import pyplot

    pyplot.plot(losses)
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.savefig(file)


# ---- images ----

Key = tuple[int, int]  # epoch, number of the image


class Order(Sampler[list[Key]]):
    """The part of one process of each batch of an epoch. All processes shuffle in the same way."""

    def __init__(self, images: int, batch: int, seed: int) -> None:
        self.images, self.batch, self.seed = images, batch, seed
        self.step = 0

    def start_at(self, step: int) -> None:
        self.step = step

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, done = divmod(self.step, len(self))
        order = list(range(self.images))
        random.Random(f"order {self.seed} {epoch}").shuffle(order)
        for begin in range(done * self.batch, len(self) * self.batch, self.batch):
            mine = order[begin : begin + self.batch][ddl.rank() :: ddl.size()]
            yield [(epoch, number) for number in mine]

    def __len__(self) -> int:
        """Return the number of complete batches per epoch."""
        return self.images // self.batch


class Images(Dataset[tuple[Image.Image, int]]):
    """The images of a folder that has a folder for each class. For training each image is cropped
    and mirrored at random, differently in each epoch; otherwise its center is used."""

    def __init__(self, folder: Path, size: int, seed: int, training: bool) -> None:
        self.folder, self.size, self.seed, self.training = folder, size, seed, training
        if not folder.is_dir():
            sys.exit(f"the folder {folder} does not exist; --make-sample creates a small one")
        self.classes = sorted(each.name for each in folder.iterdir() if each.is_dir())
        self.files = [
            (str(file), label)
            for label, name in enumerate(self.classes)
            for file in sorted((folder / name).iterdir())
            if file.suffix.lower() in SUFFIXES
        ]
        if not self.files:
            sys.exit(f"the folders of {folder} contain no images")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, key: Key) -> tuple[Image.Image, int]:
        file, label = self.files[key[1]]
        with Image.open(file) as whole:
            image = whole.convert("RGB")
        if not self.training:
            return image.resize(
                (self.size, self.size), Image.Resampling.BILINEAR, middle(image)
            ), label
        chance = random.Random(f"{self.seed} {key}")
        part = image.resize(
            (self.size, self.size), Image.Resampling.BILINEAR, any_part(image, chance)
        )
        if chance.random() < 0.5:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return part, label


Box = tuple[float, float, float, float]


def any_part(image: Image.Image, chance: random.Random) -> Box:
    """A random crop: 8 to 100 % of the area, 3:4 to 4:3."""
    for _ in range(10):
        area = image.width * image.height * chance.uniform(0.08, 1.0)
        ratio = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if width <= image.width and height <= image.height:
            left = chance.uniform(0, image.width - width)
            top = chance.uniform(0, image.height - height)
            return (left, top, left + width, top + height)
    return middle(image)


def middle(image: Image.Image) -> Box:
    """The centered square of 7/8 of the shorter side."""
    side = min(image.width, image.height) * 7 / 8
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return (left, top, left + side, top + side)


def collate(batch: list[tuple[Image.Image, int]]) -> tuple[Tensor, Tensor]:
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image, _ in batch]))
    images = pixels.permute(0, 3, 1, 2).float() / 255
    images = (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]
    return images, torch.tensor([label for _, label in batch])


def workers(asked: int | None) -> int:
    """The number of processes that read images: one for each core that training leaves."""
    return max(0, (os.cpu_count() or 1) // ddl.local_size() - 1) if asked is None else asked


# ---- a small ImageNet ----


def make_sample(folder: Path, images: int, seed: int) -> None:
    """Write parts of scikit-learn's two photographs, and its digits, as JPEG. A quarter more of
    each class is held out: parts of a photograph's right quarter, and other digits."""
    from sklearn.datasets import load_digits, load_sample_images

    chance = random.Random(seed)
    held_out = max(1, images // 4)
    photographs = load_sample_images()
    for name, pixels in zip(photographs.filenames, photographs.images, strict=True):
        whole = Image.fromarray(pixels)
        border = whole.width * 3 // 4
        for part, box, count in (
            ("train", (0, 0, border, whole.height), images),
            ("val", (border, 0, whole.width, whole.height), held_out),
        ):
            region = whole.crop(box)
            for number in range(count):
                left, top, right, bottom = map(int, any_part(region, chance))
                piece = region.crop((left, top, max(right, left + 32), max(bottom, top + 32)))
                write(piece, folder / part / Path(name).stem, number)
    digits = load_digits()
    for digit in range(10):
        chosen = np.flatnonzero(digits.target == digit)
        for number, pixels in enumerate(digits.images[chosen][: images + held_out]):
            image = Image.fromarray((pixels * 255 / 16).astype(np.uint8)).resize((128, 128))
            part = "val" if number < held_out else "train"
            write(image, folder / part / f"digit{digit}", number)


def write(image: Image.Image, folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    image.save(folder / f"{folder.name}_{number}.JPEG", quality=90)


if __name__ == "__main__":
    sys.exit(main())
