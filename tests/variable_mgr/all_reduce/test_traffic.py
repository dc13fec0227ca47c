"""The messages and bytes of traced algorithms, by closed forms and by hand.

Tests cnnbench/run/observe/traffic.py and variable_mgr/all_reduce/algorithms/*.py.
"""

import pytest
import tensorflow as tf
from covering import covering_pairs
from oracle import AT_ROOTS, SHARDED, sent_by_all

from cnnbench.run.observe.traffic import count_messages_and_bytes
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import create

# One chunk; two of them; a size that is no multiple of 64 bytes; many.
SIZES = (1000, 8192, 40_001, 300_000)
# Algorithms that add on all devices.
SPREAD = ("collective", "rechd", "tree", "xring")


def of_task(job, index):
    return f"/job:{job}/replica:0/task:{index}/device:CPU:0"


def counted(algorithm, devices, elements):
    """What a function sends that sums one tensor of each device."""

    def reduce():
        values = []
        for device in devices:
            with tf.device(device):
                values.append(tf.random.uniform([elements]))
        sums = []
        for device, total in zip(devices, algorithm(values, 0), strict=True):
            with tf.device(device):
                sums.append(tf.raw_ops.Snapshot(input=total))
        return sums

    graph = tf.function(reduce, autograph=False).get_concrete_function().graph
    return count_messages_and_bytes(graph, len(devices))


@pytest.mark.parametrize(
    ("algorithm", "count", "elements"),
    covering_pairs(
        [(name, 1) for name in (*AT_ROOTS, *SPREAD)] + [(name, 2) for name in SHARDED],
        (2, 3, 4),
        SIZES,
    ),
)
def test_messages_and_bytes_are_those_of_the_graph(algorithm, count, elements):
    name, shards = algorithm
    devices = tuple(of_task("worker", index) for index in range(count))
    context = ReduceContext(devices=devices, cpu_devices=devices, shards=shards)
    found = counted(create(name, context), devices, elements)
    messages, sent = sent_by_all(name, elements, count, shards)
    assert found == (pytest.approx(messages), pytest.approx(sent))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_cpus_of_other_tasks_hear_every_device(count):
    devices = tuple(of_task("worker", index) for index in range(count))
    cpus = tuple(of_task("ps", index) for index in range(2))
    algorithm = create("pscpu", ReduceContext(devices=devices, cpu_devices=cpus, shards=2))
    assert counted(algorithm, devices, 8192) == (2 * 2 * count, 2 * count * 8192 * 4)
