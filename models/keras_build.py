"""Builds, loads and calls Keras models.

In a tower's graph, layers of a model use the operations of `GraphNetwork`.
"""

from __future__ import annotations

import importlib
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from cnnbench.errors import UsageError, informative_line
from cnnbench.models.graph import GraphNetwork, StateUpdate
from cnnbench.models.network import SlidingWindow
from cnnbench.models.spec import BatchNorm, BatchNormLayer, VariableSpec

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}

_calls: ContextVar[tuple[GraphNetwork, dict[int, VariableSpec]] | None] = ContextVar(
    "_calls", default=None
)
"""The network that is calling a Keras model, and its variables by `id` of the Keras variable."""


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
    if name.startswith("MobileNetV3"):  # MobileNetV3 has no default size.
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
        raise UsageError(f"cannot be loaded in safe mode: {informative_line(error)}") from error
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
        # The model is called instead of model.call, which would not pass `training` to the layers.
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


def call_keras_model(
    get_built_model: Callable[[str], Any],
    declared: Sequence[VariableSpec],
    net: Any,
    images: tf.Tensor,
    values: Sequence[tf.Tensor],
) -> tf.Tensor:
    """Calls a Keras model in a tower's graph, and returns the model's logits.

    Losses of layers, and updates of non-trainable variables, are added to `net`.

    Args:
      get_built_model: function that returns the `BuiltKerasModel` for the name of a dtype.
      net: the `GraphNetwork` of the tower.
      declared, values: the variables and the values that the tower has read, in the same order.
    """
    keras_model = get_built_model(str(net.compute_dtype.name))
    variables = keras_model.variables
    cast = [tf.cast(v, k.dtype) for k, v in zip(variables, values, strict=True)]
    trained = len(keras_model.model.trainable_variables)
    specs = {id(variable): spec for variable, spec in zip(variables, declared, strict=True)}
    token = _calls.set((net, specs))
    try:
        logits, states, losses = keras_model.model.stateless_call(
            cast[:trained],
            cast[trained:],
            images,
            training=net.training and keras_model.takes_training,
            return_losses=True,
        )
    finally:
        _calls.reset(token)
    if net.training:
        net.losses += [tf.cast(loss, tf.float32) for loss in losses]
        rows = zip(declared[trained:], cast[trained:], states, strict=True)
        for spec, old, new in rows:
            if new is not old:
                net.updates.append(StateUpdate(spec, tf.cast(new, spec.dtype)))
    return logits


def _calling_network() -> GraphNetwork | None:
    calling = _calls.get()
    return None if calling is None else calling[0]


class Logits(keras.layers.Softmax):  # type: ignore[misc]
    """Layer without effect that replaces a final softmax layer, because the loss takes logits."""

    def call(self, inputs: Any, mask: Any = None) -> Any:
        """Returns the inputs."""
        return inputs


class _BatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Keras batch norm with one fused operation in the forward pass, and one in the backward."""

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        calling, rank = _calls.get(), len(inputs.shape)
        renorm = getattr(self, "renorm", False)  # Keras before 3.14 has no such argument.
        own = mask is None and self.center and not (renorm or self.synchronized)
        own = own and rank in (2, 4) and self.axis in (-1, rank - 1)
        if calling is None or not own or calling[0].training != bool(training and self.trainable):
            return super().call(inputs, training=training, mask=mask)
        net, specs = calling
        layer = BatchNormLayer(
            specs[id(self.gamma)] if self.scale else None,
            specs[id(self.beta)],
            specs[id(self.moving_mean)],
            specs[id(self.moving_variance)],
            BatchNorm(self.momentum, self.epsilon, self.scale, unbiased=False),
        )
        return net._batch_norm(inputs, layer)


class _Conv2D(keras.layers.Conv2D):  # type: ignore[misc]
    """Keras convolution with the faster gradients of `cnnbench.models.cpu_operations`."""

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        net, window = _calling_network(), _sliding_window(self, inputs)
        if net is None or window is None or self.groups not in (1, inputs.shape[-1]):
            return super().convolution_op(inputs, kernel)
        kernel = keras.ops.convert_to_tensor(kernel)
        depthwise = 1 < self.groups == inputs.shape[-1]
        if depthwise:  # Only oneDNN has a grouped one on CPUs.
            kernel = tf.reshape(kernel, [*self.kernel_size, self.groups, -1])
        return net._conv(inputs, kernel, window, self.filters, depthwise=depthwise)


class _DepthwiseConv2D(keras.layers.DepthwiseConv2D):  # type: ignore[misc]
    """Keras depthwise convolution that avoids wrong results of TensorFlow."""

    def call(self, inputs: Any) -> Any:
        y = _fix_depthwise(self, inputs, self.kernel)
        return super().call(inputs) if y is None else _finish_layer(self, y)


class _SeparableConv2D(keras.layers.SeparableConv2D):  # type: ignore[misc]
    """Keras separable convolution that avoids wrong results of TensorFlow."""

    def call(self, inputs: Any) -> Any:
        y = _fix_depthwise(self, inputs, self.depthwise_kernel)
        if y is None:
            return super().call(inputs)
        y = keras.ops.conv(y, self.pointwise_kernel, padding="valid", data_format=self.data_format)
        return _finish_layer(self, y)


def _sliding_window(layer: Any, inputs: Any) -> SlidingWindow | None:
    """Returns the windows of a Keras convolution; None if `GraphNetwork` cannot compute it."""
    image = tuple(inputs.shape[1:3])
    dilates = set(layer.dilation_rate) != {1}
    if None in image or dilates or layer.data_format != "channels_last":
        return None
    return SlidingWindow.make(image, layer.kernel_size, layer.strides, layer.padding.upper())


def _fix_depthwise(layer: Any, inputs: Any, kernel: Any) -> Any:
    """Computes a layer's depthwise convolution if TensorFlow may compute it wrongly, else None."""
    net, window = _calling_network(), _sliding_window(layer, inputs)
    if net is None or window is None:
        return None
    weights = keras.ops.convert_to_tensor(kernel)
    if not net.must_avoid_library(inputs, weights, window):
        return None
    filters = inputs.shape[-1] * layer.depth_multiplier
    return net._conv(inputs, weights, window, filters, depthwise=True)


def _finish_layer(layer: Any, y: Any) -> Any:
    y = y if layer.bias is None else keras.ops.add(y, layer.bias)
    return y if layer.activation is None else layer.activation(y)


class _Dense(keras.layers.Dense):  # type: ignore[misc]
    """Keras dense layer with the faster gradients of `cnnbench.models.cpu_operations`."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        net = _calling_network()
        if net is None or len(inputs.shape) != 2:
            return super().call(inputs, training=training)
        y = net._matmul(inputs, keras.ops.convert_to_tensor(self.kernel), self.units)
        return _finish_layer(self, y)


FUSED = {
    keras.layers.BatchNormalization: _BatchNormalization,
    keras.layers.Conv2D: _Conv2D,
    keras.layers.Dense: _Dense,
    keras.layers.DepthwiseConv2D: _DepthwiseConv2D,
    keras.layers.SeparableConv2D: _SeparableConv2D,
}
