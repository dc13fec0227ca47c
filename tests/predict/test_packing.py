"""The tensors that travel are those that the stages make."""

import pytest
import tensorflow as tf

from cnnbench.predict.packing import Packing
from cnnbench.predict.tensor import Tensor
from cnnbench.variable_mgr.aggregation.pipeline import make_stages
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec

DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))
SIZES = (3, 16, 17, 1000, 4096, 64, 1, 0, 50_000, 5, 5, 5, 5)


def travelling(sizes, **options):
    """Elements and item sizes of what the real stages send."""
    stages = make_stages(AggregationSpec(**options), DEVICES, None)
    with tf.Graph().as_default():
        tensors = [[tf.zeros([size]) for size in sizes] for _ in DEVICES]
        for stage in stages:
            tensors, _ = stage(tensors)
        return [Tensor(t.shape.num_elements(), t.dtype.size) for t in tensors[0]]


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_repacking": 1},
        {"gradient_repacking": 3},
        {"gradient_repacking": 8},
        {"agg_small_grads_max_bytes": 64},
        {"agg_small_grads_max_bytes": 4096, "agg_small_grads_max_group": 2},
        {"agg_small_grads_max_bytes": 4096, "gradient_repacking": 2},
        {"compact_dtype": "float16"},
        {"compact_dtype": "bfloat16", "gradient_repacking": 2},
    ],
)
def test_as_the_stages_pack(options):
    packed = Packing.of(options).apply([Tensor(size) for size in SIZES])
    assert packed == travelling(SIZES, **options)


def test_more_packs_than_elements():
    packed = Packing(gradient_repacking=5).apply([Tensor(3)])
    assert [tensor.elements for tensor in packed] == [
        tensor.elements for tensor in travelling((3,), gradient_repacking=5)
    ]


def test_nothing_is_packed_by_default():
    tensors = [Tensor(5), Tensor(7)]
    assert Packing().apply(tensors) == tensors
    assert str(Packing()) == "unpacked"
    assert not Packing().packs


def test_in_words():
    packing = Packing(4, 65536, 10, "float16")
    assert str(packing) == "up to 10 of at most 65536 bytes joined, 4 packs, sent as float16"
