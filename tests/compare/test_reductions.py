"""All-reduce measurements in a comparison: rows, processes, what counts and what is context."""

import dataclasses
import json

import pytest

from cnnbench.compare import Policy, Verdict, compare_records
from cnnbench.compare.configuration import Configuration, labels
from cnnbench.compare.reductions import defaults, measurements
from cnnbench.compare.reductions import reductions as rows_of
from cnnbench.errors import ExitCode
from cnnbench.flags.groups.allreduce import ALLREDUCE_FLAGS
from cnnbench.metrics.measurement import COPY, KINDS, PEER, RUN
from cnnbench.records.allreduce import Copying
from cnnbench.report.renderers import render
from cnnbench.variable_mgr.aggregation.spec import Packing

BASE = (6.0, 6.012, 5.988, 6.006, 5.994)


def scaled(factor):
    return [value * factor for value in BASE]


def by_name(comparison):
    return {entry.name: entry.main.verdict for entry in comparison.entries}


def only(comparison):
    (entry,) = comparison.entries
    return entry


def test_a_row_is_one_value_of_its_process(reductions):
    # 8 MB in 2 ms on 4 devices: 4 GB/s, of which each sends 2 * 3/4: 6 GB/s.
    point = reductions.point(None, seconds=(0.001, 0.002, 0.004))
    (row,) = rows_of(reductions(point))
    assert (row.seconds, row.bytes_per_sec) == (0.002, pytest.approx(6e9))
    (result,) = only(compare_records([reductions(point)], [reductions(point)])).results[:1]
    assert (result.metric.name, result.metric.unit) == ("bus_bandwidth", "GB/s")
    assert result.base == (pytest.approx(6.0),)
    assert result.judgement.reason == "1 process in BASE; a verdict needs at least 4 on each side"


@pytest.mark.parametrize(
    ("factor", "verdict", "code"),
    [
        (0.9, Verdict.SLOWER, ExitCode.REGRESSION),
        (1.1, Verdict.FASTER, ExitCode.OK),
        (1.0, Verdict.SAME, ExitCode.OK),
    ],
)
def test_judged_as_throughput_is(reductions, runs, factor, verdict, code):
    found = compare_records(reductions.of(*BASE), reductions.of(*scaled(factor)))
    assert only(found).main.verdict is verdict
    assert found.exit_code is code
    of_runs = compare_records(runs.of(*BASE), runs.of(*scaled(factor)))
    ours, theirs = only(found).main.judgement, only(of_runs).main.judgement
    for name in ("change", "low", "high", "p", "p_adjusted", "floor", "reason"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name))


def test_every_row_is_a_configuration_of_its_own(reductions):
    point = reductions.point
    unlike = [
        point(),
        point(spec="copy"),
        point(bytes=4_000_000),
        point(devices=2),
        point(dtype="bfloat16"),
        point(workload="lenet"),
        point(packing=Packing(gradient_repacking=8)),
        point(packing=Packing(compact_dtype="float16")),
        point(packing=Packing(variable_consistency="relaxed")),
    ]
    record = reductions(*unlike, flags={"model": "lenet"})
    found = compare_records([record], [dataclasses.replace(record, run_id="other")])
    assert sorted(by_name(found)) == [
        "all-reduce copy, 8000000 bytes, 4 cpu",
        "all-reduce xring, 4000000 bytes, 4 cpu",
        "all-reduce xring, 8000000 bytes, 2 cpu",
        "all-reduce xring, 8000000 bytes, 4 cpu",
        "all-reduce xring, 8000000 bytes, bfloat16, 4 cpu",
        "all-reduce xring, 8000000 bytes, float16, 4 cpu",
        "all-reduce xring, 8000000 bytes, packs8, 4 cpu",
        "all-reduce xring, 8000000 bytes, relaxed, 4 cpu",
        "all-reduce xring, lenet gradients, 4 cpu",
    ]


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ({"iters_per_step": 1}, False),
        ({"num_batches": 100}, False),
        ({"enable_optimizations": False}, False),
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
    (row,) = rows_of(reductions(6.0))
    (other,) = rows_of(reductions(6.0, flags=flags))
    assert (Configuration.of(row).key == Configuration.of(other).key) is same


