"""Builds networks as TensorFlow graphs.

For explicit padding, ``tf.pad`` adds zeros before a VALID convolution. The filter gradient of a
convolution with explicit padding would not use oneDNN (measured on CPU in bfloat16: steps take 1.4
times as long).
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from cnnbench.arrays import Tensor
from cnnbench.errors import UsageError
from cnnbench.models.cpu_operations import CpuOperations, convolve_without_onednn, is_doubtful
from cnnbench.models.elements import elements_of_role, resolve_sizes, values_by_name
from cnnbench.models.model import Model, build_checked_outputs
from cnnbench.models.network import Cell, Elementwise, Network, SlidingWindow
from cnnbench.models.spec import BatchNormLayer, LayerFlopsAndMemory, VariableSpec

DataFormat = Literal["NHWC", "NCHW"]
Reader = Callable[[VariableSpec, Any], Tensor]
Synchronise = Callable[[str, Tensor, Tensor], tuple[Tensor, Tensor, int]]
"""Function that converts moments of one tower's batch to moments of the batches of all towers.

It maps (layer name, mean, biased variance) to (mean, biased variance, number of towers). The
moments are float32 ``[channels]``. Gradients flow back through the function.
"""
_Weights = dict[tuple[VariableSpec, Any], Tensor]
"""Values of variables that a block has read, by specification and dtype."""

# Smallest ratio of result elements to kernel elements at which folding batch norm into the kernel
# saves time.
_MIN_FOLDING_RATIO = 4

_TO_NCHW = (0, 3, 1, 2)
_TO_NHWC = (0, 2, 3, 1)

_ELEMENTWISE: dict[Elementwise, Callable[[Tensor], Tensor]] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
    "swish": tf.nn.silu,
    "gelu": tf.nn.gelu,
}


class StateUpdate(NamedTuple):
    """An update of a non-trainable variable in each step: new = decay * old + (1 - decay) * value.

    Moving averages of batch norm follow the moments of the batch, float32 ``[channels]``.
    """

    variable: VariableSpec
    value: Tensor
    decay: float = 0.0


class _FoldableConvolution(NamedTuple):
    """A convolution, with a function that repeats it with another kernel of the same shape."""

    result: Tensor
    kernel: Tensor
    convolve: Callable[[Tensor], Tensor]
    scope: str

    @property
    def folding_saves_time(self) -> bool:
        """Whether inference is faster if batch norm is folded into the convolution's kernel.

        TensorFlow itself fuses a convolution with batch norm and ReLU, but not with the addition at
        the end of a block. A constant kernel is folded only once. A kernel in a variable is folded
        in every step. Folding saves time if it takes less time than the separate batch norm.
        """
        if tf.is_symbolic_tensor(self.kernel) and self.kernel.op.type == "Const":
            return True
        size = self.result.shape.num_elements()
        return size is not None and size >= _MIN_FOLDING_RATIO * self.kernel.shape.num_elements()


class GraphNetwork(Network[Tensor]):
    """Network whose layers create TensorFlow operations on the current device in `Model.build`.

    Attributes:
      compute_dtype: a tf.DType.
      updates: updates of non-trainable variables, in the order of the layers; empty in evaluation.

    Args:
      read: function that returns the value of a variable in a given dtype. This is the compute
        dtype for kernels, biases and a model's own variables, and float32 for batch norm.
      data_format: memory layout of the layers. Weights and logits do not depend on it.
      compute_dtype: float32, bfloat16 or float16, as a ``tf.DType`` or by name.
      seed: seed of dropout: an integer, or an integer tensor of shape ``[2]`` (seed and step) for
        different draws in each step. With the same seed, XLA draws different numbers than
        TensorFlow's kernels.
      training_steps: number of steps in the whole training. Some layers depend on the progress,
        which is the step in ``seed`` divided by this number. 0 means that the progress is 1.
      conv_gradients: how gradients are computed in NHWC on a CPU: "library" for TensorFlow's own
        gradients, or a key of `cnnbench.models.cpu_operations.FASTEST_ALGORITHMS`.
      synchronise: function with which batch norm, in training, computes the moments of all towers'
        batches. None: batch norm uses the moments of its own batch.
      recomputes: whether training stores only the inputs of blocks (`Network.block`), and the
        backward pass computes the values inside them again.
      avoids_doubtful: whether a CPU computes convolutions otherwise that oneDNN may compute wrongly
        (see `cnnbench.models.cpu_operations.is_doubtful`).
      fold_batch_norm: whether batch norm after a convolution may be replaced by a factor of the
        kernel and a bias; only in evaluation, on a CPU.
    """

    def __init__(
        self,
        model: Model,
        num_classes: int,
        read: Reader,
        *,
        training: bool,
        data_format: DataFormat = "NHWC",
        compute_dtype: Any = tf.float32,
        seed: Any = 0,
        training_steps: int = 0,
        on_cpu: bool = True,
        conv_gradients: str = "library",
        synchronise: Synchronise | None = None,
        recomputes: bool = False,
        avoids_doubtful: bool = False,
        fold_batch_norm: bool = False,
    ) -> None:
        super().__init__(num_classes, training=training, batch_norm=model.batch_norm)
        self._model = model
        elements = resolve_sizes(model.elements, model, num_classes)
        self._features = elements_of_role(elements, "feature")
        self.updates: list[StateUpdate] = []
        self._reader = read
        self._channels_first = data_format == "NCHW"
        self._channel_axis = 1 if self._channels_first else 3  # of images
        self._format = data_format
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self._seed = seed
        self._training_steps = training_steps
        self._cpu_operations = CpuOperations(conv_gradients) if on_cpu and training else None
        self._avoids_doubtful = avoids_doubtful and on_cpu
        self._synchronise = synchronise
        self._recomputes = recomputes and training
        self._folds = fold_batch_norm and on_cpu and not training
        # The newest convolution, with which a following batch norm can be folded.
        self._convolution: _FoldableConvolution | None = None
        self._unbatched: set[Any] = set()  # `ref()` of values without a batch axis.
        self._subsampled: dict[tuple[Any, tuple[int, int]], Tensor] = {}
        outer = tf.get_current_name_scope()
        self._outer_scope = [outer] if outer else []
        # Image-like features in NHWC. The key is `ref()` of the same feature in the network's
        # layout.
        self._inputs: dict[Any, Tensor] = {}

    def forward(self, features: Any) -> Any:
        """Creates the operations of a forward pass, which assign no variables. Call it only once.

        Args:
          features: images ``[n, h, w, c]`` by default; a mapping if the model has several features.
            Features that are declared with a floating-point dtype may have any numeric dtype and
            are cast. Image-like features are transposed to the network's layout.

        Returns:
          The outputs of the model, one value or a mapping, with real numbers as float32. By
          default, they are logits ``[n, num_classes]``. The outputs in `auxiliaries` have the same
          form.
        """
        values = values_by_name(self._features, "feature", features)
        received = {}
        for element in self._features:
            value = values[element.name]
            shape = tuple(value.shape[1:])
            if shape != element.sizes:
                raise UsageError(
                    f"model {self._model.name} takes {element.name}s of shape {element.sizes}, "
                    f"not {shape}"
                )
            received[element.name] = self.convert_feature(value) if element.is_real else value
        # `Model.build` contains only Python loops, so AutoGraph would find nothing to convert.
        build = tf.autograph.experimental.do_not_convert(build_checked_outputs)
        outputs = build(self._model, self, received)
        self.auxiliaries = [(self.convert_outputs(head), w) for head, w in self.auxiliaries]
        return self.convert_outputs(outputs)

    def convert_feature(self, value: Tensor) -> Tensor:
        """Converts a real-valued feature to the compute dtype and memory layout of the network."""
        rows = _cast(value, self.compute_dtype)
        if len(value.shape) != 4:
            return rows
        laid_out = self._to_compute_layout(rows)
        self._inputs[laid_out.ref()] = rows
        return laid_out

    def convert_outputs(self, outputs: Any) -> Any:
        """Converts outputs of the model: real numbers to float32, image-like values to NHWC."""
        if isinstance(outputs, Mapping):
            return {name: self.convert_outputs(value) for name, value in outputs.items()}
        value = self._to_nhwc(outputs)
        return _cast(value, tf.float32) if value.dtype.is_floating else value

    def shape(self, x: Tensor) -> tuple[int, ...]:
        """Returns a value's shape without batch dimension, always with the channels last."""
        if x.ref() in self._unbatched:
            return tuple(x.shape)
        shape = tuple(x.shape[1:])
        if self._channels_first and len(shape) == 3:
            return (shape[1], shape[2], shape[0])
        return shape

    # Layout ------------------------------------------------------------------------------

    def _to_compute_layout(self, x: Tensor) -> Tensor:
        return tf.transpose(x, _TO_NCHW) if self._channels_first else x

    def _to_nhwc(self, x: Tensor) -> Tensor:
        if x.ref() in self._inputs:
            return self._inputs[x.ref()]  # An input feature exists in this layout already.
        if not self._channels_first or len(x.shape) != 4 or x.ref() in self._unbatched:
            return x
        return tf.transpose(x, _TO_NHWC)

    def _per_dimension(self, vertical: Any, horizontal: Any, other: Any) -> list[Any]:
        if self._channels_first:
            return [other, other, vertical, horizontal]
        return [other, vertical, horizontal, other]

    def _channel_axis_of(self, x: Tensor) -> int:
        image_like = len(x.shape) == 4 and x.ref() not in self._unbatched
        return self._channel_axis if image_like else -1

    # Variables ---------------------------------------------------------------------------

    def _name_scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        # With the final slash of a full path, TensorFlow enters an existing name scope again, such
        # as stage1. Without the slash, TensorFlow would create a new name scope, such as stage1_1.
        path = "/".join([*self._outer_scope, *self._scopes, ""])
        scope: contextlib.AbstractContextManager[Any] = tf.name_scope(path)
        return scope

    def _read(self, spec: VariableSpec) -> Tensor:
        value = self._reader(spec, tf.as_dtype(spec.dtype or self.compute_dtype))
        return self._mark_unbatched(value)

    def _mark_unbatched(self, value: Tensor) -> Tensor:
        self._unbatched.add(value.ref())
        return value

    # Layers ------------------------------------------------------------------------------

    def _conv(
        self,
        x: Tensor,
        kernel: Tensor,
        window: SlidingWindow,
        filters: int,
        *,
        depthwise: bool = False,
    ) -> Tensor:
        grouped = depthwise or kernel.shape[2] != self.shape(x)[2]
        operations = None if self._channels_first or grouped else self._cpu_operations
        if operations is not None and window.size == (1, 1):
            pixels = self._subsample(operations, x, window)
            return operations.conv(pixels, kernel, [1, 1, 1, 1], "SAME")
        strides = self._per_dimension(*window.stride, 1)
        if window.needs_explicit_padding:
            x = tf.pad(x, self._per_dimension(*window.zeros, (0, 0)))
        operation = tf.raw_ops.DepthwiseConv2dNative if depthwise else tf.raw_ops.Conv2D
        if self.must_avoid_library(x, kernel, window):
            pixels = tf.transpose(x, _TO_NHWC) if self._channels_first else x
            strides = [1, *window.stride, 1]
            y = convolve_without_onednn(operation, pixels, kernel, strides, window.padding)
            return self._to_compute_layout(y)
        if operations is not None:
            return operations.conv(x, kernel, strides, window.padding)
        scope = tf.get_current_name_scope()

        def convolve(kernel: Tensor) -> Tensor:
            return operation(
                input=x,
                filter=kernel,
                strides=strides,
                padding=window.padding,
                data_format=self._format,
            )

        y = convolve(kernel)
        if self._folds:
            self._convolution = _FoldableConvolution(y, kernel, convolve, scope)
        return y

    def must_avoid_library(self, x: Tensor, kernel: Tensor, window: SlidingWindow) -> bool:
        """Whether a convolution of padded images is not computed by TensorFlow's operation."""
        strides = self._per_dimension(*window.stride, 1)
        return self._avoids_doubtful and is_doubtful(
            x, kernel, strides, window.padding, self._format
        )

    def _subsample(self, operations: CpuOperations, x: Tensor, window: SlidingWindow) -> Tensor:
        """Selects the rows and columns of images that a 1 x 1 convolution with stride uses.

        The first two convolutions of a block share the result.
        """
        if window.stride == (1, 1):
            return x
        key = (x.ref(), window.stride)
        if key not in self._subsampled:
            self._subsampled[key] = operations.subsample(x, window.stride)
        return self._subsampled[key]

    def _bias_add(self, x: Tensor, bias: Tensor) -> Tensor:
        layout = self._format if len(x.shape) == 4 else "NHWC"
        return tf.raw_ops.BiasAdd(value=x, bias=bias, data_format=layout)

    def _batch_norm(self, x: Tensor, layer: BatchNormLayer) -> Tensor:
        last = self._convolution
        if last and last.result is x is self._before_batch_norm and last.folding_saves_time:
            return self._fold_batch_norm(last, layer)

        def value(spec: VariableSpec) -> Tensor:
            return self._reader(spec, tf.float32)

        offset = value(layer.beta)
        scale = None if layer.gamma is None else value(layer.gamma)
        epsilon, channels_at = layer.settings.epsilon, self._channel_axis_of(x)
        image_like = len(x.shape) == 4
        if self.training and self._synchronise is not None:
            y, mean, variance = synchronised_batch_norm(
                x,
                scale,
                offset,
                name=layer.mean.name,
                epsilon=epsilon,
                channels_at=channels_at,
                synchronise=self._synchronise,
                unbiased=layer.settings.unbiased,
            )
            self._record_averages(layer, mean, variance)
            return y
        averages: tuple[Any, Any] = (
            ([], []) if self.training else (value(layer.mean), value(layer.variance))
        )
        if not self.training and offset.shape[0] % 4:
            # TensorFlow 2.21 fuses batch norm with a following ReLU on GPUs, but the fused
            # operation requires that the number of channels is a multiple of 4.
            precise = _cast(x, tf.float32)
            y = normalise_channels(precise, *averages, scale, offset, epsilon, channels_at)
            return _cast(y, x.dtype)
        # Some cuDNN batch norms take at most 65,535 examples, so tokens become pixels of an image
        # instead of examples.
        column = (-1, math.prod(x.shape[1:-1]), 1, x.shape[-1])
        fused = tf.raw_ops.FusedBatchNormV3(
            x=x if image_like else tf.reshape(x, column),
            scale=tf.ones(offset.shape) if scale is None else scale,
            offset=offset,
            mean=averages[0],
            variance=averages[1],
            epsilon=epsilon,
            data_format=self._format if image_like else "NHWC",
            is_training=self.training,
        )
        if self.training:
            variance = fused.batch_variance
            if not layer.settings.unbiased:
                count = tf.cast(tf.size(x) // offset.shape[0], tf.float32)
                variance *= (count - 1.0) / count
            self._record_averages(layer, fused.batch_mean, variance)
        return fused.y if image_like else tf.reshape(fused.y, [-1, *x.shape[1:]])

    def _record_averages(self, layer: BatchNormLayer, mean: Tensor, variance: Tensor) -> None:
        """Adds updates of a layer's moving averages by the moments of this step's batch."""
        decay = layer.settings.decay
        self.updates.append(StateUpdate(layer.mean, mean, decay))
        self.updates.append(StateUpdate(layer.variance, variance, decay))

    def _fold_batch_norm(self, convolution: _FoldableConvolution, layer: BatchNormLayer) -> Tensor:
        """Repeats a convolution with a scaled kernel and a bias instead of the batch norm after it.

        TensorFlow fuses a ReLU or an addition that follows with this convolution.
        """
        factor, offset = self._factor_and_offset(layer)
        kernel = convolution.kernel
        # The shape of a kernel is [h, w, in, out], of a depthwise kernel [h, w, in, outputs per
        # input].
        per_output = tf.reshape(factor, [-1, kernel.shape[3]])
        with tf.name_scope(convolution.scope + "/"):
            scaled = _cast(kernel, tf.float32) * per_output
            y = convolution.convolve(_cast(scaled, self.compute_dtype))
            return self._bias_add(y, _cast(offset, self.compute_dtype))

    def _factor_and_offset(self, layer: BatchNormLayer) -> tuple[Tensor, Tensor]:
        """Returns a factor and an offset per channel that replace batch norm in evaluation."""
        factor = tf.math.rsqrt(self._reader(layer.variance, tf.float32) + layer.settings.epsilon)
        if layer.gamma is not None:
            factor *= self._reader(layer.gamma, tf.float32)
        mean = self._reader(layer.mean, tf.float32)
        return factor, self._reader(layer.beta, tf.float32) - mean * factor

    def _matmul(self, x: Tensor, kernel: Tensor, units: int) -> Tensor:
        if len(x.shape) == 2:
            matmul = self._cpu_operations.matmul if self._cpu_operations else tf.linalg.matmul
            return matmul(x, kernel)
        # Rows of all examples are merged into one matrix; a batched product would compute one
        # kernel gradient per example.
        rows = tf.linalg.matmul(tf.reshape(x, [-1, x.shape[-1]]), kernel)
        return tf.reshape(rows, [-1, *x.shape[1:-1], units])

    def _elementwise(self, kind: Elementwise, x: Tensor) -> Tensor:
        return _ELEMENTWISE[kind](x)

    def _pool(self, kind: Literal["max", "avg"], x: Tensor, window: SlidingWindow) -> Tensor:
        pool = tf.nn.max_pool2d if kind == "max" else tf.nn.avg_pool2d
        return pool(x, window.size, window.stride, window.padding, data_format=self._format)

    def _spatial_mean(self, x: Tensor) -> Tensor:
        return tf.reduce_mean(x, (2, 3) if self._channels_first else (1, 2))

    def _dropout(self, x: Tensor, keep: float, index: int) -> Tensor:
        shape = x.shape if x.shape.is_fully_defined() else tf.shape(x)
        with tf.name_scope(f"dropout{index}"):
            return self._keep_random_share(x, shape, keep, index)

    def _drop_path(self, x: Tensor, keep: float, index: int, by_progress: bool) -> Tensor:
        share = 1.0 - (1.0 - keep) * self._training_progress() if by_progress else keep
        shape = [x.shape[0] or tf.shape(x)[0], *[1] * (len(x.shape) - 1)]
        return self._keep_random_share(x, shape, share, index)

    def _keep_random_share(self, x: Tensor, shape: Any, share: Any, index: int) -> Tensor:
        """Keeps each value with probability `share` and divides it by `share`; otherwise sets 0.

        Values are kept or dropped together where `shape` has size 1.
        """
        seed = tf.convert_to_tensor(self._seed)
        if seed.shape.rank == 0:
            seed = tf.stack([seed, tf.zeros_like(seed)])
        seed = tf.random.experimental.stateless_fold_in(seed, index)
        # With 16-bit random numbers, the share of kept values would deviate from `share`.
        draw = tf.random.stateless_uniform(shape, seed, alg="philox")
        return tf.where(draw < share, x * tf.cast(1.0 / share, x.dtype), tf.zeros([], x.dtype))

    def _training_progress(self) -> Tensor:
        """Returns the completed share of all training steps, from 0 to 1."""
        seed = tf.convert_to_tensor(self._seed)
        if seed.shape.rank == 0 or not self._training_steps:
            return 1.0
        return tf.minimum(1.0, tf.cast(seed[1], tf.float32) / self._training_steps)

    def _combine(
        self, kind: Literal["add", "multiply"], x: Tensor, y: Tensor, shape: tuple[int, ...]
    ) -> Tensor:
        operation = tf.add if kind == "add" else tf.multiply
        unbatched = [value.ref() in self._unbatched for value in (x, y)]
        if all(unbatched):
            return self._mark_unbatched(operation(x, y))
        rank = len(shape)
        x = self._align_rank(x, unbatched[0], rank)
        return operation(x, self._align_rank(y, unbatched[1], rank))

    def _align_rank(self, x: Tensor, unbatched: bool, rank: int) -> Tensor:
        """Adds dimensions of size 1 to a value, so that it broadcasts to examples with `rank`."""
        shape = self.shape(x)
        if not unbatched and len(shape) == rank:
            return x
        padded = (1,) * (rank - len(shape)) + shape
        y = tf.reshape(x, [-1, *padded])
        return self._to_compute_layout(y) if rank == 3 else y

    def _concat(self, xs: Sequence[Tensor]) -> Tensor:
        return tf.concat(xs, self._channel_axis_of(xs[0]))

    def _pad_channels(self, x: Tensor, before: int, after: int) -> Tensor:
        padding = [(0, 0)] * 4
        padding[self._channel_axis] = (before, after)
        return tf.pad(x, padding)

    # Blocks ------------------------------------------------------------------------------

    def _block(self, body: Callable[..., Tensor], xs: Sequence[Tensor]) -> Tensor:
        if not self._recomputes:
            return body(self, *xs)
        before, read = self._copy_network(), self._reader
        weights: _Weights = {}

        self._reader = lambda spec, dtype: weights.setdefault((spec, dtype), read(spec, dtype))
        y = body(self, *xs)
        self._reader = read

        # tf.custom_gradient passes gradients only to arguments of `block`, so the weights must be
        # arguments, too.
        @tf.custom_gradient
        def block(*tensors: Tensor) -> Any:
            return y, lambda upstream: before._recompute_gradients(body, xs, weights, upstream)

        return block(*xs, *weights.values())

    def _recompute_gradients(
        self,
        body: Callable[..., Tensor],
        xs: Sequence[Tensor],
        weights: _Weights,
        upstream: Tensor,
    ) -> list[Tensor | None]:
        """Runs a block again in the backward pass; returns gradients of its inputs and weights.

        This network must be in the state before the block. A copy of this network runs the block,
        so layers have the same names, and random draws the same numbers, as in the forward pass.
        Updates of moving averages and other results that the copy collects are discarded.
        """

        def read_copy(spec: VariableSpec, dtype: tf.DType) -> Tensor:
            if (spec, dtype) not in weights:
                raise UsageError(
                    f"a block creates variable {spec.name} {spec.shape} in the backward pass only; "
                    "the layers of a block may depend only on the block's arguments and options"
                )
            return copies[weights[spec, dtype].ref()]

        again = self._copy_network()
        again._reader = read_copy
        again._outer_scope = ["gradient_tape", *self._outer_scope]
        # The dependency on `upstream` makes TensorFlow recompute late. Otherwise it would recompute
        # early and store all values, or merge the recomputed operations with those of the forward
        # pass.
        with tf.control_dependencies([upstream]), again._name_scope(""):
            copies = {x.ref(): tf.identity(x) for x in (*xs, *weights.values())}
            again._unbatched |= {copies[x.ref()].ref() for x in xs if x.ref() in self._unbatched}
            real = {ref: x for ref, x in copies.items() if x.dtype.is_floating}
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(list(real.values()))
                y = body(again, *(copies[x.ref()] for x in xs))
            found = tape.gradient(y, list(real.values()), upstream)
            by_reference = dict(zip(real, found, strict=True))
        # If a tensor is passed twice, its gradient is returned only once.
        return [by_reference.pop(x.ref(), None) for x in (*xs, *weights.values())]

    def _copy_network(self) -> GraphNetwork:
        """Returns a copy of this network. Layers in the copy do not change this network."""
        network = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (list, set, dict)):
                setattr(network, name, copy.copy(value))
        return network

    # Sequence layers ---------------------------------------------------------------------

    def _reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        if x.ref() in self._unbatched:
            return self._mark_unbatched(tf.reshape(x, shape))
        return self._to_image_layout(tf.reshape(self._to_nhwc(x), [-1, *shape]))

    def _transpose(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        if x.ref() in self._unbatched:
            return self._mark_unbatched(tf.transpose(x, order))
        y = tf.transpose(self._to_nhwc(x), [0, *(axis + 1 for axis in order)])
        return self._to_image_layout(y)

    def _to_image_layout(self, x: Tensor) -> Tensor:
        return self._to_compute_layout(x) if len(x.shape) == 4 else x

    def _split(self, x: Tensor, parts: int) -> list[Tensor]:
        values: list[Tensor] = tf.split(x, parts, self._channel_axis_of(x))
        return [self._mark_unbatched(y) for y in values] if x.ref() in self._unbatched else values

    def _layer_norm(
        self, x: Tensor, gamma: VariableSpec, beta: VariableSpec, epsilon: float
    ) -> Tensor:
        axis = self._channel_axis_of(x)
        precise = _cast(x, tf.float32) if x.dtype.size == 2 else x
        shape = [1] * len(x.shape)
        shape[axis] = gamma.size
        scale, offset = (tf.reshape(self._reader(v, precise.dtype), shape) for v in (gamma, beta))
        mean, variance = tf.nn.moments(precise, [axis], keepdims=True)
        y = (precise - mean) * tf.math.rsqrt(variance + epsilon) * scale + offset
        return _cast(y, x.dtype)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | None
    ) -> Tensor:
        if bias is not None and bias.ref() not in self._unbatched:
            raise UsageError(
                "an attention bias must be computed only from variables, so that it has no batch "
                "dimension"
            )
        *groups, tokens, channels = query.shape[1:]
        width = channels // heads
        scaled = _split_heads(query * width**-0.5, heads)
        scores = tf.linalg.matmul(scaled, _split_heads(key, heads), transpose_b=True)
        if bias is not None:
            grouped = tf.reshape(scores, [-1, *groups, *scores.shape[1:]])
            scores = tf.reshape(grouped + bias, [-1, *scores.shape[1:]])
        # Softmax is computed in float32, because a sum of 16-bit exponentials has only two correct
        # digits.
        precise = tf.cast(scores, tf.float32) if scores.dtype.size == 2 else scores
        shares = tf.cast(tf.nn.softmax(precise), query.dtype)
        mixed = tf.linalg.matmul(shares, _split_heads(value, heads))
        return tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, *groups, tokens, channels])

    def _embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        if not ids.dtype.is_integer:
            raise UsageError(f"embedding takes integers, not {ids.dtype.name}")
        return self._to_image_layout(tf.gather(table, self._to_nhwc(ids)))

    def _recurrent(self, x: Tensor, cell: Cell, weights: Sequence[Tensor], reverse: bool) -> Tensor:
        """Runs a recurrent cell on sequences ``[n, tokens, c]``, starting with zero state.

        Args:
          cell: see `Network.recurrent`.
          weights: kernel ``[c, gates * units]``, recurrent kernel ``[units, gates * units]``, bias,
            and for ``gru`` also the recurrent bias. The order of the gates is update, reset,
            candidate (gru), or input, forget, candidate, output (lstm).
          reverse: whether to start with the last token.

        Returns:
          ``[n, tokens, units]``: the state after each token, at the position of the token.
        """
        kernel, recurrent, bias, *recurrent_bias = weights
        tokens, units = x.shape[1], recurrent.shape[0]
        by_token = tf.transpose(x, [1, 0, 2])
        products = tf.linalg.matmul(tf.reshape(by_token, [-1, x.shape[2]]), kernel) + bias
        batch = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
        # A TensorArray saves memory: with slices, each gradient would be as large as the whole
        # tensor.
        inputs = tf.TensorArray(x.dtype, tokens, element_shape=[x.shape[0], kernel.shape[1]])
        inputs = inputs.unstack(tf.reshape(products, [tokens, batch, kernel.shape[1]]))
        outputs = tf.TensorArray(x.dtype, tokens, element_shape=[x.shape[0], units])
        zeros = tf.zeros([batch, units], x.dtype)
        states = (zeros, zeros) if cell == "lstm" else (zeros,)
        step = _STEPS[cell]

        def body(
            index: Tensor, states: States, outputs: tf.TensorArray
        ) -> tuple[Tensor, States, tf.TensorArray]:
            at = tokens - 1 - index if reverse else index
            product = tf.linalg.matmul(states[0], recurrent)
            if recurrent_bias:
                product += recurrent_bias[0]
            states = step(inputs.read(at), states, product)
            return index + 1, states, outputs.write(at, states[0])

        _, _, outputs = tf.while_loop(
            lambda index, *_: index < tokens,
            body,
            (tf.constant(0), states, outputs),
            maximum_iterations=tokens,  # XLA needs this limit.
        )
        return tf.transpose(outputs.stack(), [1, 0, 2])

    # TensorFlow functions in custom models -----------------------------------------------

    def _apply(
        self,
        function: Callable[..., Any],
        xs: Sequence[Tensor],
        shape: tuple[int, ...],
        flops: int | LayerFlopsAndMemory,
    ) -> Tensor:
        result = function(*(self._to_nhwc(x) for x in xs))
        unbatched = all(x.ref() in self._unbatched for x in xs)
        made_shape = tuple(result.shape if unbatched else result.shape[1:])
        if made_shape != shape:
            raise UsageError(
                f"apply declares the shape {shape}, but its function returned {made_shape}"
            )
        return self._mark_unbatched(result) if unbatched else self._to_image_layout(result)


