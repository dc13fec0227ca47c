"""All-reduce records in a comparison: rows, processes, what counts and what is context.

Tests cnnbench/judge/compare/rows.py and cnnbench/judge/compare/compare.py.
"""

import dataclasses
import json

import pytest

from cnnbench.errors import ExitCode
from cnnbench.flags.declare import ComparedBy
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS
from cnnbench.flags.identity import flags_compared_by
from cnnbench.judge.compare import Criteria, Verdict, compare_records
from cnnbench.judge.report.comparison import counts_text
from cnnbench.judge.report.renderers import render
from cnnbench.records.all_reduce import Copying
from cnnbench.variable_mgr.packing import Packing

BASE = (6.0, 6.012, 5.988, 6.006, 5.994)
XRING = "all-reduce xring, 8000000 bytes, 4 cpu"
SMALL = "all-reduce xring, 4000000 bytes, 4 cpu"
COPIED = "all-reduce copy, 8000000 bytes, 4 cpu"


def scaled(factor):
    return [value * factor for value in BASE]


def by_name(comparison):
    return {entry.name: entry.main.verdict for entry in comparison.entries}


def only(comparison):
    (entry,) = comparison.entries
    return entry


def rows_of(*records):
    """Configurations of records, which another side lacks."""
    return compare_records(records, []).entries


def differing(record, other):
    """Facts and flags in which the only rows of two records differ."""
    return [one.fact for one in only(compare_records([record], [other])).differences]


@pytest.fixture
def beside(reductions):
    """beside(value, status, seconds): a process with a row of xring and one of copy."""

    def make(value, status="ok", seconds=None):
        speed = {"seconds": seconds} if seconds else {}
        row = reductions.point(None if seconds else value, spec="copy", **speed)
        return reductions(value, row, status=status)

    return make


def test_a_row_is_one_value_of_its_process(reductions):
    # 8 MB in 2 ms on 4 devices: 4 GB/s, of which each sends 2 * 3/4: 6 GB/s.
    point = reductions.point(None, seconds=(0.001, 0.002, 0.004))
    (result,) = only(compare_records([reductions(point)], [reductions(point)])).results[:1]
    assert (result.metric.name, result.metric.unit) == ("bus_bandwidth", "GB/s")
    assert result.base == (pytest.approx(6.0),)
    assert "1 process " in result.judgement.reason
    # A file that repeats a row gives one value; on one device nothing is reduced.
    (row,) = rows_of(reductions(6.0, 7.0))
    assert len(row.base) == 1
    assert rows_of(reductions(reductions.point(devices=1, seconds=(0.1,)))) == ()


# Another value of each field of a packing.
PACKINGS = {
    "gradient_repacking": {"gradient_repacking": 8},
    "agg_small_grads_max_bytes": {"agg_small_grads_max_bytes": 64},
    "agg_small_grads_max_group": {"agg_small_grads_max_bytes": 64, "agg_small_grads_max_group": 2},
    "gradient_bucket_bytes": {"gradient_bucket_bytes": 4096},
    "compact_dtype": {"compact_dtype": "float16"},
    "allreduce_merge_scope": {"allreduce_merge_scope": 2},
    "variable_consistency": {"variable_consistency": "relaxed"},
}


def test_every_row_is_a_configuration_of_its_own(reductions):
    assert set(PACKINGS) == {field.name for field in dataclasses.fields(Packing)}
    point = reductions.point
    changes = ({}, {"spec": "copy"}, {"bytes": 4_000_000}, {"devices": 2}, {"dtype": "bfloat16"})
    unlike = [point(**one) for one in (*changes, {"workload": "lenet"})]
    unlike += [point(packing=Packing(**changes)) for changes in PACKINGS.values()]
    packings = "buckets4096", "float16", "packs8", "relaxed", "scope2", "small64x10", "small64x2"
    names = [row.name for row in rows_of(reductions(*unlike, flags={"model": "lenet"}))]
    assert sorted(names) == sorted(
        [
            *(COPIED, SMALL, XRING),
            "all-reduce xring, 8000000 bytes, 2 cpu",
            "all-reduce xring, 8000000 bytes, bfloat16, 4 cpu",
            "all-reduce xring, lenet gradients, 4 cpu",
            *(f"all-reduce xring, 8000000 bytes, {packing}, 4 cpu" for packing in packings),
        ]
    )


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ({"iters_per_step": 1}, False),
        ({"num_batches": 100}, False),
        ({"all_reduce_share_memory": False}, False),
        ({"a_later_flag": 1}, False),
        ({"result_json": "x.json", "verbose": True, "progress": "on"}, True),
        ({"tf_random_seed": 7, "result_label": "commit=x"}, True),
        # What else was measured beside it makes no other row of it.
        ({"all_reduce_spec": "copy,xring", "sizes": ["4096", "8000000"], "peers": "x"}, True),
        ({"gradient_repacking": [0, 8], "model": "lenet", "iterations": 3}, True),
    ],
)
def test_flags_of_the_process_that_count(reductions, flags, same):
    assert (not differing(reductions(6.0), reductions(6.0, flags=flags))) is same


