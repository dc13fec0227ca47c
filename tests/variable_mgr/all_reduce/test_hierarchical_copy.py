from __future__ import annotations

import pytest
import tensorflow as tf

from cnnbench.base.jobs.devices import device_string
from cnnbench.variable_mgr.all_reduce import ReduceContext, create

GPUS = tuple(device_string("localhost", 0, "gpu", i) for i in range(8))


def position(device: str) -> int:
    return int(device.rpartition(":")[2])


def argument(operation: tf.Operation) -> int:
    """Which argument of the traced function a placeholder is."""
    number = operation.name.partition("_")[2]
    return int(number) if number else 0


def summands(tensor: tf.Tensor) -> list[int]:
    """The arguments of which a tensor is the sum, each as often as it is added."""
    if tensor.op.type == "Placeholder":
        return [argument(tensor.op)]
    return sorted(number for value in tensor.op.inputs for number in summands(value))


@pytest.mark.parametrize("count", [2, 4, 6, 8])
def test_dgx1_takes_devices_half_the_count_apart(count, trace):
    context = ReduceContext(devices=GPUS[:count])
    algorithm = create("hierarchical_copy", context)
    for index in range(2 * count + 1):
        mains = tuple(map(position, algorithm.main_devices(index)))
        assert mains == (index % count, (index + count // 2) % count)


def test_gcp_v100_takes_four_pairs_in_turn():
    algorithm = create(
        "hierarchical_copy", ReduceContext(devices=GPUS, network_topology="gcp_v100")
    )
    mains = [tuple(map(position, algorithm.main_devices(index))) for index in range(6)]
    assert mains == [(0, 5), (2, 7), (5, 0), (7, 2), (0, 5), (2, 7)]


@pytest.mark.parametrize("topology", ["dgx1", "gcp_v100"])
@pytest.mark.parametrize("index", range(8))
def test_additions_and_the_copy_are_on_the_main_devices(index, topology, trace):
    context = ReduceContext(devices=GPUS, network_topology=topology)
    algorithm = create("hierarchical_copy", context)
    first, second = algorithm.main_devices(index)
    traced = trace("hierarchical_copy", context, (3,), first_index=index)
    near, far, total = traced.of_type("AddN")
    assert (near.device, far.device, total.device) == (first, second, first)
    # Each main adds what is on its own half of the machine.
    own = position(first) // 4
    halves = [0, 1, 2, 3], [4, 5, 6, 7]
    assert [summands(op.outputs[0]) for op in (near, far)] == [halves[own], halves[1 - own]]
    assert list(total.inputs) == [near.outputs[0], far.outputs[0]]
    [copy] = traced.of_type("Identity")
    assert copy.device == second
    assert copy.inputs[0] is total.outputs[0]
    [given] = traced.results
    for device, tensor in zip(GPUS, given, strict=True):
        near_first = position(device) // 4 == own
        assert tensor is (total if near_first else copy).outputs[0]


@pytest.mark.parametrize("count", [3, 5, 7])
def test_an_odd_count_has_every_device_in_one_half(count, trace):
    for index in range(count):
        traced = trace(
            "hierarchical_copy", ReduceContext(devices=GPUS[:count]), (3,), first_index=index
        )
        for tensor in traced.results[0]:
            assert summands(tensor) == list(range(count))
        mains = {op.device for op in traced.of_type("AddN", "Identity")}
        halves = {position(device) >= count // 2 for device in mains}
        assert halves == {False, True}


@pytest.mark.parametrize("count", [2, 7])
def test_gcp_v100_needs_eight_devices(count):
    context = ReduceContext(devices=GPUS[:count], network_topology="gcp_v100")
    with pytest.raises(ValueError, match=f"exactly 8 devices, and there are {count}"):
        create("hierarchical_copy", context)


def test_unknown_topologies_are_refused():
    with pytest.raises(ValueError, match=r"'torus'.*dgx1, gcp_v100"):
        create("hierarchical_copy", ReduceContext(devices=GPUS, network_topology="torus"))
