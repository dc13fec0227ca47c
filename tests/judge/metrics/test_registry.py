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
from cnnbench.judge.metrics.policy import Policy, asked_directions, check_fail_on
from cnnbench.machine import facts
from cnnbench.records.metric import ALL, BOUNDS, HISTORY, METRICS
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import Batch


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


def test_what_was_not_measured_is_none(runs):
    record = runs(None)
    assert {metric.value(record) for metric in METRICS.values()} == {None}
    assert throughput(runs(100.0, batch=None)) is None


def test_commands_offer_views_of_one_table():
    assert DEFAULT_METRICS == ("throughput", "memory", "startup", "accuracy")
    assert all(metrics_to_judge(METRICS, {kind}) for kind in KINDS)
    # What bounds of sweeps can be about history follows too, and compare judges.
    assert set(BOUNDS) < set(HISTORY)
    assert set(BOUNDS) < set(METRICS)
    assert {kind for metric in BOUNDS.values() for kind in metric.kinds} == {"run"}


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
    """Whether they set the exit code and have a history, the better direction, and thresholds."""
    assert {
        name: (metric.gates, metric.followed, metric.better, metric.threshold)
        for name, metric in ALL.items()
        if "run" not in metric.kinds
    } == {
        "bus_bandwidth": (True, True, "faster", None),
        "reduction_seconds": (False, True, "quicker", None),
        "build_seconds": (False, True, "quicker", METRICS["startup"].threshold),
        "build": (False, False, "quicker", METRICS["startup"].threshold),
        "peer_bandwidth": (False, False, "faster", None),
        "copy_bandwidth": (False, True, "faster", None),
    }


def test_values_of_rows_of_reductions(reductions):
    # 8 MB in 2 ms on 4 devices: 4 GB/s, of which each sends 2 * 3/4.
    good = reductions.point(None, seconds=(0.001, 0.002, 0.004), build_seconds=0.25)
    record = reductions(good, reductions.point(spec="copy", error="lost"))
    ((good, bad),) = records_to_measurements([record])
    names = ("bus_bandwidth", "reduction_seconds", "build_seconds", "build")
    assert [ALL[name].value(good) for name in names] == pytest.approx([6.0, 0.002, 0.25, 0.25])
    assert [ALL[name].value(bad) for name in names] == [None] * 4


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
        ("min_processes", 1, 0),
        ("alpha", 1e-9, 1.0),
        ("alpha", 0.5, 0.0),
        ("further_alpha", 1e-9, 0.0),
        ("further_alpha", 0.5, 1.0),
        ("threshold", 0.0, -1e-9),
        ("threshold", 1e9, float("nan")),
        ("threshold", 0.0, float("inf")),
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


@pytest.mark.parametrize(
    ("words", "found", "directions"),
    [
        (["never"], (), ["slower"]),
        (["never", "never"], (), ["slower"]),
        (["slower", "slower"], ("slower",), ["slower"]),
        (["changed", "faster"], ("changed", "faster"), ["faster"]),
        (["slower", "faster", "changed"], ("slower", "faster", "changed"), ["slower", "faster"]),
        ([], None, ["slower"]),
        (["never", "slower"], None, None),
    ],
)
def test_words_that_set_the_exit_code(words, found, directions):
    if found is None:
        with pytest.raises(ValueError, match="never"):
            check_fail_on(words)
    else:
        assert check_fail_on(words) == found
    if directions is not None:
        assert [*asked_directions(found)] == directions
