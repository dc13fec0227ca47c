"""Builds Keras models, determines their variables and FLOPs, and calls them in a tower's graph."""

from __future__ import annotations

import importlib
import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import keras
import numpy as np
import tensorflow as tf

from cnnbench.errors import UsageError, first_line
from cnnbench.models.declaration import innermost_scope
from cnnbench.models.graph import GraphNetwork, StateUpdate
from cnnbench.models.model import Model
from cnnbench.models.spec import (
    BatchNorm,
    BatchNormLayer,
    Initializer,
    KerasDeclaration,
    LayerFlopsAndMemory,
    VariableSpec,
)
from cnnbench.models.windows import SlidingWindow

# Building Keras models.

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}

_NOT_DECAYED = ("gamma", "beta", "embeddings")
"""Variables without weight decay: normalisation, and embeddings, of which batches use few rows."""


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
        return [a.astype(np.int64 if _is_integer(a.dtype) else np.float32) for a in arrays]


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
    for _, layer in _all_layers(built.model):
        if type(layer) in _FUSED and fuses:
            object.__setattr__(layer, "__class__", _FUSED[type(layer)])
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
        object.__setattr__(last, "__class__", _Logits)
    elif getattr(last, "activation", None) is keras.activations.softmax:
        last.activation = keras.activations.linear
    return model


def _is_functional(model: Any) -> bool:
    return getattr(model, "inputs", None) is not None


def _is_integer(dtype: Any) -> bool:
    return "float" not in str(dtype)


def _all_layers(model: Any, scope: str = "") -> Iterator[tuple[str, Any]]:
    """Yields path and layer for all layers of a model, including layers of nested models."""
    for layer in model.layers if isinstance(model, keras.Model) else ():
        yield f"{scope}{layer.name}", layer
        yield from _all_layers(layer, f"{scope}{layer.name}/")


# Declaring Keras models: shapes, variables, FLOPs and memory.

_BATCH = 37
"""Batch size of the trace: a prime that is unlikely to divide a number of channels."""

