"""What can be known of NCCL without a GPU: when it is refused, and the graph it makes.

Tests variable_mgr/all_reduce/algorithms/nccl.py.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from cnnbench.base.job import Task
from cnnbench.variable_mgr.all_reduce import ReduceContext, create
from cnnbench.variable_mgr.all_reduce.algorithms import nccl

GPUS = tuple(Task("localhost", 0).device("gpu", i) for i in range(3))


def test_a_build_without_the_kernel_is_refused(nccl_says):
    nccl_says("All kernels registered: <no registered kernels>")
    with pytest.raises(ValueError, match=f"{tf.__version__} was built without NCCL"):
        create("nccl", ReduceContext(devices=GPUS))


def test_the_kernel_is_there_in_builds_for_cuda():
    build = tf.sysconfig.get_build_info()
    assert nccl.nccl_kernel_exists() == (build["is_cuda_build"] or build["is_rocm_build"])


@pytest.mark.parametrize(
    ("text", "exists"),
    [
        ("Could not find device for node. All kernels registered: <no registered kernels>", False),
        ("Op type not registered 'NcclAllReduce' in binary", False),
        ("Could not find device for node. All kernels registered: device='GPU'", True),
    ],
)
def test_what_the_refusal_of_a_cpu_kernel_says(text, exists, nccl_says):
    nccl_says(text)
    assert nccl.nccl_kernel_exists() is exists


@pytest.mark.usefixtures("with_nccl")
def test_every_gpu_has_one_op_and_each_reduction_a_name(trace):
    traced = trace("nccl", ReduceContext(devices=GPUS), (3, 5), tensors=2)
    operations = traced.of_type("NcclAllReduce")
    assert [op.device for op in operations] == [*GPUS, *GPUS]
    assert {op.get_attr("num_devices") for op in operations} == {3}
    assert {op.get_attr("reduction") for op in operations} == {b"sum"}
    names = [op.get_attr("shared_name") for op in operations]
    assert len(set(names[:3])) == len(set(names[3:])) == 1
    assert names[0] != names[3]
    assert all(op.inputs[0].op.type == "Placeholder" for op in operations)
    assert len({op.inputs[0].op.name for op in operations}) == 6
    given = [tensor for of_tensor in traced.results for tensor in of_tensor]
    assert all(a is op.outputs[0] for a, op in zip(given, operations, strict=True))
    # An edge from the op of one GPU to that of another would be a deadlock.
    assert not any(op.control_inputs for op in operations)
    # Nothing is sent of an empty tensor.
    assert trace("nccl", ReduceContext(devices=GPUS), (0, 4)).of_type("NcclAllReduce") == []


@pytest.mark.usefixtures("with_nccl")
def test_names_differ_between_functions(trace):
    context = ReduceContext(devices=GPUS)
    names = {
        op.get_attr("shared_name")
        for _ in range(2)
        for op in trace("nccl", context, (3,)).of_type("NcclAllReduce")
    }
    assert len(names) == 2


@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_sums_have_the_dtype_of_the_values(dtype):
    algorithm = create("nccl", ReduceContext(devices=GPUS))

    @tf.function(autograph=False)
    def step(values):
        return algorithm(values, 0)

    graph = step.get_concrete_function([tf.TensorSpec([4], dtype)] * 3).graph
    assert {output.dtype for output in graph.outputs} == {dtype}
    sent = {op.inputs[0].dtype for op in graph.get_operations() if op.type == "NcclAllReduce"}
    assert sent == {tf.float32 if dtype == tf.bfloat16 else dtype}
    assert {op.device for op in graph.get_operations() if op.type == "Cast"} <= set(GPUS)
