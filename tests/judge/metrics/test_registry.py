"""The metrics, and the constants of their tests.

Tests cnnbench/judge/metrics/judged.py and cnnbench/judge/metrics/policy.py.
"""

from dataclasses import replace

import pytest

from cnnbench.flags import FLAGS
from cnnbench.judge.compare.facts import FACTS, GROUPS, PATTERNS, fact_rule
from cnnbench.judge.compare.rows import records_to_measurements
from cnnbench.judge.metrics.judged import DEFAULT_METRICS, THROUGHPUT, metrics_to_judge
from cnnbench.judge.metrics.measurement import KINDS
from cnnbench.judge.metrics.policy import Policy, check_fail_on
from cnnbench.machine import facts
from cnnbench.records.all_reduce import Copying
from cnnbench.records.metric import ALL, BOUNDS, HISTORY, METRICS
from cnnbench.records.metrics.figures import accuracy, startup, throughput
from cnnbench.records.run import Batch, Evaluation, StartupSeconds


def test_throughput_is_the_images_over_the_time_of_all_steps(runs):
    # 32 images in steps of 1, 1 and 6 s: 96 images in 8 s, not 32 in the median step.
    record = runs(
        None, step_seconds=(6.0, 1.0, 1.0), batch=Batch(per_device=8, global_=32), losses=()
    )
    assert throughput(record) == 12.0
    # Five processes show that the step of 6 s is rare; three do not.
    steady = runs(None, step_seconds=(1.0,) * 3, batch=record.batch, losses=())
    assert THROUGHPUT.values([steady, record, steady]) == [32.0, 12.0, 32.0]
    assert THROUGHPUT.values([steady] * 3 + [record, steady]) == pytest.approx([32.0] * 5)


def test_throughput_of_an_evaluation_run(runs):
    evaluations = tuple(
        Evaluation(global_step=step, top_1=0.5, top_5=0.9, examples=10, images_per_sec=rate)
        for step, rate in ((1, 10.0), (2, 30.0), (3, 20.0))
    )
    record = runs(None, flags={"eval": True}, evaluations=evaluations)
    # 30 images in 1, 1/3 and 1/2 s.
    assert throughput(record) == pytest.approx(180 / 11)
    # Evaluations between steps are not what a training run without timed steps is about.
    assert throughput(runs(None, evaluations=evaluations)) is None
    assert accuracy(record) == 0.5


def test_what_was_not_measured_is_none(runs):
    record = runs(None)
    assert {metric.value(record) for metric in METRICS.values()} == {None}
    assert throughput(runs(100.0, batch=None)) is None
    partly = StartupSeconds(import_=1.0, build=None, first_step=1.0)
    assert startup(runs(startup_seconds=partly)) is None


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("min_processes", 1, 0),
        ("alpha", 0.5, 0.0),
        ("further_alpha", 0.5, 1.0),
        ("same_limit", 0.0, -0.1),
        ("noise_factor", 1e9, float("inf")),
    ],
)
def test_constants_have_bounds(name, good, bad):
    assert getattr(Policy().replace(**{name: good}), name) == good
    with pytest.raises(ValueError, match=name):
        Policy().replace(**{name: bad})


def test_a_metric_has_the_rules_of_the_policy_or_its_own():
    policy = Policy(threshold=0.1, alpha=0.02)
    own = replace(METRICS["step_p99_seconds"], alpha=0.005)
    found = [(policy.threshold_of(one), policy.alpha_of(one)) for one in (THROUGHPUT, own)]
    assert found == [(0.1, 0.02), (own.threshold, 0.005)]
    assert policy.alpha_of(METRICS["step_p99_seconds"]) == policy.further_alpha


def test_commands_offer_views_of_one_table():
    assert DEFAULT_METRICS == ("throughput", "memory", "startup", "accuracy")
    assert all(metrics_to_judge(METRICS, {kind}) for kind in KINDS)
    # What bounds of sweeps can be about history follows too, and compare judges.
    assert set(BOUNDS) < set(HISTORY)
    assert set(BOUNDS) < set(METRICS)
    assert {kind for metric in BOUNDS.values() for kind in metric.kinds} == {"run"}