def test_two_devices_of_four_are_not_two_of_two(reductions):
    # The thread pools are those of all devices that the process made.
    two = reductions(reductions.point(devices=2))
    pair = dataclasses.replace(two.placement, devices=two.placement.devices[:2])
    assert differing(two, dataclasses.replace(two, placement=pair)) == ["num_gpus"]


@pytest.mark.parametrize(("small", "flags"), [(0, []), (4096, ["agg_small_grads_max_group"])])
def test_groups_of_small_gradients_count_only_where_there_are_some(reductions, small, flags):
    packings = (
        Packing(agg_small_grads_max_bytes=small, agg_small_grads_max_group=group)
        for group in (10, 20)
    )
    assert differing(*(reductions(reductions.point(packing=one)) for one in packings)) == flags


def test_every_flag_of_the_command_is_in_a_row_s_configuration_or_left_out_on_purpose(reductions):
    (row,) = rows_of(reductions(6.0))
    counted = {spec.name for spec in ALL_REDUCE_FLAGS} - {
        *flags_compared_by(ComparedBy.NOTHING, ComparedBy.SEED)
    }
    left_out = {"sizes", "data_name", "peers", "compact_gradient_transfer", "iterations"}
    assert counted - set(row.configuration.flags) == left_out


def test_flags_by_which_rows_differ_are_in_their_names(reductions):
    made = [reductions(6.0, flags={"iters_per_step": calls}) for calls in (1, 5)]
    names = [f"{XRING}, iters_per_step={calls}" for calls in (1, 5)]
    assert [row.name for row in rows_of(*made)] == names


@pytest.mark.parametrize(
    ("copy", "error", "reason"),
    [
        ({"wrong": 3, "checked": 9}, ("BenchmarkError", "x"), ": 3 of 9 elements are wrong"),
        ({"error": "InvalidArgumentError: no ring: 4"}, None, ": InvalidArgumentError: no ring: 4"),
        ({"error": "ring 4: lost"}, None, ": Error: ring 4: lost"),
        ({"error": "lost"}, None, ": Error: lost"),
    ],
)
def test_wrong_sums_and_errors_are_failures_of_their_row_alone(
    reductions, beside, copy, error, reason
):
    def bad(value):
        row = reductions.point(value, spec="copy", **copy)
        return reductions(value, row, **({"error": error} if error else {}))

    found = compare_records(map(beside, BASE), map(bad, BASE))
    assert by_name(found) == {COPIED: Verdict.FAILED, XRING: Verdict.SAME}
    assert found.entries[0].main.judgement.reason.endswith(reason)
    assert found.entries[0].main.new == ()  # a speed without the right sum is none
    assert found.exit_code is ExitCode.FAILED


def test_rows_that_an_interrupted_process_finished_count(reductions, beside):
    cut = beside(6.0, seconds=(0.002,), status="interrupted")
    found = compare_records(map(beside, BASE), [*map(beside, BASE), cut])
    assert by_name(found) == {COPIED: Verdict.INCONCLUSIVE, XRING: Verdict.SAME}
    assert "interrupted" in found.entries[0].main.judgement.reason
    # A row that it did not reach is not there; the others are judged by the rest.
    before = reductions(6.0, status="interrupted", flags={"sizes": ["8000000"]})
    found = compare_records(map(beside, BASE), [*map(beside, BASE), before])
    assert set(by_name(found).values()) == {Verdict.SAME}
    (note,) = found.notes
    assert note.startswith("1 of 6 all-reduce measurements")
    assert found.exit_code is ExitCode.OK


