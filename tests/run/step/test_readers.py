"""An update waits for all that reads its variable, and for nothing else.

Tests cnnbench/run/step/update.py.
"""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from cnnbench.run.step.update import BufferReaderFinder
from cnnbench.variable_mgr.towers import read

CALLER = "of_the_caller"  # a place without a device
FIRST, SECOND, PS = (
    f"/job:{task}/device:CPU:0" for task in ("worker/task:0", "worker/task:1", "ps/task:0")
)
GPU, OTHER_GPU, CPU, OTHER_CPU = (
    f"/job:localhost/replica:0/task:0/device:{name}"
    for name in ("GPU:0", "GPU:1", "CPU:0", "CPU:1")
)


def test_the_gradient_comes_after_every_reader():
    variable, other = tf.Variable(tf.ones([4])), tf.Variable(tf.ones([4]))

    @tf.function(autograph=False)
    def step():
        tf.sin(read(variable), name="reader")
        tf.cos(tf.exp(variable, name="another"), name="none")
        tf.exp(tf.reshape(variable, [2, 2]), name="reshaped")
        tf.sin(read(other), name="of_another")
        gradient = tf.fill([4], 0.5)
        waiting = BufferReaderFinder(gradient.graph).wait_for_readers(variable, gradient)
        assert waiting is not gradient
        return waiting

    graph = step.get_concrete_function().graph
    (result,) = (o for o in graph.get_operations() if o.name == "waiting")
    waited = {o.name for signal in result.control_inputs for o in signal.control_inputs}
    assert {"reader", "another", "reshaped"} <= waited
    assert not {"none", "of_another"} & waited


@pytest.mark.parametrize(
    ("home", "places", "waited"),
    [
        # Readers in another task have copies.
        ("/job:ps/replica:0/task:0/device:CPU:0", [FIRST, SECOND, PS, CALLER], [PS]),
        (
            "/job:worker/replica:0/task:1/device:CPU:0",
            [FIRST, SECOND, PS, CALLER],
            [SECOND, CALLER],
        ),
        # A signal per reader and device costs more than the copy that it avoids.
        (GPU, [GPU, OTHER_GPU, CPU], []),
        (CPU, [GPU, CPU, OTHER_CPU], [CPU, OTHER_CPU]),
        (CPU, [], []),
    ],
)
def test_readers_that_share_the_memory_are_waited_for(home, places, waited):
    local = tf.Variable(tf.ones([4]))

    @tf.function(autograph=False)
    def step():
        value = read(local)
        place_of = {}
        for place in places:
            with tf.device(None if place == CALLER else place):
                place_of[tf.sin(value).op.name] = place
        gradient = tf.fill([4], 0.5)
        variable = SimpleNamespace(handle=local.handle, device=home)
        waiting = BufferReaderFinder(gradient.graph).wait_for_readers(variable, gradient)
        assert (waiting is gradient) == (not waited)
        before = [] if waiting is gradient else list(waiting.op.control_inputs)
        for operation in before:  # a signal of all devices waits for one of each
            before += operation.control_inputs
        found = {place_of[o.name] for o in before if o.name in place_of}
        assert [place for place in places if place in found] == waited
        return gradient

    step.get_concrete_function()


def test_a_reader_beside_the_variable_sends_no_signal():
    variable = tf.Variable(tf.ones([4]))

    @tf.function(autograph=False)
    def step():
        with tf.device(variable.device):
            tf.sin(read(variable), name="reader")
            gradient = tf.fill([4], 0.5)
            waiting = BufferReaderFinder(gradient.graph).wait_for_readers(variable, gradient)
        assert "reader" in {o.name for o in waiting.op.control_inputs}
        return waiting

    step.get_concrete_function()
