"""Memory that a network's activations take, found from shapes alone, without TensorFlow.

A training step keeps what its backward pass will need: of a convolution its input, of batch norm
its input, of a ReLU its output, and so on, as TensorFlow's gradients are written. Memory is
largest somewhere on the way back, when what the layers before still need lies beside the
gradients of the current one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cnnbench.models.declare import Shaped, ShapeNetwork
from cnnbench.models.elements import grouped, of_role, resolve
from cnnbench.models.model import Model
from cnnbench.models.network import Elementwise
from cnnbench.models.sequence import Cell
from cnnbench.models.spec import MASTER_BYTES, BatchNorm, ModelSpec, VariableSpec
from cnnbench.models.window import Window

# Memory that the allocator holds but cannot hand out again, for the sizes do not fit: measured
# with ten networks on a CPU (scripts/measure_memory).
_UNUSED = 1.15


@dataclass(frozen=True)
class Activations:
    """Values of one example that lie in memory at once, at most.

    Attributes:
      training: in a forward and backward pass.
      forward: in a forward pass alone.
    """

    training: int
    forward: int


def activations(model: Model, num_classes: int) -> Activations:
    """Runs the model's body on shapes.

    Args:
      model: the network.
      num_classes: outputs of its last layer.

    Returns:
      Counts of values, in the compute precision.
    """
    elements = resolve(model.elements, model, num_classes)
    net = _MemoryNetwork(num_classes, training=True, batch_norm=model.batch_norm)
    features = {one.name: Shaped(one.sizes) for one in of_role(elements, "feature")}
    for value in features.values():
        net.make(value)
    model.build(net, grouped(elements, "feature", features))
    return Activations(net.training_peak, net.forward_peak)


def bytes_per_image(
    model: Model, spec: ModelSpec, *, training: bool = True, value_bytes: int = MASTER_BYTES
) -> int:
    """Bytes that one more image in the batch takes, the image itself not counted.

    Args:
      model: the network.
      spec: its declaration.
      training: whether there is a backward pass.
      value_bytes: of a value in the compute precision.
    """
    values = activations(model, spec.num_classes)
    return round(_UNUSED * value_bytes * (values.training if training else values.forward))


class _MemoryNetwork(ShapeNetwork):
    """Counts values as its layers are made.

    Attributes:
      training_peak, forward_peak: see `Activations`, so far.
    """

    def __init__(self, num_classes: int, *, training: bool, batch_norm: BatchNorm) -> None:
        super().__init__(num_classes, training=training, batch_norm=batch_norm)
        self.training_peak = 0
        self.forward_peak = 0
        self._kept = 0
        # By id: the buffer that a value lies in. All values are kept, so that an id stays theirs.
        self._buffers: dict[int, int] = {}
        self._values: list[Shaped] = []
        self._counted: set[int] = set()

    def make(self, value: Shaped, of: Shaped | None = None) -> Shaped:
        """Takes note of a value.

        Args:
          value: new, no value of before.
          of: the value whose buffer it shares, if it does.
        """
        self._values.append(value)
        self._buffers[id(value)] = self._buffer(of) if of is not None else id(value)
        return value

    def _buffer(self, value: Shaped) -> int:
        # Those of variables are nobody's: variables are counted elsewhere.
        return self._buffers.get(id(value), 0)

    def _layer_of(
        self, y: Shaped, inputs: Sequence[Shaped], keeps: Sequence[Shaped] = (), extra: int = 0
    ) -> Shaped:
        """A layer's output, made by an operation.

        Args:
          y: its shape.
          inputs: of the operation.
          keeps: which of the inputs and the output its gradient needs.
          extra: other values that its gradient needs.
        """
        copy = Shaped(y.shape, y.differentiated)
        kept = [copy if value is y else value for value in keeps]
        self.make(copy)
        if copy.differentiated:
            for value in kept:
                buffer = self._buffer(value)
                if buffer and buffer not in self._counted:
                    self._counted.add(buffer)
                    self._kept += math.prod(value.shape)
            self._kept += extra
        size = math.prod(copy.shape)
        read = sum(math.prod(value.shape) for value in inputs if self._buffer(value))
        self.forward_peak = max(self.forward_peak, size + read + extra)
        self.training_peak = max(self.training_peak, self._kept + size + read)
        return copy

    def _conv(self, x: Shaped, kernel: Shaped, window: Window, filters: int) -> Shaped:
        padded = self._padded(x, window)
        return self._layer_of(super()._conv(x, kernel, window, filters), [padded], [padded])

    def _depthwise(self, x: Shaped, kernel: Shaped, window: Window) -> Shaped:
        padded = self._padded(x, window)
        return self._layer_of(super()._depthwise(x, kernel, window), [padded], [padded])

    def _padded(self, x: Shaped, window: Window) -> Shaped:
        if not window.explicit:
            return x
        (top, bottom), (left, right) = window.zeros
        height, width, channels = x.shape
        shape = (height + top + bottom, width + left + right, channels)
        return self._layer_of(Shaped(shape, x.differentiated), [x])

    def _bias_add(self, x: Shaped, bias: Shaped) -> Shaped:
        return self._layer_of(super()._bias_add(x, bias), [x])

    def _batch_norm(
        self,
        x: Shaped,
        gamma: VariableSpec | None,
        beta: VariableSpec,
        mean: VariableSpec,
        variance: VariableSpec,
        settings: BatchNorm,
    ) -> Shaped:
        y = super()._batch_norm(x, gamma, beta, mean, variance, settings)
        return self._layer_of(y, [x], [x])

    def _matmul(self, x: Shaped, kernel: Shaped, units: int) -> Shaped:
        return self._layer_of(super()._matmul(x, kernel, units), [x], [x])

    def _elementwise(self, kind: Elementwise, x: Shaped) -> Shaped:
        y = super()._elementwise(kind, x)
        made = Shaped(y.shape, y.differentiated)
        if kind in ("relu", "relu6", "sigmoid", "tanh"):
            return self._layer_of(made, [x], [made])
        # GELU by the error function: its argument, the function's value and a product.
        extra = 2 * math.prod(x.shape) if kind == "gelu" else 0
        return self._layer_of(made, [x], [x], extra)

    def _pool(self, kind: Literal["max", "avg"], x: Shaped, window: Window) -> Shaped:
        y = super()._pool(kind, x, window)
        return self._layer_of(y, [x], [x, y] if kind == "max" else [])

    def _spatial_mean(self, x: Shaped) -> Shaped:
        return self._layer_of(super()._spatial_mean(x), [x])

    def _dropout(self, x: Shaped, keep: float, index: int) -> Shaped:
        # The mask has a byte a value.
        return self._layer_of(Shaped(x.shape, x.differentiated), [x], extra=math.prod(x.shape) // 4)

    def _drop_path(self, x: Shaped, keep: float, index: int, by_progress: bool) -> Shaped:
        return self._layer_of(Shaped(x.shape, x.differentiated), [x])

    def _flatten(self, x: Shaped) -> Shaped:
        return self.make(super()._flatten(x), x)

    def _add(self, x: Shaped, y: Shaped) -> Shaped:
        return self._layer_of(super()._add(x, y), [x, y])

    def _multiply(self, x: Shaped, y: Shaped, shape: tuple[int, ...]) -> Shaped:
        return self._layer_of(super()._multiply(x, y, shape), [x, y], [x, y])

    def _concat(self, xs: Sequence[Shaped]) -> Shaped:
        return self._layer_of(super()._concat(xs), xs)

    def _lrn(self, x: Shaped, radius: int, bias: float, alpha: float, beta: float) -> Shaped:
        y = Shaped(x.shape, x.differentiated)
        return self._layer_of(y, [x], [x, y])

    def _pad_channels(self, x: Shaped, before: int, after: int) -> Shaped:
        return self._layer_of(super()._pad_channels(x, before, after), [x])

    def _reshape(self, x: Shaped, shape: tuple[int, ...]) -> Shaped:
        return self.make(super()._reshape(x, shape), x)

    def _transpose(self, x: Shaped, order: tuple[int, ...]) -> Shaped:
        return self._layer_of(super()._transpose(x, order), [x])

    def _split(self, x: Shaped, parts: int) -> list[Shaped]:
        return [self._layer_of(part, [x]) for part in super()._split(x, parts)]

    def _layer_norm(
        self, x: Shaped, gamma: VariableSpec, beta: VariableSpec, epsilon: float
    ) -> Shaped:
        # What is less the mean, and that over the deviation.
        y = super()._layer_norm(x, gamma, beta, epsilon)
        return self._layer_of(y, [x], [x], 2 * math.prod(x.shape))

    def _attention(
        self, query: Shaped, key: Shaped, value: Shaped, heads: int, bias: Shaped | None
    ) -> Shaped:
        y = super()._attention(query, key, value, heads, bias)
        groups = math.prod(query.shape[:-2])
        scores = groups * heads * query.shape[-2] * key.shape[-2]
        by_head = sum(math.prod(one.shape) for one in (query, key, value))
        return self._layer_of(y, [query, key, value], extra=scores + by_head)

    def _embedding(self, ids: Shaped, table: Shaped) -> Shaped:
        return self._layer_of(super()._embedding(ids, table), [ids])

    def _recurrent(self, x: Shaped, cell: Cell, weights: Sequence[Shaped], reverse: bool) -> Shaped:
        y = super()._recurrent(x, cell, weights, reverse)
        # Of every token the gates before and after their functions, and the state.
        gates = x.shape[0] * weights[1].shape[1]
        return self._layer_of(y, [x], [x, y], 3 * gates)

    def _apply(
        self,
        function: Callable[..., Any],
        xs: Sequence[Shaped],
        shape: tuple[int, ...],
        flops: int,
    ) -> Shaped:
        y = super()._apply(function, xs, shape, flops)
        return self._layer_of(y, xs, [*xs, y])
