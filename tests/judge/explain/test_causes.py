"""Conditions of each kind of cause, in steps of 100 s whose parts take exactly the times given.

Tests cnnbench/judge/explain/causes.py.
"""

from __future__ import annotations

import dataclasses

import pytest
from step_profiles import CONV, Row, exact_profile, exact_row, with_records

from cnnbench.judge.explain.causes import (
    added_layers,
    batch_size,
    changed_layers,
    find_causes,
    gaps,
    input_wait,
    other_network,
    overall_slowdown,
    precision,
    program_time,
    reduction,
    slower_layers,
    threads_or_libraries,
    unfused_batch_norm,
    variable_operations,
    variable_operations_left,
)
from cnnbench.judge.explain.sides import CauseClaim, ComparedProfiles
from cnnbench.records.profiles import (
    COPIES,
    FORWARD,
    GAPS,
    INPUT_OPERATIONS,
    INPUT_WAIT,
    OUTSIDE,
    PROGRAM,
    REDUCTION,
    REST,
    TO_INPUT,
    TO_KERNEL,
    UPDATE,
    Primitive,
    ProfiledLayer,
    StepPartKey,
)
from cnnbench.records.run import Conditions

FIRST, BACK, SECOND = (
    StepPartKey(name, CONV, direction)
    for name, direction in (("conv0", FORWARD), ("conv0", TO_INPUT), ("conv1", FORWARD))
)
UPDATED, REDUCED, COPIED = (
    StepPartKey(REST, kind, OUTSIDE) for kind in (UPDATE, REDUCTION, COPIES)
)
KERNEL = {"_FusedConv2D float32": 1}
PLAIN = {
    FIRST: Row(20.0, 10**9, 1000, KERNEL),
    BACK: Row(20.0, 10**9, 1000, KERNEL),
    SECOND: Row(20.0, 10**9, 1000, KERNEL),
    UPDATED: Row(10.0, operations={"ResourceApplyMomentum": 37}),
    REDUCED: Row(20.0, operations={"AddN float32": 60}),
    GAPS: Row(10.0),
}
THREADS = {"num_intra_threads": 2}, {"num_intra_threads": 1}


def slower(rows=PLAIN, /, **more):
    """The rows with further seconds, by the name of a part."""
    parts = {
        "first": FIRST,
        "back": BACK,
        "second": SECOND,
        "updated": UPDATED,
        "reduced": REDUCED,
        "gaps": GAPS,
    }
    found = dict(rows)
    for name, seconds in more.items():
        part = parts[name]
        found[part] = dataclasses.replace(found[part], ms=found[part].ms + seconds)
    return found


def doing(rows, part, **changes):
    """The rows, of which one has another amount of work."""
    return {**rows, part: dataclasses.replace(rows[part], **changes)}


def layer(name, parameters, kind=CONV):
    return ProfiledLayer(
        name=name, kind=kind, shapes=((parameters,),), parameters=parameters, flops=1
    )


@pytest.fixture
def compare(lenet_runs):
    """compare(NEW, BASE): two processes with these rows each; a number is seconds of each step."""
    record = lenet_runs()

    def process(rows, flags, layers):
        made = [
            exact_row(
                part,
                *(row.ms if isinstance(row.ms, tuple) else (row.ms,) * 3),
                flops=row.flops,
                bytes=row.bytes,
                operations=row.operations,
            )
            for part, row in rows.items()
        ]
        return exact_profile(record, made, layers=layers, devices=2, flags=flags)

    def make(new, base=PLAIN, flags=({}, {}), layers=(None, None), under=None):
        sides = [
            [
                process(rows, own, of_side)
                for rows in (several if isinstance(several, list) else [several] * 2)
            ]
            for several, own, of_side in zip((base, new), flags, layers, strict=True)
        ]
        if under is not None:
            sides = [
                with_records(side, conditions=[Conditions(before={}, during=during)] * 2)
                for side, during in zip(sides, under, strict=True)
            ]
        return ComparedProfiles(*sides)

    return make


def parts(claims):
    return [set(claim.parts) for claim in claims]


def kinds(claims):
    return [claim.kind for claim in claims]


# Causes and their order


def test_typical_and_mean_times_must_have_one_direction(compare):
    base = {**PLAIN, GAPS: Row((10.0, 10.0, 40.0))}
    sides = compare({**PLAIN, GAPS: Row((15.0, 15.0, 15.0))}, base)
    claim = CauseClaim("gaps", (GAPS,), "", "")
    # The median is 5 s longer, the mean 5 s shorter.
    assert find_causes(sides, claim) == ()
    sides.by_work = True
    (cause,) = find_causes(sides, claim)
    assert (cause.base, cause.new) == (20, 15)
    # A mean that did not change is no cause.
    sides = compare({**PLAIN, GAPS: Row((15.0, 15.0, 30.0))}, base)
    assert find_causes(sides, claim) == ()


