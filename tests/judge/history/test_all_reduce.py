"""All-reduce measurements in a history: a series per row, whatever became of its neighbours.

Tests cnnbench/judge/history/series.py.
"""

import pytest

from cnnbench.judge.history import METRICS, Selection, trend
from cnnbench.records.all_reduce import Copying

BANDWIDTH = METRICS["bus_bandwidth"]


@pytest.fixture
def history(reductions):
    """A process per commit with two rows, of which xring gets slower from the seventh on."""

    def record(number):
        speed = (6.0, 6.03, 5.98)[number % 3]
        return reductions(
            speed * (1.0 if number < 6 else 0.8),
            reductions.point(speed, spec="copy"),
            copies=(Copying(bytes=8_000_000, devices=4, seconds=(0.002,)),),
            flags={"result_label": f"commit=c{number}"},
        )

    return [record(number) for number in range(12)]


def names(series):
    return [one.configuration for one in series]


def test_a_series_for_each_row(history, series_of):
    copy, xring = series_of(history, "bus_bandwidth")
    assert names([copy, xring]) == [
        "all-reduce copy, 8000000 bytes, 4 cpu",
        "all-reduce xring, 8000000 bytes, 4 cpu",
    ]
    assert copy.machine == "Fast CPU"
    assert [point.name for point in copy.points] == [f"c{number}" for number in range(12)]
    assert [point.value for point in copy.points[:3]] == pytest.approx([6.0, 6.03, 5.98])
    assert trend(copy, BANDWIDTH).steps == ()
    (step,) = trend(xring, BANDWIDTH).steps
    assert (step.last_good.name, step.first_bad.name, step.worse) == ("c5", "c6", True)
    assert step.change == pytest.approx(-0.2, abs=0.01)
    # 8 MB * 2 * 3/4 at 6 GB/s
    _, seconds = series_of(history, "reduction_seconds")
    assert seconds.points[0].value == pytest.approx(0.002)


def test_metrics_are_of_their_kind(history, by_commit, series_of):
    mixed = [*history, by_commit(100.0, "c0")]
    assert names(series_of(mixed)) == ["lenet, batch 8, 1 cpu"]
    assert len(series_of(mixed, "bus_bandwidth")) == 2
    (copies,) = series_of(mixed, "copy_bandwidth")
    assert copies.configuration == "memory copy, 8000000 bytes, 4 cpu"
    # 4 devices write 8 MB each in 2 ms.
    assert copies.points[0].value == pytest.approx(16.0)
    built = series_of(mixed, "build_seconds")
    assert [one.points[0].value for one in built] == [0.5, 0.5]


def test_gradients_of_a_model_are_found_by_its_name(reductions, series_of):
    record = reductions(
        reductions.point(workload="resnet50"), reductions.point(), flags={"model": "resnet50"}
    )
    (one,) = series_of([record], "bus_bandwidth", selection=Selection(model="resnet*"))
    assert one.configuration == "all-reduce xring, resnet50 gradients, 4 cpu"


def test_a_row_that_failed_has_no_value_and_its_neighbours_have(reductions, series_of):
    wrong = reductions.point(spec="copy", wrong=1)
    record = reductions(6.0, wrong, error=("BenchmarkError", "copy is wrong"))
    copy, xring = series_of([record], "bus_bandwidth")
    assert (len(copy.points), len(copy.empty)) == (0, 1)
    assert copy.empty[0].runs[0].error.startswith("WrongSums: 1 of ")
    assert (len(xring.points), len(xring.empty)) == (1, 0)
    assert xring.points[0].failed == 0
