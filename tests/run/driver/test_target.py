"""--stop_at: the metric and value that end a training, and its older spelling."""

import json

import pytest
import short_runs
from covering import slow_if
from data_sets import WEATHER, WEATHER_PLUGIN, own_forecast

from cnnbench import Params
from cnnbench.plan import check_flags
from cnnbench.records.run import RunRecord, Target

DURING = {"eval_during_training_every_n_steps": 2, "num_eval_batches": 1}


@pytest.mark.parametrize(
    ("model", "flags", "metric", "lower"),
    [
        ("resnet50", {"stop_at_top_1_accuracy": 0.5}, "top_1", False),
        ("ssd300", {"stop_at": "mAP:0.5"}, "map", False),
        ("ssd300", {"stop_at": "top_1_accuracy:0.5"}, "map", False),
        ("ssd300", {"stop_at_top_1_accuracy": 0.5}, "map", False),
        ("forecast", {"stop_at": "rain_hits:0.5"}, "rain_hits", False),
        ("forecast", {"stop_at": " median_off : 5e-1 "}, "median_off", True),
    ],
)
def test_a_metric_is_found_among_those_of_the_model(model, flags, metric, lower):
    params = Params(model=model, plugin=WEATHER_PLUGIN, device="cpu", **DURING, **flags)
    target = check_flags(params).length.target
    assert target == Target(metric=metric, value=0.5, lower_is_better=lower)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("host_metric_names = ()\nlower_is_better = ()", 2, "does not declare those"),
        (
            "lower_is_better = ('rain',)",
            2,
            "lower_is_better contains 'rain', which is not a metric",
        ),
        (
            "host_metric_names = ('worst_off',)\nlower_is_better = ()",
            4,
            "in Own.host_metric_names, worst_off, not by median_off",
        ),
    ],
)
def test_plug_ins_declare_the_metrics_of_all_rows(body, status, words, tmp_path, call, quick_start):
    flags = own_forecast(tmp_path, body)
    metric = "worst_off" if "worst_off" in body else "median_off"
    sizes = {"batch_size": 4, "num_batches": 3, "num_warmup_batches": 0, **DURING}
    printed = call(**{**short_runs.TINY, **flags, **sizes}, stop_at=f"{metric}:1", code=status)
    assert words in printed.err.splitlines()[-1]


def run(**flags):
    """A training of eight steps, evaluated after every second."""
    sizes = {"batch_size": 4, "num_batches": 8, "num_warmup_batches": 0}
    return short_runs.run(**{**sizes, "quiet_conditions": "all", **DURING, **flags})


def forecast(**flags):
    return run(**WEATHER, **flags)


@pytest.mark.parametrize(
    ("flags", "steps", "line", "config"),
    slow_if(
        lambda case: case[0]["stop_at"] in ("top_5:0", "loss:0"),
        [
            (
                {"stop_at": "top_1_accuracy:0"},
                2,
                "Stopping, as eval accuracy at least 0.0 was reached",
                {"stop_at": None, "stop_at_top_1_accuracy": 0.0},
            ),
            (
                {"stop_at": "top_5:0"},
                2,
                "Stopping, as eval top_5 at least 0.0 was reached",
                {"stop_at": "top_5:0", "stop_at_top_1_accuracy": None},
            ),
            (
                {"stop_at": "loss:1e6"},
                2,
                "Stopping, as eval loss at most 1000000.0 was reached",
                {"stop_at": "loss:1000000", "stop_at_top_1_accuracy": None},
            ),
            ({"stop_at": "loss:0"}, 8, None, {"stop_at": "loss:0", "stop_at_top_1_accuracy": None}),
        ],
    ),
)
def test_training_ends_at_the_target(flags, steps, line, config, quick_start):
    record, lines, _ = run(**flags)
    assert len(record.step_seconds) == steps
    assert [text for text in lines if text.startswith("Stopping")] == ([line] if line else [])
    assert {name: record.config[name] for name in config} == config
    reached = record.evaluations[0].wall_seconds if line else None
    assert record.summary().time_to_accuracy_seconds == reached
    document = json.loads(record.to_json())
    assert document["summary"]["time_to_accuracy_seconds"] == reached
    assert RunRecord.from_dict(document).summary() == record.summary()
    if flags["stop_at"].startswith("top_1"):
        # Records of before have no target of their own, and the first of them no times.
        del document["target"]
        assert RunRecord.from_dict(document).summary().time_to_accuracy_seconds == reached
        del document["evaluations"][0]["wall_seconds"]
        assert RunRecord.from_dict(document).summary().time_to_accuracy_seconds is None


def test_a_metric_of_all_rows_ends_a_training(quick_start):
    record, lines, _ = forecast(stop_at="median_off:1000")
    assert len(record.step_seconds) == 2
    assert "Stopping, as eval median_off at most 1000.0 was reached" in lines
    assert record.target == Target(metric="median_off", value=1000.0, lower_is_better=True)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("target", "steps"),
    # A mean over examples is known at once; what a process computes counts at the next evaluation.
    [("rain_hits:0", 2), ("median_off:1000", 4)],
)
def test_a_process_that_computes_metrics_does_not_decide_how_long_a_training_is(
    target, steps, quick_start
):
    record, lines, _ = forecast(stop_at=target, collect_eval_results_async=True)
    assert len(record.step_seconds) == steps
    assert len([line for line in lines if line.startswith("Stopping")]) == 1
    if steps == 4:
        # The evaluation that was due when the target was found to be reached is left out.
        assert [one.global_step for one in record.evaluations] == [2]
        first = record.evaluations[0].wall_seconds
        assert record.summary().time_to_accuracy_seconds == first


def test_the_older_spelling_of_another_metric_is_explained(tmp_path, quick_start):
    flags = own_forecast(tmp_path, "top_1_accuracy = 'rain_hits'")
    record, lines, notices = run(**flags, stop_at_top_1_accuracy=0.01)
    assert (
        "for own, --stop_at_top_1_accuracy means rain_hits, as in tf_cnn_benchmarks; "
        "--stop_at=rain_hits:0.01 has the same effect\n"
    ) in notices
    assert len(record.step_seconds) == 2
    assert record.config["stop_at"] == "rain_hits:0.01"
    assert "Stopping, as eval accuracy at least 0.01 was reached" in lines
