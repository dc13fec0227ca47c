from __future__ import annotations

import pytest
import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.copy import CopyToOneDevice


def trace(algorithm, devices, tensors_per_tower):
    handed_out = []

    @tf.function(autograph=False)
    def step(values):
        result = algorithm([values] * len(devices), devices)
        handed_out.extend(result)
        return result

    specs = [tf.TensorSpec([3]) for _ in range(tensors_per_tower)]
    return step.get_concrete_function(specs).graph.get_operations(), handed_out


@pytest.mark.parametrize("towers", [2, 3, 8])
def test_tensor_i_is_added_on_device_i_mod_n(towers, cpu_devices):
    devices = cpu_devices[:towers]
    operations, _ = trace(CopyToOneDevice(None), devices, 10)
    adds = [op.device for op in operations if op.type == "AddN"]
    assert adds == [devices[i % towers] for i in range(10)]


def test_everything_on_the_cpu(cpu_devices):
    operations, _ = trace(CopyToOneDevice(cpu_devices[5]), cpu_devices[:2], 4)
    assert [op.device for op in operations if op.type == "AddN"] == [cpu_devices[5]] * 4


def test_towers_share_the_sums_without_further_ops(cpu_devices):
    operations, (first, second) = trace(CopyToOneDevice(None), cpu_devices[:2], 3)
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert first is not second
    # What the function returns gets an identity each; nothing else is between.
    kinds = [op.type for op in operations if op.type not in ("Placeholder", "Identity")]
    assert kinds == ["AddN"] * 3
