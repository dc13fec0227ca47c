"""Verdicts in words."""

import pytest

from cnnbench.judge.compare import METRICS, Verdict


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [
        ("throughput", "faster", "slower"),
        ("memory", "less", "more"),
        ("startup", "quicker", "longer"),
        ("accuracy", "better", "worse"),
        ("cpu_time", "less", "more"),
    ],
)
def test_words(name, better, worse):
    metric = METRICS[name]
    assert Verdict.FASTER.word(metric) == better
    assert Verdict.SLOWER.word(metric) == worse
    assert Verdict.NOT_COMPARABLE.word(metric) == "not comparable"
