"""Layers, kinds, bytes and FLOPs of the operations in a profile.

Tests cnnbench/run/observe/work.py.
"""

import re

import pytest
import tensorflow as tf
from covering import covering_pairs
from tensorflow.core.framework import graph_pb2

from cnnbench.flags import Params
from cnnbench.models import get_model
from cnnbench.models.cpu_operations import FASTEST_ALGORITHMS, CpuOperations
from cnnbench.models.declaration import FlopCounts, declare, scope_flops
from cnnbench.plan import make_plan
from cnnbench.records.profiles import (
    COPIES,
    FORWARD,
    OUTSIDE,
    REDUCTION,
    REST,
    TO_INPUT,
    TO_KERNEL,
    UPDATE,
    StepPartKey,
)
from cnnbench.run.observe.work import OperationWorkFinder, flops_by_part, make_work_finder


@pytest.mark.parametrize("model", ["resnet50", "lenet", "googlenet"])
def test_flops_of_layers_add_up_to_those_of_the_network(model):
    network = get_model(model, "imagenet")
    spec = declare(network, 1001)
    forward, training = (
        {name: one.training for name, one in scope_flops(network, 1001, training=on).items()}
        for on in (False, True)
    )
    assert sum(forward.values()) == spec.forward_flops_per_image
    assert sum(training.values()) == spec.training_flops_per_image
    if model == "lenet":  # by hand: 5 x 5 on 28 x 28, 3 to 32 channels
        assert forward["conv0"] == 2 * 28 * 28 * 5 * 5 * 3 * 32
        assert training["conv1"] == 3 * forward["conv1"]


def _graph():
    """Two layers, a ReLU outside of them, and the gradient of one."""
    graph = tf.Graph()
    with graph.as_default():
        images = tf.raw_ops.Placeholder(dtype=tf.float32, shape=[2, 3], name="images")
        weights = tf.constant(1.0, shape=[3, 4])
        with tf.name_scope("tower_0/block/affine0/"):
            product = tf.linalg.matmul(images, weights, name="MatMul")  # 2 x 4 float32
        with tf.name_scope("tower_0/"):
            made = tf.nn.relu(product, name="Relu_7")
        with tf.name_scope("tower_0/block/"):
            tf.nn.relu(tf.cast(made, tf.float16), name="Relu")
        with tf.name_scope("gradient_tape/tower_0/"):
            gradient = tf.raw_ops.ReluGrad(gradients=made, features=made, name="ReluGrad_3")
        with tf.name_scope("tower_0/"):
            tf.add_n([gradient, gradient], name="AddN")
        tf.add_n([gradient, gradient], name="allreduce_0/AddN")
    return graph


def test_operations_belong_to_the_innermost_layer():
    layers = {
        ("tower_0/block/affine0/MatMul", "MatMul"): ("block/affine0", FORWARD),
        ("tower_1/block/affine0/MatMul", "MatMul"): ("block/affine0", FORWARD),
        ("gradient_tape/tower_0/block/affine0/MatMul/MatMul_1", "MatMul"): (
            *("block/affine0", TO_INPUT),
        ),
        ("tower_0/block/Relu", "Relu"): ("block", FORWARD),
        ("tower_0/Relu_7", "Relu"): ("Relu", FORWARD),
        ("gradient_tape/tower_0/ReluGrad_3", "ReluGrad"): ("Relu", TO_INPUT),
        ("tower_0/AddN", "AddN"): ("AddN", TO_INPUT),
        ("allreduce_0/AddN", "AddN"): (REST, OUTSIDE),
        ("allreduce_0/AddN/_27", "_Send"): (REST, OUTSIDE),
    }
    works = OperationWorkFinder(_graph(), [], {"": 0, "block": 0, "block/affine0": 48}, {})
    assert all(works.is_of_step(name) for name, _ in layers)
    assert not works.is_of_step("DecodeJpeg")
    parts = {names: works(*names).part for names in layers}
    assert {names: (part.layer, part.direction) for names, part in parts.items()} == layers


