from __future__ import annotations

import numpy as np
import tensorflow as tf

from cnnbench.step.tower import top_hits


def test_hits_by_hand() -> None:
    logits = tf.constant([[0.1, 0.9, 0.3, 0.2, 0.0, -1.0, 0.5]] * 3)
    # In falling order the classes are 1 6 2 3 0 4 5: 1 is first, 0 is fifth, 4 is sixth.
    top_1, top_5 = top_hits(logits, tf.constant([1, 0, 4], tf.int64))
    assert top_1.numpy().tolist() == [1.0, 0.0, 0.0]
    assert top_5.numpy().tolist() == [1.0, 1.0, 0.0]


def test_fewer_than_five_classes() -> None:
    top_1, top_5 = top_hits(tf.constant([[0.0, 1.0]] * 2), tf.constant([0, 1], tf.int64))
    assert top_1.numpy().tolist() == [0.0, 1.0]
    assert top_5.numpy().tolist() == [1.0, 1.0]


def test_a_logit_that_is_not_a_number_is_never_right() -> None:
    logits = tf.constant([[np.nan, 1.0, 2.0]])
    top_1, _ = top_hits(logits, tf.constant([0], tf.int64))
    assert top_1.numpy().tolist() == [0.0]
