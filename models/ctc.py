"""Connectionist temporal classification (CTC) for long transcripts, on any device.

Source: Graves et al., ICML 2006, sections 4.1 and 4.2. `tf.nn.ctc_loss` is not used. With
dense labels, it multiplies a matrix of all pairs of states in every frame. With sparse labels, it
runs only on CPUs and without XLA, and for long utterances the error of its gradients is up to 3e-3,
because it subtracts sums over all previous frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_IMPOSSIBLE = -1e30  # Finite, so sums stay finite.


def ctc_loss(logits: Any, letters: Any, length: Any, frames: Any) -> Any:
    """Computes the CTC loss, the negative log probability of each transcript, ``[batch]``.

    The probability of a transcript is the sum over all its alignments.

    The result is float32. If a transcript has no alignment, its loss and its gradients are 0. Only
    first derivatives with respect to the logits are defined.

    Args:
      logits: float32 ``[batch, max_frames, classes]``; the last class is the blank.
      letters: integers ``[batch, max_letters]``, less than the class of the blank.
      length: integers ``[batch]``, the number of letters in each transcript; may be 0.
      frames: integers ``[batch]``, the number of frames in each utterance.
    """
    classes = logits.shape[-1]
    letters = tf.cast(letters, tf.int32)
    length, frames = tf.cast(length, tf.int32), tf.cast(frames, tf.int32)
    blank = tf.zeros_like(letters) + (classes - 1)
    # The states of an alignment: the letters, with blanks before, between and after them.
    pairs = tf.reshape(tf.stack([blank, letters], axis=2), [-1, 2 * letters.shape[1]])
    states = tf.concat([pairs, blank[:, :1]], axis=1)
    number = tf.range(states.shape[1])
    forward_states = _TranscriptStates(states, number == 0, classes - 1)
    # The backward recursion goes through the states from the transcript's last blank to its first.
    backward_states = _TranscriptStates(
        states[:, ::-1], number[::-1] == 2 * length[:, None], classes - 1
    )

    @tf.custom_gradient
    def loss(logits: Any) -> tuple[Any, Callable[[Any], Any]]:
        log_probs = tf.transpose(tf.nn.log_softmax(logits), [1, 0, 2])
        log_total, alphas = _forward_log_probs(forward_states, backward_states, log_probs, frames)
        impossible = log_total < _IMPOSSIBLE / 2

        def gradient(upstream: Any) -> Any:
            factor = tf.where(impossible, 0.0, upstream)[:, None]
            derivative = _backward_gradients(
                forward_states, backward_states, log_probs, frames, alphas
            )
            return tf.transpose(derivative * factor, [1, 0, 2])

        return tf.where(impossible, 0.0, -log_total), gradient

    return loss(logits)


class _TranscriptStates:
    """States of CTC alignments: the letters and blanks of each transcript, ``[batch, states]``.

    The states are in the order in which alignments visit them. `start` is the log probability of
    each state before the first frame; only state `first` is possible.
    """

    def __init__(self, classes: Any, first: Any, blank: int) -> None:
        self.classes = classes
        self.start = tf.where(first, 0.0, _IMPOSSIBLE) + tf.zeros_like(classes, tf.float32)
        # Between two different letters, an alignment may leave out the blank.
        may_skip = (classes[:, 2:] != blank) & (classes[:, 2:] != classes[:, :-2])
        self._skips = tf.where(may_skip, 0.0, _IMPOSSIBLE)

    def next_log_probs(self, x: Any) -> Any:
        """Returns the log probability of reaching each state, before the emission of the frame.

        `x` contains the log probabilities of the states in the previous frame.
        """
        shifted = tf.pad(x[:, :-1], [[0, 0], [1, 0]], constant_values=_IMPOSSIBLE)
        shifted_by_two = tf.pad(
            x[:, :-2] + self._skips, [[0, 0], [2, 0]], constant_values=_IMPOSSIBLE
        )
        top = tf.maximum(tf.maximum(x, shifted), shifted_by_two)
        return top + tf.math.log(
            tf.exp(x - top) + tf.exp(shifted - top) + tf.exp(shifted_by_two - top)
        )

    def emission_log_probs(self, log_probs: Any) -> Any:
        """Returns the log probability that the network assigns to each state's class in a frame.

        `log_probs` contains the log probabilities of all classes in the frame.
        """
        return tf.gather(log_probs, self.classes, batch_dims=1)


def _forward_log_probs(
    forward_states: _TranscriptStates,
    backward_states: _TranscriptStates,
    log_probs: Any,
    frames: Any,
) -> tuple[Any, Any]:
    """Runs CTC's forward recursion over the frames.

    Returns the log probability of each transcript, and the log probability of each state in each
    frame. The log probabilities of states are relative to the most likely state of the frame.
    """

    def step(frame: Any, alpha: Any, total: Any, alphas: Any) -> tuple[Any, ...]:
        following = forward_states.next_log_probs(alpha) + forward_states.emission_log_probs(
            log_probs[frame]
        )
        largest = tf.reduce_max(following, axis=1, keepdims=True)
        there = (frame < frames)[:, None]
        alpha = tf.where(there, following - largest, alpha)
        total = tf.where(there, total + largest, total)
        return frame + 1, alpha, total, alphas.write(frame, alpha)

    count = log_probs.shape[0]
    alphas = tf.TensorArray(tf.float32, count, element_shape=forward_states.start.shape)
    total = tf.zeros_like(forward_states.start[:, :1])
    _, alpha, total, alphas = tf.while_loop(
        lambda frame, *_: frame < count, step, (0, forward_states.start, total, alphas)
    )
    ends = backward_states.next_log_probs(backward_states.start)[:, ::-1]
    return total[:, 0] + tf.reduce_logsumexp(alpha + ends, axis=1), alphas


def _backward_gradients(
    forward_states: _TranscriptStates,
    backward_states: _TranscriptStates,
    log_probs: Any,
    frames: Any,
    alphas: Any,
) -> Any:
    """Runs CTC's backward recursion over the frames.

    Returns the gradient of each loss with respect to its logits, ``[frames, batch, classes]``.
    """
    one_hot = tf.one_hot(forward_states.classes, log_probs.shape[2])

    def frame_step(frame: Any, beta: Any, gradients: Any) -> tuple[Any, ...]:
        log_probs_here = log_probs[frame]
        reached = backward_states.next_log_probs(beta)
        # Softmax makes the probabilities of a transcript's states sum to 1 in each frame.
        shares = tf.nn.softmax(alphas.read(frame) + reached[:, ::-1])
        of_classes = tf.einsum("bs,bsc->bc", shares, one_hot)
        there = (frame < frames)[:, None]
        gradient = tf.where(there, tf.exp(log_probs_here) - of_classes, 0.0)
        following = reached + backward_states.emission_log_probs(log_probs_here)
        following -= tf.reduce_max(following, axis=1, keepdims=True)
        return frame - 1, tf.where(there, following, beta), gradients.write(frame, gradient)

    count = log_probs.shape[0]
    gradients = tf.TensorArray(tf.float32, count, element_shape=log_probs.shape[1:])
    start = (count - 1, backward_states.start, gradients)
    return tf.while_loop(lambda frame, *_: frame >= 0, frame_step, start)[2].stack()
