"""What a model has unless it declares otherwise: metrics, sizes, checks of its attributes."""

import re
from itertools import permutations

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.errors import FlagError, UsageError
from cnnbench.models import Element, LearningRateSpec, Model, declare
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


def test_the_label_is_among_the_first_or_among_the_first_five():
    logits = tf.constant([[9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]] * 7)
    found = Probe().metrics(logits, tf.range(7))
    assert {name: value.numpy().tolist() for name, value in found.items()} == {
        "top_1": [1, 0, 0, 0, 0, 0, 0],
        "top_5": [1, 1, 1, 1, 1, 0, 0],
    }
    silent = Probe()
    silent.metric_names = ()
    assert silent.metrics(logits, tf.range(7)) == {}


class Probe(Model):
    """A model of the fewest layers."""

    name, dataset, batch_size, image_size = "probe", "imagenet", 2, 6
    image_sizes = range(4, 20, 4)
    learning_rate = LearningRateSpec(0.1)

    def build(self, net, images):
        return net.logits(net.flatten(images))


class Measured(Probe):
    """A model with a loss and a metric of all rows of its own."""

    def loss(self, outputs, labels):
        return outputs[:, 0]

    def host_metrics(self, rows):
        return {"m": 1.0}


def test_whose_loss_and_metrics_are_its_own():
    assert (Probe().has_softmax_loss(), Probe().has_host_metrics()) == (True, False)
    assert (Measured().has_softmax_loss(), Measured().has_host_metrics()) == (False, True)
    assert Probe().host_rows(None, None, None) == Probe().host_metrics({}) == {}
    example = {"image": 1}
    assert Probe().preprocess(example, None, training=True) is example


@pytest.mark.parametrize("size", [None, 4, 6, 8, 16])
def test_sizes_of_images_that_a_model_takes(size):
    model = Probe()
    model.resize(size, None)
    assert model.image_size == (size or 6)
    declare(model, 3)


@pytest.mark.parametrize("size", [3, 5, 7, 18, 20])
@pytest.mark.parametrize("sizes", [range(4, 20, 4), range(30, 40), range(30, 31)])
def test_other_sizes_of_images_are_refused_and_those_that_are_taken_are_named(size, sizes):
    model = Probe()
    model.image_sizes = sizes
    with pytest.raises(FlagError) as refused:
        model.resize(size, None)
    flag, _, reason = str(refused.value).partition(": ")
    assert flag == f"--image_size={size}"
    step = [sizes.step] if sizes.step > 1 else []
    named = [int(number) for number in re.findall(r"\d+", reason)]
    assert named == [*step, *dict.fromkeys((sizes[0], sizes[-1]))]


def test_a_model_without_images_takes_no_size_of_them():
    model = Probe()
    model.elements = (Element("row", (5,), "feature"), Element("label", (), "label", "int64"))
    model.resize(None, None)
    with pytest.raises(FlagError, match=r"^--image_size=8: "):
        model.resize(8, None)


@pytest.mark.parametrize(
    ("own", "classes", "accepted"),
    [(None, 7, True), (None, None, True), (5, 5, True), (5, None, True), (5, 6, False)],
)
def test_the_number_of_outputs_may_be_fixed(own, classes, accepted):
    model = Probe()
    model.num_classes = own
    if accepted:
        model.resize(None, classes)
        return
    with pytest.raises(FlagError, match=f"^--num_classes={classes}: "):
        model.resize(None, classes)


class Other(Probe):
    """A model whose outputs, or those of its second head, have a wrong shape."""

    wrong = "outputs"

    def build(self, net, images):
        logits = net.logits(net.flatten(images))
        more = net.affine(net.flatten(images), net.num_classes + 1)
        if net.training:
            net.auxiliary(more if self.wrong == "head" else logits, 0.5)
        return more if self.wrong == "outputs" else logits


@pytest.mark.parametrize("wrong", ["outputs", "head", None])
def test_outputs_must_be_logits_if_the_loss_takes_them(wrong, monkeypatch):
    model = Other()
    model.wrong = wrong
    if wrong:
        with pytest.raises(UsageError):
            declare(model, 3)
        monkeypatch.setattr(Other, "loss", Measured.loss)
    assert declare(model, 3).num_classes == 3


@pytest.mark.parametrize(
    ("attributes", "valid"),
    [
        ({}, True),
        ({"metric_names": ("error",), "lower_is_better": ("error",)}, True),
        ({"host_metric_names": ("error",), "lower_is_better": ("error",)}, True),
        ({"lower_is_better": ("top_1",)}, True),
        ({"lower_is_better": ("error",)}, False),
        ({"metric_names": ("",)}, False),
        ({"image_size": 1}, True),
        ({"image_size": 0}, False),
        ({"image_size": 8.0}, False),
        ({"channels": 0}, False),
        ({"batch_size": "8"}, False),
    ],
)
def test_attributes_that_cannot_be_are_refused(attributes, valid):
    model = Probe()
    for name, value in attributes.items():
        setattr(model, name, value)
    if valid:
        model.validate()
        return
    with pytest.raises(UsageError):
        model.validate()
