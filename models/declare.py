"""Variables, shapes and FLOPs of a model, computed without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from cnnbench.errors import UsageError
from cnnbench.models.elements import Element, grouped, of_role, resolve
from cnnbench.models.model import Model
from cnnbench.models.network import Elementwise, Network, T
from cnnbench.models.sequence import Cell
from cnnbench.models.spec import BatchNorm, BatchNormLayer, ModelSpec, VariableSpec
from cnnbench.models.window import Window


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
    elements = resolve(model.elements, model, num_classes)
    net = _run(model, elements, num_classes, training=True)
    # What only training computes is no part of the forward pass.
    alone = _run(model, elements, num_classes, training=False) if net.auxiliaries else net
    others = set(alone.variables) - set(net.variables)
    if others:
        raise UsageError(
            f"model {model.name} has other variables when it does not train, such as "
            f"{min(one.name for one in others)}; make an auxiliary head in a net.scope of its own"
        )
    return ModelSpec(
        name=model.name,
        dataset=model.dataset,
        elements=elements,
        num_classes=num_classes,
        variables=tuple(net.variables),
        forward_flops_per_image=alone.forward_flops,
        training_flops_per_image=net.training_flops,
    )


def scope_flops(model: Model, num_classes: int, *, training: bool) -> dict[str, Flops]:
    """FLOPs per example of the layers and scopes of a network, in the order of the body.

    Those of a scope exclude the layers and scopes inside it; "" is the body itself. Without
    `training`, gradients and what only training computes are left out.
    """
    elements = resolve(model.elements, model, num_classes)
    scopes = _run(model, elements, num_classes, training=training).scope_flops
    return scopes if training else {name: Flops(one.forward) for name, one in scopes.items()}


def _run(
    model: Model, elements: Sequence[Element], num_classes: int, *, training: bool
) -> ShapeNetwork:
    net = ShapeNetwork(num_classes, training=training, batch_norm=model.batch_norm)
    shapes = {one.name: Shaped(one.sizes) for one in of_role(elements, "feature")}
    outputs = model.build(net, grouped(elements, "feature", shapes))
    for made in (outputs, *(head for head, _ in net.auxiliaries)):
        check_outputs(model, net, made)
    return net


def check_outputs(model: Model, net: Network[T], outputs: Any) -> None:
    """Refuses outputs other than logits ``(num_classes,)`` for a model with the default loss."""
    if type(model).loss is not Model.loss:
        return
    several = isinstance(outputs, Mapping)
    shape: object = "a mapping" if several else net.shape(outputs)
    if shape != (net.num_classes,):
        raise UsageError(
            f"model {model.name} must return logits of shape ({net.num_classes},) per example, "
            f"not {shape}; end build() with net.logits(x)"
        )


class ShapeNetwork(Network[Shaped]):
    """Follows shapes, collects variables and counts multiply-adds."""

    def __init__(self, num_classes: int, *, training: bool, batch_norm: BatchNorm) -> None:
        super().__init__(num_classes, training=training, batch_norm=batch_norm)
        self.variables: list[VariableSpec] = []
        self.forward_flops = 0
        self.training_flops = 0
        self.scope_flops: dict[str, Flops] = {"": Flops()}

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
        return super()._name_scope(name)

    def _declare(self, spec: VariableSpec) -> None:
        self.variables.append(spec)

    def _read(self, spec: VariableSpec) -> Shaped:
        return Shaped(spec.shape, spec.trainable)

    def _conv(self, x: Shaped, kernel: Shaped, window: Window, filters: int) -> Shaped:
        shape = (*window.output, filters)
        self._count(2 * math.prod(window.output) * math.prod(kernel.shape), x.differentiated)
        return Shaped(shape, True)

    def _depthwise(self, x: Shaped, kernel: Shaped, window: Window) -> Shaped:
        channels, multiplier = kernel.shape[2:]
        self._count(2 * math.prod(window.output) * math.prod(kernel.shape), x.differentiated)
        return Shaped((*window.output, channels * multiplier), True)

    def _bias_add(self, x: Shaped, bias: Shaped) -> Shaped:
        return Shaped(x.shape, True)

    def _batch_norm(self, x: Shaped, layer: BatchNormLayer) -> Shaped:
        return Shaped(x.shape, True)

    def _matmul(self, x: Shaped, kernel: Shaped, units: int) -> Shaped:
        self._count(2 * math.prod(x.shape[:-1]) * math.prod(kernel.shape), x.differentiated)
        return Shaped((*x.shape[:-1], units), True)

    def _elementwise(self, kind: Elementwise, x: Shaped) -> Shaped:
        return x

    def _pool(self, kind: Literal["max", "avg"], x: Shaped, window: Window) -> Shaped:
        return Shaped((*window.output, x.shape[2]), x.differentiated)

    def _spatial_mean(self, x: Shaped) -> Shaped:
        return Shaped(x.shape[2:], x.differentiated)

    def _dropout(self, x: Shaped, keep: float, index: int) -> Shaped:
        return x

    def _drop_path(self, x: Shaped, keep: float, index: int, by_progress: bool) -> Shaped:
        return x

    def _flatten(self, x: Shaped) -> Shaped:
        return Shaped((math.prod(x.shape),), x.differentiated)

    def _add(self, x: Shaped, y: Shaped) -> Shaped:
        return Shaped(x.shape, x.differentiated or y.differentiated)

    def _multiply(self, x: Shaped, y: Shaped, shape: tuple[int, ...]) -> Shaped:
        return Shaped(shape, x.differentiated or y.differentiated)

    def _concat(self, xs: Sequence[Shaped]) -> Shaped:
        channels = sum(x.shape[-1] for x in xs)
        return Shaped((*xs[0].shape[:-1], channels), any(x.differentiated for x in xs))

    def _lrn(self, x: Shaped, radius: int, bias: float, alpha: float, beta: float) -> Shaped:
        return x

    def _pad_channels(self, x: Shaped, before: int, after: int) -> Shaped:
        height, width, channels = x.shape
        return Shaped((height, width, before + channels + after), x.differentiated)

    def _reshape(self, x: Shaped, shape: tuple[int, ...]) -> Shaped:
        return Shaped(shape, x.differentiated)

    def _transpose(self, x: Shaped, order: tuple[int, ...]) -> Shaped:
        return Shaped(tuple(x.shape[axis] for axis in order), x.differentiated)

    def _split(self, x: Shaped, parts: int) -> list[Shaped]:
        shape = (*x.shape[:-1], x.shape[-1] // parts)
        return [Shaped(shape, x.differentiated) for _ in range(parts)]

    def _layer_norm(
        self, x: Shaped, gamma: VariableSpec, beta: VariableSpec, epsilon: float
    ) -> Shaped:
        return Shaped(x.shape, True)

    def _attention(
        self, query: Shaped, key: Shaped, value: Shaped, heads: int, bias: Shaped | None
    ) -> Shaped:
        # Two products whose factors all come from layers: query by key, weights by value.
        product = 2 * math.prod(query.shape) * key.shape[-2]
        scored = query.differentiated or key.differentiated
        self._count(product, query.differentiated, weights=key.differentiated)
        scored = scored or (bias is not None and bias.differentiated)
        self._count(product, scored, weights=value.differentiated)
        return Shaped(query.shape, scored or value.differentiated)

    def _embedding(self, ids: Shaped, table: Shaped) -> Shaped:
        return Shaped((*ids.shape, table.shape[1]), True)

    def _recurrent(self, x: Shaped, cell: Cell, weights: Sequence[Shaped], reverse: bool) -> Shaped:
        tokens, units = x.shape[0], weights[1].shape[0]
        self._count(2 * tokens * math.prod(weights[0].shape), x.differentiated)
        self._count(2 * tokens * math.prod(weights[1].shape), True)
        return Shaped((tokens, units), True)

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
        return Shaped(shape, differentiated)