def test_larger_causes_are_first_and_effects_last(compare):
    sides = compare(slower(first=3.0, second=-9.0, gaps=30.0))
    claims = [
        CauseClaim("gaps", (GAPS,), "", "", is_effect=True),
        CauseClaim("kernel", (FIRST,), "conv0", "text", facts=("a", "b")),
        CauseClaim("kernel", (SECOND,), "conv1", "text"),
    ]
    found = find_causes(sides, *claims)
    assert [cause.difference for cause in found] == [-9, 3, 30]
    assert found[1].text == "text; a"
    assert found[1].evidence == ("a", "b")
    # What a cause explains is claimed by no other one.
    assert [*sides.free] == [BACK, UPDATED, REDUCED]


def test_the_spread_of_a_cause_is_two_standard_errors(compare):
    base = [slower(gaps=-1.0), slower(gaps=1.0)]
    sides = compare([slower(gaps=29.0), slower(gaps=31.0)], base)
    # The variance is 2 on both sides, which have two processes.
    (cause,) = find_causes(sides, CauseClaim("gaps", (GAPS,), "", ""))
    assert cause.spread == pytest.approx(2 * 2**0.5)


# Input and program


def test_a_wait_for_input_that_varies_from_step_to_step(compare):
    base = {**PLAIN, INPUT_WAIT: Row((5.0, 10.0, 15.0))}
    sides = compare({**PLAIN, INPUT_WAIT: Row((55.0, 60.0, 65.0))}, base)
    assert parts(input_wait(sides)) == [{INPUT_WAIT}]
    assert [*input_wait(compare(base, base))] == []
    assert [*input_wait(compare(slower(gaps=30.0)))] == []


def test_one_part_of_the_input_may_wait_alone(compare):
    base = {**PLAIN, INPUT_WAIT: Row(1.0), INPUT_OPERATIONS: Row((5.0, 10.0, 15.0))}
    # The operations of the pipeline vary so much that only the wait itself is significant.
    sides = compare({**base, INPUT_WAIT: Row(3.0)}, base)
    assert parts(input_wait(sides)) == [{INPUT_WAIT}]
    both = {**base, INPUT_OPERATIONS: Row((55.0, 60.0, 65.0))}
    assert parts(input_wait(compare(both, base))) == [{INPUT_WAIT, INPUT_OPERATIONS}]


def test_a_program_whose_processes_differ(compare):
    base = [{**PLAIN, PROGRAM: Row(one)} for one in (10.0, 12.0)]
    # By chance, a factor of 7.6 is possible; 20 standard errors are 169 s.
    sides = compare([{**PLAIN, PROGRAM: Row(one)} for one in (84.0, 100.8)], base)
    assert kinds(program_time(sides)) == ["program"]
    assert [*program_time(compare(slower(gaps=30.0)))] == []


def test_a_program_that_does_more_in_few_steps(compare):
    rows = {**PLAIN, PROGRAM: Row((1.0, 1.0, 31.0))}
    assert kinds(program_time(compare(rows, {**PLAIN, PROGRAM: Row(1.0)}))) == ["program"]
    assert [*program_time(compare(rows, rows))] == []


# Other networks and batches


def test_a_network_of_other_layers(compare):
    dense = {StepPartKey(f"dense{n}", "dense", FORWARD): Row(40.0, 10**9) for n in range(2)}
    rows = {**{part: row for part, row in PLAIN.items() if part.layer == REST}, **dense}
    base_layers = (layer("conv0", 10), layer("conv1", 10))
    layers = (base_layers, (layer("dense0", 10, "dense"), layer("dense1", 10, "dense")))
    (claim,) = other_network(compare(rows, layers=layers))
    assert {part.layer for part in claim.parts} == {"conv0", "conv1", "dense0", "dense1"}
    assert len(claim.evidence) == 2  # A convolution and a dense layer.
    # Networks that take as long differ in nothing.
    like = {part: dataclasses.replace(row, ms=30.0) for part, row in rows.items() if part in dense}
    base = {FIRST: Row(30.0, 10**9), SECOND: Row(30.0, 10**9)}
    assert [*other_network(compare(like, base, layers=layers))] == []
    # Layers are compared one by one if the networks are of one family.
    assert [*other_network(compare(slower(first=20.0), layers=(base_layers,) * 2))] == []


