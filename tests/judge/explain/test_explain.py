"""Planted causes in synthetic profiles are named first, and on like sides nothing is."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from step_profiles import CONV, Profiles, Row, changed, network, without

from cnnbench.judge.explain import explain
from cnnbench.judge.explain.sides import Times
from cnnbench.judge.explain.text import chart, lines_of, table, to_markdown
from cnnbench.records.explanation import Explanation
from cnnbench.records.step_profile import (
    FORWARD,
    GAPS,
    INPUT_WAIT,
    OUTSIDE,
    PROGRAM,
    REDUCTION,
    REST,
    TO_KERNEL,
    UPDATE,
    Part,
    StepProfile,
)

SEEDS = range(20)
HOT = Part("conv2", CONV, TO_KERNEL)


def slower_kernel():
    return changed(lambda part: part == HOT, 1.7), {}


def twice_the_work():
    rows = changed(lambda part: part[:2] == ("conv1", CONV), 2.0, flops=2 * 10**9)
    return rows, {}


def another_precision():
    single = network("float32")
    rows = {
        part: single[part].times(1.8) if part[:2] == ("conv3", CONV) else row
        for part, row in network().items()
    }
    return {**rows, Part("conv3", "cast", FORWARD): Row(0.4, operations={"Cast float32": 2})}, {}


def unfused_norm():
    rows = changed(
        lambda part: part.kind == "batch norm",
        3.0,
        operations={"Mean float32": 2, "Mul float32": 3},
    )
    return rows, {}


def copied_weights():
    rows = network()
    update = Part(REST, UPDATE, OUTSIDE)
    copies = {**rows[update].operations, "AssignVariableOp": 12}
    return {**rows, update: rows[update].times(2.5, operations=copies)}, {}


def many_small_copies():
    rows = network()
    update = Part(REST, UPDATE, OUTSIDE)
    copies = {**rows[update].operations, "DeepCopy": 400}
    return {**rows, update: rows[update].times(2.0, operations=copies), GAPS: Row(6.0)}, {}


def slower_input():
    return changed(lambda part: part == INPUT_WAIT, 60.0), {}


def fewer_threads():
    rows = changed(lambda part: part.layer.startswith("conv"), 1.8)
    return rows, {"num_intra_threads": 1}


def threads_that_wait_less():
    rows = changed(lambda part: part.kind == UPDATE, 0.2)
    return changed(lambda part: part == HOT, 1.05, rows), {"num_intra_threads": 1}


def another_reduction():
    rows, where = network(), Part(REST, REDUCTION, OUTSIDE)
    slower = rows[where].times(2.2, operations={"AddN float32": 3, "ConcatV2 float32": 9})
    return {**rows, where: slower}, {"all_reduce_spec": "xring"}


def sleeping_program():
    return changed(lambda part: part == PROGRAM, 10.0), {}


def another_layer():
    return {**network(), Part("conv9", CONV, FORWARD): Row(5.0, 10**9)}, {}


PLANTED = {
    slower_kernel: ("kernel", "conv2, gradient of kernels"),
    twice_the_work: ("work", "conv1"),
    another_precision: ("precision", "conv3"),
    unfused_norm: ("batch norm", "batch norm of conv"),
    copied_weights: ("copies", "updates and copies of variables"),
    many_small_copies: ("copies", "updates and copies of variables"),
    slower_input: ("input", "the input pipeline"),
    fewer_threads: ("threads", "all operations"),
    another_reduction: ("reduction", "the reduction of gradients"),
    sleeping_program: ("program", "the training loop, outside the graph"),
    another_layer: ("layers", "conv9"),
}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_cause_is_named_first(planted, lenet_runs):
    kind, place = PLANTED[planted]
    rows, flags = planted()
    first = []
    for seed in SEEDS:
        profiles = Profiles(lenet_runs(), seed)
        base = profiles.side(num_intra_threads=2)
        found = explain(base, profiles.side(rows, **{"num_intra_threads": 2, **flags}))
        cause = found.causes[0] if found.causes else None
        first.append(cause is not None and (cause.kind, cause.place[: len(place)]) == (kind, place))
    assert sum(first) >= 19


def test_profiles_that_name_no_operations(lenet_runs):
    profiles = Profiles(lenet_runs())
    rows = {part: row.times(1.0, operations=None) for part, row in network().items()}
    where = Part(REST, REDUCTION, OUTSIDE)
    found = explain(profiles.side(rows), profiles.side({**rows, where: rows[where].times(3.0)}))
    assert [cause.kind for cause in found.causes] == ["reduction"]


def test_threads_explain_what_they_make_faster(lenet_runs):
    rows, flags = threads_that_wait_less()
    kinds = []
    for seed in SEEDS:
        profiles = Profiles(lenet_runs(), seed, load=0.02)
        base = profiles.side(num_intra_threads=2)
        kinds += [cause.kind for cause in explain(base, profiles.side(rows, **flags)).causes[:1]]
    assert kinds == ["threads"] * len(SEEDS)


@pytest.mark.parametrize("planted", [slower_kernel, twice_the_work, another_precision])
def test_the_other_way_round_it_takes_less(planted, lenet_runs):
    profiles = Profiles(lenet_runs())
    kind, place = PLANTED[planted]
    found = explain(profiles.side(planted()[0]), profiles.side())
    assert (found.causes[0].kind, found.causes[0].place[: len(place)]) == (kind, place)
    assert found.causes[0].difference < 0
    assert " less" in found.answer


@pytest.mark.parametrize(("load", "noise"), [(0.0, 0.01), (0.2, 0.02), (0.4, 0.2)])
def test_on_like_sides_nothing_is_named(lenet_runs, load, noise):
    named = []
    for seed in range(40):
        profiles = Profiles(lenet_runs(), seed, load, noise)
        found = explain(profiles.side(), profiles.side())
        named += [cause.kind for cause in found.causes]
    assert named == []


def test_a_process_that_was_slow_for_another_reason_hides_nothing(lenet_runs):
    profiles = Profiles(lenet_runs())
    base, rows = profiles.side(), sleeping_program()[0]
    slow = {**rows, PROGRAM: rows[PROGRAM].times(2.0)}
    found = explain(base, [profiles(rows), profiles(slow), profiles(rows)])
    assert [cause.kind for cause in found.causes] == ["program"]


def test_rows_and_remainder_add_up_to_the_measured_difference(lenet_runs):
    profiles = Profiles(lenet_runs())
    found = explain(profiles.side(), profiles.side(twice_the_work()[0]))
    whole = sum(row.difference for row in found.rows) + found.remainder
    assert whole == pytest.approx(found.difference, rel=1e-9)
    assert sum(row.base for row in found.rows) == pytest.approx(found.profiled_base, rel=1e-9)
    *shown, step = lines_of(found, 5)
    assert len(shown) == 5 + 2
    assert sum(line.base for line in shown) == pytest.approx(step.base, rel=1e-9)
    assert sum(line.new for line in shown) == pytest.approx(step.new, rel=1e-9)


def test_the_answer_names_times_and_place(lenet_runs):
    profiles = Profiles(lenet_runs(), load=0.0, noise=0.0)
    found = explain(profiles.side(), profiles.side(slower_kernel()[0]))
    assert found.answer.startswith("A step takes 9.")
    assert "in conv2, gradient of kernels (14." in found.answer
    assert found.answer.endswith("the same operations take another time.")


def test_noise_that_hides_everything_is_told(lenet_runs):
    profiles = Profiles(lenet_runs(), seed=3, load=0.4)
    found = explain(profiles.side(), profiles.side())
    assert found.answer.startswith("Nothing stands out of the noise: a step takes ")
    assert " can be chance." in found.answer


def test_one_process_of_each_side_is_compared_by_its_steps(lenet_runs):
    profiles = Profiles(lenet_runs())
    base = [profiles()]
    assert explain(base, [profiles()]).causes == ()
    found = explain(base, [profiles(twice_the_work()[0])])
    assert (found.causes[0].kind, found.causes[0].place) == ("work", "conv1")


def test_a_layer_that_is_gone(lenet_runs):
    profiles = Profiles(lenet_runs())
    rows = network()
    rows = without(rows, [part for part in rows if part.layer == "conv1"])
    found = explain(profiles.side(), profiles.side(rows))
    assert found.causes[0].text == "B has a convolution less (3x3, after conv0)"
    assert found.causes[0].evidence == ("only A has conv1",)


def test_a_step_that_cannot_be_told_is_not_claimed(lenet_runs):
    profiles = Profiles(lenet_runs(), load=0.0)
    base, new = profiles.side(), profiles.side(slower_kernel()[0])
    noisy = [
        dataclasses.replace(
            one, record=dataclasses.replace(one.record, step_seconds=(0.05 * (1 + n),) * 8)
        )
        for n, one in enumerate(base)
    ]
    found = explain(noisy, new)
    assert abs(found.difference) < found.spread
    assert found.answer.startswith("Whether a step takes longer cannot be told (")
    assert "but it has 9." in found.answer
    assert "ms more (+/- " in found.answer
    assert "in conv2, gradient of kernels (14." in found.answer


def test_a_cause_against_the_difference_of_the_step_is_told_as_such(lenet_runs):
    profiles = Profiles(lenet_runs(), load=0.0)
    base, new = profiles.side(), profiles.side(slower_kernel()[0])
    faster = [
        dataclasses.replace(
            one,
            record=dataclasses.replace(
                one.record, step_seconds=tuple(0.6 * s for s in one.record.step_seconds)
            ),
        )
        for one in new
    ]
    found = explain(base, faster)
    assert found.difference < 0
    assert " less, in rows of which none stands out of the noise, although it has 9." in (
        found.answer
    )
    assert "ms more (+/- " in found.answer


def test_one_tower_reduces_nothing(lenet_runs):
    profiles = Profiles(lenet_runs(), towers=1)
    rows = network()
    reduction, update = (Part(REST, kind, OUTSIDE) for kind in (REDUCTION, UPDATE))
    adam = rows[update].times(2.5, operations={"ResourceApplyAdam": 12})
    rows |= {update: adam, reduction: rows[reduction].times(1.5)}
    base = profiles.side(optimizer="sgd")
    found = explain(base, profiles.side(rows, optimizer="adam"))
    (cause,) = found.causes
    assert (cause.kind, cause.place) == ("copies", "the optimizer's update")
    assert "optimizer: sgd in A, adam in B" in found.answer
    assert all(row.kind != REDUCTION for row in found.rows)


def test_threads_that_leave_gaps_are_named_before_the_gaps(lenet_runs):
    profiles = Profiles(lenet_runs(), load=0.0)
    rows = changed(lambda part: part == GAPS, 6.0)
    base = profiles.side(num_intra_threads=2)
    found = explain(base, profiles.side(rows, num_intra_threads=1))
    assert [cause.kind for cause in found.causes] == ["threads"]
    assert "num_intra_threads: 2 in A, 1 in B" in found.answer
    like = explain(base, profiles.side(rows, num_intra_threads=2))
    assert [cause.kind for cause in like.causes] == ["gaps"]
    slower = {**changed(lambda part: part == HOT, 1.7), GAPS: rows[GAPS].times(3.0)}
    both = explain(base, profiles.side(slower, num_intra_threads=2))
    assert [cause.kind for cause in both.causes] == ["kernel", "gaps"]
    assert both.causes[1].difference > both.causes[0].difference


def test_batch_norm_that_one_side_has_more_of_is_not_taken_for_a_fused_one(lenet_runs):
    profiles = Profiles(lenet_runs(), load=0.0)
    more = Part("conv9", "batch norm", FORWARD)
    rows = {**network(), more: Row(9.0, operations={"FusedBatchNormV3 float32": 1})}
    (cause,) = explain(profiles.side(), profiles.side(rows)).causes
    assert (cause.kind, cause.place) == ("layers", "conv9")


def test_a_larger_batch_is_named_before_single_layers(lenet_runs):
    profiles = Profiles(lenet_runs(), load=0.0)
    rows = {
        part: row.times(1.5, flops=row.flops * 3 // 2) if row.flops else row
        for part, row in network().items()
    }
    found = explain(profiles.side(batch_size=32), profiles.side(rows, batch_size=48))
    assert [cause.kind for cause in found.causes] == ["batch"]
    assert "batch_size: 32 in A, 48 in B" in found.answer


def test_a_wait_that_hardly_scatters_is_named_though_it_is_short(lenet_runs):
    profiles = Profiles(lenet_runs())
    rows = {**network(), INPUT_WAIT: Row(0.5)}
    found = explain(profiles.side({**network(), INPUT_WAIT: Row(0.01)}), profiles.side(rows))
    assert [cause.kind for cause in found.causes] == ["input"]
    assert found.causes[0].difference < 0.01 * found.base


def test_steps_tell_the_scatter_where_it_is_the_larger_part():
    few = Times(1.0, 2.0, (0.9, 1.0, 1.1), (1.7, 2.0, 2.3))
    assert few.is_by_chance
    many = dataclasses.replace(few, within=few.variance * 0.6, steps=120)
    assert not many.is_by_chance
    processes = dataclasses.replace(few, within=few.variance * 0.4, steps=120)
    assert processes.is_by_chance


def delayed(profile, draw):
    """The profile with other programs that delay the program in about half of the steps."""

    def late(seconds):
        return tuple(one * (1 + draw.choice((0, 10)) * draw.random()) for one in seconds)

    rows = [
        dataclasses.replace(row, seconds=late(row.seconds)) if row.part == PROGRAM else row
        for row in profile.rows
    ]
    return dataclasses.replace(profile, rows=tuple(rows))


def test_the_least_time_of_a_program_tells_what_delays_hide(lenet_runs):
    named = []
    for seed in SEEDS:
        profiles, draw = Profiles(lenet_runs(), seed, noise=0.1), random.Random(seed)
        base, like, new = (
            [delayed(profiles(rows, steps=20), draw) for _ in range(3)]
            for rows in (None, None, changed(lambda part: part == PROGRAM, 4.0))
        )
        assert explain(base, like).causes == ()
        named += [cause.kind for cause in explain(base, new).causes]
    assert named.count("program") >= 19
    assert set(named) == {"program"}


def test_other_work_is_told_where_no_time_stands_out(lenet_runs):
    profiles, update = Profiles(lenet_runs()), Part(REST, UPDATE, OUTSIDE)
    flops = changed(lambda part: part[:2] == ("conv1", CONV), 1.0, flops=2 * 10**9)
    copied = {**network(), update: network()[update].times(1.0, operations={"DeepCopy": 12})}
    for rows, kind, place in (
        (flops, "work", "conv1"),
        (copied, "copies", "the optimizer's update"),
    ):
        found = explain(profiles.side(), profiles.side(rows))
        assert found.answer.startswith("Nothing stands out of the noise: ")
        assert ". Certain is that the work differs: other " in found.answer
        assert f" in {place}" in found.answer
        assert [cause.kind for cause in found.causes] == [kind]
    # A flag is no work.
    base, new = (profiles.side(num_intra_threads=count) for count in (2, 1))
    assert explain(base, new).causes == ()


def test_a_fact_that_processes_of_both_sides_share_is_no_cause(lenet_runs):
    profiles = Profiles(lenet_runs(), load=0.0)

    def under(library, profile):
        environment = {**profile.record.environment, "env_OMP_NUM_THREADS": library}
        record = dataclasses.replace(profile.record, environment=environment)
        return dataclasses.replace(profile, record=record)

    base = profiles.side()
    new = [under("1", one) for one in profiles.side(changed(lambda part: part == GAPS, 6.0))]
    mixed = [under(value, one) for value, one in zip("112", base, strict=True)]
    assert [cause.kind for cause in explain(mixed, new).causes] == ["gaps"]
    other = [under("2", one) for one in base]
    assert [cause.kind for cause in explain(other, new).causes] == ["threads"]


def test_outputs_say_the_same(lenet_runs, holds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    profiles = Profiles(lenet_runs())
    rows, flags = another_precision()
    base, new = profiles.side(), profiles.side(rows, precision="bf16", **flags)
    holds("step_profile", *(json.loads(one.to_json()) for one in (*base, *new)))
    assert StepProfile.from_json(base[0].to_json()) == base[0]
    found = explain(base, new)
    document = json.loads(found.to_json())
    holds("explanation", document)
    assert Explanation.from_json(found.to_json()) == found
    assert document["causes"][0]["difference"] == pytest.approx(found.causes[0].difference)
    shown = table(found, 4)
    assert shown.startswith(found.answer)
    assert "products are in float32, not in bfloat16" in shown
    assert "precision is fp32 in A and bf16 in B" in shown
    assert f"{len(found.rows) - 4} other rows" in shown
    text = to_markdown(found, 4)
    assert text.startswith("### cnnbench: why\n")
    assert text.count("| <code>conv3</code> |") >= 3
    drawn = chart(found, 4)
    assert len(drawn.rows) == 7
    assert drawn.rows[0].label.startswith("conv3")
