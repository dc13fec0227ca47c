"""Every algorithm against NumPy's sum; new ones are picked up by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.variable_mgr import all_reduce


@pytest.mark.parametrize("towers", [2, 3, 4, 8])
@pytest.mark.parametrize("name", all_reduce.names())
def test_every_device_gets_the_exact_sum(name, towers, cpu_devices):
    rng = np.random.default_rng(1)
    values = [rng.integers(-1000, 1000, size=(3, 5)).astype(np.float32) for _ in range(towers)]
    devices = cpu_devices[:towers]
    algorithm = all_reduce.create(
        name, all_reduce.ReduceContext(devices=devices, cpu_devices=devices)
    )

    @tf.function(autograph=False)
    def step(values):
        return algorithm(values, 0)

    for total in step([tf.constant(v) for v in values]):
        np.testing.assert_array_equal(total, sum(values))