_SHARING = ("Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "IdentityN")
"""TensorFlow operations whose results share the buffer of their inputs."""
_LINEAR = ("AddV2", "AddN", "BiasAdd", "Cast", "ConcatV2", "Mean", "Pad", "Slice", "Sub", "Sum")
"""TensorFlow operations whose gradients need neither inputs nor results."""
_BY_RESULT = ("Exp", "Relu", "Relu6", "Rsqrt", "Sigmoid", "Softmax", "Sqrt", "Tanh")
"""TensorFlow operations whose gradients need only the results."""


def declare_keras_model(model: Any, size: int | None) -> KerasDeclaration:
    """Reads image size, classes and variables of a Keras model.

    Raises UsageError if cnnbench cannot run the model.
    """
    names = [x.name for _, x in _all_layers(model) if isinstance(x, keras.layers.InputLayer)]
    for number, tensor in enumerate(model.inputs):
        if getattr(tensor, "ragged", False) or getattr(tensor, "sparse", False):
            name = names[number] if number < len(names) else tensor.name
            raise UsageError(
                f"layer {name} takes a RaggedTensor or SparseTensor; use a dense tensor"
            )
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        counts = f"{len(model.inputs)} inputs and {len(model.outputs)} outputs"
        raise UsageError(
            f"the Keras model has {counts}; it must have one input (images) and one output (logits)"
        )
    image, logits = model.inputs[0].shape[1:], model.outputs[0].shape[1:]
    if len(image) != 3 or image[2] is None or len(logits) != 1:
        raise UsageError(
            f"the Keras model maps {image} to {logits}; it must map images (height, width, "
            "channels) to logits (classes,)"
        )
    height, width = (side or size for side in image[:2])
    if height is None or height != width or size not in (None, height):
        wanted = "" if size is None else f", not {size} x {size} as image_size says"
        raise UsageError(f"the Keras model takes images of {image[0]} x {image[1]}{wanted}")
    return KerasDeclaration(height, image[2], logits[0], tuple(_variable_specs(model)))


def _variable_specs(model: Any) -> Iterator[VariableSpec]:
    weights = {id(weight) for weight in model.weights}
    frozen = {id(v) for _, x in _all_layers(model) if not x.trainable for v in x.weights}
    taken: set[str] = set()
    for variable in BuiltKerasModel(model).variables:
        same = (f"{variable.path}_{number}" for number in range(1, len(taken) + 1))
        name = next(path for path in (variable.path, *same) if path not in taken)
        taken.add(name)
        yield VariableSpec(
            name,
            tuple(variable.shape),
            Initializer.constant(0.0),
            trainable=variable.trainable,
            weight_decay=variable.trainable and name.rpartition("/")[2] not in _NOT_DECAYED,
            statistic=not variable.trainable
            and id(variable) in weights
            and id(variable) not in frozen,
            dtype="int64" if _is_integer(variable.dtype) else "float32",
        )


def count_layer_work(
    model: Model, built: BuiltKerasModel, declared: KerasDeclaration
) -> LayerFlopsAndMemory:
    """Counts the FLOPs of each layer, and estimates the memory of a step, from a traced graph.

    The graph contains a forward pass. Operations inside loops are not counted.
    """
    graph, live = _trace_forward(model, declared)
    layers = {path for path, _ in _all_layers(built.model)}
    layers |= {variable.name.rpartition("/")[0] for variable in declared.variables}
    flops: dict[str, tuple[int, int, int]] = {}
    # For each tensor that is a view of another tensor, the tensor that owns the buffer.
    owners: dict[str, str] = {}
    stored: dict[str, int] = {}
    largest = 0
    for operation in graph.get_operations():
        inputs, outputs = list(operation.inputs), list(operation.outputs)
        differentiated = [tensor.name in live for tensor in inputs]
        if any(differentiated):
            live |= {tensor.name for tensor in outputs}
        if operation.type in _SHARING:
            owners |= {
                made.name: owners.get(tensor.name, tensor.name)
                for tensor, made in zip(inputs, outputs, strict=False)
            }
        elif any(differentiated) and operation.type not in _LINEAR:
            needed = outputs if operation.type in _BY_RESULT else inputs
            stored |= {owners.get(t.name, t.name): _elements_per_example(t) for t in needed}
        largest = max(largest, sum(map(_elements_per_example, (*inputs, *outputs))))
        scope = innermost_scope(operation.name.split("/")[:-1], layers)
        before = flops.setdefault(scope, (0, 0, 0)) if scope else (0, 0, 0)
        if count := _flops_of_operation(operation) // _BATCH:
            to_input, to_kernel = (*differentiated[-2:],)
            added = (count, count * to_input, count * to_kernel)
            flops[scope] = tuple(map(sum, zip(before, added, strict=True)))  # type: ignore[assignment]
    return LayerFlopsAndMemory(flops, sum(stored.values()) + largest, largest)


def _trace_forward(model: Model, declared: KerasDeclaration) -> tuple[Any, set[str]]:
    """Traces a forward pass in training.

    Returns the graph, and the names of the tensors that stand for trainable variables.
    """
    trained: set[str] = set()

    def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
        value = tf.raw_ops.Placeholder(dtype=dtype, shape=spec.shape)
        if spec.trainable:
            trained.add(value.name)
        return value

    def forward(images: tf.Tensor) -> tf.Tensor:
        with tf.variable_creator_scope(_refuse_variable):
            return GraphNetwork(model, declared.classes, read, training=True).forward(images)

    shape = [_BATCH, declared.size, declared.size, declared.channels]
    try:
        traced = tf.function(forward, autograph=False).get_concrete_function(tf.TensorSpec(shape))
    except UsageError:
        raise
    except Exception as error:
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        where = next(filter(None, map(_layer_of, reversed(frames))), "the Keras model")
        what = f"{type(error).__name__}: {first_line(error)}"
        raise UsageError(f"{where} cannot be called in training: {what}") from error
    for variable in traced.graph.variables:
        raise UsageError(f"{variable.name} is a tf.Variable; create it with add_weight of a layer")
    return traced.graph, trained


def _refuse_variable(creator: Any, **options: Any) -> NoReturn:
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _layer_of(frame):
        frame = frame.f_back
    where = "the Keras model" if frame is None else _layer_of(frame)
    raise UsageError(f"{where} creates a variable when it is called; create it in build()")


def _layer_of(frame: FrameType) -> str:
    """Returns name and class of the Keras layer whose method runs in a stack frame.

    Returns an empty string if the stack frame runs no method of a layer.
    """
    layer = frame.f_locals.get("self")
    if not isinstance(layer, keras.Layer):
        return ""
    return f"layer {layer.name} ({type(layer).__name__})"


def _elements_per_example(tensor: tf.Tensor) -> int:
    """Returns a tensor's number of elements per example, or 0 if it has no batch dimension."""
    shape = tensor.shape
    if not shape.is_fully_defined() or not shape.rank or shape[0] % _BATCH:
        return 0
    return int(shape.num_elements()) // _BATCH


def _flops_of_operation(operation: tf.Operation) -> int:
    kind, shapes = operation.type, [tensor.shape for tensor in operation.inputs]
    if kind not in ("Einsum", *_MULTIPLY_ADDS) or not all(s.is_fully_defined() for s in shapes):
        return 0
    if kind == "Einsum":
        labels = operation.get_attr("equation").decode().partition("->")[0].split(",")
        pairs = zip("".join(labels), (n for shape in shapes for n in shape), strict=True)
        return int(2 * math.prod(dict(pairs).values()))
    return int(2 * _MULTIPLY_ADDS[kind](operation, *shapes[-2:]))


def _matmul_flops(operation: tf.Operation, x: Any, y: Any) -> int:
    transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
    return int(operation.outputs[0].shape.num_elements() * x[-2 if transposed else -1])


# Each function counts the multiply-adds of an operation from the shapes of its last two inputs.
_MULTIPLY_ADDS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(
        ("Conv2D", "Conv3D"),
        lambda operation, x, kernel: (
            operation.outputs[0].shape.num_elements() * math.prod(kernel[:-1])
        ),
    ),
    "DepthwiseConv2dNative": lambda operation, x, kernel: (
        operation.outputs[0].shape.num_elements() * math.prod(kernel[:2])
    ),
    "Conv2DBackpropInput": lambda operation, kernel, x: x.num_elements() * math.prod(kernel[:-1]),
    **dict.fromkeys(("MatMul", "BatchMatMulV2"), _matmul_flops),
}


