"""An update waits for all that reads its variable, and for nothing else."""

from __future__ import annotations

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


def test_without_readers_there_is_nothing_to_wait_for():
    variable = tf.Variable(tf.ones([4]))

    @tf.function(autograph=False)
    def step():
        gradient = tf.fill([4], 0.5)
        assert Readers(gradient.graph).before_update(variable, gradient) is gradient
        return gradient

    step.get_concrete_function()