def test_the_kind_and_the_bytes_of_operations_that_ran():
    """Of a graph of which nothing was fused, on devices as it says."""
    graph = _graph()
    with graph.as_default():
        affine = graph.get_tensor_by_name("tower_0/block/affine0/MatMul:0")
        gradient = graph.get_tensor_by_name("gradient_tape/tower_0/ReluGrad_3:0")
        with tf.device("/job:localhost/replica:0/task:0/device:CPU:3"):
            tf.raw_ops.L2Loss(t=affine, name="L2Loss")
        weights = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2, 4], name="weights")
        tf.raw_ops.ResourceApplyGradientDescent(
            var=weights, alpha=tf.constant(0.1), delta=gradient, name="update"
        )
        tf.raw_ops.AssignVariableOp(resource=weights, value=affine, name="assign")
        with tf.name_scope("tower_0/block/"):
            tf.add(affine, affine, name="Add")
            tf.nn.softmax(affine, name="Softmax")
            tf.reshape(affine, [8], name="Reshape")
            tf.exp(affine, name="Exp")
    flops = {"": 0, "block": 0, "block/affine0": 48}
    works = OperationWorkFinder(graph, [graph.as_graph_def()], flops, {"block/affine0": (3, 4)})
    size = 2 * 4 * 4  # bytes of each tensor but images, weights and scalars
    expected = {
        ("tower_0/block/affine0/MatMul", "_MklMatMul"): (
            *("block/affine0", "dense", FORWARD, True),
            2 * 3 * 4 + 3 * 4 * 4 + size,
        ),
        ("tower_0/block/Add", "AddV2"): ("block", "addition", FORWARD, False, 2 * size),
        ("tower_0/block/Softmax", "Softmax"): (
            *("block", "other activation", FORWARD, False),
            2 * size,
        ),
        ("tower_0/block/Reshape", "Reshape"): ("block", "other", FORWARD, False, 0),
        ("tower_0/block/Exp", "Exp"): ("block", "other", FORWARD, False, 2 * size),
        ("gradient_tape/tower_0/ReluGrad_3", "ReluGrad"): (
            *("Relu", "ReLU", TO_INPUT, False),
            2 * size,
        ),
        ("L2Loss", "L2Loss"): (REST, "L2 loss", OUTSIDE, False, size + 4),
        # The gradient and the rate are read, and the variable is read and written.
        ("update", "ResourceApplyGradientDescent"): (REST, UPDATE, OUTSIDE, False, 3 * size + 4),
        ("assign", "AssignVariableOp"): (REST, "other", OUTSIDE, False, 0),
        ("allreduce_0/AddN", "AddN"): (REST, REDUCTION, OUTSIDE, False, 2 * size),
        ("unknown", "CollectiveReduceV2"): (REST, REDUCTION, OUTSIDE, False, 0),
        ("unknown", "AddN"): (REST, "other", OUTSIDE, False, 0),
        ("allreduce_0/AddN/_5", "_Recv"): (REST, REDUCTION, OUTSIDE, False, 0),
        ("tower_0/block/affine0/MatMul/_5", "_Send"): (REST, COPIES, OUTSIDE, False, 0),
    }
    found = {names: works(*names) for names in expected}
    assert {
        names: (*work.part, work.is_product, work.bytes) for names, work in found.items()
    } == expected
    assert [works.device_of_operation(name) for name in ("L2Loss", "update", "unknown")] == [
        *("cpu:3", "", ""),
    ]
    names = ("tower_0/block/Cast", "L2Loss", "update", "unknown")
    assert [works.result_dtype(name) for name in names] == ["float16", "float32", "", ""]
    counted = works.count_operations()
    assert (counted["AddN"], counted["L2Loss"], list(counted)) == (2, 1, sorted(counted))


