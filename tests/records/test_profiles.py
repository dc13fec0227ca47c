"""Profiles of steps, rooflines and explanations: what is computed, and what is refused.

Tests cnnbench/records/roofline.py and cnnbench/records/explanation.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cnnbench.records.explanation import Cause, ExplainedRow, Explanation
from cnnbench.records.profiles import (
    COPIES,
    FORWARD,
    GAPS,
    INPUT_OPERATIONS,
    REDUCTION,
    REST,
    TO_KERNEL,
    UPDATE,
    Primitive,
    ProfiledLayer,
    ProfiledPart,
    StepProfile,
    activity_of_part,
)
from cnnbench.records.roofline import Machine, Roofline, RooflineRow, sort_roofline_rows
from cnnbench.records.run import RunRecord


def part(layer: str, kind: str, direction: str, **more: Any) -> ProfiledPart:
    values = {"seconds": (0.1, 0.2), "flops": 1, "bytes": 2, "operations": {}, **more}
    return ProfiledPart(layer=layer, kind=kind, direction=direction, **values)


@pytest.mark.parametrize(
    ("key", "activity"),
    [
        (("conv0", "convolution 3x3", FORWARD), "forward"),
        (("conv0", "convolution 3x3", TO_KERNEL), "kernel gradient"),
        ((REST, REDUCTION, "step"), "reduction"),
        ((REST, UPDATE, "step"), "update"),
        ((REST, COPIES, "step"), "copies between devices"),
        ((REST, "loss", "step"), "other"),
        (("conv0", "x", "step"), "other"),
        (INPUT_OPERATIONS, "input"),
        (GAPS, "no operation"),
    ],
)
def test_what_a_step_does(key: tuple[str, str, str], activity: str) -> None:
    assert activity_of_part(part(*key)) == activity
    assert part(*key).part == key


@pytest.fixture
def profile(runs: Any) -> StepProfile:
    return StepProfile(
        step_seconds=(0.5, 0.6),
        input_wait_seconds=(0.0, 0.1),
        rows=(part("conv0", "convolution 3x3", FORWARD),),
        graph={"Conv2D": 1},
        record=runs(100.0),
        layers=(ProfiledLayer(name="a", kind="", shapes=((3,),), parameters=3, flops=1),),
    )


def test_a_profile_survives_its_file(profile: StepProfile) -> None:
    made = replace(profile, allocations=3, allocated_bytes=4)
    assert StepProfile.from_json(made.to_json()) == made


PRIMITIVE = Primitive(
    name="convolution", propagation="", types="", implementation="", layouts="", calls=1
)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"step_seconds": ()}, "step_seconds"),
        ({"step_seconds": (0.5, 0.0)}, "step_seconds"),
        ({"input_wait_seconds": (0.1,)}, "input_wait_seconds: 1 values"),
        ({"input_wait_seconds": (0.1, -0.1)}, "-0.1 is not a time"),
        ({"rows": (part("a", "b", FORWARD, seconds=(0.1,)),)}, "rows: 1 values for 2 steps"),
        ({"rows": (part("a", "b", FORWARD, seconds=(0.1, math.nan)),)}, "nan is not a time"),
        ({"rows": (part("a", "b", FORWARD, flops=-1),)}, "rows"),
        ({"allocations": -1}, "allocations"),
        ({"allocated_bytes": -1}, "allocated_bytes"),
        ({"primitives": (replace(PRIMITIVE, calls=-1),)}, "primitives"),
    ],
)
def test_profiles_that_cannot_be(profile: StepProfile, parts: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(profile, **parts)


def test_a_profile_is_of_a_run_with_steps(profile: StepProfile, runs: Any) -> None:
    with pytest.raises(ValueError, match="no timed step"):
        replace(profile, record=runs(None))


MACHINE = Machine(flops_per_sec=100.0, bytes_per_sec=10.0)


def line(layer: str, kind: str, seconds: float, flops: int, moved: int) -> RooflineRow:
    bound = MACHINE.least_seconds(flops, moved)
    return RooflineRow(layer, kind, FORWARD, seconds, flops, moved, bound, seconds / 20)


ROWS = (
    line("a", "conv", 6.0, 300, 10),  # at least 3 s by FLOPs
    line("b", "conv", 4.0, 100, 10),  # 1 s
    line("b", "relu", 2.0, 0, 30),  # 3 s by bytes: faster than estimated
    line("c", "dense", 1.0, 200, 10),  # 2 s by FLOPs: faster
)


@pytest.fixture
def roofline(runs: Any) -> Roofline:
    return Roofline(ROWS, MACHINE, 20.0, 18.0, runs(100.0, devices=2))


def test_the_least_time_is_by_flops_or_by_bytes() -> None:
    assert MACHINE.ridge_flops_per_byte == 10.0
    assert MACHINE.least_seconds(300, 10) == 3.0
    assert MACHINE.least_seconds(0, 30) == 3.0
    conv, _, relu, _ = ROWS
    assert (conv.flops_per_byte, relu.flops_per_byte) == (30.0, None)
    assert (conv.share_of_bound, relu.share_of_bound) == (0.5, 1.5)
    assert (conv.winnable_seconds, relu.winnable_seconds) == (3.0, 0.0)
    assert replace(conv, bytes=0).flops_per_byte is None
    assert replace(conv, seconds=0.0).share_of_bound is None
    assert replace(conv, bound_seconds=0.0).share_of_bound is None


def test_rows_are_sorted_by_what_can_be_won() -> None:
    assert sort_roofline_rows(reversed(ROWS)) == ROWS


def test_sums_of_a_roofline(roofline: Roofline, runs: Any) -> None:
    assert [(one.layer, one.seconds, one.flops) for one in roofline.layers] == [
        ("a", 6.0, 300),
        ("b", 6.0, 100),
        ("c", 1.0, 200),
    ]
    assert [(one.kind, one.seconds, one.bytes) for one in roofline.kinds] == [
        ("conv", 10.0, 20),
        ("relu", 2.0, 30),
        ("dense", 1.0, 10),
    ]
    total = roofline.total
    assert (total.seconds, total.flops, total.bytes, total.bound_seconds) == (13.0, 600, 60, 9.0)
    assert total.share_of_step == pytest.approx(13 / 20)
    assert roofline.remainder_seconds == 7.0
    assert roofline.bound_images_per_sec == 16 / 9
    assert roofline.started_at == roofline.run.started_at
    bare = replace(roofline, rows=(replace(ROWS[0], bound_seconds=0.0),))
    assert bare.bound_images_per_sec is None


def test_another_peak_rate_makes_other_estimates(roofline: Roofline) -> None:
    other = roofline.with_peak_rate(200.0, "told")
    assert (other.machine.flops_per_sec, other.machine.flops_source) == (200.0, "told")
    by_layer = {(one.layer, one.kind): one.bound_seconds for one in other.rows}
    assert by_layer == {("a", "conv"): 1.5, ("b", "conv"): 1.0, ("b", "relu"): 3.0} | {
        ("c", "dense"): 1.0
    }
    assert other.rows == sort_roofline_rows(other.rows)


def test_rows_faster_than_estimated_have_a_reason(roofline: Roofline) -> None:
    text = roofline.faster_rows_remark
    assert text.startswith("2 rows are faster ")
    assert "1 limited by bytes" in text
    assert "1 limited by FLOPs" in text
    alone = replace(roofline, rows=ROWS[:3]).faster_rows_remark
    assert alone.startswith("1 row is faster ")
    assert "FLOPs" not in alone
    assert replace(roofline, rows=ROWS[:2]).faster_rows_remark == ""


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"rows": ()}, "rows: none"),
        ({"rows": (replace(ROWS[0], seconds=-1.0),)}, r"rows\[0\]"),
        ({"machine": replace(MACHINE, bytes_per_sec=0.0)}, "machine.bytes_per_sec"),
        ({"step_seconds": math.inf}, "step_seconds"),
        ({"unprofiled_step_seconds": 0.0}, "unprofiled_step_seconds"),
    ],
)
def test_rooflines_that_cannot_be(roofline: Roofline, parts: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(roofline, **parts)


@pytest.mark.parametrize("lacks", ["batch", "placement"])
def test_a_roofline_is_of_a_run_whose_devices_are_known(roofline: Roofline, lacks: str) -> None:
    run: RunRecord = replace(roofline.run, **{lacks: None})
    with pytest.raises(ValueError, match="run: "):
        replace(roofline, run=run)


def explained(**parts: Any) -> Explanation:
    row = ExplainedRow(
        layer="a", kind="k", direction=FORWARD, base=1.0, new=1.75, spread=0.1, share=0.75
    )
    cause = Cause(kind="kernel", base=1.0, new=1.5, spread=0.1, place="a", text="x is 2 in B")
    values: dict[str, Any] = {
        **{"answer": "", "base_label": "A", "new_label": "B", "base": 2.0, "new": 3.0},
        **{"spread": 0.25, "profiled_base": 1.5, "profiled_new": 2.25, "rows": (row,)},
        **{"causes": (cause,), "facts": (), "base_processes": 1, "new_processes": 1, "steps": 5},
    }
    return Explanation(**{**values, **parts})


def test_differences_of_an_explanation() -> None:
    made = explained()
    assert (made.difference, made.base, made.new) == (1.0, 2.0, 3.0)
    assert (made.rows[0].difference, made.causes[0].difference) == (0.75, 0.5)
    assert made.remainder == 0.25
    assert (made.not_profiled.base, made.not_profiled.new, made.not_profiled.share) == (
        *(0.5, 0.75, 0.25),
    )
    assert math.isnan(made.not_profiled.spread)
    assert made.unexplained == 0.5
    assert explained(by_work=True).unexplained == 1.0


@pytest.mark.parametrize(
    ("new", "by_work", "has_causes", "differs"),
    [
        # With known causes the spread decides, otherwise what may be chance.
        *((1.4, False, True, True), (1.2, False, True, False)),
        *((1.4, False, False, False), (1.6, False, False, True)),
        *((1.4, True, True, False), (1.6, True, True, True)),
        (0.4, False, False, True),
    ],
)
def test_a_difference_is_significant_beyond_spread_or_chance(
    new: float, by_work: bool, has_causes: bool, differs: bool
) -> None:
    made = explained(base=1.0, new=new, spread=0.3, chance=0.5, by_work=by_work)
    made = replace(made, causes=made.causes if has_causes else ())
    assert made.differs_significantly is differs


@pytest.mark.parametrize(("spread", "share"), [(0.5, 0.25), (1.0, None), (2.0, None)])
def test_a_difference_within_its_spread_has_no_shares(spread: float, share: float | None) -> None:
    row = explained(spread=spread).make_row("a", "k", FORWARD, base=1.0, new=1.25, spread=0.5)
    assert (row.share, row.spread) == (share, 0.5)
    assert explained(new=1.0, spread=0.5).make_row("a", base=1.0, new=0.5).share == 0.5


def test_evidence_that_the_text_has_is_not_repeated() -> None:
    cause = replace(explained().causes[0], evidence=("x is 2 in B", "y is 3"))
    assert cause.evidence_not_in_text == ("y is 3",)