# Calling Keras models.

_calls: ContextVar[tuple[GraphNetwork, dict[int, VariableSpec]] | None] = ContextVar(
    "_calls", default=None
)
"""The network that is calling a Keras model, and its variables by `id` of the Keras variable."""


def call_keras_model(
    get_built_model: Callable[[str], BuiltKerasModel],
    declared: Sequence[VariableSpec],
    net: Any,
    images: tf.Tensor,
    values: Sequence[tf.Tensor],
) -> tf.Tensor:
    """Calls a Keras model in a tower's graph, and returns the model's logits.

    Losses of layers, and updates of untrained variables, are added to `net`.

    Args:
      get_built_model: function that returns the model for the name of a dtype.
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
            *(cast[:trained], cast[trained:], images),
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


# Keras layers that compute the same results with the operations of a `GraphNetwork`.


def _calling_network() -> GraphNetwork | None:
    calling = _calls.get()
    return None if calling is None else calling[0]


class _Logits(keras.layers.Softmax):  # type: ignore[misc]
    """Layer without effect that replaces a final softmax layer, because the loss takes logits."""

    def call(self, inputs: Any, mask: Any = None) -> Any:
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
        y = _depthwise_if_doubtful(self, inputs, self.kernel)
        return super().call(inputs) if y is None else _with_activation(self, y)


class _SeparableConv2D(keras.layers.SeparableConv2D):  # type: ignore[misc]
    """Keras separable convolution that avoids wrong results of TensorFlow."""

    def call(self, inputs: Any) -> Any:
        y = _depthwise_if_doubtful(self, inputs, self.depthwise_kernel)
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


def _depthwise_if_doubtful(layer: Any, inputs: Any, kernel: Any) -> Any:
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


_FUSED = {
    keras.layers.BatchNormalization: _BatchNormalization,
    keras.layers.Conv2D: _Conv2D,
    keras.layers.Dense: _Dense,
    keras.layers.DepthwiseConv2D: _DepthwiseConv2D,
    keras.layers.SeparableConv2D: _SeparableConv2D,
}
