"""Tensors are joined, narrowed and cut as the stages and algorithms do it.

Tests cnnbench/lab/predict/predict.py.
"""

import pytest
import tensorflow as tf

from cnnbench.lab.predict.predict import pack_tensors, packing_text
from cnnbench.variable_mgr.all_reduce.chunks import elements_of_each_chunk
from cnnbench.variable_mgr.all_reduce.cost import Tensor
from cnnbench.variable_mgr.packing import AggregationSpec, Packing
from cnnbench.variable_mgr.stages import make_stages

DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))
SIZES = (3, 16, 17, 1000, 4096, 64, 1, 0, 50_000, 5, 5, 5, 5)


def travelling(sizes, **options):
    """Elements and item sizes of what the real stages send."""
    stages = make_stages(AggregationSpec(**options), DEVICES, None)
    with tf.Graph().as_default():
        columns = [[tf.zeros([size]) for _ in DEVICES] for size in sizes]
        for stage in stages:
            columns, _ = stage(columns)
        return [Tensor(t.shape.num_elements(), t.dtype.size) for t, *_ in columns]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, SIZES),
        ({"gradient_repacking": 1}, SIZES),
        ({"gradient_repacking": 8}, SIZES),
        ({"gradient_repacking": 5}, (3,)),
        ({"agg_small_grads_max_bytes": 64}, SIZES),
        ({"agg_small_grads_max_bytes": 4096, "agg_small_grads_max_group": 2}, SIZES),
        ({"agg_small_grads_max_bytes": 4096, "gradient_repacking": 2}, SIZES),
        ({"gradient_bucket_bytes": 300, "gradient_repacking": 2}, SIZES),
        ({"gradient_bucket_bytes": 300, "compact_dtype": "float16"}, SIZES),
        ({"compact_dtype": "bfloat16", "gradient_repacking": 2}, SIZES),
    ],
)
def test_as_the_stages_pack(options, sizes):
    packed = pack_tensors(Packing(**options), [Tensor(size) for size in sizes])
    assert packed == travelling(sizes, **options)


def test_in_words():
    packing = Packing(
        gradient_repacking=4, agg_small_grads_max_bytes=65536, compact_dtype="float16"
    )
    assert packing_text(packing) == (
        "up to 10 of at most 65536 bytes joined, 4 packs, sent as float16"
    )
    assert packing.joins_gradients
    in_buckets = Packing(gradient_bucket_bytes=400, agg_small_grads_max_bytes=9)
    assert packing_text(in_buckets) == "up to 10 of at most 9 bytes joined, buckets of 400 bytes"
    assert packing_text(Packing()) == "unpacked"


@pytest.mark.parametrize(
    ("elements", "most", "itemsize"),
    [
        *[(0, 3, 4), (1, 1, 2), (16, 7, 8), (1000, 64, 4), (8191, 2, 4), (8193, 2, 2)],
        *[(20_000, 8, 8), (40_001, 3, 4), (40_001, 64, 2), (10**6, 7, 4), (10**6, 64, 8)],
    ],
)
def test_chunks_are_those_of_the_algorithms(elements, most, itemsize):
    real = elements_of_each_chunk(elements, most, itemsize)
    assert Tensor(elements, itemsize).chunks(most) == (len(real), real[0] * itemsize)