BATCHES = {"batch_size": 32}, {"batch_size": 48}


@pytest.mark.parametrize(
    ("flops", "seconds", "flags", "expected"),
    [
        (3 * 10**9, 5.0, BATCHES, ["batch"]),
        (10**8, -5.0, BATCHES, ["batch"]),
        (3 * 10**9, -5.0, BATCHES, []),
        (10**8, 5.0, BATCHES, []),
        (10**9, 5.0, BATCHES, []),
        (3 * 10**9, 5.0, ({}, {}), []),
        (3 * 10**9, 0.0, BATCHES, []),
    ],
)
def test_a_batch_of_another_size_has_more_work_and_takes_longer(
    compare, flops, seconds, flags, expected
):
    rows = doing(slower(first=seconds), FIRST, flops=flops)
    sides = compare(rows, flags=flags)
    found = [*batch_size(sides)]
    assert kinds(found) == expected
    assert parts(found) == [set(sides.operations_left)] * len(expected)


def test_operations_that_change_in_both_directions_are_no_batch(compare):
    rows = doing(slower(first=10.0, second=-4.0), FIRST, flops=2 * 10**9)
    assert [*batch_size(compare(rows, flags=BATCHES))] == []
    rows = doing(slower(first=10.0, second=-2.0), FIRST, flops=2 * 10**9)
    assert kinds(batch_size(compare(rows, flags=BATCHES))) == ["batch"]


# Threads and libraries


def test_threads_change_all_operations_or_some(compare):
    every = {FIRST, BACK, SECOND, UPDATED, REDUCED}
    # Four fifths of all changes have one direction, or less.
    alike = compare(slower(first=8.1, second=-1.9), flags=THREADS)
    assert parts(threads_or_libraries(alike)) == [{*every, GAPS}]
    rows = {part: row for part, row in slower(first=8.1).items() if part != GAPS}
    assert parts(threads_or_libraries(compare(rows, rows | PLAIN, flags=THREADS))) != []
    some = compare(slower(first=7.9, second=-2.1), flags=THREADS)
    assert parts(threads_or_libraries(some)) == [{FIRST, SECOND}]
    with_gaps = compare(slower(first=7.9, second=-2.1, gaps=4.0), flags=THREADS)
    assert parts(threads_or_libraries(with_gaps)) == [{FIRST, SECOND, GAPS}]
    assert [*threads_or_libraries(compare(slower(first=8.1)))] == []
    assert [*threads_or_libraries(compare(PLAIN, flags=THREADS))] == []


def test_operations_without_gaps(compare):
    base = {part: row for part, row in PLAIN.items() if part != GAPS}
    sides = compare(slower(base, first=9.0), base, flags=THREADS)
    assert parts(threads_or_libraries(sides)) == [{FIRST, BACK, SECOND, UPDATED, REDUCED}]
    sides = compare(slower(base, first=7.9, second=-2.1), base, flags=THREADS)
    assert parts(threads_or_libraries(sides)) == [{FIRST, SECOND}]
    assert [*gaps(sides)] == []


def test_work_alone_is_no_evidence_of_threads(compare):
    sides = compare(doing(PLAIN, FIRST, flops=1), flags=THREADS)
    sides.by_work = True
    assert [*threads_or_libraries(sides)] == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(THREADS, {SECOND}), (({"data_format": "NCHW"}, {"data_format": "NHWC"}), {FIRST, SECOND})],
)
def test_another_library_may_run_other_operations(compare, flags, expected):
    rows = doing(slower(first=7.9, second=-2.1), FIRST, operations={"Conv2D float32": 1})
    assert parts(threads_or_libraries(compare(rows, flags=flags))) == [expected]


def test_the_place_of_threads_names_three_operations(compare):
    rows = slower(first=6.0, back=-5.0, second=4.0, reduced=-3.0)
    (claim,) = threads_or_libraries(compare(rows, flags=THREADS))
    assert claim.parts == (FIRST, BACK, SECOND, REDUCED)
    assert [claim.place.count(name) for name in ("conv0", "conv1", REST)] == [2, 1, 0]
    assert claim.place.index("conv0") < claim.place.index("conv1")


# Number formats and batch norm


