"""Reads the values that a checkpoint contains, by their keys in tf.train.Checkpoint.

It also reads checkpoints of tf_cnn_benchmarks, whose variables have other names.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.errors import BenchmarkError, FlagError, informative_line
from cnnbench.models.spec import ModelSpec
from cnnbench.optimizers.registry import OPTIMIZERS
from cnnbench.records import checkpoints

_ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"
GLOBAL_STEP = f"global_step{_ATTRIBUTE}"
_OPTIMIZER = f"optimizer{_ATTRIBUTE}"
_UNNAMED = ("sgd", "momentum", "rmsprop", "adam")
"""Optimizers of the versions of cnnbench that did not store the name of the optimizer."""
EXAMPLES = f"examples{_ATTRIBUTE}"
_PASSED_OVER = f"passed_over{_ATTRIBUTE}"

# Matches names in checkpoints of tf_cnn_benchmarks, which numbers the layers of each type.
# For example, ``v/cg/resnet_v10/conv1/batchnorm1/beta`` belongs to the second batch norm.
# cnnbench declares layers in the same order, except in the networks that docs/migrating.md lists.
# At least one variable has a different shape in each network that docs/migrating.md lists.
# The prefix ``v0/`` marks the copy of the first device.
# Optimizer slots do not match, because their names have a further component.
_OLD_NAME = re.compile(r"v0?/(?:.+/)?(conv|batchnorm|affine)(\d+)/(?:conv2d/)?(\w+)")
# Matches the data format of the first convolution in the serialized graph of a checkpoint.
_FORMAT = re.compile(rb"\x12\x06Conv2D.*?data_format\x12\x06\x12\x04(NCHW|NHWC)", re.DOTALL)


def key_of(part: str, name: str) -> str:
    """Returns the key of `name` in a part of a checkpoint: "model", "slots" or "loss_scale"."""
    # tf.train.Checkpoint escapes '/' in a name as '.S', and '.' as '..'.
    return f"{part}/{name.replace('.', '..').replace('/', '.S')}{_ATTRIBUTE}"


def by_key(part: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces canonical names by the keys of a part of a checkpoint, see `key_of`."""
    return {key_of(part, n): v for n, v in variables.items()}


def name_of(key: str) -> str:
    """Returns the canonical name of the variable that a checkpoint stores under `key`."""
    escaped = key.removesuffix(_ATTRIBUTE).removeprefix("model/").removeprefix("slots/")
    return escaped.replace(".S", "/").replace("..", ".")


