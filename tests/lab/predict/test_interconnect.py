"""Specs and lists of tensors on networks: hybrids, packing, two levels."""

import pytest

from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.links import Link
from cnnbench.lab.predict.workload import NotPredictedError, Tensor
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

LINK = Link("near", 5e-6, 1e-10, 1e-12)
FAR = Link("far", 2e-5, 1e-9, 1e-12)
MIB = 1 << 20


def seconds(spec, tensors, devices=8, network=None, packing=None):
    return (network or Interconnect(LINK)).seconds(
        parse_all_reduce_spec(spec), tensors, devices, packing or Packing()
    )


def test_a_hybrid_costs_what_its_parts_cost():
    small, large = [Tensor(1000)] * 5, [Tensor(MIB)] * 3
    both = seconds("pscpu:32K:xring", [small[0], large[0], *small[1:], *large[1:]])
    assert both == pytest.approx(seconds("pscpu", small) + seconds("xring", large))


def test_limits_count_bytes_as_sent():
    half = Packing(compact_dtype="float16")
    tensor = [Tensor(16 * 1024)]  # 64 KiB, sent as 32 KiB
    assert seconds("pscpu:32K:xring", tensor) == seconds("xring", tensor)
    assert seconds("pscpu:32K:xring", tensor, packing=half) == seconds(
        "pscpu", tensor, packing=half
    )


def test_packing_saves_the_latency_of_many_small_tensors():
    many = [Tensor(1024)] * 1000
    packed = seconds("copy", many, packing=Packing(gradient_repacking=1))
    assert packed < seconds("copy", many)
    assert seconds("tree", many, packing=Packing(gradient_repacking=1)) < seconds("tree", many) / 3
    # One copy joins, at two thirds of what adding costs.
    assert packed == pytest.approx(
        seconds("copy", [Tensor(1024_000)]) + 4096_000 * LINK.gamma * 2 / 3
    )


def test_two_levels_within_between_and_back():
    network = Interconnect(LINK, FAR, devices_per_node=4)
    tensor = [Tensor(MIB)]
    within = seconds("xring", tensor, devices=4)
    between = seconds("rechd", tensor, devices=2, network=Interconnect(FAR))
    # Additions happen in the memory of the same devices.
    back = 3 * (LINK.alpha + 4 * MIB * LINK.beta)
    assert seconds("xring/rechd", tensor, 8, network) == pytest.approx(within + between + back)


def test_two_levels_in_one_node_are_one():
    network = Interconnect(LINK, FAR, devices_per_node=8)
    assert seconds("xring/rechd", [Tensor(MIB)], 8, network) == seconds("xring", [Tensor(MIB)], 8)


def test_two_levels_between_single_devices_are_one():
    network = Interconnect(LINK, FAR, devices_per_node=1)
    one = seconds("rechd", [Tensor(MIB)], 8, Interconnect(FAR))
    assert seconds("xring/rechd", [Tensor(MIB)], 8, network) == pytest.approx(one)


def test_two_levels_win_where_the_far_link_is_slow():
    network = Interconnect(LINK, FAR, devices_per_node=8)
    tensor = [Tensor(16 * MIB)]
    assert seconds("psgpu/xring", tensor, 64, network) < seconds("copy", tensor, 64, network)


@pytest.mark.parametrize(
    ("spec", "devices", "reason"),
    [
        ("magic", 8, "there is no formula for magic"),
        ("xring#9", 8, "9 shards need as many devices"),
        ("xring/rechd", 8, "--inter_link"),
    ],
)
def test_what_cannot_be_predicted_says_why(spec, devices, reason):
    with pytest.raises(NotPredictedError, match=reason):
        seconds(spec, [Tensor(MIB)], devices)


def test_no_tensors_cost_nothing():
    assert seconds("xring", []) == 0.0
