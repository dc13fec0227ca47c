"""The loss of transcripts against TensorFlow's kernel in float64, and what it takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if

from cnnbench.models.ctc import ctc_loss

CLASSES = 29


def utterances(batch, frames, letters, scale):
    """Random logits, letters, lengths of transcripts and of utterances."""
    rng = np.random.default_rng(frames)
    logits = scale * rng.normal(size=(batch, frames, CLASSES))
    return (
        tf.constant(logits, tf.float32),
        tf.constant(rng.integers(0, CLASSES - 1, (batch, letters))),
        tf.constant(rng.integers(letters // 2, letters + 1, batch)),
        tf.constant(rng.integers(frames - frames // 5, frames + 1, batch)),
    )


def in_float64(logits, letters, length, frames):
    there = tf.sequence_mask(length, letters.shape[1])
    return tf.raw_ops.CTCLoss(
        inputs=tf.transpose(logits, [1, 0, 2]),
        labels_indices=tf.where(there),
        labels_values=tf.cast(tf.boolean_mask(letters, there), tf.int32),
        sequence_length=tf.cast(frames, tf.int32),
    ).loss


def with_gradient(loss, logits, *labels):
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = loss(logits, *labels)
    return losses, tape.gradient(losses, logits)


def traced(xla):
    return tf.function(
        lambda *given: with_gradient(ctc_loss, *given), autograph=False, jit_compile=xla
    )


@pytest.mark.parametrize(
    ("batch", "frames", "letters", "scale", "xla"),
    slow_if(
        lambda case: case != (4, 60, 10, 5.0, False),
        [(4, 60, 10, 1.0, True), (4, 60, 10, 5.0, False), (2, 874, 576, 5.0, False)],
    ),
)
def test_losses_and_gradients_are_those_of_float64(batch, frames, letters, scale, xla):
    """TensorFlow's kernels in float32: gradients right to 1e-6 (dense), to 3e-3 (sparse)."""
    logits, *labels = utterances(batch, frames, letters, scale)
    expected, slope = with_gradient(in_float64, tf.cast(logits, tf.float64), *labels)
    found, gradient = traced(xla)(logits, *labels)
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    error = np.linalg.norm(gradient.numpy() - slope.numpy())
    assert error < 2e-6 * np.linalg.norm(slope)


def test_nothing_grows_with_the_square_of_the_transcript():
    """The dense algorithm has a number for every pair of states, in every frame."""
    logits, *labels = utterances(1, 874, 576, 1.0)
    graph = traced(False).get_concrete_function(logits, *labels).graph.as_graph_def(add_shapes=True)
    nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
    sizes = {
        math.prod(dim.size for dim in shape.dim): node.name
        for node in nodes
        for shape in node.attr["_output_shapes"].list.shape
        if not shape.unknown_rank
    }
    assert 874 * CLASSES <= max(sizes) <= (2 * 576 + 1) * CLASSES, sizes[max(sizes)]


def test_an_empty_transcript_is_nothing_but_blanks():
    logits, letters, _, frames = utterances(2, 9, 4, 1.0)
    losses, gradient = with_gradient(ctc_loss, logits, letters, tf.constant([0, 0]), frames)
    shares = tf.nn.log_softmax(logits).numpy()
    counts = frames.numpy()
    expected = [-rows[:count, -1].sum() for rows, count in zip(shares, counts, strict=True)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for rows, share, count in zip(gradient.numpy(), shares, counts, strict=True):
        wanted = np.exp(share[:count]) - np.eye(CLASSES)[-1]
        np.testing.assert_allclose(rows[:count], wanted, atol=1e-6)
        assert not rows[count:].any()


@pytest.mark.parametrize(("length", "frames"), [(0, 0), (2, 0), (2, 2)])
def test_without_frames_enough_there_is_no_loss(length, frames):
    """Two equal letters need three frames."""
    logits, *_ = utterances(1, 9, 4, 1.0)
    labels = tf.constant([[1, 1, 2, 3]]), tf.constant([length]), tf.constant([frames])
    losses, gradient = with_gradient(ctc_loss, logits, *labels)
    assert losses.numpy().tolist() == [0.0]
    assert not gradient.numpy().any()


def test_logits_that_are_not_finite_give_such_a_loss():
    """A run must see it, though the comparisons of an impossible transcript are false."""
    logits, *labels = utterances(2, 9, 4, 1.0)
    losses, gradient = with_gradient(ctc_loss, logits * [[[math.nan]], [[1.0]]], *labels)
    assert np.isnan(losses[0])
    assert np.isnan(gradient[0]).any()
    assert np.isfinite(losses[1])
    assert np.isfinite(gradient[1]).all()
