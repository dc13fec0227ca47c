"""An update waits for all that reads its variable, and for nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import tensorflow as tf

from cnnbench.step.readers import Readers


def test_the_gradient_comes_after_every_reader():
    variable, other = tf.Variable(tf.ones([4])), tf.Variable(tf.ones([4]))

    @tf.function(autograph=False)
    def step():
        tf.sin(variable, name="reader")
        tf.cos(tf.exp(variable, name="another"), name="none")
        tf.exp(tf.reshape(variable, [2, 2]), name="reshaped")
        tf.sin(other, name="of_another")
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
            tf.sin(variable, name="reader")
            gradient = tf.fill([4], 0.5)
            waiting = Readers(gradient.graph).before_update(variable, gradient)
        assert "reader" in {o.name for o in waiting.op.control_inputs}
        return waiting

    step.get_concrete_function()


def test_readers_in_other_tasks_hold_copies():
    local = tf.Variable(tf.ones([4]))
    found = {}

    def waited_for(home):
        @tf.function(autograph=False)
        def step():
            for task in ("job:worker/task:0", "job:worker/task:1", "job:ps/task:0"):
                with tf.device(f"/{task}/device:CPU:0"):
                    tf.sin(local, name=task.replace(":", "").replace("/", "_"))
            with tf.device(None):
                tf.sin(local, name="of_the_caller")
            gradient = tf.fill([4], 0.5)
            variable = SimpleNamespace(handle=local.handle, device=home)
            waiting = Readers(gradient.graph).before_update(variable, gradient)
            before = list(waiting.op.control_inputs)
            for operation in before:  # a signal of all devices waits for one of each
                before += operation.control_inputs
            found[home] = {operation.name for operation in before}
            return gradient

        step.get_concrete_function()
        names = ("jobworker_task0", "jobworker_task1", "jobps_task0", "of_the_caller")
        return [name for name in names if name in found[home]]

    assert waited_for("/job:ps/replica:0/task:0/device:CPU:0") == ["jobps_task0"]
    worker = "/job:worker/replica:0/task:1/device:CPU:0"
    assert waited_for(worker) == ["jobworker_task1", "of_the_caller"]


def test_without_readers_there_is_nothing_to_wait_for():
    variable = tf.Variable(tf.ones([4]))

    @tf.function(autograph=False)
    def step():
        gradient = tf.fill([4], 0.5)
        assert Readers(gradient.graph).before_update(variable, gradient) is gradient
        return gradient

    step.get_concrete_function()
