"""Weights and images drawn from names, and the logits that torchvision's networks make of them.

The tests need NumPy alone. The expected values come from an environment of their own, here::

    python -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 pillow
    /tmp/torch/bin/pip install --no-deps torchvision==0.28.0
    /tmp/torch/bin/python torchvision_logits.py torchvision.json
"""

from __future__ import annotations

import functools
import json
import math
import sys
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CLASSES = 5
PERIOD = 65_521  # a prime, so that no two rows of a kernel are alike
SIZES = {"vit_b16": (1, 224), "swin_t": (1, 224), "inception3": (4, 299)}
"""Images and their side, by our name of the network."""


def draw(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Normal numbers that depend on the name alone, repeated to fill the shape.

    Args:
      name: of a tensor of torchvision's. Kernels get the variance 1 / inputs, other weights 0.04
        around 1, all else 0.04 around 0; tables and positions 1.
      shape: as in torchvision, outputs first.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = np.resize(rng.standard_normal(PERIOD), shape)
    if name.endswith(("images", "table", "pos_embedding", "class_token")):
        scale, middle = 1.0, 0.0
    elif len(shape) > 1:
        scale, middle = 1.0 / math.sqrt(math.prod(shape[1:])), 0.0
    else:
        scale, middle = 0.2, 1.0 if name.endswith("weight") else 0.0
    return np.asarray(values * scale + middle, np.float32)


def images(name: str) -> npt.NDArray[np.float32]:
    """[n, 3, side, side] for a network."""
    count, side = SIZES[name]
    return draw(f"{name} images", (count, 3, side, side))


def _tensors(name: str, network: Any) -> Iterator[tuple[str, Any]]:
    """What is learned, by the name it is drawn by."""
    if name != "inception3":
        yield from network.named_parameters()
        return
    # Layers are numbered as they are made, those of the second head on their own.
    counts = {"": 0, "aux.": 0}
    for path, module in network.named_modules():
        if type(module).__name__ == "BasicConv2d":
            scope = "aux." if path.startswith("AuxLogits") else ""
            at = f"{scope}conv{counts[scope]}"
            counts[scope] += 1
            yield f"{at}.weight", module.conv.weight
            yield f"{at}.bias", module.bn.bias  # its scale is 1, as it is at first
    yield "aux.fc.weight", network.AuxLogits.fc.weight
    yield "aux.fc.bias", network.AuxLogits.fc.bias


def by_torchvision(name: str) -> list[list[float]]:
    """The logits; of inception3, while training, those of its auxiliary head."""
    import torch

    # Descriptions of operators in C++, which that build of PyTorch does not have.
    sys.modules.setdefault(
        "torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations")
    )
    from torchvision import models

    if name == "inception3":
        # Its means count the zeros around an image, those of slim and Keras do not.
        functional = torch.nn.functional
        functional.avg_pool2d = functools.partial(functional.avg_pool2d, count_include_pad=False)
    torch.manual_seed(0)
    if name == "inception3":
        network = models.inception_v3(weights=None, num_classes=CLASSES, init_weights=False)
    else:
        make = {"vit_b16": models.vit_b_16, "swin_t": models.swin_t}[name]
        network = make(weights=None, num_classes=CLASSES).eval()
    with torch.no_grad():
        for key, tensor in _tensors(name, network):
            tensor.copy_(torch.from_numpy(draw(key, tuple(tensor.shape))))
        outputs = network(torch.from_numpy(images(name)))
    logits: list[list[float]] = (outputs.aux_logits if name == "inception3" else outputs).tolist()
    return logits


if __name__ == "__main__":
    from importlib.metadata import version

    document = {
        "made_by": "torchvision_logits.py with torchvision "
        f"{version('torchvision')} and torch {version('torch')}",
        "logits": {name: by_torchvision(name) for name in SIZES},
    }
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")
