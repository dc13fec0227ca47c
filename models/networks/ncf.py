"""Neural collaborative filtering: predicts whether a user rates an item.

NeuMF of He et al., Neural Collaborative Filtering (arXiv:1708.05031), in the size of MLPerf
Training 0.5 to 0.7 for MovieLens 20M.
"""

from __future__ import annotations

from collections.abc import Mapping

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Array, Tensor
from cnnbench.models import Element, LearningRateSpec, Model, Network, T, register_model

CUTOFF = 10
"""Number of top ranks that are included in hit rate and gain."""


class NeuMF(Model):
    """NeuMF: matrix factorization and a perceptron, whose outputs are concatenated.

    `layers` are the numbers of units in the perceptron. The first number is the size of both
    embeddings together.
    """

    name = "ncf"
    dataset = "ratings"
    batch_size = 2048
    num_classes = 2
    learning_rate = LearningRateSpec(0.0005)
    elements = (
        Element("user", (), "feature", "int64"),
        Element("item", (), "feature", "int64"),
        Element("label", (), "label", "int64"),
    )
    metric_names = ()  # Metrics are not means.
    host_metric_names = ("hit_rate_10", "ndcg_10")
    users = 138_493
    items = 26_744
    factors = 64
    layers = (256, 256, 128, 64)

    def build(self, net: Network[T], features: Mapping[str, T]) -> T:
        """Computes the logit ``(1,)`` of the probability that a user rates an item.

        The matrix factorization and the perceptron have separate embeddings.
        """
        with net.scope("mf"):
            product = net.multiply(*self._embeddings(net, features, self.factors))
        with net.scope("mlp"):
            x = net.concat(self._embeddings(net, features, self.layers[0] // 2))
            for units in self.layers[1:]:
                x = net.affine(x, units)
        return net.affine(net.concat([product, x]), 1, None)

    def _embeddings(self, net: Network[T], features: Mapping[str, T], units: int) -> list[T]:
        return [
            net.embedding(features["user"], self.users, units, stddev=0.01),
            net.embedding(features["item"], self.items, units, stddev=0.01),
        ]

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Computes the binary cross entropy. The label is 1 for an item that the user rated."""
        logits = outputs[:, 0]
        return tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, logits.dtype), logits)

    def host_rows(
        self, features: Mapping[str, Tensor], outputs: Tensor, labels: Tensor
    ) -> Mapping[str, Tensor]:
        """Returns the user, the score, and whether the user rated the item, for each example."""
        return {
            "user": tf.cast(features["user"], tf.int32),
            "score": outputs[:, 0],
            "rated": labels > 0,
        }

    def host_metrics(self, rows: Mapping[str, Array]) -> Mapping[str, float]:
        """Computes hit rate and normalised discounted cumulative gain of the ten top ranks."""
        import numpy as np

        ranks = rank_rated_items(rows["user"], rows["score"], rows["rated"])
        if not len(ranks):
            return {"hit_rate_10": float("nan"), "ndcg_10": float("nan")}
        hits = ranks < CUTOFF
        gains = np.where(hits, 1.0 / np.log2(ranks + 2.0), 0.0)
        return {"hit_rate_10": float(hits.mean()), "ndcg_10": float(gains.mean())}


def rank_rated_items(user: Array, score: Array, rated: Array) -> Array:
    """Ranks each rated item, from 0, among the unrated items of the same user. Arrays are [n].

    If scores are equal, the rated item is last, and a NaN is treated as a higher score. Otherwise,
    a network with equal scores for all items would appear perfect.
    """
    import numpy as np

    comparable = np.where(np.isnan(score), np.where(rated, -np.inf, np.inf), score)
    order = np.lexsort((rated, -comparable, user))
    user, rated = user[order], rated[order]
    others = np.cumsum(~rated)
    first = np.concatenate([[True], user[1:] != user[:-1]])[: len(user)]
    # For each row, the number of unrated items of all previous users.
    before = np.maximum.accumulate(np.where(first, others - ~rated, 0))
    return (others - before)[rated]


register_model("ncf", "ratings", NeuMF)