def test_two_devices_of_four_are_not_two_of_two(reductions):
    # The thread pools are those of all devices that the process made.
    two = reductions(reductions.point(devices=2))
    (row,) = rows_of(two)
    pair = dataclasses.replace(two.placement, devices=two.placement.devices[:2])
    (other,) = rows_of(dataclasses.replace(two, placement=pair))
    assert Configuration.of(row).differing(Configuration.of(other)) == ("num_gpus",)


def test_groups_of_small_gradients_count_only_where_there_are_some(reductions):
    def keys(small):
        made = (
            reductions(
                reductions.point(
                    packing=Packing(
                        agg_small_grads_max_bytes=small, agg_small_grads_max_group=group
                    )
                )
            )
            for group in (10, 20)
        )
        return {Configuration.of(row).key for record in made for row in rows_of(record)}

    assert len(keys(0)) == 1
    assert len(keys(4096)) == 2


def test_every_flag_of_the_command_is_taken_or_said_by_the_row(reductions):
    config = {**defaults(), **rows_of(reductions(6.0))[0].config}
    unsaid = {spec.name for spec in ALLREDUCE_FLAGS} - set(config)
    assert unsaid == {
        *("sizes", "data_name", "model_plugin", "peers", "compact_gradient_transfer"),
        *("iterations", "verbose"),
    }


def test_flags_that_tell_rows_apart_are_in_their_names(reductions):
    made = [
        row for calls in (1, 5) for row in rows_of(reductions(6.0, flags={"iters_per_step": calls}))
    ]
    named = labels(map(Configuration.of, made))
    assert sorted(named.values()) == [
        "all-reduce xring, 8000000 bytes, 4 cpu, iters_per_step=1",
        "all-reduce xring, 8000000 bytes, 4 cpu, iters_per_step=5",
    ]


def test_a_row_on_one_device_is_none(reductions):
    assert rows_of(reductions(reductions.point(devices=1, seconds=(0.1,)))) == []


def test_a_file_that_says_a_row_twice_gives_one_value(reductions):
    assert len(rows_of(reductions(6.0, 7.0))) == 1


def test_wrong_sums_and_errors_are_failures_of_their_row_alone(reductions):
    point = reductions.point
    base = [reductions(value, point(value, spec="copy")) for value in BASE]
    wrong = [
        reductions(
            value,
            point(value, spec="copy", wrong=3, checked=100),
            error=("BenchmarkError", "copy: 3 of 100 elements are wrong"),
        )
        for value in BASE
    ]
    found = compare_records(base, wrong)
    assert by_name(found) == {
        "all-reduce copy, 8000000 bytes, 4 cpu": Verdict.FAILED,
        "all-reduce xring, 8000000 bytes, 4 cpu": Verdict.SAME,
    }
    copy = found.entries[0].main
    assert copy.judgement.reason == (
        "5 of 5 runs in NEW failed: WrongSums: 3 of 100 elements are wrong"
    )
    assert copy.new == ()  # a speed without the right sum is none
    assert found.exit_code is ExitCode.FAILED
    broken = [
        reductions(value, point(None, spec="copy", error="InvalidArgumentError: no ring: 4"))
        for value in BASE
    ]
    reason = compare_records(base, broken).entries[0].main.judgement.reason
    assert reason == "5 of 5 runs in NEW failed: InvalidArgumentError: no ring: 4"


