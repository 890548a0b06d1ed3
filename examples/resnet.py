# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 and ResNet-101 (He and others, 2015), with the parameter names of torchvision, so that
weights can be exchanged with it. torchvision itself is not needed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
EXPANSION = 4  # output channels of a block, as a multiple of its width


class ResNet(nn.Module):
    def __init__(self, name: str = "resnet50", classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for number, blocks in enumerate(BLOCKS[name]):
            width, stride = 64 << number, 1 if number == 0 else 2
            layer = [Bottleneck(channels, width, stride)]
            channels = width * EXPANSION
            layer += [Bottleneck(channels, width, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{number + 1}", nn.Sequential(*layer))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        self.apply(initialize)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        hidden = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        result: Tensor = self.fc(torch.flatten(self.avgpool(hidden), 1))
        return result


class Bottleneck(nn.Module):
    """A block of three convolutions and a shortcut. The second convolution has the stride."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != out:
            shortcut = nn.Conv2d(channels, out, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.relu(self.bn1(self.conv1(images)))
        hidden = self.relu(self.bn2(self.conv2(hidden)))
        hidden = self.bn3(self.conv3(hidden))
        shortcut = images if self.downsample is None else self.downsample(images)
        result: Tensor = self.relu(hidden + shortcut)
        return result


def initialize(module: nn.Module) -> None:
    """Initialize as Goyal and others do for large batches: each block starts as its shortcut."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.zeros_(module.bias)
    elif isinstance(module, Bottleneck):  # apply() visits a block after its parts
        nn.init.zeros_(module.bn3.weight)