@pytest.mark.parametrize(
    ("name", "value", "text", "change", "change_text"),
    [
        ("throughput", 521.93, "521.9 images/sec", -0.1, "-10.0 %"),
        ("bus_bandwidth", 0.0066, "0.006600 GB/s", 0.0312, "+3.1 %"),
        ("cpu_time", 0.02567, "0.02567 s", 0.05, "+5.0 %"),
        ("images_per_cpu_second", 312.0, "312.0 images/CPU second", -0.05, "-5.0 %"),
        ("peak_memory_bytes", 1500 * 2**20, "1,500 MiB", -0.0001, "+0.0 %"),
        ("top_1", 0.7512, "75.12 %", -0.005, "-0.50 points"),
        ("final_loss", 2.5, "2.500 loss", 0.25, "+0.2500 loss"),
        ("throughput", None, "-", 1.0, "+100.0 %"),
    ],
)
def test_values_and_changes_as_text(name, value, text, change, change_text):
    metric = HISTORY[name]
    assert metric.value_text(value) == text
    assert metric.value_text(value, unit=False) == text.split()[0]
    assert metric.change_text(change) == change_text
    assert metric.change_text(abs(change), signed=False)[0] not in "+-"


def test_groups_named_like_a_flag_contain_it():
    flags = {spec.name for spec in FLAGS}
    assert all(name in members for name, members in GROUPS.items() if name in flags)


def test_facts_have_roles_and_reasons():
    assert all(one.reason for one in (*FACTS.values(), *PATTERNS.values()))
    # A fact that somebody adds must be given a role: blocking, mentioned or ignored.
    found = [name for name in facts.collect() if fact_rule(name).reason.startswith("not known")]
    assert found == []


def test_calls_of_own_metrics_are_not_checked_as_those_of_plug_ins():
    """Each check costs more than most metrics; a partial has no module of its own."""
    runs = [(name, metric) for name, metric in ALL.items() if "run" in metric.kinds]
    checked = [name for name, metric in runs if hasattr(metric.value, "_cnnbench_checked")]
    assert checked == []


def test_metrics_of_other_measurements():
    found = {
        (name, *metric.kinds): (
            {kind: METRICS[other].name for kind, other in metric.judged.items()},
            (metric.unit, metric.better, metric.threshold),
            (metric.gates, metric.followed),
        )
        for name, metric in ALL.items()
        if "run" not in metric.kinds
    }
    startup = METRICS["startup"].threshold
    reductions, benchmarks = (
        {
            ("bus_bandwidth", "allreduce", "peer"): (
                {"allreduce": "throughput"},
                ("GB/s", "faster", None),
                (True, True),
            ),
            ("reduction_seconds", "allreduce", "peer"): ({}, ("s", "quicker", None), (False, True)),
            ("build_seconds", "allreduce", "build", "peer"): (
                {},
                ("s", "quicker", startup),
                (False, True),
            ),
            ("build", "allreduce", "build"): (
                {"allreduce": "startup", "build": "startup"},
                ("seconds", "quicker", startup),
                (False, False),
            ),
            ("peer_bandwidth", "peer"): (
                {"peer": "throughput"},
                ("GB/s", "faster", None),
                (False, False),
            ),
            ("copy_bandwidth", "copy"): (
                {"copy": "throughput"},
                ("GB/s", "faster", None),
                (False, True),
            ),
        },
        {"seconds": ("s", "quicker"), "bytes": ("bytes", "less"), "number": ("number", "less")},
    )
    benchmarks["score"] = ("number", "better")
    of_benchmarks = {
        (f"benchmark_{name}", f"benchmark_{name}"): (
            {f"benchmark_{name}": "throughput"},
            (*words, None),
            (True, True),
        )
        for name, words in benchmarks.items()
    }
    assert found == reductions | of_benchmarks