def test_what_an_interrupted_process_finished_counts(reductions):
    point = reductions.point
    base = [reductions(value, point(value, spec="copy")) for value in BASE]
    cut = reductions(6.0, point(None, spec="copy", seconds=(0.002,)), status="interrupted")
    found = compare_records(base, [*[reductions(v, point(v, spec="copy")) for v in BASE], cut])
    assert by_name(found) == {
        "all-reduce copy, 8000000 bytes, 4 cpu": Verdict.INCONCLUSIVE,
        "all-reduce xring, 8000000 bytes, 4 cpu": Verdict.SAME,
    }
    assert found.entries[0].main.judgement.reason == "1 of 6 runs in NEW was interrupted"
    # A row that it did not come to is not there; the others are judged by the rest.
    before = reductions(6.0, status="interrupted", flags={"sizes": ["8000000"]})
    found = compare_records(base, [*[reductions(v, point(v, spec="copy")) for v in BASE], before])
    assert set(by_name(found).values()) == {Verdict.SAME}
    note = "1 of 6 all-reduce measurements in NEW was interrupted: rows not reached are missing"
    assert found.notes == (note,)
    assert found.exit_code is ExitCode.OK


def test_what_a_failed_process_did_not_get_to_has_failed(reductions):
    point = reductions.point
    flags = {"sizes": ["4000000", "8000000"]}

    def whole(value):
        return reductions(value, point(value, bytes=4_000_000), flags=flags)

    killed = reductions(6.0, error=("OutOfMemory", "SIGKILL"), flags=flags)
    found = compare_records(map(whole, BASE), [*map(whole, BASE), killed])
    assert by_name(found) == {
        "all-reduce xring, 4000000 bytes, 4 cpu": Verdict.FAILED,
        "all-reduce xring, 8000000 bytes, 4 cpu": Verdict.SAME,
    }
    reason = found.entries[0].main.judgement.reason
    assert reason == "1 of 6 runs in NEW failed: OutOfMemory: SIGKILL"
    # Processes that left nothing at all, as those of a sweep: every row has failed.
    nothing = reductions(error=("ExitStatus", "1"), flags=flags, placement=None)
    found = compare_records(map(whole, BASE), [nothing])
    assert set(by_name(found).values()) == {Verdict.FAILED}
    assert len(found.entries) == 2
    assert found.exit_code is ExitCode.FAILED


def test_a_failed_process_that_nothing_is_like_is_told_by_itself(reductions):
    failed = reductions(error=("ExitStatus", "1"), flags={"sizes": ["4096", "65536"]})
    found = compare_records(reductions.of(*BASE), [failed])
    assert sorted(by_name(found)) == ["all-reduce xring, 8000000 bytes, 4 cpu"]
    assert only(found).main.verdict is Verdict.FAILED
    alone = compare_records([], [failed])
    assert by_name(alone) == {"all-reduces of 4096,65536, 4 cpu": Verdict.MISSING}


def test_what_a_failed_process_with_flags_that_may_differ_did_not_get_to(reductions):
    flags = {"all_reduce_share_memory": False, "sizes": ["8000000"]}
    failed = [reductions(error=("ExitStatus", "1"), flags=flags, placement=None) for _ in BASE]
    point = reductions.point
    base = [reductions(point(v), point(v, spec="copy")) for v in BASE]
    found = compare_records(base, failed, allow_different=["all_reduce_share_memory"])
    assert by_name(found) == {
        "all-reduce copy, 8000000 bytes, 4 cpu": Verdict.FAILED,
        "all-reduce xring, 8000000 bytes, 4 cpu": Verdict.FAILED,
    }
    # If it has its like, what it did is known from that alone.
    good = [reductions(v, flags=flags) for v in BASE]
    found = compare_records(base, [*good, *failed], allow_different=["all_reduce_share_memory"])
    assert by_name(found) == {
        "all-reduce copy, 8000000 bytes, 4 cpu": Verdict.MISSING,
        "all-reduce xring, 8000000 bytes, 4 cpu": Verdict.FAILED,
    }


