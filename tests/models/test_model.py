"""Metrics that a model has unless it declares others."""

from itertools import permutations

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.models.model import top_k_hits

LOGITS = ([3, 1, 2, 0], [1, 1, 1, 0], [2, 1, 1, 1], [0, 0, 0, 0])


@pytest.mark.parametrize("label", range(4))
def test_hits_are_the_mean_over_all_orders_of_equal_logits(label):
    def share(logits, top):
        orders = list(permutations(range(4)))
        ranked = [sorted(order, key=lambda one: -logits[one]) for order in orders]
        return sum(label in ranking[:top] for ranking in ranked) / len(orders)

    tops = (1, 2, 3, 5)
    hits = tf.function(top_k_hits, autograph=False)
    found = hits(tf.constant(LOGITS, tf.float32), tf.constant([label] * 4), tops)
    expected = [[share(logits, top) for logits in LOGITS] for top in tops]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("logits", "label"),
    [
        ([1.0, np.nan], 0),
        ([np.inf, 0.0], 0),
        ([0.0, -np.inf], 0),
        ([1.0, 0.0], 2),
        ([1.0, 0.0], -1),
    ],
)
def test_unusable_examples_are_no_hits(logits, label):
    for found in top_k_hits(tf.constant([logits]), tf.constant([label], tf.int64), (1, 5)):
        assert found.numpy().tolist() == [0.0]
