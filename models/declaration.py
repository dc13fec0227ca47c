"""Computes variables, shapes, FLOPs and memory of a model without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple

from cnnbench.errors import UsageError
from cnnbench.models.elements import elements_of_role, resolve_sizes
from cnnbench.models.model import Model, build_checked_outputs
from cnnbench.models.network import Cell, Elementwise, Network, SlidingWindow
from cnnbench.models.spec import (
    MASTER_BYTES,
    BatchNormLayer,
    LayerFlopsAndMemory,
    ModelSpec,
    VariableSpec,
)

_FRAGMENTATION = 1.15
"""Factor of memory estimates, because TensorFlow's allocator cannot reuse fragmented memory.

It was measured with ten networks on a CPU (scripts/measure_memory).
"""


@dataclasses.dataclass(frozen=True, eq=False)
class ShapedValue:
    """A placeholder for a tensor: it has a shape but no content, and equals only itself.

    `differentiated` says whether gradients flow through the value, which is true if it depends on a
    trainable variable.
    """

    shape: tuple[int, ...]
    differentiated: bool = False


class _NetworkOperation(NamedTuple):
    """One operation of a network, with the values that its gradient needs.

    Attributes:
      needed: inputs or results that the gradient needs.
      stores: whether the gradient needs values that the operation computes.
      flops: FLOPs of the forward pass for one example.
    """

    result: ShapedValue
    inputs: Sequence[ShapedValue]
    needed: Sequence[ShapedValue]
    stores: bool
    flops: int


def _recomputed_flops(operations: Sequence[_NetworkOperation]) -> int:
    """Counts the FLOPs of a block that the backward pass repeats with ``--recompute=blocks``.

    The backward pass repeats only operations whose results a gradient needs, such as all but the
    last convolution of a block in ResNet v2.
    """
    needed: set[ShapedValue] = set()
    flops = 0
    for operation in reversed(operations):
        needed.update(operation.needed)
        if operation.stores or operation.result in needed:
            needed.update(operation.inputs)
            flops += operation.flops
    return flops


class FlopCounts(NamedTuple):
    """FLOPs for one example: forward pass, gradients of inputs, and gradients of kernels.

    For a matrix product of two values that are not weights, `kernels` contains the FLOPs of the
    second value's gradient.
    """

    forward: int = 0
    inputs: int = 0
    kernels: int = 0

    @property
    def training(self) -> int:
        """FLOPs of the forward and the backward pass."""
        return self.forward + self.inputs + self.kernels


def declare(model: Model, num_classes: int) -> ModelSpec:
    """Determines a model's variables, FLOPs, features and labels without TensorFlow.

    `Model.build` runs with shapes instead of tensors. `num_classes` is the number of classes in the
    data set. A model may have a different number of outputs.
    """
    num_classes = model.num_classes or num_classes
    net = _run_with_shapes(model, num_classes, training=True)
    # Auxiliary heads exist only in training, so forward FLOPs do not include them.
    alone = _run_with_shapes(model, num_classes, training=False) if net.auxiliaries else net
    only_outside = set(alone.variables) - set(net.variables)
    if only_outside:
        raise UsageError(
            f"model {model.name} has different variables outside of training, such as "
            f"{min(v.name for v in only_outside)}; build an auxiliary head in its own net.scope"
        )
    return ModelSpec(
        name=model.name,
        dataset=model.dataset,
        elements=net.elements,
        num_classes=num_classes,
        variables=tuple(net.variables),
        forward_flops_per_image=alone.forward_flops,
        training_flops_per_image=net.training_flops,
        flattened=net.flattened,
        recomputed_flops_per_image=net.recomputed_flops,
        peak_values=net.peak,
    )


def scope_flops(model: Model, num_classes: int, *, training: bool) -> dict[str, FlopCounts]:
    """Counts the FLOPs per example in each layer and scope, in the order of `Model.build`.

    The FLOPs of a scope do not include layers and scopes inside it. The outermost scope is "".
    Without `training`, gradients and operations that only run in training are not included.
    """
    scopes = _run_with_shapes(model, num_classes, training=training).scope_flops
    return (
        scopes if training else {name: FlopCounts(scope.forward) for name, scope in scopes.items()}
    )


def innermost_scope(path: Sequence[str], scopes: Collection[str]) -> str:
    """Returns the innermost of `scopes` that contains a name-scope path, or "" if none contains it.

    If a scope is entered again, TensorFlow appends a number to its name, such as ``dense_1``.
    """
    for length in range(len(path), 0, -1):
        name = "/".join(path[:length])
        for scope in (name, re.sub(r"_\d+(?=/|$)", "", name)):
            if scope in scopes:
                return scope
    return ""


def bytes_per_image(
    model: Model,
    spec: ModelSpec,
    *,
    training: bool = True,
    value_bytes: int = MASTER_BYTES,
    recomputes: bool = False,
) -> int:
    """Estimates the bytes of memory that each additional image in the batch needs.

    The image itself is not included. With `recomputes`, training stores only the inputs of blocks
    (`Network.block`).
    """
    values = spec.peak_values
    if not training or recomputes:
        net = _run_with_shapes(model, spec.num_classes, training=training, recomputes=recomputes)
        values = net.peak
    return round(_FRAGMENTATION * value_bytes * values)


def _run_with_shapes(
    model: Model, num_classes: int, *, training: bool, recomputes: bool = False
) -> ShapeNetwork:
    net = ShapeNetwork(model, num_classes, training=training, recomputes=recomputes)
    net.forward()
    return net


class ShapeNetwork(Network[ShapedValue]):
    """Network that determines its variables, FLOPs and memory from shapes in `Model.build`.

    As in TensorFlow, a training step stores the values that the backward pass needs: the inputs of
    convolutions and batch norm, the output of a ReLU, and so on. Memory use is highest in the
    backward pass, when the stored values of earlier layers and the gradients of the current layer
    exist at the same time.

    Attributes:
      flattened: see `ModelSpec`.
      peak: maximum number of values for one example that exist at the same time, without variables.
      recomputed_flops: see `ModelSpec.recomputed_flops_per_image`.
    """

    def __init__(
        self, model: Model, num_classes: int, *, training: bool, recomputes: bool = False
    ) -> None:
        super().__init__(num_classes, training=training, batch_norm=model.batch_norm)
        self._model = model
        self.elements = resolve_sizes(model.elements, model, num_classes)
        self.forward_flops = 0
        self.training_flops = 0
        self.scope_flops: dict[str, FlopCounts] = {"": FlopCounts()}
        self.flattened: dict[str, tuple[int, int, int]] = {}
        self.peak = 0
        self.recomputed_flops: int | None = None
        self._recomputes = recomputes and training
        # The operations since the start of the current block (`Network.block`), which
        # --recompute=blocks repeats.
        self._operations: list[_NetworkOperation] = []
        # The values that operations of the current block (`Network.block`) are allowed to use.
        self._values: set[ShapedValue] = set()
        # Forward FLOPs of all operations that have been recorded so far.
        self._counted = 0
        self._stored = 0
        self._stored_values: set[ShapedValue] = set()
        # Values that were read from variables, and reshaped views of them.
        self._read_values: set[ShapedValue] = set()
        # For each view (a reshaped value), the value that owns the view's buffer.
        self._buffers: dict[ShapedValue, ShapedValue] = {}

    def forward(self) -> None:
        """Runs `Model.build` with the shapes of the features. Call it only once."""
        features = elements_of_role(self.elements, "feature")
        values = {element.name: ShapedValue(element.sizes) for element in features}
        build_checked_outputs(self._model, self, values)

    def shape(self, x: ShapedValue) -> tuple[int, ...]:
        """Returns the shape of a value without the batch dimension."""
        return x.shape

    def _count_flops(self, flops: int, inputs_differentiated: bool, weights: bool = True) -> None:
        counted = FlopCounts(flops, flops * inputs_differentiated, flops * weights)
        self.forward_flops += flops
        self.training_flops += counted.training
        scope = "/".join(self._scopes)
        before = self.scope_flops[scope]
        self.scope_flops[scope] = FlopCounts(*map(operator.add, before, counted))

    def _name_scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        self.scope_flops.setdefault("/".join(self._scopes), FlopCounts())
        return contextlib.nullcontext()

    def _read(self, spec: VariableSpec) -> ShapedValue:
        value = ShapedValue(spec.shape, spec.trainable)
        self._read_values.add(value)
        self._values.add(value)
        return value

    def _add_result(
        self,
        shape: tuple[int, ...],
        *inputs: ShapedValue,
        keeps: str = "",
        extra: int = 0,
        drawn: bool = False,
        trained: bool = False,
    ) -> ShapedValue:
        """Creates the result of an operation, and updates the estimate of the peak memory.

        Args:
          keeps: values that the gradient needs: "x" for the inputs, "y" for the result, or "xy".
          extra: number of further values that the gradient needs.
          drawn: whether the `extra` values are random, so that they do not depend on the inputs.
          trained: whether the operation has trainable variables.
        """
        y = ShapedValue(shape, trained or any(x.differentiated for x in inputs))
        self._check_inside(inputs)
        inputs = tuple(x for x in inputs if x not in self._read_values)
        needed: tuple[ShapedValue, ...] = ()
        stores = False
        if y.differentiated and self.training:
            needed = inputs if "x" in keeps else ()
            stores = "y" in keeps or (extra > 0 and not drawn)
            self._store((*needed, y) if "y" in keeps else needed)
            self._stored += extra
        self._record_operation(y, inputs, needed, stores)
        current = sum(math.prod(value.shape) for value in (y, *inputs))
        self.peak = max(self.peak, self._stored + current + (0 if self.training else extra))
        return y

    def _store(self, values: Sequence[ShapedValue]) -> None:
        """Adds values to the memory that is in use from the forward to the backward pass."""
        for value in values:
            buffer = self._buffers.get(value, value)
            if buffer not in self._stored_values:
                self._stored_values.add(buffer)
                self._stored += math.prod(value.shape)

    def _check_inside(self, inputs: Sequence[ShapedValue]) -> None:
        """Raises UsageError if a block uses a value that is not one of its arguments.

        The backward pass would compute no gradient for such a value.
        """
        if self._in_block and not self._values.issuperset(inputs):
            raise UsageError(
                "a block uses a value that was created outside of it; pass it as an argument: "
                "net.block(body, x, value)"
            )

    def _record_operation(
        self,
        result: ShapedValue,
        inputs: Sequence[ShapedValue],
        needed: Sequence[ShapedValue] = (),
        stores: bool = False,
    ) -> None:
        """Adds an operation to the current block, with its forward FLOPs."""
        self._values.add(result)
        flops, self._counted = self.forward_flops - self._counted, self.forward_flops
        self._operations.append(_NetworkOperation(result, inputs, needed, stores, flops))

    def _block(self, body: Callable[..., ShapedValue], xs: Sequence[ShapedValue]) -> ShapedValue:
        self._operations, self._values, self._counted = [], set(xs), self.forward_flops
        if self._recomputes:
            self._store([x for x in xs if x not in self._read_values])
        stored, values = self._stored, set(self._stored_values)
        y = body(self, *xs)
        if self._recomputes:
            self._stored, self._stored_values = stored, values
        added = _recomputed_flops(self._operations)
        self.recomputed_flops = (self.recomputed_flops or 0) + added
        return y

    def _conv(
        self,
        x: ShapedValue,
        kernel: ShapedValue,
        window: SlidingWindow,
        filters: int,
        *,
        depthwise: bool = False,
    ) -> ShapedValue:
        if window.needs_explicit_padding:
            (top, bottom), (left, right) = window.zeros
            height, width, channels = x.shape
            x = self._add_result((height + top + bottom, width + left + right, channels), x)
        self._count_flops(2 * math.prod(window.output) * math.prod(kernel.shape), x.differentiated)
        return self._add_result((*window.output, filters), x, keeps="x", trained=True)

    def _bias_add(self, x: ShapedValue, bias: ShapedValue) -> ShapedValue:
        return self._add_result(x.shape, x, trained=True)

    def _batch_norm(self, x: ShapedValue, layer: BatchNormLayer) -> ShapedValue:
        return self._add_result(x.shape, x, keeps="x", trained=True)

    def _matmul(self, x: ShapedValue, kernel: ShapedValue, units: int) -> ShapedValue:
        image = self._buffers.get(x, x).shape
        if len(x.shape) == 1 and len(image) == 3:
            self.flattened[self.variables[-1].name] = image
        self._count_flops(2 * math.prod(x.shape[:-1]) * math.prod(kernel.shape), x.differentiated)
        return self._add_result((*x.shape[:-1], units), x, keeps="x", trained=True)

    def _elementwise(self, kind: Elementwise, x: ShapedValue) -> ShapedValue:
        keeps = "x" if kind in ("swish", "gelu") else "y"
        # For its gradient, GELU stores two values for each element in addition to its input.
        extra = 2 * math.prod(x.shape) if kind == "gelu" else 0
        return self._add_result(x.shape, x, keeps=keeps, extra=extra)

    def _pool(
        self, kind: Literal["max", "avg"], x: ShapedValue, window: SlidingWindow
    ) -> ShapedValue:
        return self._add_result(
            (*window.output, x.shape[2]), x, keeps="xy" if kind == "max" else ""
        )

    def _spatial_mean(self, x: ShapedValue) -> ShapedValue:
        return self._add_result(x.shape[2:], x)

    def _dropout(self, x: ShapedValue, keep: float, index: int) -> ShapedValue:
        # Dropout stores a mask with one byte for each value, which is a quarter of a float32.
        return self._add_result(x.shape, x, extra=math.prod(x.shape) // 4, drawn=True)

    def _drop_path(self, x: ShapedValue, keep: float, index: int, by_progress: bool) -> ShapedValue:
        return self._add_result(x.shape, x)

    def _combine(
        self,
        kind: Literal["add", "multiply"],
        x: ShapedValue,
        y: ShapedValue,
        shape: tuple[int, ...],
    ) -> ShapedValue:
        return self._add_result(shape, x, y, keeps="x" if kind == "multiply" else "")

    def _concat(self, xs: Sequence[ShapedValue]) -> ShapedValue:
        channels = sum(x.shape[-1] for x in xs)
        return self._add_result((*xs[0].shape[:-1], channels), *xs)

    def _pad_channels(self, x: ShapedValue, before: int, after: int) -> ShapedValue:
        height, width, channels = x.shape
        return self._add_result((height, width, before + channels + after), x)

    def _reshape(self, x: ShapedValue, shape: tuple[int, ...]) -> ShapedValue:
        view = ShapedValue(shape, x.differentiated)
        self._check_inside([x])
        self._record_operation(view, [x])
        if x in self._read_values:
            self._read_values.add(view)
        self._buffers[view] = self._buffers.get(x, x)
        return view

    def _transpose(self, x: ShapedValue, order: tuple[int, ...]) -> ShapedValue:
        return self._add_result(tuple(x.shape[axis] for axis in order), x)

    def _split(self, x: ShapedValue, parts: int) -> list[ShapedValue]:
        shape = (*x.shape[:-1], x.shape[-1] // parts)
        return [self._add_result(shape, x) for _ in range(parts)]

    def _layer_norm(
        self, x: ShapedValue, gamma: VariableSpec, beta: VariableSpec, epsilon: float
    ) -> ShapedValue:
        # For its gradient, layer norm stores the centred and the normalised input.
        extra = 2 * math.prod(x.shape)
        return self._add_result(x.shape, x, keeps="x", extra=extra, trained=True)

    def _attention(
        self,
        query: ShapedValue,
        key: ShapedValue,
        value: ShapedValue,
        heads: int,
        bias: ShapedValue | None,
    ) -> ShapedValue:
        # Attention consists of two matrix products: query times key, and attention probabilities
        # times value.
        product = 2 * math.prod(query.shape) * key.shape[-2]
        scored = query.differentiated or key.differentiated
        self._count_flops(product, query.differentiated, weights=key.differentiated)
        if bias is not None:
            self._check_inside([bias])
            scored = scored or bias.differentiated
        self._count_flops(product, scored, weights=value.differentiated)
        # For the gradients, attention stores the attention probabilities of all heads, and query,
        # key and value split into heads.
        weights = math.prod(query.shape[:-1]) * heads * key.shape[-2]
        by_head = sum(math.prod(tensor.shape) for tensor in (query, key, value))
        return self._add_result(
            query.shape, query, key, value, extra=weights + by_head, trained=scored
        )

    def _embedding(self, ids: ShapedValue, table: ShapedValue) -> ShapedValue:
        return self._add_result((*ids.shape, table.shape[1]), ids, trained=True)

    def _recurrent(
        self, x: ShapedValue, cell: Cell, weights: Sequence[ShapedValue], reverse: bool
    ) -> ShapedValue:
        tokens, (units, gates) = x.shape[0], weights[1].shape
        self._count_flops(2 * tokens * math.prod(weights[0].shape), x.differentiated)
        self._count_flops(2 * tokens * math.prod(weights[1].shape), True)
        # For its gradients, a recurrent cell stores three values per gate and token.
        extra = 3 * tokens * gates
        return self._add_result((tokens, units), x, keeps="xy", extra=extra, trained=True)

    def _apply(
        self,
        function: Callable[..., Any],
        xs: Sequence[ShapedValue],
        shape: tuple[int, ...],
        flops: int | LayerFlopsAndMemory,
    ) -> ShapedValue:
        if isinstance(flops, LayerFlopsAndMemory):
            for layer, counts in flops.layers.items():
                self.scope_flops[layer] = flops_of_layer = FlopCounts(*counts)
                self.forward_flops += flops_of_layer.forward
                self.training_flops += flops_of_layer.training
            self.peak = max(self.peak, flops.kept if self.training else flops.forward)
            return ShapedValue(shape, True)
        differentiated = any(x.differentiated for x in xs)
        # The FLOPs of the function's gradients are unknown. Gradients for inputs and for weights
        # are each assumed to need as many as the function.
        self._count_flops(flops, differentiated, weights=differentiated)
        return self._add_result(shape, *xs, keeps="xy")
