"""How collectives run, as the traced graph tells it."""

import pytest
import tensorflow as tf

from cnnbench.base.job import Task
from cnnbench.run.observe.traffic import collective_libraries

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