@pytest.mark.parametrize(
    ("before", "after", "seconds", "expected"),
    [
        ({"Conv2D float32": 1}, {"Conv2D bfloat16": 1}, 1.5, [{FIRST, BACK}]),
        ({"Conv2D float32": 1}, {"Conv2D float32": 2}, 9.0, []),
        ({"Conv2D float32": 1}, {"Relu bfloat16": 1}, 9.0, []),
        ({"Relu float32": 1}, {"Conv2D bfloat16": 1}, 9.0, []),
        ({"Conv2D": 1}, {"Conv2D bfloat16": 1}, 9.0, []),
        ({"Conv2D float32": 1}, {"Conv2D bfloat16": 1}, 0.0, []),
    ],
)
def test_products_in_another_format(compare, before, after, seconds, expected):
    base = doing(doing(PLAIN, FIRST, operations=before), BACK, operations={})
    rows = doing(slower(base, first=seconds), FIRST, operations=after)
    assert parts(precision(compare(rows, base))) == expected


def test_casts_are_evidence_of_another_format(compare):
    rows = doing(slower(first=5.0), FIRST, operations={"_FusedConv2D bfloat16": 1, "Cast f": 4})
    (claim,) = precision(compare(rows))
    assert [("0" in line, "4" in line) for line in claim.evidence] == [(True, True)]
    rows = doing(slower(first=5.0), FIRST, operations={"_FusedConv2D bfloat16": 1})
    (claim,) = precision(compare(rows))
    assert claim.evidence == []


def test_layers_of_one_pair_of_formats_are_one_cause(compare):
    bf16, fp16 = {"_FusedConv2D bfloat16": 1}, {"_FusedConv2D float16": 1}
    rows = doing(slower(first=5.0, second=9.0), SECOND, operations=bf16)
    both = doing(doing(rows, FIRST, operations=bf16), BACK, operations=bf16)
    (claim,) = precision(compare(both))
    assert set(claim.parts) == {FIRST, BACK, SECOND}
    assert claim.place.startswith("conv1")  # Its difference is larger.
    other = doing(doing(rows, FIRST, operations=fp16), BACK, operations=fp16)
    assert parts(precision(compare(other))) == [{FIRST, BACK}, {SECOND}]


NORM0, NORM1 = (StepPartKey(f"conv{n}", "batch norm", FORWARD) for n in range(2))
NORMED = {
    **PLAIN,
    NORM0: Row(3.0, operations={"FusedBatchNormV3 f": 2}),
    NORM1: Row(3.0, operations={"FusedBatchNormV3 f": 3}),
}


def norms(seconds, *kernels, base=NORMED):
    rows = dict(base)
    for part, own in zip((NORM0, NORM1), kernels, strict=True):
        rows[part] = Row(rows[part].ms + seconds, operations=own)
    return rows


def test_batch_norm_that_is_not_fused(compare):
    unfused = norms(2.0, {"Mean f": 2}, {"Mean f": 3})
    (claim,) = unfused_batch_norm(compare(unfused, NORMED))
    assert set(claim.parts) == {NORM0, NORM1}
    assert ("5" in claim.text, "0" in claim.text) == (True, True)
    longer, shorter = claim.text, [*unfused_batch_norm(compare(NORMED, unfused))]
    assert parts(shorter) == [{NORM0, NORM1}]
    assert shorter[0].text.split(":")[0] != longer.split(":")[0]


@pytest.mark.parametrize(
    ("seconds", "kernels", "expected"),
    [
        # One layer has one fused operation less.
        (2.0, ({"FusedBatchNormV3 f": 1, "Mean f": 1}, {"FusedBatchNormV3 f": 3}), [{NORM0}]),
        # As many in all, but in another layer.
        (2.0, ({"FusedBatchNormV3 f": 3}, {"FusedBatchNormV3 f": 2}), []),
        (2.0, ({"FusedBatchNormV3 f": 2, "Mean f": 9}, {"FusedBatchNormV3 f": 3}), []),
        (0.0, ({"Mean f": 2}, {"Mean f": 3}), []),
        # A product in the layer's batch norm is not part of it.
        (2.0, ({"MatMul f": 2}, {"FusedBatchNormV3 f": 3}), []),
    ],
)
def test_which_layers_have_another_batch_norm(compare, seconds, kernels, expected):
    sides = compare(norms(seconds, *kernels), NORMED)
    assert parts(unfused_batch_norm(sides)) == expected


# Reductions and updates of variables