def test_rows_that_a_failed_process_did_not_reach_have_failed(reductions):
    point = reductions.point
    flags = {"sizes": ["4000000", "8000000"]}

    def whole(value):
        return reductions(value, point(value, bytes=4_000_000), flags=flags)

    killed = reductions(6.0, error=("OutOfMemory", "SIGKILL"), flags=flags)
    found = compare_records(map(whole, BASE), [*map(whole, BASE), killed])
    assert by_name(found) == {SMALL: Verdict.FAILED, XRING: Verdict.SAME}
    assert "OutOfMemory: SIGKILL" in found.entries[0].main.judgement.reason
    # Processes that left nothing at all, as those of a sweep: every row has failed.
    nothing = reductions(error=("ExitStatus", "1"), flags=flags, placement=None)
    found = compare_records(map(whole, BASE), [nothing])
    assert by_name(found) == {SMALL: Verdict.FAILED, XRING: Verdict.FAILED}
    assert found.exit_code is ExitCode.FAILED


def test_a_failed_process_that_none_is_like_stands_for_itself(reductions):
    failed = reductions(error=("ExitStatus", "1"), flags={"sizes": ["4096", "65536"]})
    assert by_name(compare_records(reductions.of(*BASE), [failed])) == {XRING: Verdict.FAILED}
    alone = compare_records([], [failed])
    assert by_name(alone) == {"all-reduces of 4096,65536, 4 cpu": Verdict.MISSING}


def test_rows_not_reached_by_a_process_whose_flags_may_differ(reductions, beside):
    flags = {"all_reduce_share_memory": False, "sizes": ["8000000"]}
    failed = [reductions(error=("ExitStatus", "1"), flags=flags, placement=None) for _ in BASE]

    def verdicts(*new):
        allowed = ["all_reduce_share_memory"]
        return by_name(compare_records(map(beside, BASE), new, Criteria(allow_different=allowed)))

    assert verdicts(*failed) == {COPIED: Verdict.FAILED, XRING: Verdict.FAILED}
    # Processes of the very same flags come first.
    good = [reductions(v, flags=flags) for v in BASE]
    assert verdicts(*good, *failed) == {COPIED: Verdict.MISSING, XRING: Verdict.FAILED}


def test_peers_and_copies_are_judged_and_never_count(reductions):
    point = reductions.point

    def side(factor, error=None):
        return [
            reductions(
                value,
                peers=(point(value * factor, spec="nccl_all_reduce", error=error),),
                copies=(Copying(bytes=8_000_000, devices=4, seconds=(0.002 / value / factor,)),),
            )
            for value in BASE
        ]

    found = compare_records(side(1.0), side(0.5))
    verdicts = {(e.configuration.kind, e.main.metric.name): e.main.verdict for e in found.entries}
    assert verdicts == {
        ("allreduce", "bus_bandwidth"): Verdict.SAME,
        ("peer", "peer_bandwidth"): Verdict.SLOWER,
        ("copy", "copy_bandwidth"): Verdict.SLOWER,
    }
    assert found.exit_code is ExitCode.OK
    assert [metric.name for metric in found.leading_metrics] == ["bus_bandwidth"]
    # Nor do failures of a peer count, or its absence.
    failed = compare_records(side(1.0), side(1.0, error="NotFoundError: no NCCL"))
    assert Verdict.FAILED in by_name(failed).values()
    assert failed.exit_code is ExitCode.OK
    assert compare_records(side(1.0), reductions.of(*BASE)).exit_code is ExitCode.OK


def test_copies_of_as_many_bytes_are_one(reductions):
    times = ((0.001, 0.002), (0.004,))
    copies = [Copying(bytes=8_000_000, devices=4, seconds=seconds) for seconds in times]
    copies.append(Copying(bytes=8_000_000, devices=1, seconds=(1e-6,)))  # which is no row
    _, copy = rows_of(reductions(6.0, copies=tuple(copies)))
    # 8 MB on each of 4 devices in the median of 1, 2 and 4 ms.
    assert copy.main.base == (pytest.approx(16.0),)


