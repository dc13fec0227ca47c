"""Synthetic data, which stays on the devices and adds no work to a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import tensorflow as tf

from cnnbench.data.dataset import InputSource, InputSpec, Preprocess, TowerBatch
from cnnbench.models.elements import Element

# Up to this many rows are drawn eagerly. For more rows, a graph is faster: tracing it takes as long
# as drawing 200 rows.
_FEW = 128


class SyntheticInput(InputSource):
    """Input of synthetic examples, which are drawn once from the seed and stored in variables on
    the devices.

    Images have values like normalised photographs: a truncated normal distribution in [-1, 1] with
    a standard deviation of about one half. The labels are fixed, so that the loss can decrease and
    stays finite. Row i of the global batch depends only on the seed and on i. With batch size b,
    tower t (numbered over all shards) has rows [t*b, (t+1)*b), for any number of towers. With
    several passes per step, b is the number of examples in all passes together, and each pass uses
    the next part of the rows.
    """

    synthetic = True

    def __init__(self, spec: InputSpec, devices: Sequence[str]) -> None:
        super().__init__(spec, devices, spec.dataset.num_examples(spec.subset))
        self._towers = [self._make_variables(tower) for tower in range(spec.num_devices)]
        with tf.device(spec.host):
            self._numbers = [tf.constant(number) for number in range(spec.passes)]

    def _make_variables(self, tower: int) -> tuple[tf.Variable, ...]:
        spec = self.spec
        number = spec.shard_index * spec.num_devices + tower
        count = spec.batch_per_device * spec.passes
        # Values are drawn on the host, so that every kind of device gets bit-identical values.
        with tf.device(spec.host):
            rows = tf.range(number * count, (number + 1) * count)
            values = draw_synthetic_rows(rows, spec.seed, spec.examples, spec.preprocess)
            drawn = [(e.name, tf.cast(values[e.name], spec.dtype_of(e))) for e in spec.elements]
        with tf.device(self.devices[tower]):
            return tuple(
                tf.Variable(value, trainable=False, name=f"synthetic_{name}_{tower}")
                for name, value in drawn
            )

    @property
    def step_argument_specs(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.step_argument_specs`.

        If there are several passes, the argument is the number of the pass.
        """
        return () if self.spec.passes == 1 else (TowerBatch(tf.TensorSpec([], tf.int32), None),)

    def get_tower_batch(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """See `InputSource.get_tower_batch`. Reads the examples from the tower's variables."""
        elements, count = self.spec.elements, self.spec.batch_per_device
        values = [variable.read_value() for variable in self._towers[tower]]
        if batches:
            first = batches[0].features * count
            values = [
                tf.slice(v, [first, *[0] * (v.shape.rank - 1)], [count, *v.shape[1:]])
                for v in values
            ]
        return TowerBatch.from_values(
            elements, dict(zip((e.name for e in elements), values, strict=True))
        )

    def next(self) -> tuple[TowerBatch, ...]:
        """Returns only the number of the pass if a step has several passes, otherwise ().

        The result contains no examples, because the traced step reads them from variables.
        """
        number, self.batches = self.batches % self.spec.passes, self.batches + 1
        return () if self.spec.passes == 1 else (TowerBatch(self._numbers[number], None),)


def draw_synthetic_rows(
    rows: tf.Tensor,
    seed: int,
    elements: tuple[Element, ...],
    preprocess: Preprocess | None = None,
) -> dict[str, tf.Tensor]:
    """Draws the given rows (int32 [n]) of the synthetic global batch. Returns one tensor [n, ...]
    for each element, by name.

    Tensors have the dtypes of the elements, whose sizes must be numbers. `preprocess` converts them
    to different elements (`Model.preprocess`).
    """
    count = rows.shape[0]
    if preprocess is None and count is not None and count <= _FEW and tf.executing_eagerly():
        drawn = [_draw_example(row, seed, elements) for row in tf.unstack(rows)]
        return {name: tf.stack([example[name] for example in drawn]) for name in drawn[0]}
    return _make_row_drawer(seed, elements, preprocess)(rows)


@functools.cache
def _make_row_drawer(
    seed: int, elements: tuple[Element, ...], preprocess: Preprocess | None
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    def draw_row(row: tf.Tensor) -> dict[str, tf.Tensor]:
        if preprocess is None:
            return _draw_example(row, seed, elements)
        streams = len(elements) + 1
        example = _draw_example(row, seed, elements, streams)
        own = tf.stack([seed, streams * row + len(elements)])
        return dict(preprocess(example, tf.cast(own, tf.int64)))

    @tf.function(autograph=False)
    def draw(rows: tf.Tensor) -> Any:
        made = tf.function(draw_row, autograph=False).get_concrete_function(
            tf.TensorSpec([], rows.dtype)
        )
        signature = tf.nest.map_structure(
            lambda value: tf.TensorSpec(value.shape, value.dtype), made.structured_outputs
        )
        return tf.map_fn(draw_row, rows, fn_output_signature=signature, parallel_iterations=16)

    return cast("Callable[[tf.Tensor], dict[str, tf.Tensor]]", draw)


def _draw_example(
    row: tf.Tensor, seed: int, elements: tuple[Element, ...], streams: int | None = None
) -> dict[str, tf.Tensor]:
    """Draws the synthetic example of a row. Each element has its own stream of numbers."""
    streams = streams or len(elements)
    # Each element of each row needs a seed of its own, which is a pair of numbers.
    seeds = [tf.stack([seed, streams * row + stream]) for stream in range(len(elements))]
    example = {e.name: _draw_element(e, pair) for e, pair in zip(elements, seeds, strict=True)}
    for element in elements:
        if element.rows is not None:
            example[element.name] = _zero_rows_after(example[element.name], example[element.rows])
    return example


def _draw_element(element: Element, seed: tf.Tensor) -> tf.Tensor:
    draw, shape, dtype = element.draw, element.sizes, tf.as_dtype(element.dtype)
    if draw is None:
        raise ValueError(f"element {element.name}: no distribution of synthetic values is given")
    low, high = int(draw.low), int(draw.high)
    if draw.kind == "normal":
        value = tf.random.stateless_truncated_normal(shape, seed, stddev=draw.scale)
    elif draw.kind == "integers":
        value = tf.random.stateless_uniform(shape, seed, low, high, tf.int32)
    elif draw.kind == "uniform":
        value = tf.random.stateless_uniform(shape, seed, float(low), float(high))
    elif draw.kind == "boxes":
        value = _draw_boxes(shape, seed)
    else:
        value = tf.fill(shape, draw.scale)
    return tf.cast(value, dtype)


def _draw_boxes(shape: tuple[int, ...], seed: tf.Tensor) -> tf.Tensor:
    """Draws random boxes inside an image. The height and width of a box are 0.1 to 0.9 times the
    height and width of the image.
    """
    drawn = tf.random.stateless_uniform([*shape[:-1], 2, 2], seed)
    size = 0.1 + 0.8 * drawn[..., 0, :]
    first = drawn[..., 1, :] * (1.0 - size)
    return tf.concat([first, first + size], axis=-1)


def _zero_rows_after(value: tf.Tensor, rows: Any) -> tf.Tensor:
    inside = tf.range(value.shape[0], dtype=rows.dtype) < rows
    inside = tf.reshape(inside, [-1] + [1] * (len(value.shape) - 1))
    return tf.where(inside, value, tf.zeros([], value.dtype))