@pytest.mark.parametrize(
    ("part", "recognise"),
    [(REDUCED, reduction), (UPDATED, variable_operations), (COPIED, variable_operations_left)],
)
def test_other_operations_are_evidence_beside_the_time(compare, part, recognise):
    layers = {one: row for one, row in PLAIN.items() if one.layer != REST}
    base = {**layers, part: Row(50.0, operations={"Own f": 1})}
    # Two standard errors of 1 % are 1.0, and five are 2.6.
    for seconds, alike, differ in ((0.9, [], []), (1.9, [], [part]), (2.9, [part], [part])):
        rows = {**base, part: Row(50.0 + seconds, operations={"Own f": 1})}
        found = parts(recognise(compare(rows, base)))
        assert [part in one for one in found] == [True] * len(alike)
        rows[part] = Row(50.0 + seconds, operations={"Other f": 1})
        found = parts(recognise(compare(rows, base)))
        assert [part in one for one in found] == [True] * len(differ)


def test_reductions_and_other_operations_on_variables_are_told_apart(compare):
    rows = slower(reduced=10.0, updated=10.0)
    sides = compare({**rows, COPIED: Row(9.0)}, {**PLAIN, COPIED: Row(1.0)})
    assert parts(reduction(sides)) == [{REDUCED}]
    assert parts(variable_operations(sides)) == [{UPDATED, COPIED}]
    none = {FIRST: Row(20.0, operations=KERNEL)}
    like = compare(none, none)
    assert [*reduction(like), *variable_operations(like), *variable_operations_left(like)] == []


@pytest.mark.parametrize(
    ("parameters", "seconds", "expected"),
    [
        (1009, 5.0, ["reduction"]),  # less than a hundredth
        (1010, 5.0, []),
        (1010, -5.0, ["reduction"]),
        (990, -5.0, []),
        (991, -5.0, ["reduction"]),
        (990, 5.0, ["reduction"]),
    ],
)
def test_more_parameters_explain_longer_reductions(compare, parameters, seconds, expected):
    layers = ((layer("conv0", 1000),), (layer("conv0", parameters),))
    sides = compare(slower(reduced=seconds), layers=layers)
    assert kinds(reduction(sides)) == expected
    updated = compare(slower(updated=seconds), layers=layers)
    assert kinds(variable_operations(updated)) == ["copies"] * len(expected)
    assert kinds(variable_operations_left(updated)) == ["copies"]


@pytest.mark.parametrize(("own", "claimed"), [(400, True), (399, False), (1000, True)])
def test_two_fifths_of_the_further_parameters_explain_updates(compare, own, claimed):
    base = (layer("conv0", 1000), layer("conv1", 1000))
    new = (base[0], layer("conv1", 2000 - own), layer("conv9", own))
    added = StepPartKey("conv9", CONV, FORWARD)
    rows = {**slower(updated=9.0), added: Row(9.0, 10**9, operations=KERNEL)}
    (claim,) = added_layers(compare(rows, layers=(base, new)))
    assert set(claim.parts) == ({added, UPDATED, REDUCED} if claimed else {added})


@pytest.mark.parametrize(
    ("flags", "kernels", "alike"),
    [
        (({}, {}), {"ResourceApplyMomentum": 40}, True),
        (({}, {}), {"ResourceApplyAdam": 37}, False),
        (({"optimizer": "sgd"}, {"optimizer": "adam"}), {"ResourceApplyMomentum": 37}, False),
        (({}, {}), {"ResourceApplyMomentum": 37, "DeepCopy": 1}, True),
    ],
)
def test_another_optimizer_updates_variables(compare, flags, kernels, alike):
    (before,) = variable_operations(compare(slower(updated=9.0)))
    rows = doing(slower(updated=9.0), UPDATED, operations=kernels)
    (claim,) = variable_operations(compare(rows, flags=flags))
    assert (claim.place == before.place) == alike


@pytest.mark.parametrize(
    ("own", "other", "gaps", "expected"),
    [
        # All operations are 100: 3 products, 37 updates and 60 sums.
        (10, 0, 4.0, True),
        (9, 0, 4.0, False),
        (8, 2, 4.0, True),
        (7, 3, 4.0, False),
        (10, 0, 0.0, False),
        (10, 0, -4.0, False),
        (-10, 0, -4.0, True),
        (0, 0, 4.0, False),
    ],
)
def test_gaps_belong_to_most_of_the_further_operations(compare, own, other, gaps, expected):
    rows = doing(slower(reduced=9.0, gaps=gaps), REDUCED, operations={"AddN float32": 60 + own})
    rows = doing(rows, UPDATED, operations={"ResourceApplyMomentum": 37 + other})
    (claim,) = reduction(compare(rows))
    assert set(claim.parts) == ({REDUCED, GAPS} if expected else {REDUCED})


def test_gaps_that_a_cause_has_claimed_are_left_to_it(compare):
    rows = doing(slower(reduced=9.0, gaps=4.0), REDUCED, operations={"AddN float32": 90})
    sides = compare(rows)
    del sides.free[GAPS]
    assert parts(reduction(sides)) == [{REDUCED}]
    assert [*gaps(sides)] == []


