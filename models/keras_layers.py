"""Calls Keras models in a tower's graph, with layers that use the operations of `GraphNetwork`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from cnnbench.models.graph import GraphNetwork, StateUpdate
from cnnbench.models.spec import BatchNorm, BatchNormLayer, VariableSpec

_calls: ContextVar[tuple[GraphNetwork, dict[int, VariableSpec]] | None] = ContextVar(
    "_calls", default=None
)
"""The network that is calling a Keras model, and its variables by `id` of the Keras variable."""


def call_keras_model(
    get_built_model: Callable[[str], Any],
    declared: Sequence[VariableSpec],
    net: Any,
    images: tf.Tensor,
    values: Sequence[tf.Tensor],
) -> tf.Tensor:
    """Calls a Keras model in a tower's graph, and returns the model's logits.

    Losses of layers, and updates of untrained variables, are added to `net`.

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
        own = mask is None and self.center and not (self.renorm or self.synchronized)
        own = own and rank in (2, 4) and self.axis in (-1, rank - 1)
        if calling is None or not own or calling[0].training != bool(training and self.trainable):
            return super().call(inputs, training=training, mask=mask)
        net, specs = calling
        return net._batch_norm(
            inputs,
            BatchNormLayer(
                specs[id(self.gamma)] if self.scale else None,
                specs[id(self.beta)],
                specs[id(self.moving_mean)],
                specs[id(self.moving_variance)],
                BatchNorm(self.momentum, self.epsilon, self.scale, unbiased=False),
            ),
        )


class _Conv2D(keras.layers.Conv2D):  # type: ignore[misc]
    """Keras convolution with the faster gradients of `cnnbench.models.cpu_operations`."""

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        net, window = _calling_network(), _sliding_window(self, inputs)
        if net is None or window is None or self.groups not in (1, inputs.shape[-1]):
            return super().convolution_op(inputs, kernel)
        kernel = keras.ops.convert_to_tensor(kernel)
        depthwise = 1 < self.groups == inputs.shape[-1]
        if depthwise:  # Without oneDNN, TensorFlow has no grouped convolution on a CPU.
            kernel = tf.reshape(kernel, [*self.kernel_size, self.groups, -1])
        return net._conv(inputs, kernel, window, self.filters, depthwise=depthwise)


class _DepthwiseConv2D(keras.layers.DepthwiseConv2D):  # type: ignore[misc]
    """Keras depthwise convolution that avoids wrong results of TensorFlow."""

    def call(self, inputs: Any) -> Any:
        y = _safe_depthwise(self, inputs, self.kernel)
        return super().call(inputs) if y is None else _with_activation(self, y)


class _SeparableConv2D(keras.layers.SeparableConv2D):  # type: ignore[misc]
    """Keras separable convolution that avoids wrong results of TensorFlow."""

    def call(self, inputs: Any) -> Any:
        y = _safe_depthwise(self, inputs, self.depthwise_kernel)
        if y is None:
            return super().call(inputs)
        y = keras.ops.conv(y, self.pointwise_kernel, padding="valid", data_format=self.data_format)
        return _with_activation(self, y)


def _sliding_window(layer: Any, inputs: Any) -> SlidingWindow | None:
    """The windows of a convolution of Keras; None if `GraphNetwork` cannot compute it."""
    image = tuple(inputs.shape[1:3])
    dilates = set(layer.dilation_rate) != {1}
    if None in image or dilates or layer.data_format != "channels_last":
        return None
    return SlidingWindow.make(image, layer.kernel_size, layer.strides, layer.padding.upper())


def _safe_depthwise(layer: Any, inputs: Any, kernel: Any) -> Any:
    """Computes a layer's depthwise convolution if TensorFlow may compute it wrongly, else None."""
    net, window = _calling_network(), _sliding_window(layer, inputs)
    if net is None or window is None:
        return None
    weights = keras.ops.convert_to_tensor(kernel)
    if not net.must_avoid_library(inputs, weights, window):
        return None
    filters = inputs.shape[-1] * layer.depth_multiplier
    return net._conv(inputs, weights, window, filters, depthwise=True)


def _with_activation(layer: Any, y: Any) -> Any:
    y = y if layer.bias is None else keras.ops.add(y, layer.bias)
    return y if layer.activation is None else layer.activation(y)


class _Dense(keras.layers.Dense):  # type: ignore[misc]
    """Keras dense layer with the faster gradients of `cnnbench.models.cpu_operations`."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        net = _calling_network()
        if net is None or len(inputs.shape) != 2:
            return super().call(inputs, training=training)
        y = net._matmul(inputs, keras.ops.convert_to_tensor(self.kernel), self.units)
        return _with_activation(self, y)


FUSED = {
    keras.layers.BatchNormalization: _BatchNormalization,
    keras.layers.Conv2D: _Conv2D,
    keras.layers.Dense: _Dense,
    keras.layers.DepthwiseConv2D: _DepthwiseConv2D,
    keras.layers.SeparableConv2D: _SeparableConv2D,
}