def test_reductions_do_not_cost_runs_their_power(reductions, runs):
    # Five processes a side can prove a change in one of 5 configurations, not in one of 41. If all
    # have changed, they can prove all.
    point = reductions.point
    sizes = range(4_000_000, 8_000_000, 100_000)

    def side(factor):
        many = [reductions(*(point(v * factor, bytes=size) for size in sizes)) for v in BASE]
        return [*runs.of(*[v * factor for v in BASE]), *many]

    found = compare_records(side(1.0), side(0.8))
    verdicts = by_name(found)
    assert verdicts.pop("lenet, batch 8, 1 cpu") is Verdict.SLOWER
    assert set(verdicts.values()) == {Verdict.SLOWER}
    assert found.entries[0].main.judgement.p_adjusted == pytest.approx(0.016, abs=5e-4)
    assert found.entries[0].main.judgement.family == 40


@pytest.fixture
def mixed(reductions, runs):
    """A comparison in which runs are faster and reductions slower."""
    base = [*runs.of(*[v * 20 for v in BASE]), *reductions.of(*BASE)]
    new = [*runs.of(*[v * 22 for v in BASE]), *reductions.of(*scaled(0.9))]
    return compare_records(base, new)


def test_runs_and_reductions_are_judged_each_by_its_metric(mixed):
    assert by_name(mixed) == {"lenet, batch 8, 1 cpu": Verdict.FASTER, XRING: Verdict.SLOWER}
    assert mixed.exit_code is ExitCode.REGRESSION
    # Means and counts are of one unit each.
    throughput, bandwidth = mixed.leading_metrics
    assert [throughput.name, bandwidth.name] == ["throughput", "bus_bandwidth"]
    means = [mixed.geometric_means[metric.name] for metric in (throughput, bandwidth)]
    assert [mean.change for mean in means] == [pytest.approx(0.1), pytest.approx(-0.1)]
    assert [mean.configurations for mean in means] == [1, 1]
    assert counts_text(mixed, throughput) == "1 faster"
    assert counts_text(mixed, bandwidth) == "1 slower"


def test_formats_keep_runs_and_reductions_apart(mixed):
    lines = render(mixed, "table").splitlines()
    titles = ["throughput, median images/sec", "bus_bandwidth, median GB/s"]
    assert [line for line in lines if ", median " in line] == titles
    assert {"throughput: 1 faster", "bus_bandwidth: 1 slower"} <= set(lines)
    assert not any("geometric mean" in line for line in lines)  # of one it is its change again
    comment = render(mixed, "markdown")
    assert all(comment.count(f"#### {title}\n") == 1 for title in titles)
    assert 'classname="cnnbench.bus_bandwidth"' in render(mixed, "junit")
    document = json.loads(render(mixed, "json"))
    mean = {"metric": "bus_bandwidth", "change": pytest.approx(-0.1), "configurations": 1}
    assert document["bus_bandwidth_mean"] == mean


def test_metrics_asked_for_mean_those_of_the_kind(reductions, runs):
    base, new = reductions.of(*BASE), reductions.of(*scaled(0.5))
    found = compare_records(base, new, Criteria(metrics=["throughput"]))
    assert found.exit_code is ExitCode.REGRESSION
    # All build times are alike.
    built = compare_records(base, new, Criteria(metrics=["startup"]))
    assert only(built).main.metric.name == "build"
    assert built.exit_code is ExitCode.OK
    nothing = compare_records(base, new, Criteria(metrics=["memory", "accuracy"]))
    (note,) = nothing.notes
    assert note.startswith("1 configuration ")
    assert nothing.exit_code is ExitCode.INCONCLUSIVE
    of_runs = runs.with_memory(*[1000] * 5), runs.with_memory(*[1000] * 5)
    criteria = Criteria(metrics=["memory"])
    mixed = compare_records([*base, *of_runs[0]], [*new, *of_runs[1]], criteria)
    assert mixed.exit_code is ExitCode.OK


def test_rows_that_were_only_built_are_judged_by_that(reductions):
    def side(factor, speed=None, **flags):
        points = (reductions.point(speed, build_seconds=v * factor) for v in BASE)
        return [reductions(one, flags=flags) for one in points]

    built, longer, like = (side(factor, build_only=True) for factor in (1.0, 1.5, 1.1))
    found = compare_records(built, longer)
    assert by_name(found) == {f"building {XRING}": Verdict.SLOWER}
    assert found.exit_code is ExitCode.REGRESSION
    assert only(found).main.word == "longer"
    assert compare_records(built, like).exit_code is ExitCode.OK
    # Beside times of reductions a longer build is shown, and no more.
    found = compare_records(side(0.5, 6.0), side(1.0, 6.0))
    assert [one.word for one in only(found).results] == ["same", "longer"]
    assert found.exit_code is ExitCode.OK


