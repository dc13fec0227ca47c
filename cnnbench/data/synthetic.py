"""Synthetic data, which stays on the devices and adds no work to a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import tensorflow as tf

from cnnbench.data.source import InputSource, TowerBatch
from cnnbench.data.spec import InputSpec, Preprocess
from cnnbench.models.elements import Element

# Rows up to this number are drawn eagerly: tracing takes as long as about two hundred of them.
_FEW = 128


class SyntheticInput(InputSource):
    """Examples drawn once under the seed and kept in device variables.

    Images look like normalised photographs: a truncated normal in [-1, 1] with standard deviation
    near one half. The labels are fixed, so that the loss can fall and stays finite. Row i of the
    global batch depends on the seed and on i only: tower t of all shards has its rows [t*b,
    (t+1)*b), for any number of towers.
    """

    synthetic = True

    def __init__(self, spec: InputSpec, devices: Sequence[str]) -> None:
        super().__init__(spec, devices, spec.dataset.num_examples(spec.subset))
        self._towers = [self._variables(tower) for tower in range(spec.num_devices)]

    def _variables(self, tower: int) -> tuple[tf.Variable, ...]:
        spec = self.spec
        number = spec.shard_index * spec.num_devices + tower
        first = number * spec.batch_per_device
        # On the host, so that every kind of device starts from the same bits.
        with tf.device(spec.host):
            rows = tf.range(first, first + spec.batch_per_device)
            values = synthetic_rows(rows, spec.seed, spec.examples, spec.preprocess)
            drawn = [(e.name, tf.cast(values[e.name], spec.dtype_of(e))) for e in spec.elements]
        with tf.device(self.devices[tower]):
            return tuple(
                tf.Variable(value, trainable=False, name=f"synthetic_{name}_{tower}")
                for name, value in drawn
            )

    @property
    def signature(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.signature`: the step takes nothing."""
        return ()

    def of_tower(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """See `InputSource.of_tower`: reads the tower's variables."""
        elements = self.spec.elements
        values = zip(elements, self._towers[tower], strict=True)
        return TowerBatch.of(elements, {e.name: value.read_value() for e, value in values})

    def next(self) -> tuple[TowerBatch, ...]:
        """Returns no arguments: the step reads variables."""
        self.batches += 1
        return ()


def synthetic_rows(
    rows: tf.Tensor,
    seed: int,
    elements: tuple[Element, ...],
    preprocess: Preprocess | None = None,
) -> dict[str, tf.Tensor]:
    """Rows (int32 [n]) of the synthetic global batch: a tensor [n, ...] per element, in its dtype.

    The elements have numbers as sizes; `preprocess` makes other ones (`Model.preprocess`).
    """
    count = rows.shape[0]
    if preprocess is None and count is not None and count <= _FEW and tf.executing_eagerly():
        drawn = [_example(row, seed, elements) for row in tf.unstack(rows)]
        return {name: tf.stack([one[name] for one in drawn]) for name in drawn[0]}
    return _drawing(seed, elements, preprocess)(rows)


@functools.cache
def _drawing(
    seed: int, elements: tuple[Element, ...], preprocess: Preprocess | None
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    def one(row: tf.Tensor) -> dict[str, tf.Tensor]:
        if preprocess is None:
            return _example(row, seed, elements)
        streams = len(elements) + 1
        example = _example(row, seed, elements, streams)
        own = tf.stack([seed, streams * row + len(elements)])
        return dict(preprocess(example, tf.cast(own, tf.int64)))

    @tf.function(autograph=False)
    def draw(rows: tf.Tensor) -> Any:
        made = tf.function(one, autograph=False).get_concrete_function(
            tf.TensorSpec([], rows.dtype)
        )
        signature = tf.nest.map_structure(
            lambda value: tf.TensorSpec(value.shape, value.dtype), made.structured_outputs
        )
        return tf.map_fn(one, rows, fn_output_signature=signature, parallel_iterations=16)

    return cast("Callable[[tf.Tensor], dict[str, tf.Tensor]]", draw)


def _example(
    row: tf.Tensor, seed: int, elements: tuple[Element, ...], streams: int | None = None
) -> dict[str, tf.Tensor]:
    """One row; each element has its own stream of random numbers."""
    streams = streams or len(elements)
    # The pair must be unique for row and stream.
    seeds = [tf.stack([seed, streams * row + stream]) for stream in range(len(elements))]
    example = {e.name: _draw(e, pair) for e, pair in zip(elements, seeds, strict=True)}
    for element in elements:
        if element.rows is not None:
            example[element.name] = _cut(example[element.name], example[element.rows])
    return example


def _draw(element: Element, seed: tf.Tensor) -> tf.Tensor:
    draw, shape, dtype = element.draw, element.sizes, tf.as_dtype(element.dtype)
    if draw is None:
        raise ValueError(f"nothing says how a synthetic {element.name} is drawn")
    low, high = int(draw.low), int(draw.high)
    if draw.kind == "normal":
        value = tf.random.stateless_truncated_normal(shape, seed, stddev=draw.scale)
    elif draw.kind == "integers":
        value = tf.random.stateless_uniform(shape, seed, low, high, tf.int32)
    elif draw.kind == "uniform":
        value = tf.random.stateless_uniform(shape, seed, float(low), float(high))
    elif draw.kind == "boxes":
        value = _boxes(shape, seed)
    else:
        value = tf.fill(shape, draw.scale)
    return tf.cast(value, dtype)


def _boxes(shape: tuple[int, ...], seed: tf.Tensor) -> tf.Tensor:
    """Boxes inside the image, with sides of a tenth to nine tenths of the image's."""
    drawn = tf.random.stateless_uniform([*shape[:-1], 2, 2], seed)
    size = 0.1 + 0.8 * drawn[..., 0, :]
    first = drawn[..., 1, :] * (1.0 - size)
    return tf.concat([first, first + size], axis=-1)


def _cut(value: tf.Tensor, rows: Any) -> tf.Tensor:
    inside = tf.range(value.shape[0], dtype=rows.dtype) < rows
    inside = tf.reshape(inside, [-1] + [1] * (len(value.shape) - 1))
    return tf.where(inside, value, tf.zeros([], value.dtype))
