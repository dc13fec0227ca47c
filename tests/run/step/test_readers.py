"""An update waits for all that reads its variable, and for nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import tensorflow as tf

from cnnbench.run.step.readers import Readers
from cnnbench.variable_mgr.tower_variable import read


def test_the_gradient_comes_after_every_reader():
    variable, other = tf.Variable(tf.ones([4])), tf.Variable(tf.ones([4]))

    @tf.function(autograph=False)
    def step():
        tf.sin(read(variable), name="reader")
        tf.cos(tf.exp(variable, name="another"), name="none")
        tf.exp(tf.reshape(variable, [2, 2]), name="reshaped")
        tf.sin(read(other), name="of_another")
        gradient = tf.fill([4], 0.5)
        waiting = Readers(gradient.graph).before_update(variable, gradient)
        assert waiting is not gradient
        return waiting

    graph = step.get_concrete_function().graph
    (result,) = (o for o in graph.get_operations() if o.name == "waiting")
    waited = {o.name for signal in result.control_inputs for o in signal.control_inputs}
    assert {"reader", "another", "reshaped"} <= waited
    assert not {"none", "of_another"} & waited


def test_readers_beside_the_variable_send_no_signal():
    variable = tf.Variable(tf.ones([4]))

    @tf.function(autograph=False)
    def step():
        with tf.device(variable.device):
            tf.sin(read(variable), name="reader")
            gradient = tf.fill([4], 0.5)
            waiting = Readers(gradient.graph).before_update(variable, gradient)
        assert "reader" in {o.name for o in waiting.op.control_inputs}
        return waiting

    step.get_concrete_function()


CALLER = "of_the_caller"  # a place without a device


def waited_for(home: str, places: list[str]) -> list[str]:
    """The places whose reader of a variable at `home` its update waits for."""
    local = tf.Variable(tf.ones([4]))
    found: set[str] = set()

    @tf.function(autograph=False)
    def step():
        value = read(local)
        place_of = {}
        for place in places:
            with tf.device(None if place == CALLER else place):
                place_of[tf.sin(value).op.name] = place
        gradient = tf.fill([4], 0.5)
        variable = SimpleNamespace(handle=local.handle, device=home)
        waiting = Readers(gradient.graph).before_update(variable, gradient)
        before = [] if waiting is gradient else list(waiting.op.control_inputs)
        for operation in before:  # a signal of all devices waits for one of each
            before += operation.control_inputs
        found.update(place_of[o.name] for o in before if o.name in place_of)
        return gradient

    step.get_concrete_function()
    return [place for place in places if place in found]


def test_readers_in_other_tasks_hold_copies():
    first, second, ps = (
        f"/job:{task}/device:CPU:0" for task in ("worker/task:0", "worker/task:1", "ps/task:0")
    )
    places = [first, second, ps, CALLER]
    assert waited_for("/job:ps/replica:0/task:0/device:CPU:0", places) == [ps]
    assert waited_for("/job:worker/replica:0/task:1/device:CPU:0", places) == [second, CALLER]


def devices(*names: str) -> list[str]:
    return [f"/job:localhost/replica:0/task:0/device:{name}" for name in names]


def test_updates_on_a_gpu_wait_for_no_reader():
    """A signal per reader and device costs more than the copy it avoids."""
    (home,) = devices("GPU:0")
    assert waited_for(home, devices("GPU:0", "GPU:1", "CPU:0")) == []


def test_readers_on_gpus_hold_copies_of_variables_on_the_host():
    (home,) = devices("CPU:0")
    assert waited_for(home, devices("GPU:0", "CPU:0", "CPU:1")) == devices("CPU:0", "CPU:1")


def test_without_readers_there_is_nothing_to_wait_for():
    variable = tf.Variable(tf.ones([4]))

    @tf.function(autograph=False)
    def step():
        gradient = tf.fill([4], 0.5)
        assert Readers(gradient.graph).before_update(variable, gradient) is gradient
        return gradient

    step.get_concrete_function()
