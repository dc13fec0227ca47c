"""Interface with which models create layers.

A value with two dimensions, ``(n, c)``, is a sequence of n tokens. A value with four or more
dimensions, ``(..., n, c)``, is a group of sequences. A value with three dimensions is an image;
only images have the memory layout of ``--data_format``.

`Network` has two interpreters: `cnnbench.models.declaration.ShapeNetwork` computes shapes and
FLOPs, and `cnnbench.models.graph.GraphNetwork` creates TensorFlow operations. `Network` itself
determines names, variables and padding of a layer, so they are the same in both interpreters.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar, cast, get_args

from cnnbench import lazy_tensorflow as tf
from cnnbench.errors import UsageError
from cnnbench.models.spec import (
    TRUNCATED_STDDEV,
    BatchNorm,
    BatchNormLayer,
    Initializer,
    LayerFlopsAndMemory,
    VariableSpec,
)

T = TypeVar("T")

Padding = Literal["SAME", "VALID", "SAME_RESNET"]
Pair = tuple[int, int]
Elementwise = Literal["relu", "relu6", "sigmoid", "tanh", "swish", "gelu"]
Activation = Elementwise | None
Cell = Literal["gru", "lstm", "rnn"]

GATES: dict[Cell, int] = {"gru": 3, "lstm": 4, "rnn": 1}
"""Number of matrices that are concatenated in the kernels of a cell."""


@dataclasses.dataclass(frozen=True)
class SlidingWindow:
    """Windows of a convolution or pooling over an image. Every pair is (vertical, horizontal).

    First, ``zeros`` rows and columns of zeros, ((top, bottom), (left, right)), are added to the
    image: none unless the padding is SAME_RESNET. Then ``padding`` is applied.
    """

    size: Pair
    stride: Pair
    padding: Literal["SAME", "VALID"]
    zeros: tuple[Pair, Pair]
    output: Pair

    @property
    def needs_explicit_padding(self) -> bool:
        """Whether zeros must be added to the image before the operation, as for SAME_RESNET."""
        return any(any(pair) for pair in self.zeros)

    @classmethod
    def make(
        cls, image: Pair, size: int | Pair, stride: int | Pair, padding: Padding
    ) -> SlidingWindow:
        """Computes padding and output size of windows over an image.

        A single number is used for both directions. ``SAME_RESNET`` is SAME at stride 1. At other
        strides, it adds (k - 1) // 2 zeros before and k // 2 zeros after, so that the position of
        the windows does not depend on the input size.
        """
        if padding not in get_args(Padding):
            raise UsageError(
                f"padding must be one of {', '.join(get_args(Padding))}, not {padding!r}"
            )
        size = (size, size) if isinstance(size, int) else size
        stride = (stride, stride) if isinstance(stride, int) else stride
        if min(*size, *stride) < 1:
            raise UsageError(f"window {size} and stride {stride} must be at least 1")
        zeros: tuple[Pair, Pair] = ((0, 0), (0, 0))
        mode = padding
        if padding == "SAME_RESNET":
            mode = "SAME" if max(stride) == 1 else "VALID"
            if mode == "VALID":
                zeros = cast(tuple[Pair, Pair], tuple(((k - 1) // 2, k // 2) for k in size))
        output = tuple(
            -(-n // s) if mode == "SAME" else (n + sum(z) - k) // s + 1
            for n, k, s, z in zip(image, size, stride, zeros, strict=True)
        )
        if min(output) < 1:
            raise UsageError(f"a {size} window does not fit a {image} image without padding")
        return cls(size, stride, cast(Literal["SAME", "VALID"], mode), zeros, cast(Pair, output))


class Network(abc.ABC, Generic[T]):
    """Creates the layers of one network, in the order in which the model calls the methods.

    Shapes never include the batch. An image-like value has shape ``(h, w, c)`` in every memory
    layout, a flat value ``(units,)``, and a sequence of tokens ``(n, c)``.

    Attributes:
      variables: the variables, in creation order.
      training: whether batch norm uses the moments of the batch, and dropout is active.
      auxiliaries: outputs and weight of each `auxiliary` head created so far, in training.
      losses: float32 scalars that functions of `apply` add to the training loss.
    """

    def __init__(self, num_classes: int, *, training: bool, batch_norm: BatchNorm) -> None:
        self._scopes: list[str] = []
        self._counts: collections.Counter[str] = collections.Counter()
        self._names: set[str] = set()
        self.variables: list[VariableSpec] = []
        self.num_classes = num_classes
        self.training = training
        self._batch_norm_defaults = batch_norm
        # The newest result that only batch norm can use, because `Model.build` gets no reference to
        # it.
        self._before_batch_norm: T | None = None
        self.auxiliaries: list[tuple[Any, float]] = []
        self.losses: list[Any] = []
        self._dropouts = 0
        self._in_block = False

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Adds the prefix ``name/`` to the names of variables within a ``with`` statement."""
        self._scopes.append(name)
        try:
            with self._name_scope(name):
                yield
        finally:
            self._scopes.pop()

    def variable(
        self,
        name: str,
        shape: Sequence[int],
        initializer: Initializer,
        *,
        trainable: bool = True,
        weight_decay: bool = True,
    ) -> T:
        """Creates a variable that no layer uses, and returns its value in the compute dtype.

        The name must be new in the current scope. The shape must be static and has no batch
        dimension; ``()`` is a scalar. Weight decay is ignored if the variable is not trainable.
        """
        spec = self._declare(
            name,
            tuple(shape),
            initializer,
            trainable=trainable,
            weight_decay=weight_decay and trainable,
        )
        return self._read(spec)

    def declared(self, spec: VariableSpec) -> T:
        """Creates the variable that `spec` declares, and returns its value in the compute dtype."""
        name = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
        return self._read(self._declare(**name))

    @abc.abstractmethod
    def shape(self, x: T) -> tuple[int, ...]:
        """Returns the shape of one example, such as ``(h, w, c)`` or ``(units,)``."""

    # Layers ------------------------------------------------------------------------------

    def conv(
        self,
        x: T,
        filters: int,
        kernel: int | Pair,
        stride: int | Pair = 1,
        padding: Padding = "SAME",
        *,
        groups: int = 1,
        batch_norm: bool | BatchNorm = False,
        activation: Activation = "relu",
        bias: float | None = 0.0,
        stddev: float | None = None,
    ) -> T:
        """2-D convolution of ``(h, w, c)``, followed by batch norm or bias, and the activation.

        Args:
          kernel: size of the kernel: one number, or (height, width).
          padding: ``SAME``, ``VALID``, or ``SAME_RESNET``, which is SAME at stride 1. At other
            strides, it adds (k - 1) // 2 zeros before and k // 2 zeros after, for every input size.
          groups: number of groups of channels that are convolved separately. The numbers of
            channels and filters must be multiples of it.
          batch_norm: whether to use batch norm instead of a bias: True for the model's settings, or
            other settings.
          activation: see `activate`; None for no activation.
          bias: initial value; None for no bias.
          stddev: standard deviation of a truncated normal for the kernel; by default, variance
            scaling by fan-in.
        """
        height, width, channels = self._image_shape(x, "conv")
        if groups < 1 or channels % groups or filters % groups:
            raise UsageError(
                f"with {groups} groups, channels and filters of a conv must be multiples of "
                f"{groups}, not {channels} and {filters}"
            )
        window = SlidingWindow.make((height, width), kernel, stride, padding)
        with self._layer("conv"):
            shape = (*window.size, channels // groups, filters)
            y = self._conv(x, self._create_kernel("kernel", shape, stddev), window, filters)
            y = self._add_bias(y, filters, None if batch_norm else bias)
        return self._norm_act(y, batch_norm, activation)

    def depthwise_conv(
        self,
        x: T,
        kernel: int | Pair,
        stride: int = 1,
        padding: Padding = "SAME",
        *,
        multiplier: int = 1,
        batch_norm: bool | BatchNorm = False,
        activation: Activation = "relu",
        bias: float | None = 0.0,
        stddev: float | None = None,
    ) -> T:
        """Convolves each channel separately: ``(h, w, c)`` to ``(h', w', c * multiplier)``.

        The arguments are the same as for `conv`. The fan-in of the kernel is height x width.
        """
        height, width, channels = self._image_shape(x, "depthwise_conv")
        window = SlidingWindow.make((height, width), kernel, stride, padding)
        with self._layer("depthwise"):
            y = self._depthwise_conv("kernel", x, window, multiplier, stddev)
            y = self._add_bias(y, channels * multiplier, None if batch_norm else bias)
        return self._norm_act(y, batch_norm, activation)

    def separable_conv(
        self,
        x: T,
        filters: int,
        kernel: int | Pair,
        stride: int = 1,
        padding: Padding = "SAME",
        *,
        multiplier: int = 1,
        batch_norm: bool | BatchNorm = False,
        activation: Activation = "relu",
        bias: float | None = 0.0,
        stddev: float | None = None,
    ) -> T:
        """A depthwise convolution, followed by a 1 x 1 convolution without a layer between them.

        Source: Chollet, arXiv:1610.02357.

        Args:
          kernel, stride, padding, multiplier: arguments of the `depthwise_conv`.
          stddev: standard deviation of truncated normals for both kernels; by default, variance
            scaling by the fan-in of each kernel.
        """
        height, width, channels = self._image_shape(x, "separable_conv")
        window = SlidingWindow.make((height, width), kernel, stride, padding)
        pointwise = SlidingWindow.make(window.output, 1, 1, "SAME")
        with self._layer("separable"):
            y = self._depthwise_conv("depthwise_kernel", x, window, multiplier, stddev)
            shape = (1, 1, channels * multiplier, filters)
            kernel_1x1 = self._create_kernel("pointwise_kernel", shape, stddev)
            y = self._conv(y, kernel_1x1, pointwise, filters)
            y = self._add_bias(y, filters, None if batch_norm else bias)
        return self._norm_act(y, batch_norm, activation)

    def batch_norm(
        self, x: T, *, activation: Activation = None, settings: BatchNorm | None = None
    ) -> T:
        """Batch normalisation over all dimensions except channels, with float32 statistics."""
        shape = self.shape(x)
        if not shape:
            raise UsageError("batch_norm takes a value with channels, not a scalar")
        channels = shape[-1]
        chosen = settings or self._batch_norm_defaults
        with self._layer("batchnorm"):
            ones, zeros = Initializer.constant(1.0), Initializer.constant(0.0)
            learned = {"trainable": True, "weight_decay": False}
            averaged = {"trainable": False, "weight_decay": False, "statistic": True}
            per_channel = (channels,)
            gamma = None
            if chosen.scale:
                gamma = self._declare("gamma", per_channel, ones, **learned)
            beta = self._declare("beta", per_channel, zeros, **learned)
            mean = self._declare("moving_mean", per_channel, zeros, **averaged)
            variance = self._declare("moving_variance", per_channel, ones, **averaged)
            y = self._batch_norm(x, BatchNormLayer(gamma, beta, mean, variance, chosen))
        return self.activate(y, activation)

    def affine(
        self,
        x: T,
        units: int,
        activation: Activation = "relu",
        *,
        bias: float | None = 0.0,
        stddev: float | None = None,
    ) -> T:
        """Fully connected layer: matrix product over the last dimension, bias, activation.

        Args:
          x: ``(inputs,)`` per example (see `flatten`), or tokens ``(..., inputs)``. For an image,
            use a 1 x 1 `conv` instead.
          bias: initial value, None for no bias.
          stddev: standard deviation of a truncated normal for the kernel; by default, sqrt(2 /
            inputs) before a ReLU (or ReLU6) and sqrt(1 / inputs) otherwise.
        """
        shape = self.shape(x)
        if len(shape) in (0, 3):
            raise UsageError(
                f"affine takes a flat input, not shape {shape}; flatten it first, or use a "
                "1 x 1 conv"
            )
        inputs = shape[-1]
        if stddev is None:
            stddev = math.sqrt((2.0 if activation in ("relu", "relu6") else 1.0) / inputs)
        with self._layer("affine"):
            kernel = self._declare("kernel", (inputs, units), Initializer.truncated_normal(stddev))
            y = self._matmul(x, self._read(kernel), units)
            return self.activate(self._add_bias(y, units, bias), activation)

    def logits(self, x: T, *, stddev: float | None = None) -> T:
        """Last layer: an affine layer without activation, with ``num_classes`` outputs."""
        return self.affine(x, self.num_classes, None, stddev=stddev)

    def auxiliary(self, outputs: Any, weight: float) -> None:
        """Adds an auxiliary head: outputs that are used only for the training loss.

        Create the layers of the head only if `training` is true; then its FLOPs are not included in
        a forward pass without training. Create them in a `scope`, so that later layers have the
        same names with and without the head.

        Args:
          outputs: outputs of the head. They have the same form as the result of `build`, because
            both use the same loss.
        """
        if not weight > 0.0:
            raise UsageError(f"the weight of an auxiliary head must be above 0, not {weight}")
        if self.training:
            self.auxiliaries.append((outputs, weight))

    def relu(self, x: T) -> T:
        """The ReLU activation, max(x, 0)."""
        return self._elementwise("relu", x)

    def activate(self, x: T, activation: Activation) -> T:
        """Applies an activation: ``relu``, ``relu6``, ``sigmoid``, ``tanh``, ``swish`` or ``gelu``.

        ``relu6`` is limited to 6, ``swish`` is x * sigmoid(x), and ``gelu`` is the exact x *
        Phi(x). If `activation` is None, the result is ``x``.
        """
        if activation is None:
            return x
        if activation not in get_args(Elementwise):
            names = ", ".join(get_args(Elementwise))
            raise UsageError(f"activation must be one of {names}, or None, not {activation!r}")
        return self._elementwise(activation, x)

    def max_pool(self, x: T, size: int | Pair, stride: int | Pair, padding: Padding = "VALID") -> T:
        """Max pooling: the maximum of each window in each channel."""
        return self._pool_layer("max", x, size, stride, padding)

    def avg_pool(self, x: T, size: int | Pair, stride: int | Pair, padding: Padding = "VALID") -> T:
        """Average pooling: the mean of each window. With SAME, the mean excludes padding."""
        return self._pool_layer("avg", x, size, stride, padding)

    def global_avg_pool(self, x: T) -> T:
        """Global average pooling: the mean over height and width, ``(h, w, c)`` to ``(c,)``."""
        self._image_shape(x, "global_avg_pool")
        return self._spatial_mean(x)

    def dropout(self, x: T, keep: float = 0.5) -> T:
        """In training, keeps each value with probability ``keep`` and scales it by 1 / ``keep``."""
        index = self._next_draw_index("dropout", keep)
        if not self.training or keep == 1.0:
            return x
        return self._dropout(x, keep, index)

    def drop_path(self, x: T, keep: float, *, by_progress: bool = False) -> T:
        """Stochastic depth: in training, sets examples to 0 with probability 1 - ``keep``.

        The other examples are divided by their probability. Use it for the branch of a residual
        block. With ``by_progress``, the probability of keeping an example decreases linearly from 1
        at the start of the training to ``keep`` at the end.

        Sources: Huang et al., arXiv:1603.09382; the schedule: Zoph et al., arXiv:1707.07012.
        """
        index = self._next_draw_index("drop_path", keep)
        if not self.training or keep == 1.0:
            return x
        return self._drop_path(x, keep, index, by_progress)

    def flatten(self, x: T) -> T:
        """Flattens ``(h, w, c)`` to ``(h * w * c,)``.

        Channels change fastest in every memory layout.
        """
        return self.reshape(x, (math.prod(self.shape(x)),))

    def add(self, x: T, y: T) -> T:
        """Elementwise sum of two values with the same shape."""
        if self.shape(x) != self.shape(y):
            raise UsageError(f"add takes equal shapes, not {self.shape(x)} and {self.shape(y)}")
        return self._combine("add", x, y, self.shape(x))

    def multiply(self, x: T, y: T) -> T:
        """Elementwise product with NumPy's broadcasting: a value ``(c,)`` scales channels."""
        shape = broadcast_shape(self.shape(x), self.shape(y))
        if shape is None:
            raise UsageError(
                f"multiply takes shapes that broadcast, not {self.shape(x)} and {self.shape(y)}"
            )
        return self._combine("multiply", x, y, shape)

    def concat(self, xs: Sequence[T]) -> T:
        """Concatenates values along the channels (the last dimension of their shapes)."""
        if len({self.shape(x)[:-1] for x in xs}) != 1:
            shapes = ", ".join(str(self.shape(x)) for x in xs)
            raise UsageError(f"concat takes shapes that differ in channels only, not {shapes}")
        return self._concat(xs)

    def lrn(
        self, x: T, *, radius: int = 5, bias: float = 1.0, alpha: float = 1.0, beta: float = 0.5
    ) -> T:
        """Local response normalisation across channels: x / (bias + alpha * sum x^2)^beta.

        The sum includes ``radius`` channels on each side.
        """
        self._image_shape(x, "lrn")

        def normalise_locally(image: Any) -> Any:
            whole = tf.cast(image, tf.float32)  # In float16, the squares of values may overflow.
            y = tf.nn.local_response_normalization(whole, radius, bias, alpha, beta)
            return tf.cast(y, image.dtype)

        return self.apply(normalise_locally, x)

    def pad_channels(self, x: T, before: int, after: int) -> T:
        """Adds channels of zeros to ``x``: ``before`` at the beginning, ``after`` at the end."""
        self._image_shape(x, "pad_channels")
        return self._pad_channels(x, before, after)

    # Layers for sequences of tokens --------------------------------------------------------

    def reshape(self, x: T, shape: Sequence[int]) -> T:
        """Reshapes each example, with channels as the fastest-changing dimension.

        The order of the elements is the same in every memory layout.
        """
        old, new = self.shape(x), tuple(shape)
        if math.prod(old) != math.prod(new):
            raise UsageError(f"reshape keeps the number of elements; {old} cannot become {new}")
        return x if old == new else self._reshape(x, new)

    def transpose(self, x: T, order: Sequence[int]) -> T:
        """Permutes the dimensions of each example, as `numpy.transpose` does.

        The batch dimension is not included in the order. It remains first.
        """
        shape = self.shape(x)
        if sorted(order) != list(range(len(shape))):
            raise UsageError(f"transpose of {shape} needs a permutation of dimensions, not {order}")
        return self._transpose(x, tuple(order))

    def split(self, x: T, parts: int) -> list[T]:
        """Splits the channels (the last dimension) into ``parts`` values of equal size."""
        shape = self.shape(x)
        if parts < 1 or shape[-1] % parts:
            raise UsageError(
                f"split needs a number of channels that is divisible by {parts}, but the shape is "
                f"{shape}"
            )
        return self._split(x, parts)

    def layer_norm(self, x: T, *, epsilon: float = 1e-6) -> T:
        """Normalises each position over the channels, in float32 (Ba et al., arXiv:1607.06450)."""
        channels = (self.shape(x)[-1],)
        with self._layer("layernorm"):
            one, zero = Initializer.constant(1.0), Initializer.constant(0.0)
            gamma = self._declare("gamma", channels, one, weight_decay=False)
            beta = self._declare("beta", channels, zero, weight_decay=False)
            return self._layer_norm(x, gamma, beta, epsilon)

    def attention(self, query: T, key: T, value: T, heads: int, *, bias: T | None = None) -> T:
        """Scaled dot-product attention. Each head uses an equal share of the channels.

        Use `affine` layers for the learned projections before and after attention. Source: Vaswani
        et al., arXiv:1706.03762.

        Args:
          query: ``(..., n, c)``, which is also the shape of the result.
          key: ``(..., m, c)``, with the same shape as ``value`` and the same leading dimensions as
            the query.
          bias: value that is added before the softmax. It must be a variable, or be computed only
            from variables, with a shape that broadcasts to ``(..., heads, n, m)``.
        """
        shape, keys, values = self.shape(query), self.shape(key), self.shape(value)
        fit = keys == values and len(shape) == len(keys)
        if not fit or (*shape[:-2], shape[-1]) != (*keys[:-2], keys[-1]) or len(shape) in (1, 3):
            raise UsageError(
                "attention takes a query (n, c), and a key and a value of the same shape (m, "
                f"c), not shapes {shape}, {keys} and {values}"
            )
        if heads < 1 or shape[-1] % heads:
            raise UsageError(f"attention cannot divide {shape[-1]} channels among {heads} heads")
        if bias is not None:
            whole = (*shape[:-2], heads, shape[-2], keys[-2])
            if broadcast_shape(self.shape(bias), whole) != whole:
                raise UsageError(
                    f"attention bias of shape {self.shape(bias)} does not broadcast to {whole}"
                )
        return self._attention(query, key, value, heads, bias)

    def embedding(self, ids: T, vocabulary: int, units: int, *, stddev: float = 0.05) -> T:
        """Looks up a row of a learned table for each integer; returns ``(*shape of ids, units)``.

        The gradient is sparse (``tf.IndexedSlices``). There is no weight decay, because it would
        also change rows that do not occur in a batch.

        Args:
          ids: integers in [0, vocabulary), of any shape.
          stddev: standard deviation of the truncated normal that initialises the table.
        """
        with self._layer("embedding"):
            normal = Initializer.truncated_normal(stddev)
            table = self._declare("table", (vocabulary, units), normal, weight_decay=False)
            return self._embedding(ids, self._read(table))

    def recurrent(self, x: T, units: int, cell: Cell = "gru", *, bidirectional: bool = False) -> T:
        """Recurrent layer on tokens ``(n, c)``. Returns the state after each token, ``(n, units)``.

        Args:
          cell: ``gru`` (the reset gate is applied after the product, as in cuDNN and Keras),
            ``lstm`` (with 1 added to the bias of the forget gate) or ``rnn`` (tanh).
          bidirectional: whether a second cell runs from the last token to the first. Its states are
            concatenated in the channels: ``(n, 2 * units)``.
        """
        if cell not in get_args(Cell):
            raise UsageError(f"cell must be one of {', '.join(get_args(Cell))}, not {cell!r}")
        shape = self.shape(x)
        if len(shape) != 2:
            raise UsageError(f"recurrent takes a sequence (n, c), not shape {shape}")
        directions = ("forward", "backward") if bidirectional else ("forward",)
        width, zero = GATES[cell] * units, Initializer.constant(0.0)
        scaled = Initializer.variance_scaling()
        outputs = []
        with self._layer(cell):
            for direction in directions:
                with self.scope(direction):
                    weights = [
                        self._declare("kernel", (shape[1], width), scaled),
                        self._declare("recurrent", (units, width), scaled),
                        self._declare("bias", (width,), zero),
                    ]
                    if cell == "gru":  # The reset gate multiplies the recurrent bias, too.
                        weights.append(self._declare("recurrent_bias", (width,), zero))
                    read = [self._read(spec) for spec in weights]
                    outputs.append(self._recurrent(x, cell, read, direction == "backward"))
            return self._concat(outputs) if bidirectional else outputs[0]

    # Blocks that --recompute=blocks recomputes ---------------------------------------------

    def block(self, body: Callable[..., T], *xs: T, **options: Any) -> T:
        """Creates the layers of ``body(net, *xs, **options)`` as a block, and returns its result.

        With ``--recompute=blocks``, a training step stores the inputs of a block but not the values
        inside it. The backward pass calls ``body`` again, with another ``net``. A block inside a
        block belongs to the outer one.

        Args:
          body: function of a network, values and options. All layers must be layers of its ``net``,
            and the values that it uses must be its arguments or be created inside it.
          *xs: values that layers or `variable` returned.
        """
        if self._in_block:
            return body(self, *xs, **options)
        self._in_block = True
        try:
            return self._block(functools.partial(body, **options), xs)
        finally:
            self._in_block = False

    # TensorFlow functions in custom models -----------------------------------------

    def apply(
        self,
        function: Callable[..., Any],
        *xs: T,
        shape: Sequence[int] | None = None,
        flops: int | LayerFlopsAndMemory = 0,
    ) -> T:
        """Applies a TensorFlow function, for operations that are not available as a layer.

        Args:
          function: function with one tensor argument for each value in ``xs``; it returns one
            tensor. Image-like tensors are ``[n, h, w, c]``, even if the network uses NCHW.
          *xs: values that layers or `variable` returned.
          shape: shape of the result, without batch; by default, the shape of the first input.
          flops: FLOPs of the forward pass for one example, or the work of all layers in the
            function.
        """
        if not xs:
            raise UsageError("apply needs at least one input")
        result = self.shape(xs[0]) if shape is None else tuple(shape)
        return self._apply(function, xs, result, flops)

    # Helpers for creating layers ---------------------------------------------------------

    @contextlib.contextmanager
    def _layer(self, kind: str) -> Iterator[None]:
        key = "/".join([*self._scopes, kind])
        number = self._counts[key]
        self._counts[key] += 1
        with self.scope(f"{kind}{number}"):
            yield

    def _declare(
        self, name: str, shape: tuple[int, ...], initializer: Initializer, **options: Any
    ) -> VariableSpec:
        full = "/".join([*self._scopes, name])
        if full in self._names:
            raise UsageError(f"variable {full} is declared twice; names must differ")
        self._names.add(full)
        spec = VariableSpec(full, shape, initializer, **options)
        self.variables.append(spec)
        return spec

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
            raise UsageError("pooling supports only the paddings SAME and VALID, not SAME_RESNET")
        height, width, _ = self._image_shape(x, f"{kind}_pool")
        window = SlidingWindow.make((height, width), size, stride, padding)
        return self._pool(kind, x, window)

    def _next_draw_index(self, layer: str, keep: float) -> int:
        """Checks a layer's keep probability, and returns the layer's number among random layers."""
        if not 0.0 < keep <= 1.0:
            raise UsageError(f"{layer}: keep={keep} must be above 0 and at most 1")
        index = self._dropouts
        self._dropouts += 1
        return index

    def _create_kernel(self, name: str, shape: tuple[int, ...], stddev: float | None) -> T:
        scaled = Initializer.variance_scaling()
        if stddev is not None:
            scaled = Initializer.truncated_normal(stddev)
        return self._read(self._declare(name, shape, scaled))

    def _depthwise_conv(
        self, name: str, x: T, window: SlidingWindow, multiplier: int, stddev: float | None
    ) -> T:
        if window.stride[0] != window.stride[1]:
            raise UsageError(
                "a depthwise convolution needs the same stride in both directions, not "
                f"{window.stride}"
            )
        if multiplier < 1:
            raise UsageError(f"depthwise multiplier {multiplier} must be at least 1")
        # The fan-in of a depthwise kernel is height x width, independent of the number of channels.
        if stddev is None:
            stddev = 1.0 / math.sqrt(math.prod(window.size)) / TRUNCATED_STDDEV
        channels = self.shape(x)[2]
        kernel = self._create_kernel(name, (*window.size, channels, multiplier), stddev)
        return self._conv(x, kernel, window, channels * multiplier, depthwise=True)

    def _add_bias(self, y: T, size: int, value: float | None) -> T:
        """Adds a trainable bias with the initial value `value`, or nothing if `value` is None."""
        if value is None:
            return y
        bias = self._declare("bias", (size,), Initializer.constant(value))
        return self._bias_add(y, self._read(bias))

    def _norm_act(self, y: T, batch_norm: bool | BatchNorm, activation: Activation) -> T:
        if not batch_norm:
            return self.activate(y, activation)
        settings = None if batch_norm is True else batch_norm
        self._before_batch_norm = y
        return self.batch_norm(y, activation=activation, settings=settings)

    # Abstract methods, which `ShapeNetwork` and `GraphNetwork` define --------------------

    @abc.abstractmethod
    def _name_scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Groups the operations that are created within a ``with`` statement under a name."""

    @abc.abstractmethod
    def _read(self, spec: VariableSpec) -> T: ...

    @abc.abstractmethod
    def _reshape(self, x: T, shape: tuple[int, ...]) -> T: ...

    @abc.abstractmethod
    def _transpose(self, x: T, order: tuple[int, ...]) -> T: ...

    @abc.abstractmethod
    def _split(self, x: T, parts: int) -> list[T]: ...

    @abc.abstractmethod
    def _concat(self, xs: Sequence[T]) -> T: ...

    @abc.abstractmethod
    def _layer_norm(self, x: T, gamma: VariableSpec, beta: VariableSpec, epsilon: float) -> T: ...

    @abc.abstractmethod
    def _attention(self, query: T, key: T, value: T, heads: int, bias: T | None) -> T: ...

    @abc.abstractmethod
    def _embedding(self, ids: T, table: T) -> T: ...

    @abc.abstractmethod
    def _recurrent(self, x: T, cell: Cell, weights: Sequence[T], reverse: bool) -> T: ...

    @abc.abstractmethod
    def _conv(
        self, x: T, kernel: T, window: SlidingWindow, filters: int, *, depthwise: bool = False
    ) -> T: ...

    @abc.abstractmethod
    def _bias_add(self, x: T, bias: T) -> T: ...

    @abc.abstractmethod
    def _batch_norm(self, x: T, layer: BatchNormLayer) -> T: ...

    @abc.abstractmethod
    def _matmul(self, x: T, kernel: T, units: int) -> T: ...

    @abc.abstractmethod
    def _elementwise(self, kind: Elementwise, x: T) -> T: ...

    @abc.abstractmethod
    def _pool(self, kind: Literal["max", "avg"], x: T, window: SlidingWindow) -> T: ...

    @abc.abstractmethod
    def _spatial_mean(self, x: T) -> T: ...

    @abc.abstractmethod
    def _dropout(self, x: T, keep: float, index: int) -> T: ...

    @abc.abstractmethod
    def _drop_path(self, x: T, keep: float, index: int, by_progress: bool) -> T: ...

    @abc.abstractmethod
    def _combine(
        self, kind: Literal["add", "multiply"], x: T, y: T, shape: tuple[int, ...]
    ) -> T: ...

    @abc.abstractmethod
    def _pad_channels(self, x: T, before: int, after: int) -> T: ...

    @abc.abstractmethod
    def _block(self, body: Callable[..., T], xs: Sequence[T]) -> T: ...

    @abc.abstractmethod
    def _apply(
        self,
        function: Callable[..., Any],
        xs: Sequence[T],
        shape: tuple[int, ...],
        flops: int | LayerFlopsAndMemory,
    ) -> T: ...


def broadcast_shape(first: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the shape to which NumPy broadcasts two shapes, or None if they are incompatible."""
    rank = max(len(first), len(other))
    pairs = zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(other)) + other, strict=True)
    sizes = [(min(pair), max(pair)) for pair in pairs]
    if any(small != large and small != 1 for small, large in sizes):
        return None
    return tuple(large for _, large in sizes)
