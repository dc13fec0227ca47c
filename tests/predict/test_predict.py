"""Step time, efficiency and images per second."""

import pytest

from cnnbench.errors import FlagError
from cnnbench.predict.gradients import default_batch_size, model_gradients
from cnnbench.predict.links import Link
from cnnbench.predict.network import Network
from cnnbench.predict.packing import Packing
from cnnbench.predict.predict import Prediction, Workload, best, predict
from cnnbench.predict.tensor import Tensor
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

from .conftest import TRUTH

NETWORK = Network(Link("test", 1e-5, 1e-9, 1e-12))


def workload(step_seconds=0.5):
    return Workload("toy", (Tensor(1 << 20),) * 2, Packing(), "float32", step_seconds, 32)


def specs(*texts):
    return [parse_all_reduce_spec(text) for text in texts]


def test_all_specs_on_all_numbers_of_devices():
    found = predict(NETWORK, workload(), specs("xring", "copy"), (2, 4))
    assert [(p.devices, p.spec) for p in found] == [
        (2, "xring"),
        (2, "copy"),
        (4, "xring"),
        (4, "copy"),
    ]


def test_step_without_overlap_and_its_bound():
    p = Prediction(4, "xring", 0.1, None, 0.4, 32)
    assert p.step_seconds == pytest.approx(0.5)
    assert p.efficiency == pytest.approx(0.8)
    assert p.images_per_sec == pytest.approx(256)
    assert p.overlapped_step_seconds == pytest.approx(0.4)
    assert p.overlapped_efficiency == 1.0
    assert p.overlapped_images_per_sec == pytest.approx(320)


def test_a_reduction_longer_than_the_step_bounds_any_overlap():
    p = Prediction(4, "xring", 0.8, None, 0.4, 32)
    assert p.overlapped_step_seconds == 0.8
    assert p.overlapped_efficiency == pytest.approx(0.5)


def test_nothing_is_known_of_the_step_without_its_time():
    p = Prediction(4, "xring", 0.1, None, None, 32)
    assert (p.step_seconds, p.efficiency, p.images_per_sec) == (None, None, None)
    assert p.overlapped_images_per_sec is None


def test_one_device_needs_no_reduction():
    (p,) = predict(NETWORK, workload(), specs("xring"), (1,))
    assert p.seconds == 0.0
    assert p.efficiency == 1.0
    assert p.images_per_sec == pytest.approx(64)


def test_devices_that_share_the_cores_compute_one_after_the_other():
    (p,) = predict(TRUTH, workload(), specs("xring"), (4,))
    assert p.compute_seconds == pytest.approx(2.0)


def test_what_cannot_be_predicted_has_a_reason():
    (p,) = predict(NETWORK, workload(), specs("xring#8"), (4,))
    assert p.seconds is None
    assert p.reason == "8 shards need as many devices"
    assert p.efficiency is None


def test_the_fastest():
    found = predict(NETWORK, workload(), specs("copy", "xring", "xring#8"), (4, 8))
    winners = best(found)
    assert {n: p.spec for n, p in winners.items()} == {4: "xring", 8: "xring"}
    assert best(predict(NETWORK, workload(), specs("xring#8"), (4,))) == {}


def test_gradients_of_a_model():
    gradients = model_gradients("resnet50", None, 4)
    assert sum(tensor.elements for tensor in gradients) == 25_559_081
    assert sum(t.bytes for t in model_gradients("resnet50", "imagenet", 2)) == 2 * 25_559_081
    assert default_batch_size("resnet50", None) == 64
    with pytest.raises(FlagError, match="--model=resnet51"):
        model_gradients("resnet51", None, 4)