def test_peers_and_copies_are_judged_and_never_count(reductions):
    point = reductions.point

    def side(factor, status="ok", error=None):
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
        (PEER, "peer_bandwidth"): Verdict.SLOWER,
        (COPY, "copy_bandwidth"): Verdict.SLOWER,
    }
    assert found.exit_code is ExitCode.OK
    assert [metric.name for metric in found.leading] == ["bus_bandwidth"]
    text = render(found, "table")
    assert "all-reduce nccl_all_reduce, 8000000 bytes, 4 cpu, peer" in text
    assert "memory copy, 8000000 bytes, 4 cpu" in text
    assert "::error" not in render(found, "github")
    assert "::warning" not in render(found, "github")
    assert "<failure" not in render(found, "junit")
    # Nor do failures of somebody else's, or its absence.
    found = compare_records(side(1.0), side(1.0, error="NotFoundError: no NCCL"))
    assert Verdict.FAILED in by_name(found).values()
    assert found.exit_code is ExitCode.OK
    assert "<error" not in render(found, "junit")
    assert "::error" not in render(found, "github")
    assert compare_records(side(1.0), reductions.of(*BASE)).exit_code is ExitCode.OK


def test_copies_of_as_many_bytes_are_one(reductions):
    record = reductions(
        6.0,
        copies=(
            Copying(bytes=8_000_000, devices=4, seconds=(0.001, 0.002)),
            Copying(bytes=8_000_000, devices=4, seconds=(0.004,)),
        ),
    )
    (copy,) = [row for row in rows_of(record) if row.kind == COPY]
    # 8 MB on each of 4 devices in the median of 1, 2 and 4 ms.
    assert copy.bytes_per_sec == pytest.approx(16e9)


def test_runs_and_reductions_are_judged_each_by_its_metric(reductions, runs):
    base = [*runs.of(*[v * 20 for v in BASE]), *reductions.of(*BASE)]
    new = [*runs.of(*[v * 18 for v in BASE]), *reductions.of(*scaled(1.21))]
    found = compare_records(base, new)
    assert by_name(found) == {
        "lenet, batch 8, 1 cpu": Verdict.SLOWER,
        "all-reduce xring, 8000000 bytes, 4 cpu": Verdict.FASTER,
    }
    assert [metric.name for metric in found.leading] == ["throughput", "bus_bandwidth"]
    # Means are of one unit each.
    throughput, bandwidth = found.leading
    assert found.geometric_mean(throughput) == (pytest.approx(-0.1), 1)
    assert found.geometric_mean(bandwidth) == (pytest.approx(0.21), 1)
    assert found.counts(throughput) == {Verdict.SLOWER: 1}
    assert found.counts(bandwidth) == {Verdict.FASTER: 1}
    assert found.exit_code is ExitCode.REGRESSION


def test_reductions_do_not_cost_runs_their_power(reductions, runs):
    # Five processes a side can prove a change among 5 configurations, not among 41.
    point = reductions.point
    sizes = range(4_000_000, 8_000_000, 100_000)

    def side(factor):
        many = [reductions(*(point(v * factor, bytes=size) for size in sizes)) for v in BASE]
        return [*runs.of(*[v * factor for v in BASE]), *many]

    found = compare_records(side(1.0), side(0.8))
    verdicts = by_name(found)
    assert verdicts.pop("lenet, batch 8, 1 cpu") is Verdict.SLOWER
    assert set(verdicts.values()) == {Verdict.INCONCLUSIVE}
    assert "too few to prove a change among 40 configurations; at least 7 on each side" in (
        found.entries[0].main.judgement.reason
    )


