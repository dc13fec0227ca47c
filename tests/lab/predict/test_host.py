"""The work of shared machines is that of the graphs that the algorithms build."""

import pytest
import tensorflow as tf

from cnnbench.lab.predict.host import WORK, Work, algorithm_work, reduction_work
from cnnbench.lab.predict.workload import Tensor
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce import registry
from cnnbench.variable_mgr.all_reduce.context import ReduceContext, groups_of
from cnnbench.variable_mgr.all_reduce.reducer import TwoLevel
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(8))
SHARDED = ("xring", "tree", "pscpu", "psgpu")
# One chunk; two of them; a size that is no multiple of 64 bytes.
SIZES = (1000, 8192, 40_001)


def graph_work(algorithm, devices, elements):
    """Counts of the traced graph."""
    with tf.Graph().as_default() as graph:
        values = []
        for device in devices:
            with tf.device(device):
                values.append(tf.raw_ops.Placeholder(dtype=tf.float32, shape=[elements]))
        for device, total in zip(devices, algorithm(values, 0), strict=True):
            with tf.device(device):
                tf.raw_ops.Snapshot(input=total)
        return _count(_needed(graph))


def _needed(graph):
    """The operations that a sum depends on: TensorFlow runs no others."""
    needed, todo = set(), [op for op in graph.get_operations() if op.type == "Snapshot"]
    while todo:
        op = todo.pop()
        if op not in needed:
            needed.add(op)
            todo += [tensor.op for tensor in op.inputs]
    return needed


def _count(operations):
    ops = read = written = 0
    transfers = set()
    for op in operations:
        for tensor in op.inputs:
            if tensor.op.device != op.device and tensor.op.type != "Const":
                transfers.add((tensor.name, op.device))
        if op.type in ("Placeholder", "Const", "Snapshot"):
            continue
        ops += 1
        if op.type in ("AddV2", "AddN"):
            read += sum(_bytes(tensor) for tensor in op.inputs)
            written += _bytes(op.outputs[0])
        elif op.type == "ConcatV2":
            read += _bytes(op.outputs[0])
            written += _bytes(op.outputs[0])
    return Work(ops, len(transfers), read, written)


def _bytes(tensor):
    return tensor.shape.num_elements() * tensor.dtype.size


def check(predicted, counted, slack=1):
    assert predicted.ops == counted.ops
    assert predicted.read == pytest.approx(counted.read)
    assert predicted.written == pytest.approx(counted.written)
    # The device that joins chunks may hold one more or less of them.
    assert predicted.transfers == pytest.approx(counted.transfers, abs=slack)


@pytest.mark.parametrize(
    ("count", "elements"),
    [*zip((2, 3, 4, 5, 7, 8, 8, 3), (*SIZES, *SIZES, *SIZES[::2]), strict=True)],
)
@pytest.mark.parametrize(
    ("name", "shards"),
    [(name, 1) for name in WORK if name != "collective"] + [(name, 2) for name in SHARDED],
)
def test_counts_are_those_of_the_traced_graph(name, shards, count, elements):
    devices = DEVICES[:count]
    context = ReduceContext(devices=devices, cpu_devices=devices, shards=shards)
    counted = graph_work(registry.create(name, context), devices, elements)
    check(algorithm_work((name,), shards, Tensor(elements), [count]), counted)


@pytest.mark.parametrize("count", [4, 5, 8])
@pytest.mark.parametrize("levels", [("xring", "copy"), ("tree", "xring"), ("copy", "rechd")])
def test_two_levels(levels, count):
    devices = DEVICES[:count]
    groups = groups_of(devices, 2)
    context = ReduceContext(devices=devices, cpu_devices=devices)
    counted = graph_work(TwoLevel(*levels, context, groups, 1), devices, 1000)
    # A group's sum may have to be handed to the device that represents the group.
    work = algorithm_work(levels, 1, Tensor(1000), [len(group) for group in groups])
    check(work, counted, slack=len(groups))


def test_every_algorithm_but_nccl_is_known_on_cpus():
    assert {*registry.names()} - {*WORK} <= {"nccl"}


def test_a_collective_is_one_op_per_device():
    work = algorithm_work(("collective",), 2, Tensor(1000), [4])
    assert work.calls == 4
    # Two rings of two laps of three hops, on each device.
    assert work.steps == 2 * 2 * 3 * 4
    assert work.read == 2 * 3 * 4000
    assert work.written == 3 * 4000


def test_packing_joins_and_casts_on_every_device():
    # 4 tensors of 4 KB joined, sent as 8 KB in 16 bits by each of two devices, one of which adds.
    packing = Packing(gradient_repacking=1, compact_dtype="float16")
    spec = parse_all_reduce_spec("copy")
    work = reduction_work(spec, [Tensor(1000)] * 4, 2, packing)
    assert work.ops == 2 * (2 * 4 + 2 * 1 + 2) + 1
    assert work.read == 2 * (16_000 + 16_000 + 8_000) + 2 * 8_000
    assert work.written == 2 * (16_000 + 8_000 + 16_000) + 8_000
    assert work.transfers == 2
    assert reduction_work(spec, [Tensor(1000)] * 4, 2, Packing()).ops == 4


def test_only_large_buffers_are_mapped_anew():
    below = algorithm_work(("copy",), 1, Tensor(8 * 2**20 - 16), [4])
    above = algorithm_work(("copy",), 1, Tensor(8 * 2**20), [4])
    assert below.mapped == 0
    assert above.mapped == 32 * 2**20


@pytest.mark.parametrize(
    ("name", "devices", "buffers"),
    [
        ("copy", 8, 1),
        ("xring", 8, 1),  # every further addition replaces the partial sum
        ("tree", 8, 4),
        ("rechd", 8, 4),
        ("rechd", 7, 3),
        ("rechd", 5, 2),
        ("hierarchical_copy", 2, 1),
        ("hierarchical_copy", 3, 2),
        ("hierarchical_copy", 8, 2),
        ("collective", 8, 8),
    ],
)
def test_new_buffers(name, devices, buffers):
    work = algorithm_work((name,), 1, Tensor(1000), [devices])
    assert work.fresh == buffers * 4000


def test_work_adds_up():
    one, two = Work(*range(1, 10)), Work(*[1] * 9)
    assert one + two == Work(*range(2, 11))
    assert one.times(2) == Work(*range(2, 19, 2))