@pytest.mark.parametrize(
    ("new", "allowed", "fact"),
    [
        ({"environment": {"cpu_model": "Slow CPU"}}, "machine", "cpu_model"),
        ({"spec": "copy"}, "all_reduce_spec", "all_reduce_spec"),
    ],
)
def test_facts_and_algorithms_differ_unless_allowed(reductions, new, allowed, fact):
    environment, point = new.get("environment"), reductions.point
    more = {"environment": environment} if environment else {}
    others = [reductions(point(v, **({} if environment else new)), **more) for v in scaled(0.5)]
    found = compare_records(reductions.of(*BASE), others)
    assert only(found).main.verdict is Verdict.NOT_COMPARABLE
    assert [one.fact for one in only(found).differences if one.blocks] == [fact]
    criteria = Criteria(allow_different=[allowed])
    found = compare_records(reductions.of(*BASE), others, criteria)
    assert only(found).main.verdict is Verdict.SLOWER


def test_another_size_is_missing_and_other_circumstances_are_named(reductions):
    def side(more, **flags):
        sizes = [size + more for size in (4_000_000, 5_000_000)]
        points = [[reductions.point(v, bytes=size) for size in sizes] for v in BASE]
        return [reductions(*one, flags=flags) for one in points]

    missing = compare_records(side(0), side(4, iters_per_step=5))
    assert set(by_name(missing).values()) == {Verdict.MISSING}
    found = compare_records(side(0), side(0, iters_per_step=1))
    named = {(d.fact, d.base, d.new) for entry in found.entries for d in entry.differences}
    assert named == {("iters_per_step", ("5",), ("1",))}


def test_pairs(reductions):
    # Given in reverse, as a sorted folder might give them.
    base, new = [], []
    for speed in (6.0, 5.5, 5.0, 4.5, 4.0, 3.5):
        base.append(reductions(speed))
        new.append(reductions(speed * 0.95))
    found = compare_records(base, new[::-1], Criteria(paired=True))
    assert only(found).main.verdict is Verdict.SLOWER


def test_names_of_rows_that_no_process_reached(reductions):
    def name(**flags):
        failed = reductions(error=("ExitStatus", "1"), placement=None, flags=flags)
        return only(compare_records([], [failed])).name

    assert name(sizes=["4096"]) == "all-reduces of 4096, 4 cpu"
    assert name(sizes=None, model="lenet", device="gpu") == "all-reduces of lenet, 4 gpu"
    assert name(sizes=["1"], num_gpus=[2, 8, 4]) == "all-reduces of 1, 8 cpu"
    assert name(sizes=["1"], num_gpus=2) == "all-reduces of 1, 2 cpu"


def test_a_process_without_devices_lacks_rows_of_the_devices_of_others(reductions):
    # It failed before it knew its devices, so its flags may not be those of the rows.
    flags = {"device": "gpu", "num_gpus": [8], "sizes": ["8000000"]}
    early = reductions(error=("ExitStatus", "1"), flags=flags, placement=None)
    criteria = Criteria(allow_different=["device", "num_gpus"])
    found = compare_records(reductions.of(*BASE), [early], criteria)
    assert by_name(found) == {XRING: Verdict.FAILED}
    (row,) = only(found).new
    assert (row.config["device"], row.config["num_gpus"]) == ("cpu", 4)
    # One that knew them lacks rows of its own devices.
    late = reductions(error=("ExitStatus", "1"), flags=flags)
    pair = dataclasses.replace(late.placement, devices=late.placement.devices[:2])
    late = dataclasses.replace(late, placement=pair)
    found = compare_records(reductions.of(*BASE), [late], criteria)
    assert by_name(found) == {XRING: Verdict.FAILED}
    (row,) = only(found).new
    assert (row.config["device"], row.config["num_gpus"]) == ("cpu", 2)


@pytest.mark.parametrize(("calls", "verdict"), [(2, Verdict.INCONCLUSIVE), (3, Verdict.SAME)])
def test_a_row_of_an_interrupted_process_is_whole_with_all_its_calls(reductions, calls, verdict):
    point = reductions.point(None, seconds=(0.002,) * calls)
    cut = reductions(point, status="interrupted")
    found = compare_records(reductions.of(*BASE), [*reductions.of(*BASE), cut])
    assert only(found).main.verdict is verdict
