from __future__ import annotations

import pytest

from cnnbench.errors import UsageError
from cnnbench.models import LearningRateSpec


@pytest.mark.parametrize(
    "wrong",
    [
        {"boundaries_epochs": (1.0,)},
        {"factors": (1.0, 0.1)},
        {"boundaries_epochs": (2.0, 1.0), "factors": (1.0, 0.1, 0.01)},
        {"boundaries_epochs": (2.0, 2.0), "factors": (1.0, 0.1, 0.01)},
        {"boundaries_epochs": (1.0,), "factors": (1.0, 0.1), "decay_epochs": 2.0},
    ],
)
def test_learning_rate_spec_refuses_what_does_not_fit(wrong):
    with pytest.raises(UsageError, match="learning rate"):
        LearningRateSpec(0.1, **wrong)


@pytest.mark.parametrize("value", [-1e-9, float("inf"), float("nan")])
def test_rates_and_factors_are_finite_and_not_negative(value):
    factors = {"boundaries_epochs": (1.0,), "factors": (1.0, value)}
    for given in ({"base": value}, {"base": 0.1, **factors}):
        with pytest.raises(UsageError, match=r"must be finite and at least 0"):
            LearningRateSpec(**given)


def test_a_rate_may_be_zero_change_or_decay():
    assert LearningRateSpec(0.0).factors == (1.0,)
    assert LearningRateSpec(0.1, boundaries_epochs=(1.0, 2.0), factors=(1.0, 0.0, 0.5)).base == 0.1
    decaying = LearningRateSpec(0.1, decay_epochs=2.0, decay_factor=0.5)
    plain = LearningRateSpec(0.1)
    assert (decaying.boundaries_epochs, decaying.decay_epochs) == ((), 2.0)
    assert (plain.warmup_epochs, plain.decay_epochs, plain.decay_factor) == (0.0, 0.0, 1.0)
    assert (plain.base_batch, plain.whole_batches) == (None, False)


def test_a_cosine_falls_in_steps_of_an_epoch():
    rate = LearningRateSpec.cosine(0.4, base_batch=256, epochs=4, warmup_epochs=1.0)
    assert rate.boundaries_epochs == (1.0, 2.0, 3.0)
    # cos 0, 45, 90 and 135 degrees.
    assert rate.factors == pytest.approx((1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2))
    assert (rate.base, rate.base_batch, rate.warmup_epochs) == (0.4, 256, 1.0)
