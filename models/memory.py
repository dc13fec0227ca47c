"""Memory of a network's activations, computed from shapes without TensorFlow.

A training step keeps the values that its backward pass needs: for a convolution its input, for
batch norm its input, for a ReLU its output, and so on, as in TensorFlow's gradients. The peak is
somewhere in the backward pass, when the values kept for earlier layers exist beside the gradients
of the current one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cnnbench.models.declare import Shaped, ShapeNetwork
from cnnbench.models.elements import grouped, of_role, resolve
from cnnbench.models.model import Model
from cnnbench.models.sequence import Cell
from cnnbench.models.spec import MASTER_BYTES, BatchNorm, ModelSpec
from cnnbench.models.window import Window

# Fragmentation: memory that the allocator holds but cannot reuse, measured
# with ten networks on a CPU (scripts/measure_memory).
_UNUSED = 1.15


@dataclass(frozen=True)
class Activations:
    """Peak number of activation values of one example.

    Attributes:
      training: in a forward and backward pass.
      forward: in a forward pass alone.
    """

    training: int
    forward: int


def activations(model: Model, num_classes: int) -> Activations:
    """Runs the model's body on shapes.

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
    """Bytes per additional image in the batch, without the image itself.

    Args:
      training: whether there is a backward pass.
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
        # Buffer of each value, by id. All values are kept, so that ids stay unique.
        self._buffers: dict[int, int] = {}
        self._values: list[Shaped] = []
        self._counted: set[int] = set()

    def make(self, value: Shaped, of: Shaped | None = None) -> Shaped:
        """Counts a value.

        Args:
          value: new, no value of before.
          of: the value whose buffer it shares, if it does.
        """
        self._values.append(value)
        self._buffers[id(value)] = self._buffer(of) if of is not None else id(value)
        return value

    def _buffer(self, value: Shaped) -> int:
        # Variables are counted elsewhere.
        return self._buffers.get(id(value), 0)

    def _layer_of(
        self, y: Shaped, inputs: Sequence[Shaped], kept: Iterable[Shaped] = (), extra: int = 0
    ) -> Shaped:
        """A layer's output, made by an operation.

        Args:
          y: the output, no value of before.
          kept: which of the inputs and the output its gradient needs.
          extra: number of other values that its gradient needs.
        """
        self.make(y)
        if y.differentiated:
            for value in kept:
                buffer = self._buffer(value)
                if buffer and buffer not in self._counted:
                    self._counted.add(buffer)
                    self._kept += math.prod(value.shape)
            self._kept += extra
        size = math.prod(y.shape)
        read = sum(math.prod(value.shape) for value in inputs if self._buffer(value))
        self.forward_peak = max(self.forward_peak, size + read + extra)
        self.training_peak = max(self.training_peak, self._kept + size + read)
        return y

    def counted(self, y: Shaped, operation: _Operation, given: tuple[Any, ...]) -> Shaped:
        """The output of a primitive operation.

        Args:
          y: as `ShapeNetwork` makes it, perhaps a value of before.
        """
        inputs = _values_in(given)[: operation.inputs]
        if operation.pads:
            inputs = [self._padded(inputs[0], next(w for w in given if isinstance(w, Window)))]
        made = Shaped(y.shape, y.differentiated)
        kept = [*(inputs if "x" in operation.keeps else ()), *([made] * ("y" in operation.keeps))]
        return self._layer_of(made, inputs, kept, operation.extra(*given))

    def _padded(self, x: Shaped, window: Window) -> Shaped:
        if not window.explicit:
            return x
        (top, bottom), (left, right) = window.zeros
        height, width, channels = x.shape
        shape = (height + top + bottom, width + left + right, channels)
        return self._layer_of(Shaped(shape, x.differentiated), [x])

    def _flatten(self, x: Shaped) -> Shaped:
        return self.make(super()._flatten(x), x)

    def _reshape(self, x: Shaped, shape: tuple[int, ...]) -> Shaped:
        return self.make(super()._reshape(x, shape), x)

    def _split(self, x: Shaped, parts: int) -> list[Shaped]:
        return [self._layer_of(part, [x]) for part in super()._split(x, parts)]


def _values_in(given: Iterable[Any]) -> list[Shaped]:
    """The values and variables among the arguments of a primitive and in lists of them."""
    lists = (one if isinstance(one, list | tuple) else [one] for one in given)
    return [value for one in lists for value in one if isinstance(value, Shaped)]


def _nothing(*_: Any) -> int:
    return 0


def _twice_the_input(*given: Any) -> int:
    return 2 * math.prod(_values_in(given)[0].shape)


def _mask(x: Shaped, *_: Any) -> int:
    return math.prod(x.shape) // 4  # a byte a value


def _scores(query: Shaped, key: Shaped, value: Shaped, heads: int, bias: Shaped | None) -> int:
    """For attention: the weights of every head, and its inputs by head."""
    scores = math.prod(query.shape[:-2]) * heads * query.shape[-2] * key.shape[-2]
    return scores + sum(math.prod(one.shape) for one in (query, key, value))


def _gates(x: Shaped, cell: Cell, weights: Sequence[Shaped], reverse: bool) -> int:
    """For every token the gates before and after their functions, and the state."""
    return 3 * x.shape[0] * weights[1].shape[1]


@dataclass(frozen=True)
class _Operation:
    """Values that the gradient of a primitive needs.

    Attributes:
      keeps: "x" for its inputs, "y" for its output, "xy" for both.
      extra: number of other values, given the arguments of the primitive.
      inputs: how many of its arguments count, None for all; variables never do.
      pads: whether a copy of its input with explicit zeros takes the place of the input.
    """

    keeps: str = ""
    extra: Callable[..., int] = _nothing
    inputs: int | None = None
    pads: bool = False


_OPERATIONS: Mapping[str, _Operation | Mapping[str, _Operation]] = {
    "_conv": _Operation("x", pads=True),
    "_depthwise": _Operation("x", pads=True),
    "_bias_add": _Operation(),
    "_batch_norm": _Operation("x"),
    "_matmul": _Operation("x"),
    "_elementwise": {
        **dict.fromkeys(("relu", "relu6", "sigmoid", "tanh"), _Operation("y")),
        "swish": _Operation("x"),
        # By the error function: its argument, the function's value and a product.
        "gelu": _Operation("x", _twice_the_input),
    },
    "_pool": {"max": _Operation("xy"), "avg": _Operation()},
    "_spatial_mean": _Operation(),
    "_dropout": _Operation(extra=_mask),
    "_drop_path": _Operation(),
    "_add": _Operation(),
    "_multiply": _Operation("x"),
    "_concat": _Operation(),
    "_lrn": _Operation("xy"),
    "_pad_channels": _Operation(),
    "_transpose": _Operation(),
    # What is less the mean, and that over the deviation.
    "_layer_norm": _Operation("x", _twice_the_input),
    # Without the bias, which is the same for all examples.
    "_attention": _Operation(extra=_scores, inputs=3),
    "_embedding": _Operation(),
    "_recurrent": _Operation("xy", _gates),
    "_apply": _Operation("xy"),
}
"""Every primitive that computes a value; of some, by the kind that is the first argument."""


def _counting(name: str) -> Callable[..., Shaped]:
    operations = _OPERATIONS[name]

    def primitive(self: _MemoryNetwork, *given: Any) -> Shaped:
        y = getattr(ShapeNetwork, name)(self, *given)
        one = operations if isinstance(operations, _Operation) else operations[given[0]]
        return self.counted(y, one, given)

    return primitive


for _name in _OPERATIONS:
    setattr(_MemoryNetwork, _name, _counting(_name))
