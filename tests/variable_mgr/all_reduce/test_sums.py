"""Every registered algorithm against NumPy's sum; new ones are picked up by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.variable_mgr import VariableMgrSpec, all_reduce

SHAPES = ((7,), (), (3, 5), (1,), (2, 3, 4))


def draw(towers, seed=1):
    # Whole numbers, so that the order of additions cannot change a bit.
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(-1000, 1000, size=shape).astype(np.float32) for shape in SHAPES]
        for _ in range(towers)
    ]


def reduce(name, place, values, devices):
    """Runs the algorithm in a traced step; returns the sums and their ops' devices."""
    algorithm = all_reduce.create(
        VariableMgrSpec(
            variable_update="replicated",
            devices=devices,
            cpu_device=devices[0],
            parameter_device=place,
            all_reduce_spec=name,
        )
    )

    @tf.function(autograph=False)
    def step(values):
        tensors = []
        for device, tower in zip(devices, values, strict=True):
            with tf.device(device):
                tensors.append([tf.identity(v) for v in tower])
        return algorithm(tensors, devices)

    return step([[tf.constant(v) for v in tower] for tower in values])


@pytest.mark.parametrize("place", ["cpu", "towers"])
@pytest.mark.parametrize("towers", [2, 3, 4, 8])
@pytest.mark.parametrize("name", all_reduce.names())
def test_every_tower_gets_the_exact_sum(name, towers, place, cpu_devices):
    values = draw(towers)
    sums = reduce(name, place, values, cpu_devices[:towers])
    assert len(sums) == towers
    for tower in sums:
        assert len(tower) == len(SHAPES)
        for index, tensor in enumerate(tower):
            np.testing.assert_array_equal(tensor, sum(v[index] for v in values))


@pytest.mark.parametrize("name", all_reduce.names())
def test_one_bad_tower_poisons_all(name, cpu_devices):
    values = draw(3)
    values[1][0][2] = np.nan
    for tower in reduce(name, "towers", values, cpu_devices[:3]):
        assert np.isnan(tower[0].numpy()).tolist() == [i == 2 for i in range(7)]
        assert np.isfinite(tower[2].numpy()).all()


@pytest.mark.parametrize("name", all_reduce.names())
def test_no_tensors(name, cpu_devices):
    assert reduce(name, "towers", [[], []], cpu_devices[:2]) == [[], []]
