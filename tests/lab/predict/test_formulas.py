"""Costs worked out by hand, and what must hold for any formula, spec and list of tensors.

Tests variable_mgr/all_reduce/cost.py, variable_mgr/all_reduce/algorithms/*.py and
cnnbench/lab/predict/predict.py.
"""

import pytest

from cnnbench.lab.predict.predict import Interconnect, NotPredictedError
from cnnbench.variable_mgr.all_reduce.cost import Link, Tensor
from cnnbench.variable_mgr.all_reduce.registry import cost_formulas, names
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec
from cnnbench.variable_mgr.packing import Packing

MIB = 1 << 20
# Powers of two, so that the sums below are exact.
ALPHA, BETA, GAMMA = 2.0**-17, 2.0**-33, 2.0**-38
LINK = Link("test", ALPHA, BETA, GAMMA)
COPY = 2 / 3 * GAMMA
FORMULAS = cost_formulas()


def seconds(spec, sizes, devices=8, network=None, **packing):
    """Time to reduce float32 tensors of these sizes in bytes."""
    tensors = [Tensor(size // 4) for size in sizes]
    return (network or Interconnect(LINK)).predict_seconds(
        parse_all_reduce_spec(spec), tensors, devices, Packing(**packing)
    )


def test_every_algorithm_has_a_formula():
    without = set(names()) - set(FORMULAS)
    assert not without, f"give {without} a formula: @register(NAME, cost=Formula(...))"


def hops(count, size, added=0.0):
    """Consecutive messages of a size, and bytes added."""
    return count * (ALPHA + size * BETA) + added * GAMMA


QUARTER, EIGHTH = MIB / 4, MIB / 8
JOIN = MIB * COPY


@pytest.mark.parametrize(
    ("spec", "sizes", "devices", "expected"),
    [
        # 2 * 3 hops of a quarter, of which 3 add; and the join.
        ("xring", [MIB], 4, hops(6, QUARTER, 3 * QUARTER) + JOIN),
        # Two rings send twice as many messages of half the size.
        ("xring#2", [MIB], 4, hops(12, EIGHTH, 3 * QUARTER) + JOIN),
        ("xring#2", [MIB] * 10, 4, 10 * (hops(12, EIGHTH, 3 * QUARTER) + JOIN)),
        # A small tensor goes around in one piece.
        ("xring", [4096], 4, hops(6, 4096, 3 * 4096)),
        # Of many, one waits for all of its hops; the others keep a device busy 3/4 of the time.
        ("xring", [4096] * 10, 4, hops(6 + 9 * 6 / 4, 4096, (3 + 9 * 3 / 4) * 4096)),
        # TensorFlow's ring copies its input first, and cuts small tensors too.
        ("collective", [MIB], 4, hops(6, QUARTER, 3 * QUARTER) + JOIN),
        ("collective", [4096], 4, hops(6, 1024, 3 * 1024) + 4096 * COPY),
        # The devices take turns in adding; the one with most work is waited for.
        ("copy", [MIB] * 8, 8, hops(2 * 7, MIB, 7 * MIB)),
        ("copy", [MIB] * 9, 8, 2 * hops(2 * 7, MIB, 7 * MIB)),
        ("copy", [4 * MIB, MIB] * 2, 2, 2 * hops(2, 4 * MIB, 4 * MIB)),
        # Half of the devices send to one, and the other half to another.
        ("hierarchical_copy", [MIB], 8, hops(2 * 4, MIB, 4 * MIB)),
        # Blocks that grow are joined before they are sent: a half and a quarter.
        (
            *("rechd", [MIB], 8),
            2 * (hops(1, MIB / 2) + hops(1, QUARTER) + hops(1, EIGHTH))
            + 7 * EIGHTH * GAMMA
            + (1 / 2 + 1 / 4) * JOIN
            + JOIN,
        ),
        # Three levels, at each of which two halves follow each other.
        ("tree", [MIB], 8, hops(2 * 3 * 2, MIB / 2, 3 * MIB) + JOIN),
        # Shards are gathered at the same time.
        ("psgpu#4", [MIB], 8, hops(2 * 7, QUARTER, 7 * QUARTER) + JOIN),
        ("xring", [], 8, 0.0),
    ],
)
def test_tensors_by_hand(spec, sizes, devices, expected):
    assert seconds(spec, sizes, devices) == pytest.approx(expected)


def test_halving_and_doubling_of_other_numbers():
    # Half is exchanged and added, and all is sent at last.
    more = (ALPHA + MIB / 2 * (BETA + GAMMA)) + (ALPHA + MIB * BETA)
    assert seconds("rechd", [MIB], 5) == pytest.approx(seconds("rechd", [MIB], 4) + more)
    assert seconds("rechd", [MIB], 6) == pytest.approx(seconds("rechd", [MIB], 5))
    # One of three partners goes on with the half that it did not add.
    back = ALPHA + MIB / 2 * BETA
    assert seconds("rechd", [MIB], 7) == pytest.approx(seconds("rechd", [MIB], 5) + back)


def test_cpus_hear_one_device_more_on_a_link_within_their_node():
    more = 2 * ALPHA
    assert seconds("pscpu", [MIB], 8) == pytest.approx(seconds("psgpu", [MIB], 8) + more)


def test_nccl_takes_the_faster_of_ring_and_tree():
    large, small = 1 << 30, 4096
    ring = 2 * 63 * (ALPHA + large / 64 * BETA) + 63 / 64 * large * GAMMA
    assert seconds("nccl", [large], 64) == pytest.approx(ring, rel=1e-3)
    assert seconds("nccl", [small], 64) < 2 * 6 * (ALPHA + small * BETA) + 2 * small * GAMMA


@pytest.mark.parametrize("name", FORMULAS)
def test_what_holds_for_every_formula(name):
    assert seconds(name, [MIB], 1) == 0.0
    faster = Interconnect(Link("faster", ALPHA / 2, BETA / 2, GAMMA / 2))
    sizes = [MIB, 4096, 10 * MIB]
    for devices in (2, 3, 5, 6, 8, 13, 64, 16384):
        # Latency remains when the tensor vanishes, and time grows with the size.
        nothing = seconds(name, [0], devices)
        assert nothing > ALPHA * 0.3
        times = [seconds(name, [size], devices) for size in (4, 1 << 10, 1 << 20, 1 << 26)]
        assert times[0] == pytest.approx(nothing, rel=1e-3)
        assert [nothing, *times] == sorted([nothing, *times])
        # Every device must send 2(n-1)/n of the tensor, whatever the algorithm.
        size = 1 << 30
        bound = 2 * (devices - 1) / devices * size * BETA
        assert seconds(name, [size], devices) > bound
        assert seconds(name, [size // 100] * 100, devices) > bound * 0.99
        assert seconds(name, sizes, devices, faster) < seconds(name, sizes, devices)


FAR = Link("far", 4 * ALPHA, 10 * BETA, GAMMA)


@pytest.mark.parametrize(
    ("spec", "sizes", "near", "far", "per_node", "expected"),
    [
        # 7 hops per lap, of which 2 leave a node; the bytes of the slow link count.
        (
            *("xring", [MIB], LINK, FAR, 4),
            2 * (5 * ALPHA + 2 * FAR.alpha + 7 * EIGHTH * FAR.beta) + 7 * EIGHTH * GAMMA + JOIN,
        ),
        # Eight tensors on eight devices: four of them wait for one link, each 4 MiB in, out.
        ("copy", [MIB] * 8, Link("", 0, 0, 0), Link("", 0, BETA, 0), 4, 2 * 4 * 4 * MIB * BETA),
        # Within a node, between nodes, and back to three others.
        (
            *("xring/rechd", [MIB], LINK, FAR, 4),
            seconds("xring", [MIB], 4)
            + seconds("rechd", [MIB], 2, Interconnect(FAR))
            + hops(3, MIB),
        ),
        # A node alone has the first level only, and nodes of one device the second.
        ("xring/rechd", [MIB], LINK, FAR, 8, seconds("xring", [MIB], 8)),
        ("xring/rechd", [MIB], LINK, FAR, 1, seconds("rechd", [MIB], 8, Interconnect(FAR))),
    ],
)
def test_eight_devices_in_nodes_by_hand(spec, sizes, near, far, per_node, expected):
    network = Interconnect(near, far, devices_per_node=per_node)
    assert seconds(spec, sizes, 8, network) == pytest.approx(expected)


# Hybrids, packing, two levels -------------------------------------------------------------------


def test_a_hybrid_costs_what_its_parts_cost():
    small, large = [4000] * 5, [4 * MIB] * 3
    both = seconds("pscpu:32K:xring", [small[0], large[0], *small[1:], *large[1:]])
    assert both == pytest.approx(seconds("pscpu", small) + seconds("xring", large))


def test_limits_count_bytes_as_sent():
    tensor, half = [64 * 1024], {"compact_dtype": "float16"}
    assert seconds("pscpu:32K:xring", tensor) == seconds("xring", tensor)
    assert seconds("pscpu:32K:xring", tensor, **half) == seconds("pscpu", tensor, **half)


def test_packing_saves_the_latency_of_many_small_tensors():
    many, one = [4096] * 1000, {"gradient_repacking": 1}
    packed = seconds("copy", many, **one)
    assert packed < seconds("copy", many)
    assert seconds("tree", many, **one) < seconds("tree", many) / 3
    # One copy joins, at two thirds of what adding costs.
    assert packed == pytest.approx(seconds("copy", [4_096_000]) + 4_096_000 * COPY)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("magic", "there is no formula for magic"),
        ("xring#9", "9 shards need as many devices"),
        ("xring/rechd", "--inter_link"),
    ],
)
def test_what_cannot_be_predicted_says_why(spec, reason):
    with pytest.raises(NotPredictedError, match=reason):
        seconds(spec, [MIB])
