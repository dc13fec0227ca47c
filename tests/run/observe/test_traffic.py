"""How collectives run, as the traced graph tells it."""

import pytest
import tensorflow as tf

from cnnbench.base.job import Task
from cnnbench.run.observe.traffic import (
    collective_libraries,
    count_messages_and_bytes,
    count_traffic_of_calls,
)

CPU, GPU = (Task("worker", 0).device(kind, 0) for kind in ("cpu", "gpu"))


def graph_of(*operations):
    """A graph with a collective for each (device, hint)."""

    @tf.function(autograph=False)
    def step():
        for device, hint in operations:
            with tf.device(device):
                tf.raw_ops.CollectiveReduceV2(
                    input=1.0,
                    group_size=2,
                    group_key=1,
                    instance_key=1,
                    ordering_token=[],
                    merge_op="Add",
                    final_op="Id",
                    communication_hint=hint,
                )

    return step.get_concrete_function().graph


@pytest.mark.parametrize(
    ("operations", "devices", "found"),
    [
        ([(GPU, "nccl"), (CPU, "auto")], [GPU], ("nccl",)),
        ([(GPU, "auto")], [GPU], ("ring",)),
        # TensorFlow uses its ring where it cannot follow the hint.
        ([(CPU, "nccl")], [CPU], ("ring",)),
        ([(GPU, "nccl"), (GPU, "ring")], [GPU], ("nccl", "ring")),
        ([(CPU, "ring")], [GPU], ()),
    ],
)
def test_what_runs_is_what_the_operations_ask_for_where_they_are(operations, devices, found):
    assert collective_libraries(graph_of(*operations), devices) == found


HERE, BESIDE, THERE = (
    Task("worker", task).device("cpu", i) for task, i in ((0, 0), (0, 1), (1, 0))
)


def sending_graph(shape=(4,)):
    """Values that go from two devices of one process to another."""

    @tf.function(autograph=False)
    def step(x):
        with tf.device(HERE):
            value, unused = tf.exp(x), tf.exp(x)
        with tf.device(BESIDE):
            beside = value + 1.0  # within the process
        with tf.device(THERE):
            first, second = value * 2.0, value * 3.0  # sent once
            tf.negative(unused)  # needed by nothing
            return first + second + beside

    return step.get_concrete_function(tf.TensorSpec(shape)).graph


def test_a_value_is_sent_once_to_each_device_of_another_process_that_needs_it():
    graph, of_any_size = sending_graph(), sending_graph([None])
    assert count_messages_and_bytes(graph, 2) == (2, 2 * 4 * 4)
    assert count_messages_and_bytes(of_any_size, 2) == (2, None)
    assert count_traffic_of_calls([(graph, 3), (sending_graph((5,)), 1)], 2) == (8, 3 * 32 + 40)
    assert count_traffic_of_calls([(graph, 3), (of_any_size, 1)], 2) == (8, None)
    assert count_traffic_of_calls([], 2) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "offsets", "messages", "sent"),
    [
        # Of four devices of two processes: 2 * 3 hops of a quarter on each of two links.
        (tf.raw_ops.CollectiveReduce, [0], 12, 12 * 100),
        (tf.raw_ops.CollectiveReduce, [0, -1], 24, 12 * 100),
        # All of a value goes over each of three hops.
        (tf.raw_ops.CollectiveGather, None, 6, 6 * 400),
    ],
)
def test_rings_send_over_the_links_between_processes(kind, offsets, messages, sent):
    @tf.function(autograph=False)
    def step(x):
        results = []
        for device in (HERE, THERE):
            with tf.device(device):
                keys = {"group_size": 4, "group_key": 1, "instance_key": 7}
                if offsets:
                    how = {"merge_op": "Add", "final_op": "Id", "subdiv_offsets": offsets}
                else:
                    how = {"shape": [400]}
                results.append(kind(input=tf.identity(x), **keys, **how))
        return results

    graph = step.get_concrete_function(tf.TensorSpec([100])).graph
    assert count_messages_and_bytes(graph, 2) == (messages, sent)