def test_operations_that_only_a_partition_has_read_what_was_traced():
    """Such as updates that were fused, in a branch of tf.cond or not."""
    graph = _graph()
    gradient, affine = "gradient_tape/tower_0/ReluGrad_3", "tower_0/block/affine0/MatMul"
    with graph.as_default(), tf.name_scope("tower_0/block/"):
        tf.reshape(graph.get_tensor_by_name(f"{affine}:0"), [8], name="Reshape")
    ran = graph_pb2.GraphDef()

    def add(name, op, *inputs, dtype=tf.float32):
        node = ran.node.add(name=name, op=op, input=inputs)
        node.attr["T"].type = dtype.as_datatype_enum

    add("variable", "_Arg", dtype=tf.resource)
    add("value", "_Arg")
    add("fused", "_Update", "variable", gradient, "^value")
    add("pair", "_Update", "variable", "variable", gradient, affine)
    add("chosen", "Switch", gradient, "value")
    add("branch", "_Update", "variable", "chosen:1")
    add("second", "_Update", "variable", f"{gradient}:1", affine)  # there is no second result
    add("lone", "_Update", "variable")
    add("plain", "_Other", "value", gradient)
    add("sends", "_Send", "variable")
    add("enters", "Switch", "variable")
    add(f"{affine}", "_FusedMatMul", "value")
    add("tower_0/block/Reshape", "_MklReshape", affine)
    library = ran.library.function.add()
    library.node_def.add(name="inner", op="AddN")
    works = OperationWorkFinder(graph, [ran], {"": 0, "block/affine0": 48}, {})
    size = 2 * 4 * 4
    names = ("fused", "pair", "branch", "second", "lone", "plain", "sends", "enters", "value")
    assert {name: works(name, "_Update")[::2] for name in names} == {
        **{name: (StepPartKey(REST, UPDATE, OUTSIDE), 3 * size) for name in ("fused", "branch")},
        "pair": (StepPartKey(REST, UPDATE, OUTSIDE), 2 * size + 2 * 2 * size),
        "second": (StepPartKey(REST, UPDATE, OUTSIDE), 3 * size),
        "lone": (StepPartKey(REST, UPDATE, OUTSIDE), 0),
        **{
            name: (StepPartKey(REST, "other", OUTSIDE), 0)
            for name in ("plain", "sends", "enters", "value")
        },
    }
    assert works("tower_0/block/Reshape", "_MklReshape").bytes == 0
    assert works(affine, "_FusedMatMul").bytes == size  # of what it reads nothing was traced
    found = [works.is_of_step(name) for name in ("fused", "while/inner", "while/other", "other")]
    assert found == [True, True, False, False]


def test_a_finder_of_a_plan_knows_kernels_and_flops():
    plan = make_plan(Params(model="lenet", data_name="imagenet", device="cpu"))
    works = make_work_finder(plan, _graph(), [])
    flops = scope_flops(
        get_model("lenet", "imagenet"), plan.network.spec.num_classes, training=True
    )
    assert works.image_flops == flops
    kinds = {
        layer: works(f"tower_0/{layer}/x", kind).part.kind
        for layer, kind in (("conv0", "Conv2D"), ("affine0", "MatMul"), ("conv1", "_NativeConv2D"))
    }
    assert kinds == {"conv0": "convolution 5x5", "affine0": "dense", "conv1": "convolution 5x5"}


FORMS = [(1, 1, tf.float32), (3, 1, tf.float32), (3, 1, tf.bfloat16), (3, 2, tf.bfloat16)]


@pytest.mark.parametrize(
    ("kernels", "form", "synthetic"),
    covering_pairs(["library", *FASTEST_ALGORITHMS], FORMS, [False, True]),
)
def test_every_form_of_a_gradient_is_of_its_layer_and_direction(kernels, form, synthetic):
    size, stride, dtype = form
    graph = tf.Graph()
    with graph.as_default():
        shape = [2, 7, 6, 32]
        if synthetic:  # a variable that the first layer reads
            resource = tf.raw_ops.Placeholder(dtype=tf.resource, shape=[])
            images = tf.raw_ops.ReadVariableOp(resource=resource, dtype=dtype)
            images.set_shape(shape)
        else:
            images = tf.nn.relu(tf.raw_ops.Placeholder(dtype=dtype, shape=shape))
        with tf.name_scope("tower_0/conv0/"), tf.GradientTape() as tape:
            kernel = tf.constant(1.0, dtype, [size, size, 32, 40])
            tape.watch([images, kernel])
            y = CpuOperations(kernels).conv(images, kernel, [1, stride, stride, 1], "SAME")
        upstream = tf.raw_ops.Placeholder(dtype=dtype, shape=y.shape)
        gradients = tape.gradient(y, [images, kernel], upstream)
    works = OperationWorkFinder(
        graph, [], {"conv0": FlopCounts(4, 5, 6)}, {"conv0": (size, size, 32, 40)}
    )
    directions, products = (TO_INPUT, TO_KERNEL), []
    parts = [
        StepPartKey("conv0", f"convolution {size}x{size}", direction) for direction in directions
    ]
    for gradient, part in zip(gradients, parts, strict=True):
        waiting = [gradient.op]
        while waiting:
            operation = waiting.pop()
            if "gradient_tape" in operation.name and operation.type not in ("Const", "Reshape"):
                work = works(operation.name, operation.type)
                assert work.part == part
                assert work.is_product == bool(re.search("Conv|MatMul", operation.type))
                products += [work] if work.is_product else []
                waiting += [tensor.op for tensor in operation.inputs]
            elif operation.type == "Reshape":
                waiting += [tensor.op for tensor in operation.inputs]
    assert flops_by_part(products, works.image_flops) == dict(zip(parts, (5, 6), strict=True))