def test_values_of_rows_of_reductions(reductions):
    # 8 MB in 2 ms on 4 devices: 4 GB/s, of which each sends 2 * 3/4. Each device copies 8 MB.
    point = reductions.point
    record = reductions(
        point(None, seconds=(0.001, 0.002, 0.004), build_seconds=0.25),
        point(spec="copy", error="lost"),
        peers=(point(3.0, spec="nccl_all_reduce"),),
        copies=(
            Copying(bytes=8_000_000, devices=4, seconds=(0.002,)),
            Copying(bytes=8_000_000, devices=1, seconds=(0.002,)),
        ),
    )
    ((good, bad, peer, copy),) = records_to_measurements([record])
    assert [row.kind for row in (good, bad, peer, copy)] == ["allreduce"] * 2 + ["peer", "copy"]
    names = ("bus_bandwidth", "reduction_seconds", "build_seconds", "build")
    assert [ALL[name].value(good) for name in names] == pytest.approx([6.0, 0.002, 0.25, 0.25])
    assert [ALL[name].value(bad) for name in names] == [None] * 4
    assert ALL["peer_bandwidth"].value(peer) == pytest.approx(3.0)
    assert ALL["copy_bandwidth"].value(copy) == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("names", "kinds", "judged"),
    [
        (("memory", "throughput"), ("run",), ("throughput", "memory")),
        (("throughput",), ("allreduce",), ("bus_bandwidth",)),
        (("throughput",), ("copy", "allreduce"), ("bus_bandwidth", "copy_bandwidth")),
        (("startup",), ("build",), ("build",)),
        (("startup", "throughput"), ("run", "allreduce"), None),
        (("memory",), ("allreduce",), ()),
        ((), ("run",), ()),
        (("throughput",), (), ()),
        (("throughput",), ("benchmark_seconds",), ("benchmark_seconds",)),
    ],
)
def test_metrics_that_are_judged(names, kinds, judged):
    found = tuple(metric.name for metric in metrics_to_judge(names, kinds))
    if judged is None:
        assert found[:2] == ("throughput", "bus_bandwidth")
        assert set(found[2:]) == {"startup", "build"}
    else:
        assert found == judged
    assert metrics_to_judge(names[::-1], kinds[::-1]) == metrics_to_judge(names, kinds)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("alpha", 1e-9, 1.0),
        ("further_alpha", 1e-9, 0.0),
        ("threshold", 0.0, -1e-9),
        ("threshold", 1e9, float("nan")),
        ("noise_factor", 0.0, float("inf")),
    ],
)
def test_limits_of_constants(name, good, bad):
    assert getattr(Policy().replace(**{name: good}), name) == good
    with pytest.raises(ValueError, match=f"^{name}="):
        Policy().replace(**{name: bad})


def test_settings_of_rules_come_before_the_usual_ones():
    memory, loss = METRICS["memory"], replace(THROUGHPUT, alpha=0.003)
    policy = Policy(threshold=0.1, alpha=0.02, further_alpha=0.005)
    assert [policy.threshold_of(one) for one in (THROUGHPUT, memory)] == [0.1, memory.threshold]
    assert [policy.alpha_of(one) for one in (THROUGHPUT, memory, loss)] == [0.02, 0.005, 0.003]
    ruled = policy.replace(own_threshold=0.0, share=0.5, split=0.5)
    assert [ruled.threshold_of(one) for one in (THROUGHPUT, memory)] == [0.0, 0.0]
    assert [ruled.alpha_of(one) for one in (THROUGHPUT, memory, loss)] == [0.02] * 3
    assert (ruled.alpha_share, policy.alpha_share, policy.confidence) == (0.25, 1.0, 0.98)


def test_words_of_exit_codes():
    assert check_fail_on(["slower", "faster", "slower"]) == ("slower", "faster")
    assert check_fail_on(["never"]) == check_fail_on(["nothing", "nothing"]) == ()
    for words in ([], ["never", "slower"]):
        with pytest.raises(ValueError, match="only never"):
            check_fail_on(words)
