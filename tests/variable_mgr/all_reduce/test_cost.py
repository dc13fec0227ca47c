"""Each part of a formula by hand; lab/predict/test_formulas.py has whole formulas."""

from __future__ import annotations

import math

import pytest

from cnnbench.variable_mgr.all_reduce import cost
from cnnbench.variable_mgr.all_reduce.cost import Link, NodeLayout, ReductionPhase, Tensor


@pytest.mark.parametrize(
    ("devices", "per_node", "nodes", "near", "expected"),
    [
        # With m messages of each hop: near messages, near bytes, far messages, far bytes.
        (1, 1, 1, 1, (0, 0, 0, 0)),
        (2, 1, 2, 1, (0, 0, 2, 100)),
        (4, 1, 4, 1, (0, 0, 6, 100)),
        (4, 4, 1, 4, (6, 100, 0, 0)),
        (3, 4, 1, 3, (4, 100, 0, 0)),
        (5, 4, 2, 4, (4, 100, 4, 100)),
        (8, 4, 2, 4, (10, 100, 4, 100)),
        (3, 2, 2, 2, (0, 0, 4, 100)),
    ],
)
def test_a_lap_leaves_each_node_once(devices, per_node, nodes, near, expected):
    layout = NodeLayout(devices, per_node)
    assert (layout.nodes, layout.near) == (nodes, near)
    assert cost.ring_lap(layout, 2, 100) == ReductionPhase(*expected)


def test_a_device_without_a_layout_is_a_node():
    assert NodeLayout(3) == NodeLayout(3, 1)


@pytest.mark.parametrize(
    ("elements", "itemsize", "most", "expected"),
    [
        (0, 4, 8, (1, 0)),
        (10, 4, 8, (1, 40)),  # below a line of memory
        (8191, 4, 8, (1, 32764)),  # two chunks would be below 16 KiB
        (8192, 4, 8, (2, 16384)),
        (8192, 4, 1, (1, 32768)),
        (8192, 2, 8, (1, 16384)),
        (3 * 4096 + 1, 4, 8, (3, 4112 * 4)),  # in whole lines
        (1 << 20, 4, 8, (8, 1 << 19)),
    ],
)
def test_chunks_of_a_tensor(elements, itemsize, most, expected):
    tensor = Tensor(elements, itemsize)
    assert tensor.bytes == elements * itemsize
    assert tensor.chunks(most) == expected


def test_a_link_as_text():
    link = Link("slow", 2.5e-6, 2e-10, 4e-11)
    assert link.bandwidth == 5e9
    assert str(link) == "slow: alpha 2.5 us, bandwidth 5 GB/s, gamma 0.04 ns/B"
    assert Link("free", 0, 0, 0).bandwidth == math.inf


def test_seconds_of_a_phase_add_up_but_for_bytes_that_move_at_once():
    near, far = Link("near", 5, 10, 3), Link("far", 100, 7, 10**6)
    phase = ReductionPhase(2, 30, 4, 50, added=6, copied=9, fixed=0.25)
    rest = 2 * 5 + 4 * 100 + (6 + 9 * 2 / 3) * 3 + 0.25
    assert phase.seconds(near, far) == pytest.approx(rest + 50 * 7)
    assert (phase + ReductionPhase(near_bytes=10)).seconds(near, far) == pytest.approx(rest + 400)


def test_phases_add_and_multiply_in_every_field():
    one, other = ReductionPhase(1, 2, 3, 4, 5, 6, 7), ReductionPhase(10, 20, 30, 40, 50, 60, 70)
    assert one + other == ReductionPhase(11, 22, 33, 44, 55, 66, 77)
    assert one.times(3) == ReductionPhase(3, 6, 9, 12, 15, 18, 21)


def test_messages_within_and_between_nodes():
    assert cost.star_of(3, 2, 10) == ReductionPhase(3, 30, 2, 20)
    assert cost.messages_phase(False, 3, 10) == ReductionPhase(3, 10)
    assert cost.messages_phase(True, 3, 10) == ReductionPhase(0, 0, 3, 10)
    # The four devices of a node share the link of their node.
    mixed = cost.mixed_messages_phase(NodeLayout(8, 4), 8, 100, 0.25)
    assert mixed == ReductionPhase(6, 75, 2, 100)


def test_chunks_are_joined_if_there_are_several():
    tensor, move = Tensor(100), ReductionPhase(1, 2, 3, 4)
    one, several = ReductionPhase(), ReductionPhase(copied=400)
    assert [cost.join_phase(tensor, chunks) for chunks in (1, 2, 3)] == [one, several, several]
    there = ReductionPhase(1, 2, 3, 4, added=50)
    assert cost.round_trip_phases(move, 50, tensor, 2) == (there, move, several)
    assert cost.round_trip_phases(move, 50, tensor, 1) == (there, move, one)


def test_a_formula_has_one_root_unless_it_says_otherwise():
    formula = cost.Formula(lambda tensor, layout, shards: [])
    assert formula.roots(NodeLayout(8), 4) == 1
    assert (formula.busy, formula.or_paths) == (None, ())
