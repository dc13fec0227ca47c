from __future__ import annotations

import pytest
import tensorflow as tf

from cnnbench.variable_mgr.aggregation.flat_buffers import (
    common_dtype,
    static_dtypes,
    static_shapes,
)
from cnnbench.variable_mgr.aggregation.pipeline import Deferral, Repacking, SmallGradients


def towers(*forms):
    """Columns of the same tensors, of (shape, dtype), on three towers."""
    return [[tf.zeros(shape, dtype) for _ in range(3)] for shape, dtype in forms]


GOOD = (([2, 3], tf.float32), ([], tf.float32), ([0], tf.float32))


def test_what_all_towers_have():
    assert static_shapes(towers(*GOOD)) == [(2, 3), (), (0,)]
    assert common_dtype(towers(*GOOD)) == tf.float32
    mixed = towers(([2], tf.float32), ([2], tf.bfloat16))
    assert static_dtypes(mixed) == [tf.float32, tf.bfloat16]
    assert static_shapes([]) == static_dtypes([]) == []


@pytest.mark.parametrize(("tower", "number"), [(1, 0), (2, 2)])
def test_a_tower_with_another_shape_is_named(tower, number):
    tensors = towers(*GOOD)
    tensors[number][tower] = tf.zeros([7])
    with pytest.raises(ValueError, match=rf"gradient {number} of tower {tower} has .* \(7,\)"):
        static_shapes(tensors)


@pytest.mark.parametrize("tower", [1, 2])
@pytest.mark.parametrize("function", [static_dtypes, common_dtype])
def test_a_tower_with_another_dtype_is_named(function, tower):
    tensors = towers(*GOOD)
    tensors[1][tower] = tf.zeros([], tf.bfloat16)
    with pytest.raises(ValueError, match=f"gradient 1 of tower {tower} has .* bfloat16, .*float32"):
        function(tensors)


@pytest.mark.parametrize("tower", [0, 1])
def test_a_shape_that_is_not_known_yet_is_named(tower):
    known, unknown = tf.TensorSpec([2]), tf.TensorSpec([None])
    specs = [[known, known], [unknown, known] if tower == 0 else [known, unknown]]

    @tf.function(autograph=False, input_signature=[specs])
    def step(tensors):
        return static_shapes(tensors)

    text = rf"^gradient 1 of tower {tower} has the unknown shape \(None,\)$"
    with pytest.raises(ValueError, match=text):
        step.get_concrete_function()


@pytest.mark.parametrize("place", [0, 1])
def test_a_pack_has_one_dtype(place):
    forms = list(GOOD)
    forms[place + 1] = ([4], tf.float16)
    with pytest.raises(ValueError, match=rf"gradient 0 is float32, gradient {place + 1} is float1"):
        common_dtype(towers(*forms))


@pytest.mark.parametrize("stage", [SmallGradients, Repacking, Deferral])
@pytest.mark.parametrize("other", [tf.zeros([3]), tf.zeros([2, 2], tf.float16)], ids=["shape", "d"])
def test_stages_look_at_all_towers(stage, other, cpu_devices):
    devices = cpu_devices[:2]
    arguments = {
        SmallGradients: (100, 7, devices),
        Repacking: (2, devices, "float16"),
        Deferral: (devices,),
    }
    tensors = [[tf.zeros([2, 2])] * 2, [tf.zeros([2])] * 2]
    tensors[0][1] = other
    with pytest.raises(ValueError, match=r"^gradient 0 of tower 1 has the "):
        stage(*arguments[stage])(tensors)