# Layers


def test_layers_of_one_side(compare):
    base = {**PLAIN, StepPartKey("conv8", CONV, FORWARD): Row(9.0, operations=KERNEL)}
    rows = {**PLAIN, StepPartKey("conv9", CONV, FORWARD): Row(19.0, operations=KERNEL)}
    (claim,) = added_layers(compare(rows, base))
    assert {part.layer for part in claim.parts} == {"conv8", "conv9"}
    assert claim.place.startswith("conv9")
    # Their times are as long.
    like = {**PLAIN, StepPartKey("conv9", CONV, FORWARD): Row(9.0, operations=KERNEL)}
    assert [*added_layers(compare(like, base))] == []
    assert [*added_layers(compare(slower(first=9.0)))] == []


def test_parameters_of_added_and_removed_layers_are_compared(compare):
    # One layer of 900 parameters replaces one of 1000; another one has 1100 more.
    same = (layer("conv1", 1000), layer("conv2", 1001))
    base = (layer("conv0", 1000), *same, layer("pool", 1000, "dense"))
    new = (layer("conv0", 2100), *same, layer("conv9", 900))
    added = StepPartKey("conv9", CONV, FORWARD)
    rows = {**slower(updated=9.0), added: Row(9.0, 10**9, operations=KERNEL)}
    (claim,) = added_layers(compare(rows, layers=(base, new)))
    assert set(claim.parts) == {added}


def test_layers_of_another_shape(compare):
    base = tuple(layer(f"conv{n}", 1000) for n in range(2))
    new = (base[0], layer("conv1", 2000))
    sides = compare(slower(second=9.0, updated=5.0), layers=(base, new))
    (claim,) = changed_layers(sides)
    assert (claim.place, set(claim.parts)) == ("conv1", {SECOND, UPDATED, REDUCED})
    # Fewer parameters do not explain longer updates.
    fewer = compare(slower(second=9.0, updated=5.0), layers=(new, base))
    assert parts(changed_layers(fewer)) == [{SECOND}]
    assert [*changed_layers(compare(slower(second=9.0), layers=(base, base)))] == []
    assert [*changed_layers(compare(PLAIN, layers=(base, new)))] == []
    # A layer without operations of its own is no cause.
    lacking = compare(slower(second=9.0), layers=((layer("x", 1),), (layer("x", 2),)))
    assert [*changed_layers(lacking)] == []


def test_a_layer_with_a_product_is_named_before_one_without(compare):
    norm = StepPartKey("norm0", "batch norm", FORWARD)
    base = {norm: Row(10.0), **PLAIN}
    layers = [
        (layer("norm0", size, ""), layer("conv0", size), layer("conv1", size)) for size in (10, 20)
    ]
    rows = {**slower(base, second=9.0), norm: Row(30.0)}
    (claim,) = changed_layers(compare(rows, base, layers=layers))
    assert claim.place == "conv0 and 2 more"
    without = [(layer("norm0", size, ""), layer("conv0", 10)) for size in (10, 20)]
    (claim,) = changed_layers(compare(rows, base, layers=without))
    assert claim.place == "norm0"


def test_evidence_names_six_layers_of_another_shape(compare):
    parts_of = [StepPartKey(f"layer{n}", CONV, FORWARD) for n in range(8)]
    rows = [{part: Row(10.0 + more, operations=KERNEL) for part in parts_of} for more in (0, 5)]
    layers = [tuple(layer(f"layer{n}", size) for n in range(8)) for size in (10, 20)]
    (claim,) = changed_layers(compare(rows[1], rows[0], layers=layers))
    assert sum(line.startswith("layer") for line in claim.evidence) == 6
    assert (claim.evidence[0].count("10"), claim.evidence[0].count("20")) == (1, 1)
    assert claim.place == "layer0 and 7 more"


def test_layers_without_shapes_have_their_number_of_parameters(compare):
    layers = [
        (dataclasses.replace(layer("conv0", size), shapes=()), layer("conv1", 10))
        for size in (3000, 4000)
    ]
    (claim,) = changed_layers(compare(slower(first=9.0), layers=layers))
    assert [number in claim.evidence[0] for number in ("3000", "4000")] == [True, True]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "kernel"),
        ({"flops": 2 * 10**9}, "work"),
        ({"operations": {"Conv2D float32": 1}}, "operations"),
        ({"bytes": 1001}, "work"),
        ({"flops": 2 * 10**9, "operations": {"Conv2D float32": 1}}, "work"),
    ],
)
def test_what_a_slower_layer_does(compare, changes, kind):
    rows = doing(slower(second=9.0), SECOND, **changes)
    (claim,) = slower_layers(compare(rows))
    assert (claim.kind, claim.parts, claim.place) == (kind, (SECOND,), "conv1, forward")


