"""The layers a model is written with; names, arguments and padding are settled here.

`Network` has two interpreters: `cnnbench.models.declare.ShapeNetwork` follows shapes and
counts, `cnnbench.models.graph.GraphNetwork` makes TensorFlow operations. What a layer is
called, which variables it has and how it pads is decided once, in this class, so the two
cannot disagree.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar

from cnnbench.errors import UsageError
from cnnbench.models.spec import BatchNorm, Initializer, VariableSpec
from cnnbench.models.window import Padding, Pair, Window, as_pair

T = TypeVar("T")
Activation = Literal["relu"] | None


class Network(abc.ABC, Generic[T]):
    """Makes the layers of one network, in the order in which the model asks for them.

    Shapes never include the batch: an image-like value has shape ``(h, w, c)`` whatever the
    memory layout, a flat one ``(units,)``.

    Attributes:
      num_classes: outputs of `logits`.
      training: whether batch norm uses the batch's own moments and dropout drops.
    """

    def __init__(self, num_classes: int, *, training: bool, batch_norm: BatchNorm) -> None:
        self.num_classes = num_classes
        self.training = training
        self._batch_norm_defaults = batch_norm
        self._scopes: list[str] = []
        self._counts: collections.Counter[str] = collections.Counter()
        self._names: set[str] = set()
        self._dropouts = 0

    # Layers ------------------------------------------------------------------------------

    def conv(
        self,
        x: T,
        filters: int,
        kernel: int | Pair,
        stride: int | Pair = 1,
        padding: Padding = "SAME",
        *,
        batch_norm: bool | BatchNorm = False,
        activation: Activation = "relu",
        bias: float | None = 0.0,
        stddev: float | None = None,
    ) -> T:
        """2-D convolution, then batch norm or bias, then the activation.

        Args:
          x: ``(h, w, c)`` per example.
          filters: output channels.
          kernel: side, or (height, width).
          stride: likewise.
          padding: ``SAME``, ``VALID``, or ``SAME_RESNET``: SAME at stride 1, else
            (k - 1) // 2 zeros before and the rest of k - 1 after, whatever the input size.
          batch_norm: True for the model's settings, or settings of its own; then there is
            no bias.
          activation: ``relu`` or None.
          bias: initial value, None for no bias.
          stddev: of a truncated normal for the kernel; default variance scaling by fan-in.

        Returns:
          ``(h', w', filters)`` per example.
        """
        height, width, channels = self._image_shape(x, "conv")
        window = Window.make((height, width), as_pair(kernel), as_pair(stride), padding)
        with self._layer("conv"):
            kernel_spec = self._spec(
                "kernel",
                (*window.size, channels, filters),
                Initializer.variance_scaling() if stddev is None else _normal(stddev),
            )
            y = self._conv(x, self._read(kernel_spec), window, filters)
            if not batch_norm and bias is not None:
                y = self._bias_add(y, self._read(self._bias_spec(filters, bias)))
        if batch_norm:
            settings = None if batch_norm is True else batch_norm
            return self.batch_norm(y, activation=activation, settings=settings)
        return self._activate(y, activation)

    def batch_norm(
        self, x: T, *, activation: Activation = None, settings: BatchNorm | None = None
    ) -> T:
        """Batch normalisation over batch, height and width, in float32 statistics."""
        channels = self._image_shape(x, "batch_norm")[-1]
        chosen = settings or self._batch_norm_defaults
        with self._layer("batchnorm"):
            one, zero = Initializer.constant(1.0), Initializer.constant(0.0)
            learned = {"trainable": True, "weight_decay": False}
            kept = {"trainable": False, "weight_decay": False, "statistic": True}
            shape = (channels,)
            gamma = self._spec("gamma", shape, one, **learned) if chosen.scale else None
            beta = self._spec("beta", shape, zero, **learned)
            mean = self._spec("moving_mean", shape, zero, **kept)
            variance = self._spec("moving_variance", shape, one, **kept)
            y = self._batch_norm(x, gamma, beta, mean, variance, chosen)
        return self._activate(y, activation)

    def affine(
        self,
        x: T,
        units: int,
        activation: Activation = "relu",
        *,
        bias: float | None = 0.0,
        stddev: float | None = None,
    ) -> T:
        """Matrix product, bias, activation.

        Args:
          x: ``(units,)`` per example; see `flatten`.
          units: outputs.
          activation: ``relu`` or None.
          bias: initial value, None for no bias.
          stddev: of a truncated normal for the kernel; default sqrt(2 / inputs) before a
            ReLU and sqrt(1 / inputs) without.

        Returns:
          ``(units,)`` per example.
        """
        shape = self.shape(x)
        if len(shape) != 1:
            raise UsageError(f"affine takes a flat input, not shape {shape}; flatten it first")
        if stddev is None:
            stddev = math.sqrt((2.0 if activation == "relu" else 1.0) / shape[0])
        with self._layer("affine"):
            kernel = self._spec("kernel", (shape[0], units), _normal(stddev))
            y = self._matmul(x, self._read(kernel), units)
            if bias is not None:
                y = self._bias_add(y, self._read(self._bias_spec(units, bias)))
            return self._activate(y, activation)

    def logits(self, x: T, *, stddev: float | None = None) -> T:
        """The linear last layer, ``(num_classes,)`` per example."""
        return self.affine(x, self.num_classes, None, stddev=stddev)

    def relu(self, x: T) -> T:
        """max(x, 0)."""
        return self._relu(x)

    def max_pool(self, x: T, size: int | Pair, stride: int | Pair, padding: Padding = "VALID") -> T:
        """Largest value of each window."""
        return self._pool_layer("max", x, size, stride, padding)

    def avg_pool(self, x: T, size: int | Pair, stride: int | Pair, padding: Padding = "VALID") -> T:
        """Mean of each window; with SAME only the values inside the image count."""
        return self._pool_layer("avg", x, size, stride, padding)

    def global_avg_pool(self, x: T) -> T:
        """Mean over height and width: ``(h, w, c)`` to ``(c,)``."""
        self._image_shape(x, "global_avg_pool")
        return self._spatial_mean(x)

    def dropout(self, x: T, keep: float = 0.5) -> T:
        """In training keeps each value with probability ``keep``, scaled by 1 / ``keep``."""
        if not 0.0 < keep <= 1.0:
            raise UsageError(f"dropout keeps a share in (0, 1], not {keep}")
        index = self._dropouts
        self._dropouts += 1
        if not self.training or keep == 1.0:
            return x
        return self._dropout(x, keep, index)

    def flatten(self, x: T) -> T:
        """``(h, w, c)`` to ``(h * w * c,)``, channels fastest whatever the memory layout."""
        return x if len(self.shape(x)) == 1 else self._flatten(x)

    def add(self, x: T, y: T) -> T:
        """Elementwise sum of two values of one shape."""
        if self.shape(x) != self.shape(y):
            raise UsageError(f"add takes equal shapes, not {self.shape(x)} and {self.shape(y)}")
        return self._add(x, y)

    def concat(self, xs: Sequence[T]) -> T:
        """Joins values along the channels (the last dimension of their shapes)."""
        if len({self.shape(x)[:-1] for x in xs}) != 1:
            shapes = ", ".join(str(self.shape(x)) for x in xs)
            raise UsageError(f"concat takes shapes that differ in channels only, not {shapes}")
        return self._concat(xs)

    def lrn(
        self,
        x: T,
        *,
        radius: int = 5,
        bias: float = 1.0,
        alpha: float = 1.0,
        beta: float = 0.5,
    ) -> T:
        """Local response normalisation across channels: x / (bias + alpha * sum x^2)^beta.

        The sum takes in ``radius`` channels to either side.
        """
        self._image_shape(x, "lrn")
        return self._lrn(x, radius, bias, alpha, beta)

    def pad_channels(self, x: T, before: int, after: int) -> T:
        """Adds channels of zeros."""
        self._image_shape(x, "pad_channels")
        return self._pad_channels(x, before, after)

    # For models of one's own -------------------------------------------------------------

    def variable(
        self,
        name: str,
        shape: Sequence[int],
        initializer: Initializer,
        *,
        trainable: bool = True,
        weight_decay: bool = True,
    ) -> T:
        """A variable of the model's own, read in the compute precision.

        Args:
          name: canonical name within the current scope; must be new.
          shape: static, without batch; ``()`` is a scalar.
          initializer: first value.
          trainable: whether the optimizer updates it.
          weight_decay: whether L2 decay applies; ignored when not trainable.

        Returns:
          Its value.
        """
        spec = self._spec(
            name,
            tuple(shape),
            initializer,
            trainable=trainable,
            weight_decay=weight_decay and trainable,
        )
        return self._read(spec)

    def apply(
        self,
        function: Callable[..., Any],
        *xs: T,
        shape: Sequence[int] | None = None,
        flops: int = 0,
    ) -> T:
        """Any TensorFlow function of tensors.

        Args:
          function: takes one tensor per value in ``xs`` and returns one tensor. Image-like
            tensors are ``[n, h, w, c]``, also when the network runs in NCHW.
          *xs: its inputs: values of layers or `variable`.
          shape: of the result, without batch; default that of the first input.
          flops: of one example's forward pass, for the model's FLOP count.

        Returns:
          The result.
        """
        if not xs:
            raise UsageError("apply needs at least one input")
        result = self.shape(xs[0]) if shape is None else tuple(shape)
        return self._apply(function, xs, result, flops)

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of the variables made inside with ``name/``."""
        self._scopes.append(name)
        try:
            with self._name_scope(name):
                yield
        finally:
            self._scopes.pop()

    @abc.abstractmethod
    def shape(self, x: T) -> tuple[int, ...]:
        """Shape without batch: ``(h, w, c)`` or ``(units,)``."""

    # Shared by the interpreters ----------------------------------------------------------

    @contextlib.contextmanager
    def _layer(self, kind: str) -> Iterator[None]:
        key = "/".join([*self._scopes, kind])
        number = self._counts[key]
        self._counts[key] += 1
        with self.scope(f"{kind}{number}"):
            yield

    def _spec(
        self, name: str, shape: tuple[int, ...], initializer: Initializer, **flags: bool
    ) -> VariableSpec:
        full = "/".join([*self._scopes, name])
        if full in self._names:
            raise UsageError(f"variable {full} is declared twice; names must differ")
        self._names.add(full)
        spec = VariableSpec(full, shape, initializer, **flags)
        self._declare(spec)
        return spec

    def _bias_spec(self, size: int, value: float) -> VariableSpec:
        return self._spec("bias", (size,), Initializer.constant(value))

    def _image_shape(self, x: T, layer: str) -> tuple[int, int, int]:
        shape = self.shape(x)
        if len(shape) != 3:
            raise UsageError(f"{layer} takes an image-like input (h, w, c), not shape {shape}")
        return shape

    def _pool_layer(
        self,
        kind: Literal["max", "avg"],
        x: T,
        size: int | Pair,
        stride: int | Pair,
        padding: Padding,
    ) -> T:
        if padding == "SAME_RESNET":
            raise UsageError("pooling pads SAME or VALID, not SAME_RESNET")
        height, width, _ = self._image_shape(x, f"{kind}_pool")
        window = Window.make((height, width), as_pair(size), as_pair(stride), padding)
        return self._pool(kind, x, window)

    def _activate(self, x: T, activation: Activation) -> T:
        if activation is None:
            return x
        if activation != "relu":
            raise UsageError(f"activation is 'relu' or None, not {activation!r}")
        return self._relu(x)

    # What an interpreter provides --------------------------------------------------------

    def _declare(self, spec: VariableSpec) -> None:
        """Told of each variable, in creation order."""

    def _name_scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Groups the operations made inside under a name."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def _read(self, spec: VariableSpec) -> T: ...

    @abc.abstractmethod
    def _conv(self, x: T, kernel: T, window: Window, filters: int) -> T: ...

    @abc.abstractmethod
    def _bias_add(self, x: T, bias: T) -> T: ...

    @abc.abstractmethod
    def _batch_norm(
        self,
        x: T,
        gamma: VariableSpec | None,
        beta: VariableSpec,
        mean: VariableSpec,
        variance: VariableSpec,
        settings: BatchNorm,
    ) -> T: ...

    @abc.abstractmethod
    def _matmul(self, x: T, kernel: T, units: int) -> T: ...

    @abc.abstractmethod
    def _relu(self, x: T) -> T: ...

    @abc.abstractmethod
    def _pool(self, kind: Literal["max", "avg"], x: T, window: Window) -> T: ...

    @abc.abstractmethod
    def _spatial_mean(self, x: T) -> T: ...

    @abc.abstractmethod
    def _dropout(self, x: T, keep: float, index: int) -> T: ...

    @abc.abstractmethod
    def _flatten(self, x: T) -> T: ...

    @abc.abstractmethod
    def _add(self, x: T, y: T) -> T: ...

    @abc.abstractmethod
    def _concat(self, xs: Sequence[T]) -> T: ...

    @abc.abstractmethod
    def _lrn(self, x: T, radius: int, bias: float, alpha: float, beta: float) -> T: ...

    @abc.abstractmethod
    def _pad_channels(self, x: T, before: int, after: int) -> T: ...

    @abc.abstractmethod
    def _apply(
        self,
        function: Callable[..., Any],
        xs: Sequence[T],
        shape: tuple[int, ...],
        flops: int,
    ) -> T: ...


def _normal(stddev: float) -> Initializer:
    return Initializer.truncated_normal(stddev)
