"""What peers add, and where; test_bench.py has the check of their sums."""

from __future__ import annotations

import pytest
import tensorflow as tf

from cnnbench.base.job import Task
from cnnbench.lab.all_reduce.peers import NAMES, peer_reduction


@pytest.mark.parametrize(("name", "additions"), [(NAMES[0], 3), (NAMES[1], 1)])
def test_additions_are_where_tensorflow_puts_them(name, additions, cpu_devices):
    """What is measured is their reduction, not one that the tracing turned into another."""
    devices = cpu_devices[1:3]

    @tf.function(autograph=False)
    def step():
        towers = []
        for device in devices:
            with tf.device(device):
                towers.append([tf.random.uniform(shape) for shape in ((), (3,), (2, 5))])
        sums.extend(peer_reduction(name, devices)(towers))
        return sums

    sums = []
    graph = step.get_concrete_function().graph
    adds = [operation for operation in graph.get_operations() if operation.type == "AddN"]
    assert [operation.device for operation in adds] == [devices[0]] * additions
    found = [{tensor.device for tensor in own} for own in sums]
    assert found == [{device} for device in devices]


@pytest.mark.parametrize(
    ("name", "devices", "words"),
    [
        ("nccl_all_reduce", [("localhost", 0), ("localhost", 0)], "only on GPUs"),
        ("reduction_to_one_device", [("worker", 0), ("worker", 1)], "one process"),
    ],
)
def test_what_a_peer_cannot_reduce_is_refused(name, devices, words):
    with pytest.raises(ValueError, match=words):
        peer_reduction(
            name, [Task(job, task).device("cpu", i) for i, (job, task) in enumerate(devices)]
        )