@pytest.mark.parametrize(
    ("first", "back", "place"),
    [(8.0, 2.0, "conv0, forward"), (7.9, 2.1, "conv0"), (-8.0, -2.0, "conv0, forward")],
)
def test_a_direction_with_four_fifths_of_the_difference_is_named(compare, first, back, place):
    rows = doing(slower(first=first, back=back), FIRST, flops=1)
    rows = doing(rows, BACK, flops=1)
    (claim,) = slower_layers(compare(rows))
    assert (claim.place, set(claim.parts)) == (place, {FIRST, BACK})


def test_parts_whose_work_differs_need_less_time(compare):
    # 3 % more are enough with other work, but not without.
    rows = slower(slower(), second=10.0)
    base = {**PLAIN, SECOND: dataclasses.replace(PLAIN[SECOND], ms=50.0)}
    rows = {**base, SECOND: dataclasses.replace(base[SECOND], ms=51.9)}
    assert [*slower_layers(compare(rows, base))] == []
    assert kinds(slower_layers(compare(doing(rows, SECOND, flops=1), base))) == ["work"]
    assert [*slower_layers(compare(doing(base, SECOND, flops=1), base))] == []


def test_amounts_that_differ_by_a_hundredth_are_evidence(compare):
    for flops, bytes, told in (
        (1009 * 10**6, 1000, 0),
        (1011 * 10**6, 1000, 1),
        (10**9, 1011, 1),
        (2 * 10**9, 2000, 2),
        (980 * 10**6, 980, 2),
        (0, 1000, 0),
    ):
        rows = doing(slower(second=9.0), SECOND, flops=flops, bytes=bytes)
        (claim,) = slower_layers(compare(rows))
        assert len([*filter(None, claim.evidence)]) == told
        if flops == 2 * 10**9:
            assert all("2.000" in line for line in claim.evidence if line)


def test_evidence_names_three_kinds_of_operations(compare):
    before, after = {"a": 5, "b": 1, "c": 7, "d": 9}, {"a": 4, "b": 3, "c": 4, "d": 9, "e": 4}
    base = doing(PLAIN, SECOND, operations=before)
    rows = doing(slower(base, second=9.0), SECOND, operations=after)
    (claim,) = slower_layers(compare(rows, base))
    (line,) = filter(None, claim.evidence)
    changes = [text for text in ("+4 e", "-3 c", "+2 b", "-1 a", " d") if text in line]
    assert changes == ["+4 e", "-3 c", "+2 b"]
    assert line.index("+4 e") < line.index("-3 c") < line.index("+2 b")


def test_the_updates_of_a_layer_with_more_parameters_are_its_own(compare):
    base = tuple(layer(f"conv{n}", 1000) for n in range(2))
    new = (base[0], layer("conv1", 1500))
    sides = compare(slower(second=9.0, updated=5.0), layers=(base, new))
    assert parts(slower_layers(sides)) == [{SECOND, UPDATED, REDUCED}]
    other = (layer("conv0", 1500), base[1])
    sides = compare(slower(second=9.0, updated=5.0), layers=(base, other))
    assert parts(slower_layers(sides)) == [{SECOND}]


def test_a_layer_with_another_name_in_b(compare):
    layers = [(layer("conv0", 10), layer(name, 20, "dense")) for name in ("conv1", "other")]
    renamed = {
        part._replace(layer="other") if part == SECOND else part: row
        for part, row in slower(second=9.0).items()
    }
    (claim,) = slower_layers(compare(renamed, layers=layers))
    assert claim.place.startswith("conv1")
    assert sum("other" in line for line in claim.evidence) == 1
    (claim,) = slower_layers(compare(slower(second=9.0), layers=(layers[0], layers[0])))
    assert [*filter(None, claim.evidence)] == []


# Gaps and everything


def faster_or_slower(factor, rows=PLAIN):
    return {
        part: row if part == GAPS else dataclasses.replace(row, ms=row.ms * factor)
        for part, row in rows.items()
    }


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.09, False), (1.12, True), (0.92, False), (0.89, True)]
)
def test_from_which_factor_on_everything_is_slower(compare, factor, expected):
    # Factors of A and of B differ by 0.086, 0.113, 0.083 and 0.117; the limit is 0.1.
    found = [*overall_slowdown(compare(faster_or_slower(factor)))]
    assert bool(found) == expected
    for claim in found:
        assert set(claim.parts) == {FIRST, BACK, SECOND, UPDATED, REDUCED}


