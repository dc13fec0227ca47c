from __future__ import annotations

import pytest

from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce.algorithms.pscpu import gather_groups

SHAPE = (8, 1025, 16)


@pytest.mark.parametrize(
    ("devices", "size", "expected"),
    [
        ("a", 1, "a"),
        ("abc", 1, "a b c"),
        ("abc", 2, "ac ba"),
        ("abc", 3, "abc"),
        ("abcd", 2, "ac bd"),
        ("abcd", 3, "aca bdb"),
        ("abcde", 1, "a b c d e"),
        ("abcde", 2, "ad be ca"),
        ("abcde", 3, "ace bda"),
        ("abcde", 5, "abcde"),
        ("abcdef", 4, "acea bdfb"),
    ],
)
def test_groups_wrap_around_the_devices(devices, size, expected):
    assert ["".join(group) for group in gather_groups(devices, size)] == expected.split()


@pytest.mark.parametrize("name", ["pscpu", "psgpu"])
def test_more_shards_than_devices_are_refused(name, make_context):
    with pytest.raises(ValueError, match=r"4 shards need as many different devices .* only 3"):
        all_reduce.create(name, make_context(3, shards=4))


def test_pscpu_counts_cpus_and_psgpu_devices(make_context, cpu_devices):
    context = make_context(2, cpu_devices=cpu_devices[2:5], shards=3)
    all_reduce.create("pscpu", context)
    with pytest.raises(ValueError, match="only 2"):
        all_reduce.create("psgpu", context)


@pytest.mark.usefixtures("separate_memories")
@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize(("name", "gather"), [("pscpu", slice(4, 7)), ("psgpu", slice(0, 4))])
def test_each_shard_is_added_on_its_device_and_sent_to_all(
    name, gather, shards, make_context, trace, flow, cpu_devices
):
    context = make_context(4, cpu_devices=cpu_devices[4:7], shards=shards)
    groups = gather_groups(cpu_devices[gather], shards)
    traced = trace(name, context, SHAPE, tensors=5, first_index=7)
    for index, results in enumerate(traced.results, 7):
        group = groups[index % len(groups)]
        for device, result in zip(context.devices, results, strict=True):
            expected = []
            for chunk, source in enumerate(group):
                values = (flow.Part(chunk, d) if shards > 1 else d for d in context.devices)
                total = flow.Sum(source, tuple(values))
                expected.append(total if device == source else flow.Hop(device, total))
            assert traced.chunks(result) == expected


def test_one_shard_in_one_memory_is_one_addition(make_context, trace, cpu_devices):
    traced = trace("pscpu", make_context(3, cpu_devices=cpu_devices[5:7]), SHAPE, tensors=3)
    assert [op.type for op in traced.operations] == ["AddN"] * 3
    assert [op.device for op in traced.operations] == [cpu_devices[i] for i in (5, 6, 5)]
    assert all(total is results[0] for results in traced.results for total in results)


def test_shards_in_one_memory_are_joined_once(make_context, trace):
    traced = trace("psgpu", make_context(4, shards=2), SHAPE)
    kinds = [op.type for op in traced.operations if op.type != "Const"]
    assert kinds == ["Reshape", "SplitV"] * 4 + ["AddN"] * 2 + ["ConcatV2", "Reshape"]


def test_a_tensor_too_small_for_its_shards_has_one(make_context, trace):
    traced = trace("psgpu", make_context(4, shards=4), (1000,))
    assert [op.type for op in traced.operations] == ["AddN"]