def _cast(x: Tensor, dtype: Any) -> Tensor:
    return x if x.dtype == dtype else tf.cast(x, dtype)


def synchronised_batch_norm(
    x: Tensor,
    scale: Tensor | None,
    offset: Tensor,
    *,
    name: str,
    epsilon: float,
    channels_at: int,
    synchronise: Synchronise,
    unbiased: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises the batch of one tower with mean and variance over the batches of all towers.

    All values are computed in float32.

    Args:
      x: values of any floating-point dtype, with the same shape in all towers.
      scale, offset: float32 [channels]; None for a scale of 1.
      channels_at: axis of the channels; may be negative.
      unbiased: whether the returned variance is divided by count - 1 instead of the count.

    Returns:
      The result in the dtype of `x`; and the mean and the variance of all batches.
    """
    precise = tf.cast(x, tf.float32)
    rank = len(x.shape)
    axes = [axis for axis in range(rank) if axis != channels_at % rank]
    mean, variance, towers = synchronise(name, *tf.nn.moments(precise, axes))
    y = normalise_channels(precise, mean, variance, scale, offset, epsilon, channels_at)
    count = tf.cast(towers * tf.size(x) // offset.shape[0], tf.float32)
    factor = count / tf.maximum(count - 1.0, 1.0) if unbiased else 1.0
    return tf.cast(y, x.dtype), mean, variance * factor


def normalise_channels(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    scale: Tensor | None,
    offset: Tensor,
    epsilon: float,
    channels_at: int,
) -> Tensor:
    """Normalises float32 values with the given mean and variance of each channel.

    The channels can be on any axis.

    Args:
      mean, variance, scale, offset: float32 [channels]; None for a scale of 1.
    """
    shape = [1] * len(x.shape)
    shape[channels_at] = -1
    mean, variance, offset = (tf.reshape(v, shape) for v in (mean, variance, offset))
    scale = None if scale is None else tf.reshape(scale, shape)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Splits channels into heads, from ``[b, ..., n, c]`` to ``[b * ..., heads, n, c / heads]``."""
    tokens, channels = x.shape[-2:]
    return tf.transpose(tf.reshape(x, [-1, tokens, heads, channels // heads]), [0, 2, 1, 3])


States = tuple[Tensor, ...]  # Output of a recurrent cell, followed by its internal state.
Step = Callable[[Tensor, States, Tensor], States]

FORGET_BIAS = 1.0  # Without a forget bias, an LSTM learns long-range dependencies more slowly.


def _gru_step(projected: Tensor, states: States, product: Tensor) -> States:
    update, reset, candidate = tf.split(projected, 3, axis=1)
    to_update, to_reset, to_candidate = tf.split(product, 3, axis=1)
    update = tf.sigmoid(update + to_update)
    candidate = tf.tanh(candidate + tf.sigmoid(reset + to_reset) * to_candidate)
    return (update * states[0] + (1.0 - update) * candidate,)


def _lstm_step(projected: Tensor, states: States, product: Tensor) -> States:
    take, forget, candidate, put = tf.split(projected + product, 4, axis=1)
    memory = tf.sigmoid(forget + FORGET_BIAS) * states[1] + tf.sigmoid(take) * tf.tanh(candidate)
    return tf.sigmoid(put) * tf.tanh(memory), memory


def _rnn_step(projected: Tensor, states: States, product: Tensor) -> States:
    return (tf.tanh(projected + product),)


_STEPS: dict[Cell, Step] = {"gru": _gru_step, "lstm": _lstm_step, "rnn": _rnn_step}
