"""Held-out points and the distribution of their errors."""

import numpy as np
import pytest

from cnnbench.predict.points import read_points
from cnnbench.predict.validate import Residual, by_algorithm, distribution, held_out

from .conftest import TRUTH, make_document, make_point, measured_by


def by_size(point):
    return point.bytes


def by_devices(point):
    return point.devices


@pytest.mark.parametrize("group", [by_size, by_devices])
def test_a_machine_that_is_as_modelled_is_predicted_where_nothing_was_measured(write, group):
    errors = held_out(read_points([write(measured_by(TRUTH))]), group)
    assert len(errors) == len(measured_by(TRUTH)["points"])
    assert distribution(errors).worst < 0.01


def test_held_out_points_do_not_take_part_in_their_own_prediction(write):
    """One number of devices takes twice the time: only its own points are mispredicted."""
    document = measured_by(TRUTH)
    for point in document["points"]:
        if point["devices"] == 3:
            point["seconds"] = [2 * seconds for seconds in point["seconds"]]
    errors = held_out(read_points([write(document)]), by_devices)
    of_three = [error.relative for error in errors if error.point.devices == 3]
    assert np.median(of_three) == pytest.approx(-0.5, abs=0.05)
    others = [abs(error.relative) for error in errors if error.point.devices != 3]
    assert np.median(others) < 0.05


def test_one_group_says_nothing_of_another(write):
    points = read_points([write(make_document([make_point("copy", 10, 2, [1.0])] * 3))])
    assert held_out(points, by_size) == []


def test_distribution(write):
    points = read_points(
        [write(make_document([make_point("copy", 10 + i, 2, [1.0]) for i in range(10)]))]
    )
    errors = [
        Residual(point, 1.0 + sign * size)
        for point, sign, size in zip(
            points, [1, -1] * 5, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95], strict=True
        )
    ]
    found = distribution(errors)
    assert found.count == 10
    assert found.median == pytest.approx(0.55)
    assert found.p90 == pytest.approx(0.9)
    assert found.worst == pytest.approx(0.95)
    assert found.worst_point == points[9]
    assert errors[1].relative == pytest.approx(-0.2)
    with pytest.raises(ValueError):
        distribution([])


def test_errors_by_algorithm(write):
    points = read_points([write(measured_by(TRUTH))])
    groups = by_algorithm(Residual(point, point.seconds) for point in points)
    assert list(groups) == sorted(groups)
    assert {str(error.point.spec) for error in groups["xring#2"]} == {"xring#2"}
