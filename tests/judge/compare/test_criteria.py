"""How records are judged: by which metrics, at which share of alpha, and what is accepted."""

from __future__ import annotations

import pytest

from cnnbench.judge.compare import Criteria, Verdict, compare_records
from cnnbench.judge.compare.criteria import share_alpha
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.judge.metrics.rules import ConfigurationRule, MetricRule, Rules

RULES = Rules(
    rules=(
        ConfigurationRule(
            configurations=("vgg*",),
            fail_on=("faster",),
            judge=("throughput", "memory"),
            metrics=(MetricRule(name="memory", share=0.25),),
        ),
    )
)
RUNS = [("lenet, batch 8", "run"), ("vgg11, batch 8", "run")]


def shared(criteria, *configurations):
    """The policies by name of the metric, for each configuration."""
    found = share_alpha(criteria, configurations or RUNS[:1])
    return [{metric.name: policy for metric, policy in policies} for policies in found]


def test_an_unknown_metric():
    with pytest.raises(KeyError, match="speed"):
        Criteria(metrics=["speed"])


def test_without_a_request_the_speed_counts_as_requested():
    (found,) = shared(Criteria())
    assert {name for name, policy in found.items() if policy.asked} == {"throughput"}
    assert {"memory", "accuracy", "startup"} <= found.keys()
    assert {policy.share for policy in found.values()} == {None}
    assert {policy.alpha_share for policy in found.values()} == {1.0}


def test_requested_metrics_share_alpha():
    (found,) = shared(Criteria(metrics=["memory", "throughput"]))
    assert {name: policy.alpha_share for name, policy in found.items()} == {
        "throughput": 0.5,
        "memory": 0.5,
    }
    assert all(policy.asked for policy in found.values())
    # A single metric has the whole alpha.
    (found,) = shared(Criteria(metrics=["memory"]))
    assert found["memory"].share is None


def test_kinds_of_measurements_share_alpha_and_context_has_none():
    kinds = [*RUNS[:1], ("ring", "allreduce"), ("copy", "copy")]
    runs, reductions, copies = shared(Criteria(), *kinds)
    assert runs["throughput"].share == reductions["bus_bandwidth"].share == 0.5
    assert copies["copy_bandwidth"].share is None


def test_rules_choose_metrics_shares_and_questions():
    lenet, vgg = shared(Criteria(rules=RULES), *RUNS)
    assert vgg.keys() == {"throughput", "memory"}
    assert (vgg["throughput"].share, vgg["memory"].share) == (0.75, 0.25)
    assert vgg["throughput"].questions == ("faster",)
    assert lenet["throughput"].questions == ("slower",)
    # What the user requests has priority.
    criteria = Criteria(rules=RULES, metrics=["throughput"], fail_on=["slower", "faster"])
    lenet, vgg = shared(criteria, *RUNS)
    assert lenet.keys() == vgg.keys() == {"throughput"}
    assert vgg["throughput"].questions == ("slower", "faster")
    assert vgg["throughput"].share is None
    assert criteria.applied_rules.rules[0].judge == ()


def test_all_metrics_by_which_anything_is_judged():
    usual = Criteria().metric_names
    rules = Rules(rules=(ConfigurationRule(judge=("cpu_time",)),))
    assert Criteria(rules=rules).metric_names == usual | {"cpu_time"}
    assert Criteria(rules=rules, metrics=["memory"]).metric_names == {"memory"}


def test_only_regressions_are_accepted(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # which is in no repository
    rules = Rules().accepting_all("known")
    (entry,) = compare_records([runs()], [runs()]).entries
    found = {verdict: entry.acceptance(rules, THROUGHPUT, verdict) for verdict in Verdict}
    accepted = {verdict for verdict, acceptance in found.items() if acceptance is not None}
    assert accepted == {Verdict.SLOWER, Verdict.CHANGED_WORK}
    assert found[Verdict.SLOWER].reason == "known"
    assert entry.acceptance(Rules(), THROUGHPUT, Verdict.SLOWER) is None
