"""Step time, efficiency and images per second, and the fastest spec by size."""

import pytest

from cnnbench.judge.report.sections.all_reduce import fastest_predictions
from cnnbench.lab.predict.predict import (
    PRESETS,
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


@pytest.mark.parametrize(
    ("link", "candidates", "devices", "expected"),
    [
        ("edr", ("nccl", "rechd"), 8, (("nccl", 129768), ("rechd", 50820059), ("nccl", None))),
        ("edr", ("nccl", "rechd"), 64, (("nccl", 1017295), ("rechd", 594009547), ("nccl", None))),
        ("edr", ("rechd", "xring"), 12, (("rechd", 1728415), ("xring", None))),
        ("edr", ("rechd", "xring"), 100, (("rechd", 16109887), ("xring", None))),
        ("tcp25", ("nccl", "collective"), 2, (("nccl", 54561), ("collective", None))),
        ("tcp25", ("nccl", "rechd"), 64, (("nccl", 1 << 20), ("rechd", None))),
    ],
)
def test_sizes_at_which_another_spec_becomes_the_fastest(link, candidates, devices, expected):
    """In steps of 2 %, and only where it is 1 % faster."""
    ranges = fastest_by_size(Interconnect(PRESETS[link]), specs(*candidates), devices)
    assert tuple((part.spec, part.up_to) for part in ranges) == expected


UNEQUAL = tuple(map(Tensor, (4, 1000, 300_000, 5_000_000, 70)))


@pytest.mark.parametrize(
    ("spec", "in_nodes", "packed"),
    [
        ("collective", (170.078, 455.682, 2651.891, 4737.98), (1893.693, 3107.164)),
        ("copy", (218.893, 1484.363, 21602.057, 99644.711), (1818.579, 7129.952)),
        ("hierarchical_copy", (251.611, 848.208, 5638.719, 44659.55), (3589.025, 5359.494)),
        ("nccl", (162.935, 335.33, 2060.996, 2164.778), (1863.373, 3076.844)),
        ("pscpu", (462.314, 1971.98, 20835.81, 94222.018), (1846.579, 7157.952)),
        ("psgpu", (218.893, 1484.363, 21602.057, 99644.711), (1818.579, 7129.952)),
        ("rechd", (163.293, 295.622, 12223.209, 12985.523), (1893.698, 4243.043)),
        ("tree", (163.293, 724.387, 4003.431, 5600.313), (1893.698, 5130.932)),
        ("xring", (163.293, 372.628, 3003.838, 5949.549), (1893.698, 3107.181)),
    ],
)
def test_microseconds_of_several_tensors(spec, in_nodes, packed):
    """On 2, 8, 20 and 64 devices in nodes of 8; and of two packs on 2 and 5 devices."""
    (parsed,) = specs(spec)
    nodes = Interconnect(PRESETS["nvlink3"], PRESETS["hdr"], 8)
    network = Interconnect(PRESETS["edr"], launch=1e-6)

    def microseconds(interconnect, devices, **packing):
        seconds = interconnect.predict_seconds(parsed, UNEQUAL, devices, Packing(**packing))
        return pytest.approx(1e6 * seconds, abs=0.001)

    assert [*in_nodes] == [microseconds(nodes, devices) for devices in (2, 8, 20, 64)]
    assert [*packed] == [microseconds(network, n, gradient_repacking=2) for n in (2, 5)]
