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

_NEVER = -1e30  # Log probability of an impossible state. Sums of such numbers are finite.


def ctc_loss(logits: Any, letters: Any, length: Any, frames: Any) -> Any:
    """CTC loss: negative log probability of each transcript over all alignments, ``[batch]``.

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
    # Blanks are inserted before, between and after all letters.
    pairs = tf.reshape(tf.stack([blank, letters], axis=2), [-1, 2 * letters.shape[1]])
    states = tf.concat([pairs, blank[:, :1]], axis=1)
    number = tf.range(states.shape[1])
    ahead = _TranscriptStates(states, number == 0, classes - 1)
    # The backward recursion visits the states from a transcript's last blank to its first.
    behind = _TranscriptStates(states[:, ::-1], number[::-1] == 2 * length[:, None], classes - 1)

    @tf.custom_gradient
    def loss(logits: Any) -> tuple[Any, Callable[[Any], Any]]:
        log_probs = tf.transpose(tf.nn.log_softmax(logits), [1, 0, 2])
        log_total, alphas = _forward_log_probs(ahead, behind, log_probs, frames)
        impossible = log_total < _NEVER / 2

        def gradient(upstream: Any) -> Any:
            factor = tf.where(impossible, 0.0, upstream)[:, None]
            derivative = _backward_gradients(ahead, behind, log_probs, frames, alphas)
            return tf.transpose(derivative * factor, [1, 0, 2])

        return tf.where(impossible, 0.0, -log_total), gradient

    return loss(logits)


class _TranscriptStates:
    """The states (letters and blanks) of CTC alignments of transcripts, ``[batch, states]``.

    The states are in the order in which alignments visit them. `start` is the log probability of
    each state before the first frame; only state `first` is possible.
    """

    def __init__(self, classes: Any, first: Any, blank: int) -> None:
        self.classes = classes
        self.start = tf.where(first, 0.0, _NEVER) + tf.zeros_like(classes, tf.float32)
        # The blank between two different letters may be skipped.
        may_skip = (classes[:, 2:] != blank) & (classes[:, 2:] != classes[:, :-2])
        self._skips = tf.where(may_skip, 0.0, _NEVER)

    def next_log_probs(self, x: Any) -> Any:
        """Log probability of reaching each state; `x` are log probabilities one frame earlier."""
        shifted = tf.pad(x[:, :-1], [[0, 0], [1, 0]], constant_values=_NEVER)
        shifted_by_two = tf.pad(x[:, :-2] + self._skips, [[0, 0], [2, 0]], constant_values=_NEVER)
        top = tf.maximum(tf.maximum(x, shifted), shifted_by_two)
        return top + tf.math.log(
            tf.exp(x - top) + tf.exp(shifted - top) + tf.exp(shifted_by_two - top)
        )

    def emission_log_probs(self, log_probs: Any) -> Any:
        """Log probability that the network assigns to the class of each state in one frame."""
        return tf.gather(log_probs, self.classes, batch_dims=1)


def _forward_log_probs(
    ahead: _TranscriptStates, behind: _TranscriptStates, log_probs: Any, frames: Any
) -> tuple[Any, Any]:
    """Forward recursion: log probability of each transcript, and of each state by frame.

    The log probabilities of states are relative to the most likely state of the frame.
    """

    def step(frame: Any, alpha: Any, total: Any, alphas: Any) -> tuple[Any, ...]:
        following = ahead.next_log_probs(alpha) + ahead.emission_log_probs(log_probs[frame])
        largest = tf.reduce_max(following, axis=1, keepdims=True)
        there = (frame < frames)[:, None]
        alpha = tf.where(there, following - largest, alpha)
        total = tf.where(there, total + largest, total)
        return frame + 1, alpha, total, alphas.write(frame, alpha)

    count = log_probs.shape[0]
    alphas = tf.TensorArray(tf.float32, count, element_shape=ahead.start.shape)
    total = tf.zeros_like(ahead.start[:, :1])
    _, alpha, total, alphas = tf.while_loop(
        lambda frame, *_: frame < count, step, (0, ahead.start, total, alphas)
    )
    ends = behind.next_log_probs(behind.start)[:, ::-1]
    return total[:, 0] + tf.reduce_logsumexp(alpha + ends, axis=1), alphas


def _backward_gradients(
    ahead: _TranscriptStates, behind: _TranscriptStates, log_probs: Any, frames: Any, alphas: Any
) -> Any:
    """Backward recursion: gradients of losses for the logits, ``[frames, batch, classes]``."""
    one_hot = tf.one_hot(ahead.classes, log_probs.shape[2])

    def frame_step(frame: Any, beta: Any, gradients: Any) -> tuple[Any, ...]:
        log_probs_here = log_probs[frame]
        reached = behind.next_log_probs(beta)
        # Softmax normalises the probabilities of the states in this frame, so that they sum to 1.
        shares = tf.nn.softmax(alphas.read(frame) + reached[:, ::-1])
        of_classes = tf.einsum("bs,bsc->bc", shares, one_hot)
        there = (frame < frames)[:, None]
        gradient = tf.where(there, tf.exp(log_probs_here) - of_classes, 0.0)
        following = reached + behind.emission_log_probs(log_probs_here)
        following -= tf.reduce_max(following, axis=1, keepdims=True)
        return frame - 1, tf.where(there, following, beta), gradients.write(frame, gradient)

    count = log_probs.shape[0]
    gradients = tf.TensorArray(tf.float32, count, element_shape=log_probs.shape[1:])
    start = (count - 1, behind.start, gradients)
    return tf.while_loop(lambda frame, *_: frame >= 0, frame_step, start)[2].stack()
