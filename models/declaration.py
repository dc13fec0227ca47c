"""Variables, shapes, FLOPs and memory of a model, computed without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from cnnbench.errors import UsageError
from cnnbench.models.model import Model, outputs_of
from cnnbench.models.network import Cell, Elementwise, Network
from cnnbench.models.spec import (
    MASTER_BYTES,
    BatchNormLayer,
    ModelSpec,
    VariableSpec,
    Window,
    of_role,
    resolve,
)

# Fragmentation: memory that the allocator holds but cannot reuse, measured
# with ten networks on a CPU (scripts/measure_memory).
_UNUSED = 1.15


@dataclasses.dataclass(frozen=True, eq=False)
class Shaped:
    """A value of which only the shape is known; values of one shape are not equal.

    `differentiated` tells whether the loss's gradient flows through it: whether any trainable
    variable lies behind it.
    """

    shape: tuple[int, ...]
    differentiated: bool = False


class Flops(NamedTuple):
    """FLOPs of one example: of the forward pass and of the gradients of inputs and kernels.

    For a product of two values without weights, `kernels` counts the gradient of the second.
    """

    forward: int = 0
    inputs: int = 0
    kernels: int = 0

    @property
    def training(self) -> int:
        """FLOPs of forward and backward pass."""
        return self.forward + self.inputs + self.kernels


def declare(model: Model, num_classes: int) -> ModelSpec:
    """Elements, variables in creation order, and FLOPs of a model, whose body runs on shapes."""
    net = _forward(model, num_classes, training=True)
    # What only training computes is no part of the forward pass.
    alone = _forward(model, num_classes, training=False) if net.auxiliaries else net
    others = set(alone.variables) - set(net.variables)
    if others:
        raise UsageError(
            f"model {model.name} has other variables when it does not train, such as "
            f"{min(one.name for one in others)}; make an auxiliary head in a net.scope of its own"
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
    )


def scope_flops(model: Model, num_classes: int, *, training: bool) -> dict[str, Flops]:
    """FLOPs per example of the layers and scopes of a network, in the order of the body.

    Those of a scope exclude the layers and scopes inside it; "" is the body itself. Without
    `training`, gradients and what only training computes are left out.
    """
    scopes = _forward(model, num_classes, training=training).scope_flops
    return scopes if training else {name: Flops(one.forward) for name, one in scopes.items()}


def bytes_per_image(
    model: Model, spec: ModelSpec, *, training: bool = True, value_bytes: int = MASTER_BYTES
) -> int:
    """Bytes per additional image in the batch, without the image itself."""
    values = _forward(model, spec.num_classes, training=training).peak
    return round(_UNUSED * value_bytes * values)


def _forward(model: Model, num_classes: int, *, training: bool) -> ShapeNetwork:
    net = ShapeNetwork(model, num_classes, training=training)
    net.forward()
    return net


class ShapeNetwork(Network[Shaped]):
    """Follows the shapes of a model's body, collects variables, counts FLOPs and values.

    A training step keeps the values that its backward pass needs, as TensorFlow's gradients do: the
    inputs of convolutions and batch norm, the output of a ReLU, and so on. The peak is in the
    backward pass, when the values kept for earlier layers exist beside the gradients of the current
    one.

    Attributes:
      flattened: see `ModelSpec`.
      peak: most values of one example that exist at one time, without variables.
    """

    def __init__(self, model: Model, num_classes: int, *, training: bool) -> None:
        super().__init__(num_classes, training=training, batch_norm=model.batch_norm)
        self._model = model
        self.elements = resolve(model.elements, model, num_classes)
        self.forward_flops = 0
        self.training_flops = 0
        self.scope_flops: dict[str, Flops] = {"": Flops()}
        self.flattened: dict[str, tuple[int, int, int]] = {}
        self.peak = 0
        self._kept = 0
        self._kept_values: set[Shaped] = set()
        self._read_values: set[Shaped] = set()  # variables, and views of them
        # Of a view, the value that it shares its buffer with.
        self._buffers: dict[Shaped, Shaped] = {}

    def forward(self) -> None:
        """Runs the body, once."""
        features = of_role(self.elements, "feature")
        outputs_of(self._model, self, {one.name: Shaped(one.sizes) for one in features})

    def shape(self, x: Shaped) -> tuple[int, ...]:
        """Shape without batch."""
        return x.shape

    def _count(self, flops: int, inputs_differentiated: bool, weights: bool = True) -> None:
        made = Flops(flops, flops * inputs_differentiated, flops * weights)
        self.forward_flops += flops
        self.training_flops += made.training
        scope = "/".join(self._scopes)
        before = self.scope_flops[scope]
        self.scope_flops[scope] = Flops(*map(operator.add, before, made))

    def _name_scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        self.scope_flops.setdefault("/".join(self._scopes), Flops())
        return contextlib.nullcontext()

    def _read(self, spec: VariableSpec) -> Shaped:
        made = Shaped(spec.shape, spec.trainable)
        self._read_values.add(made)
        return made

    def _value(
        self,
        shape: tuple[int, ...],
        *inputs: Shaped,
        keeps: str = "",
        extra: int = 0,
        trained: bool = False,
    ) -> Shaped:
        """The result of an operation.

        Args:
          keeps: what the gradient needs: "x", the inputs, "y", the result, or both.
          extra: number of other values that the gradient needs.
          trained: whether the operation has trainable variables of its own.
        """
        y = Shaped(shape, trained or any(x.differentiated for x in inputs))
        inputs = tuple(x for x in inputs if x not in self._read_values)
        if y.differentiated and self.training:
            kept = list(inputs) if "x" in keeps else []
            if "y" in keeps:
                kept.append(y)
            for value in kept:
                buffer = self._buffers.get(value, value)
                if buffer not in self._kept_values:
                    self._kept_values.add(buffer)
                    self._kept += math.prod(value.shape)
            self._kept += extra
        here = sum(math.prod(value.shape) for value in (y, *inputs))
        self.peak = max(self.peak, self._kept + here + (0 if self.training else extra))
        return y

    def _with_zeros(self, x: Shaped, window: Window) -> Shaped:
        if not window.explicit:
            return x
        (top, bottom), (left, right) = window.zeros
        height, width, channels = x.shape
        return self._value((height + top + bottom, width + left + right, channels), x)

    def _conv(
        self, x: Shaped, kernel: Shaped, window: Window, filters: int, *, depthwise: bool = False
    ) -> Shaped:
        self._count(2 * math.prod(window.output) * math.prod(kernel.shape), x.differentiated)
        x = self._with_zeros(x, window)
        return self._value((*window.output, filters), x, keeps="x", trained=True)

    def _bias_add(self, x: Shaped, bias: Shaped) -> Shaped:
        return self._value(x.shape, x, trained=True)

    def _batch_norm(self, x: Shaped, layer: BatchNormLayer) -> Shaped:
        return self._value(x.shape, x, keeps="x", trained=True)

    def _matmul(self, x: Shaped, kernel: Shaped, units: int) -> Shaped:
        image = self._buffers.get(x, x).shape
        if len(x.shape) == 1 and len(image) == 3:
            self.flattened[self.variables[-1].name] = image
        self._count(2 * math.prod(x.shape[:-1]) * math.prod(kernel.shape), x.differentiated)
        return self._value((*x.shape[:-1], units), x, keeps="x", trained=True)

    def _elementwise(self, kind: Elementwise, x: Shaped) -> Shaped:
        keeps = "x" if kind in ("swish", "gelu") else "y"
        # GELU by the error function: its argument, the function's value and a product.
        extra = 2 * math.prod(x.shape) if kind == "gelu" else 0
        return self._value(x.shape, x, keeps=keeps, extra=extra)

    def _pool(self, kind: Literal["max", "avg"], x: Shaped, window: Window) -> Shaped:
        return self._value((*window.output, x.shape[2]), x, keeps="xy" if kind == "max" else "")

    def _spatial_mean(self, x: Shaped) -> Shaped:
        return self._value(x.shape[2:], x)

    def _dropout(self, x: Shaped, keep: float, index: int) -> Shaped:
        return self._value(x.shape, x, extra=math.prod(x.shape) // 4)  # a mask, a byte a value

    def _drop_path(self, x: Shaped, keep: float, index: int, by_progress: bool) -> Shaped:
        return self._value(x.shape, x)

    def _combine(
        self, kind: Literal["add", "multiply"], x: Shaped, y: Shaped, shape: tuple[int, ...]
    ) -> Shaped:
        return self._value(shape, x, y, keeps="x" if kind == "multiply" else "")

    def _concat(self, xs: Sequence[Shaped]) -> Shaped:
        channels = sum(x.shape[-1] for x in xs)
        return self._value((*xs[0].shape[:-1], channels), *xs)

    def _pad_channels(self, x: Shaped, before: int, after: int) -> Shaped:
        height, width, channels = x.shape
        return self._value((height, width, before + channels + after), x)

    def _reshape(self, x: Shaped, shape: tuple[int, ...]) -> Shaped:
        view = Shaped(shape, x.differentiated)
        if x in self._read_values:
            self._read_values.add(view)
        self._buffers[view] = self._buffers.get(x, x)
        return view

    def _transpose(self, x: Shaped, order: tuple[int, ...]) -> Shaped:
        return self._value(tuple(x.shape[axis] for axis in order), x)

    def _split(self, x: Shaped, parts: int) -> list[Shaped]:
        shape = (*x.shape[:-1], x.shape[-1] // parts)
        return [self._value(shape, x) for _ in range(parts)]

    def _layer_norm(
        self, x: Shaped, gamma: VariableSpec, beta: VariableSpec, epsilon: float
    ) -> Shaped:
        # The input minus its mean, and that divided by the deviation.
        extra = 2 * math.prod(x.shape)
        return self._value(x.shape, x, keeps="x", extra=extra, trained=True)

    def _attention(
        self, query: Shaped, key: Shaped, value: Shaped, heads: int, bias: Shaped | None
    ) -> Shaped:
        # Two products whose factors all come from layers: query by key, weights by value.
        product = 2 * math.prod(query.shape) * key.shape[-2]
        scored = query.differentiated or key.differentiated
        self._count(product, query.differentiated, weights=key.differentiated)
        scored = scored or (bias is not None and bias.differentiated)
        self._count(product, scored, weights=value.differentiated)
        # The weights of every head, and the inputs by head. The bias is the same for all examples.
        weights = math.prod(query.shape[:-1]) * heads * key.shape[-2]
        by_head = sum(math.prod(one.shape) for one in (query, key, value))
        return self._value(query.shape, query, key, value, extra=weights + by_head, trained=scored)

    def _embedding(self, ids: Shaped, table: Shaped) -> Shaped:
        return self._value((*ids.shape, table.shape[1]), ids, trained=True)

    def _recurrent(self, x: Shaped, cell: Cell, weights: Sequence[Shaped], reverse: bool) -> Shaped:
        tokens, (units, gates) = x.shape[0], weights[1].shape
        self._count(2 * tokens * math.prod(weights[0].shape), x.differentiated)
        self._count(2 * tokens * math.prod(weights[1].shape), True)
        # For every token the gates before and after their functions, and the state.
        extra = 3 * tokens * gates
        return self._value((tokens, units), x, keeps="xy", extra=extra, trained=True)

    def _apply(
        self,
        function: Callable[..., Any],
        xs: Sequence[Shaped],
        shape: tuple[int, ...],
        flops: int,
    ) -> Shaped:
        differentiated = any(x.differentiated for x in xs)
        # Each of the two gradients of a product costs what the product costs; of a function
        # without a trainable input there is none.
        self._count(flops, differentiated, weights=differentiated)
        return self._value(shape, *xs, keeps="xy")
