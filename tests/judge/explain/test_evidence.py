"""Evidence that no time tells: kernels of oneDNN, clocks, load and allocations.

Tests cnnbench/judge/explain/facts.py.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from step_profiles import CONV, changed, network, with_records

from cnnbench.judge.explain import explain
from cnnbench.judge.explain.facts import primitive_changes
from cnnbench.records.profiles import INPUT, PROGRAM, TO_KERNEL, Primitive, StepPartKey, StepProfile
from cnnbench.records.run import Conditions, Measured

NHWC = "src acdb, wei Acdb64a, dst acdb"


def primitive(name="convolution", propagation="backward_weights", calls=4, **changes):
    values = {"types": "f32", "implementation": "jit:avx2", "layouts": NHWC, **changes}
    return Primitive(name=name, propagation=propagation, calls=calls, **values)


def reorder(calls=3):
    return primitive("reorder", "", calls, layouts="src ab, dst ba", implementation="jit:uni")


ONEDNN = "env_TF_ENABLE_ONEDNN_OPTS"
KERNEL = primitive()
OTHER = primitive(implementation="gemm:jit")
FORWARDS = primitive(propagation="forward_training")


def logged(profiles, *primitives):
    """A side with a log, which the first process has."""
    return [dataclasses.replace(profiles[0], primitives=primitives), *profiles[1:]]


def under(profiles, **during):
    """A side under measuring conditions, a value for each process or for all."""
    values = [
        {k: v[number] if isinstance(v, tuple) else v for k, v in during.items()}
        for number in range(len(profiles))
    ]
    return with_records(profiles, conditions=[Conditions(before={}, during=v) for v in values])


def slower_everywhere(factor=1.4):
    return changed(lambda part: part.direction not in (INPUT, "host"), factor)


def slower_kernel():
    return changed(lambda part: part == StepPartKey("conv2", CONV, TO_KERNEL), 1.7)


def facts(found):
    return {one.fact: (one.base, one.new) for one in found.facts}


def test_a_variable_is_the_reason_for_the_algorithms_that_follow_from_it(profiles):
    base, new = profiles.side(), profiles.side(slower_everywhere())
    sides = []
    for side, variable, gradients in ((base, {}, "fastest"), (new, {ONEDNN: "0"}, "library")):
        record = side[0].record
        sides.append(
            with_records(
                side,
                environment=[{**record.environment, **variable}] * len(side),
                config=[{**record.config, "conv_gradients": gradients}] * len(side),
            )
        )
    found = explain(*sides)
    reasons = [line for cause in found.causes for line in cause.evidence if "in A" in line]
    assert reasons == [f"{ONEDNN}: none in A, 0 in B"]
    assert next(iter(facts(found))) == ONEDNN


def test_evidence_changes_no_judgement(profiles):
    base, new = profiles.side(), profiles.side(slower_kernel())
    without = explain(base, new)
    found = explain(logged(base, KERNEL), logged(new, OTHER))
    assert found.causes[0].evidence != without.causes[0].evidence
    plain = [dataclasses.replace(one, evidence=()) for one in found.causes]
    assert plain == [dataclasses.replace(one, evidence=()) for one in without.causes]
    assert (found.rows, found.answer) == (without.rows, without.answer)
    alike = explain(logged(base, KERNEL), logged(profiles.side(), OTHER))
    assert alike.causes == ()
    assert "oneDNN convolution backward_weights" in facts(alike)


def changes(before, after, profiles):
    found = primitive_changes(logged(profiles.side(), *before), logged(profiles.side(), *after))
    return {one.fact.fact.removeprefix("oneDNN "): (one.fact.base, one.fact.new) for one in found}


def test_layouts_are_told_where_implementations_agree(profiles):
    blocked = primitive(layouts="src aBcd8b, wei ABcd8b8a, dst aBcd8b", calls=1)
    found = changes([primitive(calls=3)], [primitive(calls=2), blocked], profiles)
    assert found == {
        "convolution backward_weights": (
            f"1 jit:avx2 (f32) with {NHWC}",
            "1 jit:avx2 (f32) with src aBcd8b, wei ABcd8b8a, dst aBcd8b",
        )
    }


def test_other_types_more_calls_and_primitives_of_one_side(profiles):
    gemm = primitive("gemm_api", "", 2, implementation="")
    before, after = [KERNEL, reorder(), gemm], [primitive(types="bf16"), reorder(4)]
    found = changes(before, after, profiles)
    assert found == {
        "convolution backward_weights": ("4 jit:avx2 (f32)", "4 jit:avx2 (bf16)"),
        "gemm_api": ("2 (f32)", "-"),
        "reorder": ("3 jit:uni (f32)", "4 jit:uni (f32)"),
    }
    assert list(found)[-1] == "reorder"
    assert changes(before, before, profiles) == {}


def test_a_side_without_a_log_is_unknown_and_not_different(profiles):
    base, new = profiles.side(), profiles.side()
    assert primitive_changes(logged(base, KERNEL), new) == []
    assert primitive_changes(base, logged(new, KERNEL)) == []
    assert primitive_changes(logged(base), logged(new, KERNEL)) == []


@pytest.mark.parametrize(
    "clocks",
    [
        ((3400, 3400, 2000), (2100, 2100, 2100)),  # not in all processes
        ((3400, 3400, 3400), (3350, 3350, 3350)),  # hardly
        ((2100, 2100, 2100), (3400, 3400, 3400)),  # the faster side
        ((3400, 3400, 3400), None),
    ],
)
def test_clocks_that_are_no_reason(profiles, clocks):
    sides = [
        side if clock is None else under(side, cpu_clock_mhz=clock)
        for side, clock in zip(
            (profiles.side(), profiles.side(slower_everywhere(1.6))), clocks, strict=True
        )
    ]
    found = explain(*sides)
    assert found.causes[0].kind == "everything"
    assert found.causes[0].evidence == ()
    assert "clock, which" in found.causes[0].text


def test_fewer_threads_and_a_lower_clock(profiles):
    base = under(profiles.side(num_intra_threads=2), cpu_clock_mhz=3400)
    rows = changed(lambda part: part.layer.startswith("conv"), 1.8)
    found = explain(base, under(profiles.side(rows, num_intra_threads=1), cpu_clock_mhz=2100))
    (cause,) = found.causes
    assert cause.kind == "threads"
    names = [line.partition(":")[0] for line in cause.evidence]
    assert names == ["num_intra_threads", "CPU clock"]


def test_no_gpu_is_slowed_where_none_is_at_work(profiles):
    a, b = (under(profiles.side(), other_cpus=one) for one in (0.1, 0.2))
    assert facts(explain(a, b)) == {}


@pytest.mark.parametrize(
    ("name", "base", "little", "enough", "fact"),
    [
        # A twentieth of the lower one, or an amount.
        ("cpu_clock_mhz", 2000.0, 1905.0, 1904.0, "CPU clock"),
        ("other_cpus", 0.1, 0.34, 0.36, "CPUs used by other programs"),
        ("steal_fraction", 0.0, 0.019, 0.021, "CPU time withheld by the hypervisor"),
    ],
)
def test_from_which_difference_on_conditions_are_listed(profiles, name, base, little, enough, fact):
    a = under(profiles.side(), **{name: base})
    sides = [under(profiles.side(), **{name: one}) for one in (little, enough)]
    found = [facts(explain(a, b)) for b in sides]
    assert [fact in one for one in found] == [False, True]


def test_allocations_are_listed(profiles):
    def allocating(count, size):
        return [
            dataclasses.replace(one, allocations=count, allocated_bytes=size << 20)
            for one in profiles.side()
        ]

    assert facts(explain(allocating(100, 64), allocating(180, 96))) == {
        "allocations in a step": ("100", "180"),
        "bytes allocated in a step": ("64 MiB", "96 MiB"),
    }
    assert facts(explain(allocating(100, 64), allocating(101, 64))) == {}
    assert facts(explain(allocating(100, 64), profiles.side())) == {}


@pytest.mark.parametrize(
    ("memory", "allocations", "told"),
    [(110, 102, set()), (111, 103, {"peak memory", "allocations in a step"})],
)
def test_from_which_share_on_quantities_are_listed(profiles, memory, allocations, told):
    def using(size, count):
        side = [
            dataclasses.replace(one, allocations=count, allocated_bytes=1 << 20)
            for one in profiles.side()
        ]
        return with_records(side, measured=[Measured(peak_memory_bytes=size << 20)] * len(side))

    assert facts(explain(using(100, 100), using(memory, allocations))).keys() == told


def test_a_profile_holds_what_was_logged(profiles, holds):
    (plain,) = profiles.side(network(), processes=1)
    assert not {"primitives", "allocations"} & set(json.loads(plain.to_json()))
    (full,) = logged([dataclasses.replace(plain, allocations=3, allocated_bytes=9)], KERNEL)
    document = json.loads(full.to_json())
    holds("step_profile", json.loads(plain.to_json()), document)
    assert document["primitives"][0]["implementation"] == "jit:avx2"
    assert StepProfile.from_json(full.to_json()) == full


def test_a_program_that_computes_is_told_from_one_that_waits(profiles):
    slower = changed(lambda part: part == PROGRAM, 10.0)

    def using(side, seconds):
        return with_records(side, step_cpu_seconds=[(seconds,) * 8] * len(side))

    base, new = using(profiles.side(), 0.08), profiles.side(slower)
    (waiting,), (computing,) = (explain(base, using(new, cpu)).causes for cpu in (0.081, 0.12))
    assert (waiting.kind, computing.kind) == ("program", "program")
    assert waiting.evidence == ()
    (line,) = computing.evidence
    assert line.endswith(": 80.00 ms in A, 120.0 ms in B")