class StoredCheckpoint:
    """Reads the tensors of a checkpoint by key. Tensors are converted to the variables' dtypes.

    Args:
      mismatch: end of the error message if variables are missing or have different shapes.
      spec: the network, which is needed to read a checkpoint of tf_cnn_benchmarks. FlagError if the
        checkpoint is from another network.
    """

    def __init__(self, path: str, mismatch: str, spec: ModelSpec | None = None) -> None:
        self._path = path
        with self._convert_errors():
            self._reader = tf.train.load_checkpoint(path)
            self.shapes = self._reader.get_variable_to_shape_map()
        # tf.train.Checkpoint stores a graph of objects; tf.compat.v1.train.Saver, which
        # tf_cnn_benchmarks uses, does not.
        written_here = "_CHECKPOINTABLE_OBJECT_GRAPH" in self.shapes
        self.is_old = not written_here and any(re.match("v0?/", key) for key in self.shapes)
        old = "checkpoints of tf_cnn_benchmarks can be read only from --train_dir"
        self._mismatch = old if self.is_old else mismatch
        self._old_keys: dict[str, str] = {}
        self._channels_first: dict[str, tuple[int, int, int]] = {}
        if self.is_old and spec is not None:
            names = _map_old_names(path, self.shapes, spec)
            self._old_keys = {GLOBAL_STEP: "global_step", **by_key("model", names)}
            self.shapes = {key: self.shapes[old] for key, old in self._old_keys.items()}
            self._channels_first = by_key("model", _find_channels_first(path, spec))

    def has_keys(self, variables: Iterable[str]) -> bool:
        """Whether the checkpoint contains all keys in `variables`."""
        return all(key in self.shapes for key in variables)

    def read_tensor(self, key: str) -> Any:
        """Reads the stored value of a key, as a NumPy array."""
        with self._convert_errors():
            value = self._reader.get_tensor(self._old_keys.get(key, key))
        if image := self._channels_first.get(key):
            value = value.reshape(*image, -1).transpose(1, 2, 0, 3).reshape(value.shape)
        return value

    def read_skipped_records(self) -> tuple[int, ...]:
        """Reads the numbers of skipped records (see `RestoredState`); empty if none was skipped."""
        return tuple(self.read_tensor(_PASSED_OVER).tolist()) if _PASSED_OVER in self.shapes else ()

    def read_optimizer_name(self) -> str:
        """The value of --optimizer with which the checkpoint was written."""
        if self.has_keys([_OPTIMIZER]):
            return str(self.read_tensor(_OPTIMIZER).decode())
        slots = (name_of(key) for key in self.shapes if key.startswith("slots/"))
        slot_names = {name.rpartition("/")[2] for name in slots}
        candidates = map(OPTIMIZERS.__getitem__, _UNNAMED)
        fitting = [o for o in candidates if {slot.name for slot in o.slots} <= slot_names]
        return max(fitting, key=lambda optimizer: len(optimizer.slots)).name

    def check_shapes(self, variables: Mapping[str, tf.Variable]) -> None:
        """Raises BenchmarkError for the first variable that is missing or has a different shape."""
        missing = [key for key in variables if key not in self.shapes]
        if missing:
            first = name_of(missing[0])
            problem = f"lacks {len(missing)} of {len(variables)} variables (first: {first})"
            raise BenchmarkError(f"checkpoint {self._path} {problem}; {self._mismatch}")
        for key, variable in variables.items():
            shape, wanted = self.shapes[key], list(variable.shape)
            if shape != wanted:
                problem = f"contains {name_of(key)} with the shape {shape}, not {wanted}"
                raise BenchmarkError(f"checkpoint {self._path} {problem}; {self._mismatch}")

    def assign_stored_values(self, variables: Mapping[str, tf.Variable]) -> str:
        """Assigns the stored value of each key in `variables` to the variable of that key.

        Returns the first key whose value is not finite, or "".
        """
        first = ""
        for key, variable in variables.items():
            value = self.read_tensor(key)
            variable.assign(tf.cast(value, variable.dtype))
            if not (first or np.isfinite(value).all()):
                first = key
        return first

    def assign_if_complete(self, variables: Mapping[str, tf.Variable]) -> bool:
        """Assigns the stored values if all keys are stored. Returns whether they are."""
        complete = self.has_keys(variables)
        if complete:
            self.assign_stored_values(variables)
        return complete

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """A context that converts errors of TensorFlow's checkpoint reader to BenchmarkErrors."""
        try:
            yield
        except (tf.errors.OpError, ValueError, LookupError) as error:
            # If a file is too short, TensorFlow's reader raises IndexError instead of an error of
            # its own.
            reason = informative_line(error)
            raise BenchmarkError(f"checkpoint {self._path} cannot be read: {reason}") from error


def _map_old_names(
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


def _find_channels_first(path: str, spec: ModelSpec) -> dict[str, tuple[int, int, int]]:
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


def check_old_checkpoint(folder: str, spec: ModelSpec) -> None:
    """Raises FlagError if the newest checkpoint is from tf_cnn_benchmarks and cannot be used."""
    # Any other error, such as an unreadable file, is reported when the checkpoint is restored.
    with contextlib.suppress(BenchmarkError):
        if path := checkpoints.find_latest_checkpoint(folder):
            StoredCheckpoint(path, "", spec)
