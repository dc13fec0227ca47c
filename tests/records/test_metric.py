"""Texts of metrics, and what a metric may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from registries import kept

from cnnbench.errors import UsageError
from cnnbench.records import metric
from cnnbench.records.metric import ALL, BOUNDS, HISTORY, METRICS, SUMMARY, Metric, Summary


def made(unit: str = "images/sec", **parts: Any) -> Metric:
    rules = {"name": "m", "about": "", "key": "m", "judged": {}, "value": lambda one: one}
    return Metric(**{**rules, "unit": unit, **parts})


@pytest.mark.parametrize(
    ("unit", "value", "text", "bare", "title"),
    [
        ("images/sec", 1234.5, "1,234 images/sec", "1,234", "m, images/sec"),
        ("bytes", 3 * 2.0**20, "3.000 MiB", "3.000", "m, MiB"),
        ("share of the peak", 0.125, "12.50 %", "12.50", "m, %"),
        ("top-1", 0.5, "50.00 %", "50.00", "m, %"),
    ],
)
def test_values_have_the_unit_of_people(
    unit: str, value: float, text: str, bare: str, title: str
) -> None:
    one = made(unit)
    assert one.value_text(value) == text
    assert one.value_text(value, unit=False) == bare
    assert one.value_text(None) == "-"
    assert one.title == title
    assert made(unit, step="at the mean step").title == f"{title} at the mean step"


@pytest.mark.parametrize(
    ("unit", "relative", "change", "text", "scale"),
    [
        ("images/sec", True, -0.1234, "-12.3 %", 0.01),
        ("share", False, 0.1234, "+12.34 points", 0.01),
        ("s", False, 1.5, "+1.500 s", 1.0),
        ("s", False, -1.5, "-1.500 s", 1.0),
    ],
)
def test_changes_are_shares_points_or_differences(
    unit: str, relative: bool, change: float, text: str, scale: float
) -> None:
    one = made(unit, relative=relative)
    assert one.change_text(change) == text
    assert one.change_text(abs(change), signed=False) == text.lstrip("+-")
    number = text.partition(" ")[0]
    assert one.range_text(change, change) == f"{number} to {text}"
    assert one.threshold_scale == scale


@pytest.mark.parametrize(
    ("unit", "relative", "change", "shown"),
    [
        ("images/sec", True, 0.0004, False),
        ("images/sec", True, 0.0006, True),
        ("share", False, 0.00004, False),
        ("share", False, 0.00006, True),
        ("s", False, 1e-9, True),
        ("s", False, 0.0, False),
    ],
)
def test_a_change_that_is_rounded_away(
    unit: str, relative: bool, change: float, shown: bool
) -> None:
    assert made(unit, relative=relative).shows_change(change) is shown


def test_values_that_are_judged_together() -> None:
    assert made(value=abs).values([-1, 2]) == [1, 2]
    assert made(together=lambda all_: [sum(all_)] * len(all_)).values([1, 2]) == [3, 3]


def test_a_summary_has_its_values_as_attributes() -> None:
    found = Summary(a=1)
    assert found.a == 1
    with pytest.raises(AttributeError, match="b"):
        _ = found.b


@pytest.fixture
def tables() -> Iterator[None]:
    """Metrics that a test registers are gone after it."""
    ALL.load_own()
    with kept(ALL, SUMMARY, METRICS, HISTORY, BOUNDS):
        yield


@pytest.mark.usefixtures("tables")
def test_a_metric_stands_in_the_tables_that_have_it() -> None:
    def own(record: Any) -> float | None:
        """Of one's own."""
        return 1.0

    assert metric.register_metric("own", "s", followed=False)(own) is own
    found = metric.ALL["own"]
    assert (found.about, found.key, found.judged) == ("Of one's own", "own", {"run": "own"})
    assert [
        "own" in table for table in (metric.SUMMARY, metric.METRICS, metric.HISTORY, metric.BOUNDS)
    ] == [True, True, False, False]
    metric.register_metric("other", "s", kinds=("reduction",))(own)
    assert metric.ALL["other"].judged == {}
    assert [
        "other" in table
        for table in (metric.SUMMARY, metric.METRICS, metric.HISTORY, metric.BOUNDS)
    ] == [False, False, True, False]


@pytest.mark.parametrize("name", ["throughput", "no-word", "größe"])
@pytest.mark.usefixtures("tables")
def test_names_that_a_metric_cannot_have(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        metric.register_metric(name, "s")(lambda record: None)


@pytest.mark.parametrize("value", [ValueError("no good"), object()])
@pytest.mark.usefixtures("tables")
def test_a_metric_that_fails_is_left_out(
    value: object,
    monkeypatch: pytest.MonkeyPatch,
    runs: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(record: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setitem(metric.SUMMARY, "failing", made(name="failing", value=failing))
    found = metric.compute_summary(runs(100.0))
    assert found.failing is None
    assert found.images_per_sec == pytest.approx(100.0)
    metric.compute_summary(runs(100.0))
    assert capsys.readouterr().err.count("failing") <= 2  # the file and the metric, once


def test_every_table_has_metrics_of_runs() -> None:
    assert all(table.items() for table in (SUMMARY, METRICS, HISTORY, BOUNDS))
    assert {*BOUNDS} <= {*HISTORY} <= {*ALL}
