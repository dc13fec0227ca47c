"""Parameters are found again in points made from them; errors of held-out points."""

import numpy as np
import pytest

from cnnbench.lab.predict.fit import Residual, by_algorithm, distribution, fit, held_out
from cnnbench.lab.predict.host import RATES
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.links import Link
from cnnbench.lab.predict.points import read_points
from cnnbench.variable_mgr.aggregation.spec import Packing

from .conftest import TRUTH, make_document, make_point, measured_by


def test_a_machine_without_noise_is_found_exactly(write):
    model = fit(read_points([write(measured_by(TRUTH))])).model
    for name in RATES:
        assert model.rates[name] == pytest.approx(TRUTH.rates[name], rel=1e-3), name
    assert model.cache_bytes == TRUTH.cache_bytes


NOISES = {
    "noise": (lambda generator: np.exp(generator.normal(0, 0.05)), 0.06),
    "a few disturbed points": (lambda generator: 3.0 if generator.random() < 0.1 else 1.0, 0.05),
}


@pytest.mark.parametrize("name", NOISES)
def test_a_disturbed_machine_predicts_as_the_true_one(write, name):
    noise, tolerance = NOISES[name]
    generator = np.random.default_rng(1)
    model = fit(read_points([write(measured_by(TRUTH, lambda: noise(generator)))])).model
    for point in read_points([write(measured_by(TRUTH))]):
        predicted = model.seconds(point.spec, point.tensors, point.devices, point.packing)
        assert predicted == pytest.approx(point.seconds, rel=tolerance)


def test_links_are_fitted_to_points_of_gpus(write):
    truth = Interconnect(Link("true", 4e-6, 1 / 20e9, 3e-12), launch=3e-5)
    points = read_points([write(measured_by(truth, device="gpu"))])
    model = fit(points).model
    assert isinstance(model, Interconnect)
    assert model.link.alpha == pytest.approx(truth.link.alpha, rel=1e-3)
    assert model.link.beta == pytest.approx(truth.link.beta, rel=1e-3)
    assert model.link.gamma == pytest.approx(truth.link.gamma, rel=1e-2)
    assert model.launch == pytest.approx(truth.launch, rel=1e-3)


def test_no_parameter_is_negative(write):
    generator = np.random.default_rng(3)
    document = measured_by(TRUTH, lambda: np.exp(generator.normal(0, 1.0)))
    assert min(fit(read_points([write(document)])).model.rates.values()) >= 0


def test_what_has_no_formula_is_left_out_with_the_reason(write):
    points = [
        make_point("copy", 10, 2, [1.0]),
        make_point("magic", 10, 2, [1.0]),
        make_point("copy", 10, 2, [1.0], packing=Packing(variable_consistency="relaxed")),
    ]
    fitted = fit(read_points([write(make_document(points))]))
    assert [str(point.spec) for point in fitted.used] == ["copy"]
    assert [reason for _, reason in fitted.left_out] == [
        "magic does not work on CPU devices",
        "measured with --variable_consistency=relaxed",
    ]
    with pytest.raises(ValueError, match="no formula for any"):
        fit(read_points([write(make_document(points[1:2]))]))


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
    made = [make_point("copy", 10 + i, 2, [1.0]) for i in range(10)]
    points = read_points([write(make_document(made))])
    sizes = (0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -0.8, 0.9, -0.95)
    errors = [Residual(point, 1.0 + size) for point, size in zip(points, sizes, strict=True)]
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
