"""Determines variables, FLOPs and memory of Keras models, without running them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import keras
import tensorflow as tf

from cnnbench.errors import UsageError, informative_line
from cnnbench.models.declaration import innermost_scope
from cnnbench.models.graph import GraphNetwork
from cnnbench.models.keras_build import BuiltKerasModel, all_layers, is_integer
from cnnbench.models.model import Model
from cnnbench.models.spec import Initializer, KerasDeclaration, LayerFlopsAndMemory, VariableSpec

_NOT_DECAYED = ("gamma", "beta", "embeddings")
"""Variables without weight decay: normalisation, and embeddings, of which batches use few rows."""

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
    names = [x.name for _, x in all_layers(model) if isinstance(x, keras.layers.InputLayer)]
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
    return KerasDeclaration(height, image[2], logits[0], tuple(_variables(model)))


def _variables(model: Any) -> Iterator[VariableSpec]:
    weights = {id(weight) for weight in model.weights}
    frozen = {id(v) for _, x in all_layers(model) if not x.trainable for v in x.weights}
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
            dtype="int64" if is_integer(variable.dtype) else "float32",
        )


def count_layer_work(
    model: Model, built: BuiltKerasModel, declared: KerasDeclaration
) -> LayerFlopsAndMemory:
    """Counts the FLOPs of each layer, and estimates the memory of a step, from a traced graph.

    The graph contains a forward pass. Operations inside loops are not counted.
    """
    graph, live = _trace_forward(model, declared)
    layers = {path for path, _ in all_layers(built.model)}
    layers |= {variable.name.rpartition("/")[0] for variable in declared.variables}
    flops: dict[str, tuple[int, int, int]] = {}
    # Maps each tensor that is a view to the tensor that owns its buffer.
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
            stored |= {owners.get(t.name, t.name): _example_size(t) for t in needed}
        largest = max(largest, sum(map(_example_size, (*inputs, *outputs))))
        scope = innermost_scope(operation.name.split("/")[:-1], layers)
        before = flops.setdefault(scope, (0, 0, 0)) if scope else (0, 0, 0)
        if count := _flops_of(operation) // _BATCH:
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
        what = f"{type(error).__name__}: {informative_line(error)}"
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


def _example_size(tensor: tf.Tensor) -> int:
    """Returns a tensor's number of elements per example, or 0 if it has no batch dimension."""
    shape = tensor.shape
    if not shape.is_fully_defined() or not shape.rank or shape[0] % _BATCH:
        return 0
    return int(shape.num_elements()) // _BATCH


def _flops_of(operation: tf.Operation) -> int:
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


# Functions that count the multiply-adds of an operation from the shapes of its last two inputs.
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
