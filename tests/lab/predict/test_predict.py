"""Step time, efficiency and images per second, and the fastest spec by size."""

import pytest

from cnnbench.judge.report.sections.all_reduce import fastest_predictions
from cnnbench.lab.predict.predict import (
    FastestRange,
    Interconnect,
    TrainingStep,
    fastest_by_size,
    predict_all,
)
from cnnbench.variable_mgr.all_reduce.cost import Link, Tensor
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec
from cnnbench.variable_mgr.packing import Packing

NETWORK = Interconnect(Link("test", 1e-5, 1e-9, 1e-12))
STEP = TrainingStep("toy", (Tensor(1 << 20),) * 2, Packing(), "float32", 0.5, 32)


def specs(*texts):
    return [parse_all_reduce_spec(text) for text in texts]


@pytest.mark.parametrize(
    ("compute", "reduction", "devices", "apart", "overlapped"),
    [
        (0.4, 0.1, 4, (0.5, 0.8, 256), (0.4, 1.0, 320)),
        # A reduction longer than the step bounds any overlap.
        (0.4, 0.8, 4, (1.2, 1 / 3, 320 / 3), (0.8, 0.5, 160)),
        (0.5, 0.1, 1, (0.5, 1.0, 64), (0.5, 1.0, 64)),
        (None, 0.1, 4, (None, None, None), (None, None, None)),
    ],
)
def test_step_without_overlap_and_its_bound(compute, reduction, devices, apart, overlapped):
    network = Interconnect(Link("free", 0.0, 0.0, 0.0), launch=reduction)
    (p,) = predict_all(network, STEP._replace(step_seconds=compute), specs("xring"), [devices])
    assert (p.step_seconds, p.efficiency, p.images_per_sec) == pytest.approx(apart)
    found = (p.overlapped_step_seconds, p.overlapped_efficiency, p.overlapped_images_per_sec)
    assert found == pytest.approx(overlapped)


def test_the_fastest():
    found = predict_all(NETWORK, STEP, specs("copy", "xring", "xring#8"), (4, 8))
    assert {n: p.spec for n, p in fastest_predictions(found).items()} == {4: "xring", 8: "xring"}
    assert fastest_predictions(predict_all(NETWORK, STEP, specs("xring#8"), (4,))) == {}


def test_halving_doubling_for_small_tensors_ring_for_large_ones():
    """On 6 devices the ring moves less than 4 + 2 by halving do, in more messages."""
    network = Interconnect(Link("test", 1e-5, 1e-10, 1e-12))
    candidates = specs("xring", "rechd")
    ranges = fastest_by_size(network, candidates, 6)
    assert [part.spec for part in ranges] == ["rechd", "xring"]
    assert ranges[-1].up_to is None
    below, above = (
        [
            network.predict_seconds(
                spec, (Tensor(round(ranges[0].up_to * factor / 4)),), 6, Packing()
            )
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
