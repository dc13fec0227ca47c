"""Builds and loads Keras models."""

from __future__ import annotations

import importlib
import inspect
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from cnnbench.errors import UsageError, first_line
from cnnbench.models.keras_layers import FUSED, Logits

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


class BuiltKerasModel(NamedTuple):
    """A built Keras model, from whose own variables a run only reads initial values.

    `takes_training` is whether the layers are called with `training=True` in training. As in `fit`,
    this is false for a subclassed model whose `call` does not take `training`.
    """

    model: Any
    takes_training: bool = True

    @property
    def variables(self) -> list[Any]:
        """The model's variables, in the order that `keras.Model.stateless_call` requires."""
        return [*self.model.trainable_variables, *self.model.non_trainable_variables]

    def values(self) -> list[Any]:
        """Returns the values of all variables as NumPy arrays: float32, or int64 for integers."""
        arrays = [keras.ops.convert_to_numpy(variable) for variable in self.variables]
        return [a.astype(np.int64 if is_integer(a.dtype) else np.float32) for a in arrays]


def build_keras_model(
    make: Callable[[str], Any], dtype: str, seed: int, size: int | None, *, fuses: bool
) -> BuiltKerasModel:
    """Builds a Keras model on the CPU, with initial values that depend only on `seed`.

    The model is built in a separate thread. There, Keras numbers layer names from 0 even if the
    process has built other models, and the global dtype policy is separate.

    Args:
      make: see `KerasModel`.
      size: height and width of the images if the model does not specify them.
      fuses: whether batch norm, convolutions and dense layers use cnnbench's faster operations.
    """
    policy = _POLICIES[dtype]
    states = random.getstate(), np.random.get_state()

    def made() -> BuiltKerasModel:
        keras.utils.set_random_seed(seed)
        keras.config.set_dtype_policy(policy)
        with tf.device("CPU:0"):
            model = make(policy)
            checked = _to_functional(model, size)
            takes = inspect.signature(model.call).parameters
        return BuiltKerasModel(checked, checked is model or "training" in takes)

    try:
        with ThreadPoolExecutor(1) as pool:
            built = pool.submit(made).result()
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    for _, layer in all_layers(built.model):
        if type(layer) in FUSED and fuses:
            object.__setattr__(layer, "__class__", FUSED[type(layer)])
    return built


def make_application(name: str, sizes: tuple[int, int] | None = None) -> Any:
    """Creates a network of `keras.applications` with random weights.

    `sizes` contains the height (and width) of the images and the number of classes. The defaults
    are the network's own image size and 1,000 classes.
    """
    options: dict[str, Any] = {"weights": None, "classifier_activation": None}
    if name.startswith("MobileNetV3"):  # MobileNetV3 takes images of any size by default.
        options["input_shape"] = (224, 224, 3)
    if sizes is not None:
        options |= {"input_shape": (sizes[0], sizes[0], 3), "classes": sizes[1]}
    return getattr(keras.applications, name)(**options)


def preprocess_images(name: str, images: Any) -> Any:
    """Converts images in [-1, 1] to the value range that a `keras.applications` network needs."""
    module = importlib.import_module(getattr(keras.applications, name).__module__)
    return module.preprocess_input((images + 1.0) * 127.5)


def load_keras_file(path: str, policy: str) -> Any:
    """Loads a Keras model from a file without running code that the file contains.

    For a mixed-precision policy, the result is a copy of the model with this policy.
    """
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras and h5py raise errors of many types.
        raise UsageError(f"cannot be loaded in safe mode: {first_line(error)}") from error
    if policy == "float32":
        return model
    if not isinstance(model, keras.Sequential) and not _is_functional(model):
        raise UsageError(
            f"only Sequential and functional models can be converted to {policy} (--precision)"
        )
    copy = keras.models.clone_model(
        model,
        clone_function=lambda layer: type(layer).from_config(
            {**layer.get_config(), "dtype": policy}
        ),
        recursive=True,
    )
    copy.set_weights(model.get_weights())
    return copy


def _to_functional(model: Any, image_size: int | None) -> Any:
    """Converts a Keras model to a functional model that returns logits.

    If the model has no input shape, it gets images of `image_size` x `image_size` pixels.

    Raises UsageError if cnnbench cannot train the model.
    """
    if keras.config.backend() != "tensorflow":
        raise UsageError(f"Keras runs on {keras.config.backend()}; set KERAS_BACKEND=tensorflow")
    if keras.config.image_data_format() != "channels_last":
        raise UsageError("keras.json sets channels_first; cnnbench needs channels_last (NHWC)")
    if not isinstance(model, keras.Model):
        raise UsageError(f"build must return a keras.Model, not {type(model).__name__}")
    if getattr(model, "optimizer", None) is not None:
        raise UsageError("the Keras model has an optimizer; do not call compile()")
    if not _is_functional(model):
        if image_size is None:
            raise UsageError("the Keras model has no input shape; give its image_size")
        # model(images) passes `training` to the layers; model.call(images) would not.
        images = keras.Input((image_size, image_size, 3))
        model = keras.Model(images, model(images))
    last = model
    while isinstance(last, keras.Model) and _is_functional(last):
        last = last.layers[-1]
    if type(last) is keras.layers.Softmax:
        object.__setattr__(last, "__class__", Logits)
    elif getattr(last, "activation", None) is keras.activations.softmax:
        last.activation = keras.activations.linear
    return model


def _is_functional(model: Any) -> bool:
    return getattr(model, "inputs", None) is not None


def is_integer(dtype: Any) -> bool:
    """Whether a dtype, or its name, is not floating-point."""
    return "float" not in str(dtype)


def all_layers(model: Any, scope: str = "") -> Iterator[tuple[str, Any]]:
    """Yields path and layer for all layers of a model, including layers of nested models."""
    for layer in model.layers if isinstance(model, keras.Model) else ():
        yield f"{scope}{layer.name}", layer
        yield from all_layers(layer, f"{scope}{layer.name}/")