def test_a_mixed_comparison_in_every_format(reductions, runs):
    base = [*runs.of(*[v * 20 for v in BASE]), *reductions.of(*BASE)]
    new = [*runs.of(*[v * 20 for v in BASE]), *reductions.of(*scaled(0.9))]
    found = compare_records(base, new)
    lines = render(found, "table").splitlines()
    heads = [line.split()[0] for line in lines if "configuration" in line and "change" in line]
    assert heads == ["throughput", "bus_bandwidth"]
    (row,) = [line for line in lines if line.startswith("- slower")]
    assert " ".join(row.split()) == (
        "- slower all-reduce xring, 8000000 bytes, 4 cpu 6.000 5.400 -10.0 % -10.3 to -9.7 % "
        "0.0079 5+5"
    )
    assert "throughput: 1 same" in lines
    assert "bus_bandwidth: 1 slower" in lines
    assert "throughput +0.0 % in the geometric mean of 1 configuration" in lines
    assert "bus_bandwidth -10.0 % in the geometric mean of 1 configuration" in lines
    comment = render(found, "markdown")
    assert "throughput 1 same; bus_bandwidth 1 slower." in comment
    assert comment.count("| base images/sec | new images/sec |") == 1
    assert comment.count("| base GB/s | new GB/s |") == 1
    annotations = render(found, "github").splitlines()
    assert annotations[0].startswith(
        "::error title=all-reduce xring%2C 8000000 bytes%2C 4 cpu%3A bus_bandwidth"
        "::slower (6.000 GB/s -> 5.400 GB/s)"
    )
    assert annotations[-2:] == [
        "::notice title=cnnbench compare::throughput: 1 same",
        "::notice title=cnnbench compare::bus_bandwidth: 1 slower",
    ]
    junit = render(found, "junit")
    assert 'classname="cnnbench.bus_bandwidth"' in junit
    assert junit.count("<failure") == 1
    document = json.loads(render(found, "json"))
    assert document["metrics"][:2] == ["throughput", "bus_bandwidth"]
    assert document["geometric_mean"]["metric"] == "throughput"
    assert document["bus_bandwidth_mean"] == {
        "metric": "bus_bandwidth",
        "change": pytest.approx(-0.1),
        "configurations": 1,
    }
    kinds = {one["name"]: one.get("kind") for one in document["configurations"]}
    assert kinds == {
        "lenet, batch 8, 1 cpu": None,
        "all-reduce xring, 8000000 bytes, 4 cpu": "allreduce",
    }


def test_metrics_asked_for_mean_those_of_the_kind(reductions, runs):
    base, new = reductions.of(*BASE), reductions.of(*scaled(0.5))
    assert compare_records(base, new, metrics=["throughput"]).exit_code is ExitCode.REGRESSION
    # All build times are alike.
    built = compare_records(base, new, metrics=["startup"])
    assert only(built).main.metric.name == "build"
    assert built.exit_code is ExitCode.OK
    nothing = compare_records(base, new, metrics=["memory", "accuracy"])
    assert nothing.notes == (
        "1 configuration of all-reduces left out: they have no memory or accuracy",
    )
    assert nothing.exit_code is ExitCode.INCONCLUSIVE
    with_runs = compare_records(
        [*base, *runs.with_memory(*[1000] * 5)],
        [*new, *runs.with_memory(*[1000] * 5)],
        metrics=["memory"],
    )
    assert with_runs.exit_code is ExitCode.OK


def test_what_was_only_built_is_judged_by_that(reductions):
    def side(factor):
        points = [reductions.point(None, build_seconds=v * factor) for v in BASE]
        return [reductions(one, flags={"build_only": True}) for one in points]

    longer = compare_records(side(1.0), side(1.5))
    assert by_name(longer) == {"building all-reduce xring, 8000000 bytes, 4 cpu": Verdict.SLOWER}
    assert longer.exit_code is ExitCode.REGRESSION
    assert only(longer).main.word == "longer"
    assert compare_records(side(1.0), side(1.1)).exit_code is ExitCode.OK
    # Beside times of reductions a longer build is told, and no more.
    slow = [reductions(reductions.point(v, build_seconds=v)) for v in BASE]
    quick = [reductions(reductions.point(v, build_seconds=v / 2)) for v in BASE]
    found = compare_records(quick, slow)
    assert [one.word for one in only(found).results] == ["same", "longer"]
    assert found.exit_code is ExitCode.OK


def test_machines_and_versions_as_for_runs(reductions):
    new = reductions.of(*scaled(0.5), environment={"cpu_model": "Slow CPU"})
    found = compare_records(reductions.of(*BASE), new)
    assert only(found).main.verdict is Verdict.NOT_COMPARABLE
    assert only(found).main.judgement.reason == "cpu_model is Fast CPU in BASE and Slow CPU in NEW"
    found = compare_records(reductions.of(*BASE), new, allow_different=["machine"])
    assert only(found).main.verdict is Verdict.SLOWER


