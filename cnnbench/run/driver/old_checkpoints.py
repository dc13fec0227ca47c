"""Names of the variables in checkpoints of tf_cnn_benchmarks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import tensorflow as tf

from cnnbench.errors import FlagError
from cnnbench.models.spec import ModelSpec

# Matches names in checkpoints of tf_cnn_benchmarks, which numbers the layers of each type.
# For example, ``v/cg/resnet_v10/conv1/batchnorm1/beta`` belongs to the second batch norm.
# cnnbench declares layers in the same order, except in the networks that docs/migrating.md lists.
# At least one variable has a different shape in each network that docs/migrating.md lists.
# The prefix ``v0/`` marks the copy of the first device.
# Optimizer slots do not match, because their names have a further component.
_OLD_NAME = re.compile(r"v0?/(?:.+/)?(conv|batchnorm|affine)(\d+)/(?:conv2d/)?(\w+)")
# Matches the data format of the first convolution in a serialized graph.
_FORMAT = re.compile(rb"\x12\x06Conv2D.*?data_format\x12\x06\x12\x04(NCHW|NHWC)", re.DOTALL)


def map_old_names(
    path: str, shapes: Mapping[str, Sequence[int]], spec: ModelSpec
) -> dict[str, str]:
    """Maps names of variables to their keys in a checkpoint of tf_cnn_benchmarks.

    `shapes` contains the shapes in the checkpoint by key. FlagError if it is from another network.
    """
    matches = filter(None, map(_OLD_NAME.fullmatch, shapes))
    unmatched = {(m[1], int(m[2]), m[3]): m[0] for m in matches}
    keys: dict[str, str] = {}
    layers = defaultdict[str, dict[str, int]](dict)
    for variable in spec.variables:
        layer, _, name = variable.name.rpartition("/")
        kind = layer.rpartition("/")[2].rstrip("0123456789")
        number = layers[kind].setdefault(layer, len(layers[kind]))
        name = {"bias": "biases", "kernel": "weights" if kind == "affine" else name}.get(name, name)
        old = unmatched.pop((kind, number, name), "")
        if shapes.get(old) != list(variable.shape):
            unmatched[kind, number, name] = variable.name
        keys[variable.name] = old
    if unmatched:
        problem = f"is from tf_cnn_benchmarks, but does not fit --model={spec.name}"
        raise FlagError(
            "train_dir", path, f"{problem} (cnnbench docs migrating): {min(unmatched.values())}"
        )
    return keys


def find_channels_first(path: str, spec: ModelSpec) -> dict[str, tuple[int, int, int]]:
    """Returns the shapes of flattened images whose channels come first in the checkpoint at `path`.

    The shapes are (channels, height, width), by the name of the weights that multiply the images.
    FlagError if the format of the images is unknown.
    """
    if not spec.flattened:
        return {}
    meta = f"{path}.meta"
    match = tf.io.gfile.exists(meta) and _FORMAT.search(tf.io.read_file(meta).numpy())
    if not match:
        problem = f"is from tf_cnn_benchmarks, and {meta} does not show its data format"
        raise FlagError("train_dir", path, f"{problem} (cnnbench docs migrating)")
    if match[1] == b"NHWC":
        return {}
    return {name: (channels, h, w) for name, (h, w, channels) in spec.flattened.items()}
