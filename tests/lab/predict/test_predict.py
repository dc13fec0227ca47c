"""Step time, efficiency and images per second, and the fastest spec by size."""

from dataclasses import replace

import pytest

from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.links import Link
from cnnbench.lab.predict.predict import (
    FastestRange,
    fastest,
    fastest_by_size,
    predict,
    prediction,
)
from cnnbench.lab.predict.workload import Tensor, TrainingStep
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

NETWORK = Interconnect(Link("test", 1e-5, 1e-9, 1e-12))
STEP = TrainingStep("toy", (Tensor(1 << 20),) * 2, Packing(), "float32", 0.5, 32)


def of_step(compute, reduction):
    """The prediction of 4 devices with 32 images each."""
    step = replace(STEP, step_seconds=compute)
    return prediction("hdr", step, *specs("xring"), 4, reduction)


def specs(*texts):
    return [parse_all_reduce_spec(text) for text in texts]


def test_all_specs_on_all_numbers_of_devices():
    found = predict(NETWORK, STEP, specs("xring", "copy"), (2, 4))
    pairs = [(2, "xring"), (2, "copy"), (4, "xring"), (4, "copy")]
    assert [(p.devices, p.spec) for p in found] == pairs


def test_step_without_overlap_and_its_bound():
    p = of_step(0.4, 0.1)
    assert p.step_seconds == pytest.approx(0.5)
    assert p.efficiency == pytest.approx(0.8)
    assert p.images_per_sec == pytest.approx(256)
    assert p.overlapped_step_seconds == pytest.approx(0.4)
    assert p.overlapped_efficiency == 1.0
    assert p.overlapped_images_per_sec == pytest.approx(320)


def test_a_reduction_longer_than_the_step_bounds_any_overlap():
    p = of_step(0.4, 0.8)
    assert p.overlapped_step_seconds == 0.8
    assert p.overlapped_efficiency == pytest.approx(0.5)


def test_nothing_is_known_of_the_step_without_its_time():
    p = of_step(None, 0.1)
    assert (p.step_seconds, p.efficiency, p.images_per_sec) == (None, None, None)
    assert p.overlapped_images_per_sec is None


def test_one_device_needs_no_reduction():
    (p,) = predict(NETWORK, STEP, specs("xring"), (1,))
    assert p.allreduce_seconds == 0.0
    assert p.efficiency == 1.0
    assert p.images_per_sec == pytest.approx(64)


def test_what_cannot_be_predicted_has_a_reason():
    (p,) = predict(NETWORK, STEP, specs("xring#8"), (4,))
    assert p.allreduce_seconds is None
    assert p.not_predicted == "8 shards need as many devices"
    assert p.efficiency is None


def test_the_fastest():
    found = predict(NETWORK, STEP, specs("copy", "xring", "xring#8"), (4, 8))
    assert {n: p.spec for n, p in fastest(found).items()} == {4: "xring", 8: "xring"}
    assert fastest(predict(NETWORK, STEP, specs("xring#8"), (4,))) == {}


def test_halving_doubling_for_small_tensors_ring_for_large_ones():
    """On 6 devices the ring moves less than 4 + 2 by halving do, in more messages."""
    network = Interconnect(Link("test", 1e-5, 1e-10, 1e-12))
    candidates = specs("xring", "rechd")
    ranges = fastest_by_size(network, candidates, 6)
    assert [part.spec for part in ranges] == ["rechd", "xring"]
    assert ranges[-1].up_to is None
    below, above = (
        [
            network.seconds(spec, (Tensor(round(ranges[0].up_to * factor / 4)),), 6, Packing())
            for spec in candidates
        ]
        for factor in (0.95, 1.05)
    )
    assert below[1] < below[0]
    assert above[0] < above[1]


@pytest.mark.parametrize(
    ("candidates", "ranges"),
    [
        (("xring",), (FastestRange("xring", None),)),
        # Of equals, the first.
        (("psgpu", "copy"), (FastestRange("psgpu", None),)),
        (("xring#16",), ()),
    ],
)
def test_one_spec_or_none_is_the_fastest_everywhere(candidates, ranges):
    assert fastest_by_size(NETWORK, specs(*candidates), 8) == ranges