def test_operations_must_be_relevant_and_separated(compare):
    # Most operations take twice as long, but they take hardly any time.
    base = {**PLAIN, UPDATED: Row(0.001), REDUCED: Row(0.001), FIRST: Row(0.001)}
    assert [
        *overall_slowdown(compare(slower(faster_or_slower(2.0, base), second=-20, back=-20), base))
    ] == []
    rows = [faster_or_slower(1.5), faster_or_slower(0.99)]
    assert [*overall_slowdown(compare(rows))] == []
    idle = {GAPS: Row(10.0)}
    assert [*overall_slowdown(compare(idle, idle))] == []


def test_everything_is_an_effect_of_other_work(compare):
    sides = compare(doing(faster_or_slower(1.5), UPDATED, operations={"Other": 37}))
    (alone,) = overall_slowdown(sides)
    assert not alone.is_effect
    del sides.free[UPDATED]
    (beside,) = overall_slowdown(sides)
    assert beside.is_effect
    assert UPDATED not in beside.parts
    like = compare(faster_or_slower(1.5))
    del like.free[UPDATED]
    assert not next(overall_slowdown(like)).is_effect


@pytest.mark.parametrize(
    ("factor", "clocks", "lines"),
    [
        (1.5, (3000, 2000), 1),
        (1.5, (2000, 3000), 0),
        (0.5, (2000, 3000), 1),
        (0.5, (3000, 2000), 0),
    ],
)
def test_a_clock_explains_only_its_own_direction(compare, factor, clocks, lines):
    under = [{"cpu_clock_mhz": clock} for clock in clocks]
    cause, *_ = find_causes(compare(faster_or_slower(factor), under=under))
    assert (cause.kind, len(cause.evidence)) == ("everything", lines)


def test_gaps_are_only_an_effect(compare):
    (claim,) = gaps(compare(slower(gaps=9.0)))
    assert (claim.parts, claim.is_effect) == ((GAPS,), True)
    assert [*gaps(compare(slower(first=9.0)))] == []


# Kernels of oneDNN


def logged(sides, *implementations):
    """The sides, of which each has a log of a convolution with this implementation."""
    places = [
        ("convolution", "forward"),
        ("convolution", "backward_data"),
        ("convolution", "backward_weights"),
        ("pooling", "forward"),
    ]
    made = []
    for side, implementation in zip((sides.a, sides.b), implementations, strict=True):
        calls = tuple(
            Primitive(
                name=name,
                propagation=propagation,
                types="f32",
                implementation=implementation,
                layouts="",
                calls=1,
            )
            for name, propagation in places
        )
        first = dataclasses.replace(side.profiles[0], primitives=calls)
        made.append([first, *side.profiles[1:]])
    return ComparedProfiles(*made)


@pytest.mark.parametrize(
    ("part", "propagation"), [(FIRST, "forward"), (BACK, "backward_data"), (UPDATED, None)]
)
def test_kernels_of_a_layers_products_are_its_evidence(compare, part, propagation):
    rows = {**PLAIN, part: dataclasses.replace(PLAIN[part], ms=PLAIN[part].ms + 9)}
    sides = logged(compare(rows), "jit:avx2", "gemm:jit")
    (cause,) = find_causes(sides)
    lines = [line for line in cause.evidence if "oneDNN" in line]
    assert len(lines) == (propagation is not None)
    assert all(f"convolution {propagation}:" in line for line in lines)


def test_kernels_of_layers_without_products_are_no_evidence(compare):
    relu = StepPartKey("Relu", "ReLU", FORWARD)
    base = {**PLAIN, relu: Row(20.0, operations={"Relu": 1})}
    rows = {**base, relu: Row(40.0, operations={"Relu": 1})}
    (cause,) = find_causes(logged(compare(rows, base), "jit:avx2", "gemm:jit"))
    assert (cause.kind, cause.evidence) == ("kernel", ())


def test_everything_has_six_lines_of_further_evidence(compare):
    sides = compare(faster_or_slower(1.5), under=({"cpu_clock_mhz": 3000}, {"cpu_clock_mhz": 2000}))
    cause, *_ = find_causes(logged(sides, "jit:avx2", "gemm:jit"))
    assert (cause.kind, len(cause.evidence)) == ("everything", 5)
    assert "3,000" in cause.evidence[0]
    assert TO_KERNEL not in {part.direction for part in sides.free}
