"""NeuMF: its size, its network by hand, and its metrics against scikit-learn.

Tests models/networks/ncf.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from networks import forward
from short_runs import build

from cnnbench import BenchmarkCNN, Params
from cnnbench.models import declare, get_model, register_model
from cnnbench.models.networks.ncf import NeuMF, rank_rated_items
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.shared_interrupts import SharedInterrupts


@pytest.fixture
def small():
    model = get_model("ncf", "ratings")
    model.users, model.items = 30, 20
    return model


def features(n=6, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "user": tf.constant(rng.integers(0, 30, n)),
        "item": tf.constant(rng.integers(0, 20, n)),
    }


def test_it_has_the_size_that_mlperf_trained():
    spec = declare(get_model("ncf", "ratings"), 2)
    assert spec.parameters == spec.trainable_parameters == 31_832_577
    products = 256 * 256 + 256 * 128 + 128 * 64 + 128
    assert spec.forward_flops_per_image == 2 * products
    assert not any(v.weight_decay for v in spec.variables if v.name.endswith("table"))


def test_the_logit_is_that_of_numpy(small, make_weights):
    weights = make_weights(declare(small, 2).variables)
    given = features()
    found = forward(small, 2, given, weights.read, training=True).outputs
    w = {name: value.numpy() for name, value in weights.values.items()}
    user, item = given["user"].numpy(), given["item"].numpy()
    product = w["mf/embedding0/table"][user] * w["mf/embedding1/table"][item]
    x = np.concatenate([w["mlp/embedding0/table"][user], w["mlp/embedding1/table"][item]], axis=1)
    for i in range(3):
        x = np.maximum(x @ w[f"mlp/affine{i}/kernel"] + w[f"mlp/affine{i}/bias"], 0)
    expected = np.concatenate([product, x], axis=1) @ w["affine0/kernel"] + w["affine0/bias"]
    assert found.shape == (6, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    labels = np.array([0, 1, 1, 0, 1, 0])
    share = 1 / (1 + np.exp(-expected[:, 0]))
    entropy = -np.log(np.where(labels == 1, share, 1 - share))
    np.testing.assert_allclose(small.loss(found, tf.constant(labels)), entropy, rtol=1e-4)


@pytest.mark.parametrize("skill", [0.0, 1.0, 2.0])
def test_hit_rate_and_gain_are_those_of_scikit_learn(small, skill):
    from sklearn.metrics import ndcg_score, top_k_accuracy_score  # slow to import

    users, candidates = 40, 50
    rng = np.random.default_rng(1)
    rated = np.zeros((users, candidates), bool)
    rated[np.arange(users), rng.integers(0, candidates, users)] = True
    score = rng.normal(size=rated.shape) + skill * rated
    rows = {
        "user": np.repeat(rng.permutation(users), candidates),
        "score": score.reshape(-1),
        "rated": rated.reshape(-1),
    }
    mixed = rng.permutation(users * candidates)
    found = small.host_metrics({name: values[mixed] for name, values in rows.items()})
    where = rated.argmax(axis=1)
    hits = top_k_accuracy_score(where, score, k=10, labels=np.arange(candidates))
    assert found["hit_rate_10"] == pytest.approx(hits)
    assert found["ndcg_10"] == pytest.approx(ndcg_score(rated, score, k=10))
    assert 0 < found["ndcg_10"] < found["hit_rate_10"] < 1


@pytest.mark.parametrize(
    ("score", "rank"),
    [
        ([3.0, 1.0, 2.0, 0.0], 0),
        ([0.5, 1.0, 2.0, 0.0], 2),
        ([1.0, 1.0, 1.0, 1.0], 3),  # all alike is no skill
        ([math.nan, 1.0, 2.0, 0.0], 3),
        ([3.0, math.nan, 2.0, math.inf], 2),
        ([math.inf, 1.0, 2.0, 0.0], 0),
    ],
)
def test_ties_and_numbers_that_are_none_never_help(score, rank):
    rated = np.array([True, False, False, False])
    found = rank_rated_items(np.full(4, 7), np.array(score, np.float32), rated)
    assert found.tolist() == [rank]


def test_users_without_a_rated_item_do_not_count(small):
    rows = {"user": np.array([1, 1, 2]), "score": np.ones(3), "rated": np.zeros(3, bool)}
    assert all(math.isnan(value) for value in small.host_metrics(rows).values())
    rows["rated"][2] = True
    assert small.host_metrics(rows) == {"hit_rate_10": 1.0, "ndcg_10": 1.0}
    empty = np.zeros(0, int)
    assert len(rank_rated_items(empty, np.zeros(0), np.zeros(0, bool))) == 0


# Runs --------------------------------------------------------------------------------------------


def run(**flags):
    own = {"model": "small_ncf", "data_name": "ratings", "device": "cpu", "num_warmup_batches": 0}
    return BenchmarkCNN(Params.from_dict({**own, **flags})).run()


class SmallNeuMF(NeuMF):
    users, items = 12, 40


@pytest.fixture
def ratings(tmp_path, own_registry):
    """Twelve users who each rated the items of their own half; one is held back among nine."""
    register_model("small_ncf", "ratings", SmallNeuMF)
    rng = np.random.default_rng(0)
    users, items, held, negatives = [], [], [], []
    for user in range(12):
        own = rng.permutation(20) + 20 * (user % 2)
        users += [user] * 15
        items += own[:15].tolist()
        held.append(own[15])
        negatives.append(rng.permutation(20)[:14] + 20 * (1 - user % 2))
    np.savez(tmp_path / "ratings-train.npz", users=users, items=items)
    np.savez(tmp_path / "ratings-validation.npz", users=range(12), items=held, negatives=negatives)
    return str(tmp_path)


@pytest.mark.slow
def test_it_learns_who_rates_what_from_files(ratings, quick_start):
    record = run(
        data_dir=ratings,
        variable_update="replicated",
        num_gpus=2,
        batch_size=45,
        num_batches=90,
        optimizer="adam",
        init_learning_rate=0.01,
        eval_during_training_every_n_steps=1000,
        num_eval_epochs=1.0,
    )
    assert record.losses[0] == pytest.approx(math.log(2), rel=0.1)
    assert record.losses[-1] < 0.5 * record.losses[0]
    (found,) = record.evaluations
    assert found.examples == 12 * 15
    # Chance would hit two times in three; the items of the other half are easily told.
    assert found.metrics["hit_rate_10"] > 0.9
    assert 0.6 < found.metrics["ndcg_10"] <= found.metrics["hit_rate_10"]


@pytest.mark.slow
def test_ranks_do_not_depend_on_how_the_candidates_are_cut(ratings, quick_start):
    found = []
    for towers, batch in ((1, 180), (3, 7)):
        built = build(
            "small_ncf",
            data_name="ratings",
            data_dir=ratings,
            num_gpus=towers,
            batch_size=2,
            eval_batch_size=batch,
            eval_during_training_every_n_steps=1,
            num_eval_epochs=1.0,
        )
        found.append(built.evaluator.run(0, Console.silent(), SharedInterrupts(None)))
        built.close()
    whole, cut = found
    assert whole.evaluation.examples == cut.evaluation.examples == 180
    assert cut.evaluation.loss == pytest.approx(whole.evaluation.loss, rel=1e-5)
    assert cut.metrics == pytest.approx(whole.metrics, rel=1e-6)


@pytest.mark.slow
def test_one_global_batch_gives_one_loss_for_any_number_of_towers(ratings, quick_start):
    losses = [
        run(
            data_dir=ratings,
            num_gpus=towers,
            batch_size=12 // towers,
            num_batches=4,
            init_learning_rate=1.0,
            variable_update=mode,
        ).losses
        for towers, mode in ((1, "parameter_server"), (3, "replicated"))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] != losses[0][0]
