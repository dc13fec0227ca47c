"""Measures training steps of ResNet-50 v1 in PyTorch, eager mode, channels last.

The network is the original ResNet-50, in which the first 1 x 1 convolution of a block has the
stride, as in the other programs. (In torchvision, the 3 x 3 convolution has the stride.)
"""

from __future__ import annotations

from typing import Any

import torch
from steps import measure, parse  # type: ignore[import-not-found] # the file beside this
from torch import nn

# (blocks, output channels, inner channels, stride of the first block)
STAGES = ((3, 256, 64, 1), (4, 512, 128, 2), (6, 1024, 256, 2), (3, 2048, 512, 2))
SIZE = 224
CLASSES = 1001


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Creates a convolution without bias, and its batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):  # type: ignore[misc] # torch is Any
    """A bottleneck block. The first block of a stage has a projection in its shortcut."""

    def __init__(self, inputs: int, outputs: int, inner: int, stride: int, first: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(inputs, inner, 1, stride),
            nn.ReLU(inplace=True),
            conv_norm(inner, inner, 3),
            nn.ReLU(inplace=True),
            conv_norm(inner, outputs, 1),
        )
        self.side = conv_norm(inputs, outputs, 1, stride) if first else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies the block: [n, inputs, h, w] -> [n, outputs, h / stride, w / stride]."""
        return self.relu(self.body(x) + self.side(x))


def resnet50() -> nn.Sequential:
    """Creates ResNet-50, [n, 3, 224, 224] -> logits [n, 1001]."""
    layers: list[nn.Module] = [conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, padding=1))
    channels = 64
    for blocks, outputs, inner, stride in STAGES:
        for index in range(blocks):
            first = index == 0
            layers.append(Block(channels, outputs, inner, stride if first else 1, first))
            channels = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers)


def main() -> None:
    """Measures the steps, and prints the measurement."""
    args = parse(("resnet50",))
    torch.manual_seed(1)
    # torch's annotations overload .to() too narrowly for modules in channels-last form.
    model: Any = resnet50()
    model = model.to(memory_format=torch.channels_last).train()
    images = torch.randn(args.batch_size, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (args.batch_size,))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay
    )

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    measure(args, step, torch)


if __name__ == "__main__":
    main()
