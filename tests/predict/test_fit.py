"""Parameters are found again in points that were made from them."""

import numpy as np
import pytest

from cnnbench.predict.fit import fit
from cnnbench.predict.host import RATES
from cnnbench.predict.interconnect import Interconnect
from cnnbench.predict.links import Link
from cnnbench.predict.points import read_points
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


def test_nothing_to_fit(write):
    points = read_points([write(make_document([make_point("magic", 10, 2, [1.0])]))])
    with pytest.raises(ValueError, match="no formula for any"):
        fit(points)