def test_algorithms_can_be_what_a_comparison_is_about(reductions):
    point = reductions.point
    base = [reductions(point(v, spec="copy")) for v in BASE]
    new = [reductions(point(v * 1.5)) for v in BASE]
    found = compare_records(base, new)
    assert only(found).main.judgement.reason == "all_reduce_spec is copy in BASE and xring in NEW"
    found = compare_records(base, new, allow_different=["all_reduce_spec"])
    assert only(found).main.verdict is Verdict.FASTER


def test_another_size_is_missing_and_other_circumstances_are_named(reductions):
    point = reductions.point
    sizes = (4_000_000, 5_000_000)
    base = [reductions(*(point(v, bytes=size) for size in sizes)) for v in BASE]
    new = [
        reductions(*(point(v, bytes=size + 4) for size in sizes), flags={"iters_per_step": 5})
        for v in BASE
    ]
    assert set(by_name(compare_records(base, new)).values()) == {Verdict.MISSING}
    again = [
        reductions(*(point(v, bytes=size) for size in sizes), flags={"iters_per_step": 1})
        for v in BASE
    ]
    found = compare_records(base, again)
    assert {entry.main.judgement.reason for entry in found.entries} == {
        "iters_per_step is 5 in BASE and 1 in NEW"
    }


def test_how_many_rows_took_turns_is_mentioned(reductions):
    point = reductions.point
    alone = reductions.of(*BASE)
    beside = [reductions(v, point(v, spec="copy")) for v in BASE]
    found = compare_records(alone, beside)
    xring = next(entry for entry in found.entries if "xring" in entry.name)
    assert xring.main.verdict is Verdict.SAME
    assert [(str(one), one.blocks) for one in xring.differences] == [
        ("rows_in_turn is 1 in BASE and 2 in NEW", False)
    ]


def test_pairs_and_spreads(reductions):
    base, new = [], []
    for speed in (6.0, 5.5, 5.0, 4.5, 4.0, 3.5):
        base.append(reductions(speed))
        new.append(reductions(speed * 0.95))
    assert only(compare_records(base, new)).main.verdict is Verdict.INCONCLUSIVE
    found = compare_records(base, new[::-1], paired=True)
    assert only(found).main.verdict is Verdict.SLOWER
    noisy = reductions.of(5.0, 6.0, 7.0, 6.5)
    found = compare_records(reductions.of(*BASE), reductions.of(*scaled(0.9)), aa=noisy)
    assert only(found).main.verdict is Verdict.INCONCLUSIVE
    assert only(found).main.judgement.noise > 0.2


def test_reasons_against_many_spreads_are_told_once(reductions):
    sizes = range(4_000_000, 4_600_000, 100_000)

    def one(value):
        return reductions(*(reductions.point(value, bytes=size) for size in sizes))

    found = compare_records(
        map(one, BASE), map(one, BASE), aa=map(one, BASE[:3]), policy=Policy(threshold=0.05)
    )
    assert found.notes == (
        "A/A runs of all-reduce xring, 4000000 bytes, 4 cpu and 5 more configurations cannot be "
        "used: 3 runs, at least 4 are needed",
        "no A/A spread for 6 configurations: the threshold alone is the floor",
    )


def test_small_bandwidths_have_digits_that_differences_show_in(reductions):
    found = compare_records(reductions.of(*scaled(0.001)), reductions.of(*scaled(0.0011)))
    assert " 0.006000  " in render(found, "table")
    assert "0.006600" in render(found, "table")


def test_runs_are_measurements_as_they_are(reductions, runs):
    record = runs()
    (found,) = measurements([record, reductions(6.0)])
    assert found[0] is record
    assert [one.kind for one in found] == [RUN, "allreduce"]
    assert set(KINDS) == {RUN, "allreduce", "build", PEER, COPY}
