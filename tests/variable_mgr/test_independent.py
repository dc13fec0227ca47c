from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from towers import columns_of


def test_towers_start_differently_and_biases_alike(make_manager, trainable):
    manager = make_manager("independent", 3, seed=4)
    for variable in trainable:
        values = [manager.variable(t, variable.name).numpy() for t in range(3)]
        random = variable.initializer.kind != "constant"
        assert (values[0] != values[1]).all() == random
        assert (values[1] != values[2]).all() == random
        assert values[0].std() == pytest.approx(values[1].std(), rel=0.5)


def test_the_same_seed_gives_the_same_towers(make_manager, trainable):
    first, second = (make_manager("independent", 3, seed=4) for _ in range(2))
    for tower in range(3):
        for variable in trainable:
            np.testing.assert_array_equal(
                first.variable(tower, variable.name), second.variable(tower, variable.name)
            )


def test_every_tower_applies_its_own_gradient_untouched(make_manager, trainable, cpu_devices):
    manager = make_manager("independent", 3)
    gradients = [[tf.fill(v.shape, float(t)) for v in trainable] for t in range(3)]
    pairs = [
        list(zip(gradients[t], manager.trainable_variables_on_device(t), strict=True))
        for t in range(3)
    ]
    devices, state = manager.preprocess_device_grads(columns_of(pairs))
    assert devices == list(cpu_devices[:3])
    for tower in range(3):
        result = manager.get_gradients_to_apply(tower, state)
        assert all(a is b for (a, _), b in zip(result, gradients[tower], strict=True))
        assert all(a is b for (_, a), (_, b) in zip(result, pairs[tower], strict=True))


def test_copy_t_is_on_tower_t(make_manager, cpu_devices):
    manager = make_manager("independent", 8)
    for facade in manager.savable_variables().values():
        assert [c.device for c in facade.copies] == list(cpu_devices)
