"""Algorithms by name, and by the sizes of a spec; test_oracle.py has the sums.

Tests variable_mgr/all_reduce/registry.py.
"""

from __future__ import annotations

import contextlib
import re

import pytest
import tensorflow as tf
from covering import slow_if

from cnnbench.errors import UsageError
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec, registry, single
from cnnbench.variable_mgr.all_reduce.algorithms.copy import CopyToOneDevice
from cnnbench.variable_mgr.all_reduce.reducer import AllReducer


def test_every_file_registers_the_name_it_bears(make_context):
    assert "copy" in all_reduce.names()
    assert list(all_reduce.names()) == sorted(all_reduce.names())
    for name in all_reduce.names():
        # Some cannot work on CPUs; that is a reason of theirs, not a missing name.
        with contextlib.suppress(ValueError):
            all_reduce.create(name, make_context(8))
    assert set(registry.ALGORITHMS) == set(all_reduce.names())


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch, call):
    monkeypatch.setattr(registry.algorithms, "__path__", [str(tmp_path / "gone")])
    flags = ("--device=cpu", "--num_gpus=2", "--variable_update=replicated")
    err = call(*flags, "--all_reduce_spec=copy", code=4).err
    reason = f"{tmp_path}/gone: cannot be read: No such file or directory; reinstall cnnbench"
    assert err == f"cnnbench: error: {reason}\n"


def test_a_name_is_taken_once(make_context):
    assert type(all_reduce.create("copy", make_context(2))) is CopyToOneDevice
    with pytest.raises(UsageError, match="all-reduce algorithm copy is registered already"):
        all_reduce.register("copy")(lambda context: CopyToOneDevice(context))
    assert type(all_reduce.create("copy", make_context(2))) is CopyToOneDevice


def test_an_unknown_name_is_refused(make_context):
    with pytest.raises(UsageError, match="no module registers an all-reduce algorithm 'warp'"):
        all_reduce.create("warp", make_context(2))


@pytest.fixture
def calls(registered) -> dict[str, list[tuple[int, int]]]:
    """Elements and index of each tensor that the algorithms "small" and "large" summed."""
    made = {"small": [], "large": []}

    def spy(called):
        def reduce(tensors, index):
            called.append((tensors[0].shape.num_elements(), index))
            return tensors

        return lambda context: reduce

    for name, called in made.items():
        all_reduce.register(name)(spy(called))
    return made


def run(spec: str, context, sizes: list[int], dtype: tf.DType = tf.float32) -> None:
    columns = [[tf.zeros([size], dtype)] * len(context.devices) for size in sizes]
    AllReducer(parse_all_reduce_spec(spec), context, ())(columns)


# A limit of 1K bytes is 256 float32 or 512 float16 elements.
@pytest.mark.parametrize(
    ("dtype", "at_limit"), [(tf.float32, 256), (tf.float16, 512), (tf.float64, 128)]
)
def test_limits_are_bytes_and_belong_to_the_range_below(dtype, at_limit, calls, make_context):
    sizes = [at_limit - 1, at_limit, at_limit + 1]
    run("small:1K:large", make_context(2), sizes, dtype)
    assert sorted(size for size, _ in calls["small"]) == sizes[:2]
    assert [size for size, _ in calls["large"]] == sizes[2:]


def test_each_range_counts_its_own_tensors_and_starts_with_the_last(calls, make_context):
    run("small:64:large", make_context(2), [1, 99, 98, 2, 97, 3])
    assert calls == {"small": [(3, 2), (2, 1), (1, 0)], "large": [(97, 2), (98, 1), (99, 0)]}


@pytest.mark.parametrize("merge_scope", [1, 2, 9])
def test_so_many_tensors_share_a_name_scope(merge_scope, make_context):
    step = tf.function(
        AllReducer(single("copy"), make_context(2), (), merge_scope), autograph=False
    )
    graph = step.get_concrete_function([[tf.TensorSpec([3])] * 2] * 5).graph
    names = [op.name for op in graph.get_operations() if op.type == "AddN"]
    found = [re.match(r"allreduce_(\d+)/", name).group(1) for name in names]
    assert found == [str(number // merge_scope) for number in reversed(range(5))]


OTHER_VALUES = {
    "all_reduce_share_memory": {"share_memory": False},
    "communication_hint": {"communication_hint": "ring"},
    "local_parameter_device": {"cpu_device": "/job:localhost/replica:0/task:0/device:CPU:1"},
    "network_topology": {"network_topology": "gcp_v100"},
}
"""Fields of a context that differ with another value of a flag."""

NAMES = sorted({*all_reduce.names()} - {"nccl"})
EVERYDAY = ("xring", "hierarchical_copy")


@pytest.mark.parametrize("name", slow_if(lambda name: name not in EVERYDAY, NAMES))
def test_an_algorithm_declares_the_flags_that_change_what_it_does(name, make_context, trace):
    def operations(**fields):
        traced = trace(name, make_context(8, **fields), (100_003,), tensors=2)
        hints = {"CollectiveReduce": "communication_hint"}
        return [
            (op.type, op.device, op.type in hints and op.get_attr(hints[op.type]))
            for op in traced.operations
        ]

    usual = operations()
    changing = {flag for flag, other in OTHER_VALUES.items() if operations(**other) != usual}
    assert changing == {*registry.find(name).reads}
    assert all(name in registry.readers_of(flag) for flag in changing)
