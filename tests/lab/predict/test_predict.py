"""Step time, efficiency and images per second, and the fastest spec by size."""

import pytest

from cnnbench.judge.report.sections.all_reduce import fastest_predictions
from cnnbench.lab.predict.predict import (
    FastestRange,
    Interconnect,
    NotPredictedError,
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


SECOND = Link("a", 1.0, 0.0, 0.0)
HUNDRED = Link("b", 100.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("devices", "per_node", "spec", "seconds"),
    [
        # A ring of n devices sends 2 (n - 1) messages, one after another; its links between nodes
        # determine the time.
        (4, 2, "xring", 6 * 100),
        (4, 4, "xring", 6),
        (1, 4, "xring", None),
        # Within nodes, between nodes, and from one device of a node to its others.
        (4, 2, "xring/xring", 2 + 2 * 100 + 1),
        (8, 4, "xring/xring", 6 + 2 * 100 + 3),
        (8, 4, "rechd/xring", 2 * 2 + 2 * 100 + 3),
        (4, 1, "xring/xring", 6 * 100),
        (4, 4, "xring/xring", 6),
    ],
)
def test_messages_within_and_between_nodes(devices, per_node, spec, seconds):
    network = Interconnect(SECOND, HUNDRED, per_node, launch=1000.0)
    assert network.name == f"{per_node} x a + b"
    (parsed,), tensors = specs(spec), (Tensor(1 << 20),)
    expected = 0.0 if seconds is None else 1000.0 + seconds
    assert network.predict_seconds(parsed, tensors, devices, Packing()) == expected
    # All tensors travel at once, on other parts of the same links.
    assert network.predict_seconds(parsed, tensors[:0], devices, Packing()) <= 1000.0


def test_without_nodes_every_link_is_the_same():
    network = Interconnect(SECOND, devices_per_node=2)
    assert network.name == "a"
    (ring, sharded, levels) = specs("xring", "xring#4", "xring/xring")
    tensors = (Tensor(1 << 20),)
    assert network.predict_seconds(ring, tensors, 4, Packing()) == 6.0
    assert network.predict_seconds(sharded, tensors, 4, Packing()) > 0
    for spec, devices in ((sharded, 3), (levels, 4)):
        with pytest.raises(NotPredictedError):
            network.predict_seconds(spec, tensors, devices, Packing())
