"""Inference with 8-bit integers on a CPU, for networks with constant weights.

Inputs and results of convolutions, and of max pooling between them, are 8-bit integers. Kernels are
quantised symmetrically around 0, with one scale for each output channel. Activations have one
scale. Their range starts at 0 if no value is negative; otherwise it is symmetric (B. Jacob et al.,
arXiv:1712.05877). `record_value_ranges` measures the ranges of activations by running examples in
float32. Values outside the ranges are clipped. Batch norm, bias and ReLU are fused with the
convolution before them. All other layers compute in float32.

The kernels are from oneDNN and need constant weights. Kernels that add a residual in integers
(`QuantizedConv2DWithBiasSumAndReluAndRequantize`) are not used, because they crash in TensorFlow
2.21.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from cnnbench.arrays import Array, Tensor
from cnnbench.models.graph import GraphNetwork, Reader
from cnnbench.models.model import Model
from cnnbench.models.network import Elementwise, SlidingWindow
from cnnbench.models.spec import BatchNormLayer

Range: TypeAlias = "tuple[float, float]"  # Minimum and maximum of a tensor's values.

_RECTIFIERS = ("relu", "relu6")
_MAX_INT8 = 127  # The smallest is -127, for symmetry.


@dataclasses.dataclass
class Calibration:
    """Value ranges of the inputs and results of a network's convolutions, in creation order.

    `convolutions` is the number of all convolutions, including depthwise ones. `in_8_bits` is the
    number of convolutions in 8 bits when the network was last created.
    """

    ranges: list[Range] = dataclasses.field(default_factory=list)
    convolutions: int = 0
    in_8_bits: int = 0


def record_value_ranges(model: Model, num_classes: int, features: Any, read: Reader) -> Calibration:
    """Runs a network eagerly in float32 to measure value ranges for its quantisation.

    Records the ranges of the inputs and results of convolutions for the examples in `features`.
    """
    calibration = Calibration()
    Int8Network(
        model, num_classes, read, training=False, calibration=calibration, recording=True
    ).forward(features)
    return calibration


class _QuantisedValue(NamedTuple):
    """A tensor of 8-bit integers, and the real numbers `low` and `high` that its bounds represent.

    255 represents `high` in a quint8 tensor. -127 and 127 represent `low` and `high` in a qint8
    tensor.
    """

    integers: Tensor
    low: float
    high: float


class _FusedConvolution(NamedTuple):
    """A convolution into which bias, batch norm and finally a ReLU may have been fused.

    The float32 kernel is [height, width, in, out], or [height, width, in, 1] for a depthwise
    convolution. While ranges are recorded, `source` is None.
    """

    source: _QuantisedValue | None
    kernel: Array
    bias: Array
    window: SlidingWindow
    depthwise: bool
    rectified: bool = False

    def with_factor_and_offset(self, factor: Array, offset: Array) -> _FusedConvolution:
        """Fuses a factor and an offset for each output channel into a copy of this convolution."""
        per_output = factor.reshape(-1, self.kernel.shape[3])
        bias = self.bias * factor + offset
        return self._replace(kernel=self.kernel * per_output, bias=bias)


class Int8Network(GraphNetwork):
    """Network for inference on a CPU whose convolutions are in 8 bits if such a kernel exists.

    The layout is NHWC. Every value is a float32 tensor. For some values, the integers are also
    known; layers that can use the integers do so, and TensorFlow prunes unused float32 tensors.
    While recording, ranges are added to the `calibration`. Otherwise, the `calibration` must
    contain the ranges for the same weights.
    """

    def __init__(
        self,
        model: Model,
        num_classes: int,
        read: Reader,
        *,
        calibration: Calibration,
        recording: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model, num_classes, read, **{**options, "fold_batch_norm": False})
        self._calibration = calibration
        self._recording = recording
        self._recorded = iter(calibration.ranges)
        # The 8-bit integers of values that also exist as float32 tensors. The key is `ref()` of the
        # tensor.
        self._quantised_values: dict[Any, _QuantisedValue] = {}
        # The newest convolution, into which the next operation may be fused, and its result.
        self._last: tuple[Tensor, _FusedConvolution] | None = None
        calibration.in_8_bits = 0

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
        compute_float32 = partial(super()._conv, x, kernel, window, filters, depthwise=depthwise)
        self._calibration.convolutions += self._recording
        multiplies = depthwise and kernel.shape[3] != 1
        has_groups = not depthwise and kernel.shape[2] != self.shape(x)[2]
        # TensorFlow has no 8-bit grouped convolutions, and its result is zero for depthwise
        # multipliers, so these stay in float32.
        if multiplies or has_groups:
            return compute_float32()
        self._calibration.in_8_bits += not self._recording and not depthwise
        if self._recording:
            self._record_range(x)
            source = None
        else:
            source = self._quantize(x, next(self._recorded))
        none = np.zeros(filters, np.float32)
        fused = _FusedConvolution(source, _static_value(kernel), none, window, depthwise)
        return self._compute_fused(fused, compute_float32)

    def _bias_add(self, x: Tensor, bias: Tensor) -> Tensor:
        compute_float32 = partial(super()._bias_add, x, bias)
        fused = self._fusable_conv(x)
        if fused is None:
            return compute_float32()
        value = _static_value(bias)
        fused = fused.with_factor_and_offset(np.ones_like(value), value)
        return self._compute_fused(fused, compute_float32)

    def _batch_norm(self, x: Tensor, layer: BatchNormLayer) -> Tensor:
        compute_float32 = partial(super()._batch_norm, x, layer)
        fused = self._fusable_conv(x)
        if fused is None:
            return compute_float32()
        with tf.init_scope():  # Eagerly, so kernels are constants.
            factor, offset = self._factor_and_offset(layer)
        fused = fused.with_factor_and_offset(factor.numpy(), offset.numpy())
        return self._compute_fused(fused, compute_float32)

    def _elementwise(self, kind: Elementwise, x: Tensor) -> Tensor:
        compute_float32 = partial(super()._elementwise, kind, x)
        fused = self._fusable_conv(x)
        if fused is None or kind not in _RECTIFIERS:
            return compute_float32()
        return self._compute_fused(fused._replace(rectified=True), compute_float32)

    def _pool(self, kind: Literal["max", "avg"], x: Tensor, window: SlidingWindow) -> Tensor:
        """Max pooling keeps 8-bit values in 8 bits; average pooling computes in float32."""
        quantised = self._quantised_values.get(x.ref())
        if kind != "max" or quantised is None:
            return super()._pool(kind, x, window)
        integers, low, high = quantised
        pooled = tf.raw_ops.QuantizedMaxPool(
            input=integers,
            min_input=low,
            max_input=high,
            ksize=self._per_dimension(*window.size, 1),
            strides=self._per_dimension(*window.stride, 1),
            padding=window.padding,
        )
        return self._to_float32(_QuantisedValue(pooled.output, low, high))

    # Ranges ------------------------------------------------------------------------------

    def _record_range(self, x: Tensor) -> None:
        """Adds the value range of `x` to the calibration, from which `_recorded` reads the ranges
        in the same order.
        """
        limits = float(tf.reduce_min(x)), float(tf.reduce_max(x))
        self._calibration.ranges.append(limits)

    # Fused convolutions ------------------------------------------------------------------

    def _fusable_conv(self, x: Tensor) -> _FusedConvolution | None:
        """Returns the convolution whose result is `x`. None if `x` is not the result of the last
        convolution, or if nothing more can be fused with it.
        """
        if self._last is None or self._last[0] is not x or self._last[1].rectified:
            return None
        return self._last[1]

    def _compute_fused(
        self, fused: _FusedConvolution, compute_float32: Callable[[], Tensor]
    ) -> Tensor:
        """Computes a fused convolution in 8 bits, or in float32 to record value ranges."""
        if self._recording:
            y = compute_float32()
            self._record_range(y)
        else:
            value_range = next(self._recorded)
            if fused.depthwise and not fused.rectified:
                # TensorFlow has 8-bit depthwise convolutions only with ReLU, so this one stays in
                # float32.
                assert fused.source is not None
                x = _dequantize(fused.source)
                kernel = tf.constant(fused.kernel)
                y = super()._conv(x, kernel, fused.window, len(fused.bias), depthwise=True)
                y = super()._bias_add(y, tf.constant(fused.bias))
            else:
                self._calibration.in_8_bits += fused.depthwise
                y = self._to_float32(_convolve(fused, value_range))
        self._last = (y, fused)
        return y

    # Integers ----------------------------------------------------------------------------

    def _to_float32(self, quantised: _QuantisedValue) -> Tensor:
        y = _dequantize(quantised)
        self._quantised_values[y.ref()] = quantised
        return y

    def _quantize(self, x: Tensor, value_range: Range) -> _QuantisedValue:
        if x.ref() not in self._quantised_values:
            low, high = _real_bounds(value_range, signed=value_range[0] < 0)
            quantized = tf.raw_ops.QuantizeV2(
                input=x,
                min_range=low,
                max_range=high,
                T=tf.qint8 if low < 0 else tf.quint8,
                mode="SCALED",
            )
            self._quantised_values[x.ref()] = _QuantisedValue(quantized.output, low, high)
        return self._quantised_values[x.ref()]


def _convolve(fused: _FusedConvolution, value_range: Range) -> _QuantisedValue:
    assert fused.source is not None
    axes = (0, 1, 3) if fused.depthwise else (0, 1, 2)
    most = np.maximum(np.abs(fused.kernel).max(axes), np.float32(1e-30))
    steps = fused.kernel / (most[:, None] if fused.depthwise else most) * _MAX_INT8
    low, high = _real_bounds(value_range, signed=not fused.rectified)
    if fused.depthwise:
        operation = tf.raw_ops.QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize
    elif fused.rectified:
        operation = tf.raw_ops.QuantizedConv2DWithBiasAndReluAndRequantize
    else:
        operation = tf.raw_ops.QuantizedConv2DWithBiasAndRequantize
    zeros: list[int] = []
    if fused.window.needs_explicit_padding:
        zeros = [0, 0, *itertools.chain(*fused.window.zeros), 0, 0]
    integers, _, _ = operation(
        input=fused.source.integers,
        # On CPUs with AMX, oneDNN refuses a filter that is computed in the graph, even from
        # constants.
        filter=tf.constant(np.rint(steps).astype(np.int8), tf.qint8),
        bias=tf.constant(fused.bias),
        min_input=fused.source.low,
        max_input=fused.source.high,
        min_filter=tf.constant(-most),
        max_filter=tf.constant(most),
        min_freezed_output=low,
        max_freezed_output=high,
        strides=[1, *fused.window.stride, 1],
        padding=fused.window.padding,
        padding_list=zeros,
        out_type=tf.quint8 if fused.rectified else tf.qint8,
    )
    return _QuantisedValue(integers, low, high)


def _real_bounds(value_range: Range, *, signed: bool) -> tuple[float, float]:
    """Returns the smallest and the largest real number that the 8-bit integers represent.

    The range is symmetric around 0 if `signed`; otherwise it starts at 0.
    """
    most = max(*map(abs, value_range), 1e-6)
    return (-most if signed else 0.0), most


def _dequantize(quantised: _QuantisedValue) -> Tensor:
    return tf.raw_ops.Dequantize(
        input=quantised.integers, min_range=quantised.low, max_range=quantised.high, mode="SCALED"
    )


def _static_value(value: Tensor) -> Array:
    constant = tf.get_static_value(value)
    assert constant is not None, "weights are constants"
    return np.asarray(constant, np.float32)
