from __future__ import annotations

import pytest


@pytest.mark.parametrize("towers", [2, 3, 8])
def test_tensor_i_is_added_on_device_i_mod_n(towers, make_context, trace):
    context = make_context(towers)
    adds = trace("copy", context, (3,), tensors=10).of_type("AddN")
    assert [op.device for op in adds] == [context.devices[i % towers] for i in range(10)]


def test_everything_on_the_cpu(make_context, trace, cpu_devices):
    context = make_context(2, cpu_device=cpu_devices[5])
    adds = trace("copy", context, (3,), tensors=4).of_type("AddN")
    assert [op.device for op in adds] == [cpu_devices[5]] * 4


def test_devices_share_the_sum_without_further_ops(make_context, trace):
    traced = trace("copy", make_context(3), (3,), tensors=3)
    assert [op.type for op in traced.operations] == ["AddN"] * 3
    for per_device in traced.results:
        assert len(per_device) == 3
        assert all(total is per_device[0] for total in per_device)
