"""Memory of a network's activations, computed from shapes without TensorFlow.

A training step keeps the values that its backward pass needs, as TensorFlow's gradients do: the
inputs of convolutions and batch norm, the output of a ReLU, and so on. The peak is in the backward
pass, when the values kept for earlier layers exist beside the gradients of the current one.
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
    """Values that the gradient of a primitive needs: inputs ("x"), output ("y"), `extra` others.

    The first `inputs` arguments count, None for all, variables never. With `pads` a copy with
    explicit zeros takes the place of the input.
    """

    keeps: str = ""
    extra: Callable[..., int] = _nothing
    inputs: int | None = None
    pads: bool = False


_PLAIN = _Operation()


def _counted(
    primitive: Callable[..., Shaped], operation: _Operation | Mapping[str, _Operation] = _PLAIN
) -> Callable[..., Shaped]:
    def counting(self: _MemoryNetwork, *given: Any) -> Shaped:
        one = operation if isinstance(operation, _Operation) else operation[given[0]]
        return self.counted(primitive(self, *given), one, given)

    return counting


class _MemoryNetwork(ShapeNetwork):
    def __init__(self, num_classes: int, *, training: bool, batch_norm: BatchNorm) -> None:
        super().__init__(num_classes, training=training, batch_norm=batch_norm)
        self.peak = 0
        self._kept = 0
        # The value whose buffer each value has. Variables are counted elsewhere.
        self._buffers: dict[Shaped, Shaped] = {}
        self._counted: set[Shaped] = set()

    def make(self, value: Shaped, of: Shaped | None = None) -> Shaped:
        """Counts a new value; `of` is the value whose buffer it shares, if it does."""
        if of is None:
            self._buffers[value] = value
        elif of in self._buffers:
            self._buffers[value] = self._buffers[of]
        return value

    def _layer_of(
        self, y: Shaped, inputs: Sequence[Shaped], kept: Iterable[Shaped] = (), extra: int = 0
    ) -> Shaped:
        """The new output of an operation; its gradient needs `extra` other values."""
        self.make(y)
        if y.differentiated and self.training:
            for value in kept:
                buffer = self._buffers.get(value)
                if buffer is not None and buffer not in self._counted:
                    self._counted.add(buffer)
                    self._kept += math.prod(value.shape)
            self._kept += extra
        size = math.prod(y.shape)
        read = sum(math.prod(value.shape) for value in inputs if value in self._buffers)
        self.peak = max(self.peak, self._kept + size + read + (0 if self.training else extra))
        return y

    def counted(self, y: Shaped, operation: _Operation, given: tuple[Any, ...]) -> Shaped:
        """The output of a primitive operation; `y` may be an existing value."""
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

    # Primitives that compute a value; of some, an operation per kind, their first argument.
    _conv = _counted(ShapeNetwork._conv, _Operation("x", pads=True))
    _depthwise = _counted(ShapeNetwork._depthwise, _Operation("x", pads=True))
    _bias_add = _counted(ShapeNetwork._bias_add)
    _batch_norm = _counted(ShapeNetwork._batch_norm, _Operation("x"))
    _matmul = _counted(ShapeNetwork._matmul, _Operation("x"))
    _elementwise = _counted(
        ShapeNetwork._elementwise,
        {
            **dict.fromkeys(("relu", "relu6", "sigmoid", "tanh"), _Operation("y")),
            "swish": _Operation("x"),
            # By the error function: its argument, the function's value and a product.
            "gelu": _Operation("x", _twice_the_input),
        },
    )
    _pool = _counted(ShapeNetwork._pool, {"max": _Operation("xy"), "avg": _Operation()})
    _spatial_mean = _counted(ShapeNetwork._spatial_mean)
    _dropout = _counted(ShapeNetwork._dropout, _Operation(extra=_mask))
    _drop_path = _counted(ShapeNetwork._drop_path)
    _add = _counted(ShapeNetwork._add)
    _multiply = _counted(ShapeNetwork._multiply, _Operation("x"))
    _concat = _counted(ShapeNetwork._concat)
    _lrn = _counted(ShapeNetwork._lrn, _Operation("xy"))
    _pad_channels = _counted(ShapeNetwork._pad_channels)
    _transpose = _counted(ShapeNetwork._transpose)
    # The input minus its mean, and that divided by the deviation.
    _layer_norm = _counted(ShapeNetwork._layer_norm, _Operation("x", _twice_the_input))
    # Without the bias, which is the same for all examples.
    _attention = _counted(ShapeNetwork._attention, _Operation(extra=_scores, inputs=3))
    _embedding = _counted(ShapeNetwork._embedding)
    _recurrent = _counted(ShapeNetwork._recurrent, _Operation("xy", _gates))
    _apply = _counted(ShapeNetwork._apply, _Operation("xy"))


def activations(model: Model, num_classes: int, *, training: bool) -> int:
    """Peak number of activation values of one example, by a run of the model's body on shapes."""
    elements = resolve(model.elements, model, num_classes)
    net = _MemoryNetwork(num_classes, training=training, batch_norm=model.batch_norm)
    features = {one.name: Shaped(one.sizes) for one in of_role(elements, "feature")}
    for value in features.values():
        net.make(value)
    model.build(net, grouped(elements, "feature", features))
    return net.peak


def bytes_per_image(
    model: Model, spec: ModelSpec, *, training: bool = True, value_bytes: int = MASTER_BYTES
) -> int:
    """Bytes per additional image in the batch, without the image itself."""
    values = activations(model, spec.num_classes, training=training)
    return round(_UNUSED * value_bytes * values)
