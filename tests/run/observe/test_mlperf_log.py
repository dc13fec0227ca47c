"""--ml_perf_compliance_logging against what MLPerf's rules ask of a log.

Tests cnnbench/run/driver/observers/mlperf_log.py.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import tensorflow as tf
from data_sets import WEATHER, write_weather

from cnnbench import Params
from cnnbench.optimizers import OPTIMIZERS
from cnnbench.plan import make_plan
from cnnbench.records.run import Evaluation, RunRecord
from cnnbench.run.driver.observers.mlperf_log import MLPerfLog

PREFIX = ":::MLLOG "
ONCE = (
    *("submission_benchmark", "init_stop", "run_start", "run_stop", "train_samples"),
    *("eval_samples", "gradient_accumulation_steps", "global_batch_size", "opt_name"),
)
RESNET = (
    *("sgd_opt_base_learning_rate", "sgd_opt_end_learning_rate", "sgd_opt_weight_decay"),
    *("sgd_opt_momentum", "model_bn_span", "opt_learning_rate_warmup_epochs"),
)
SSD = (
    *("model_bn_span", "opt_learning_rate_warmup_factor", "opt_learning_rate_warmup_steps"),
    *("opt_weight_decay", "opt_base_learning_rate"),
)


def parsed(text):
    lines = text.splitlines()
    return [json.loads(line.removeprefix(PREFIX)) for line in lines if line.startswith(PREFIX)]


def planned(**flags):
    """The lines so far of a run that is planned and not made, and its log."""
    params = Params(device="cpu", ml_perf_compliance_logging=True, **flags)
    plan, lines = make_plan(params), []
    return lines, MLPerfLog(SimpleNamespace(plan=plan), lines.append, plan.to_json())


def values_of(lines):
    return {line["key"]: line["value"] for line in parsed("\n".join(lines))}


def test_resnet_has_the_keys_of_its_rules():
    lines, _ = planned(
        **{"model": "resnet50_v1.5", "batch_size": 64, "num_gpus": 2, "num_epochs": 41.0},
        **{"optimizer": "momentum", "weight_decay": 5e-5, "variable_update": "replicated"},
        **{"init_learning_rate": 0.25, "learning_rate_schedule": "cosine"},
        **{"minimum_learning_rate": 1e-4, "num_learning_rate_warmup_epochs": 5.0},
        **{"eval_during_training_every_n_epochs": 4.0, "num_eval_epochs": 1.0},
    )
    found = values_of(lines)
    assert set(RESNET) <= set(found)
    assert found["submission_benchmark"] == "resnet"
    assert found["opt_name"] == "sgd"
    assert found["opt_base_learning_rate"] == found["sgd_opt_base_learning_rate"] == 0.25
    assert found["sgd_opt_end_learning_rate"] == 1e-4
    assert found["sgd_opt_momentum"] == 0.9
    assert found["opt_weight_decay"] == found["sgd_opt_weight_decay"] == 5e-5
    assert found["model_bn_span"] == 64
    assert found["global_batch_size"] == 128
    assert found["opt_learning_rate_warmup_epochs"] == 5.0
    assert found["opt_learning_rate_warmup_steps"] == int(5 * 1_281_167 / 128)
    assert found["train_samples"] == 1_281_167


def test_a_model_s_own_schedule_is_logged_and_not_its_first_step():
    # ImageNet's ResNets climb from 0 for five epochs, to 0.128 per 256 images.
    lines, _ = planned(model="resnet50_v1.5", batch_size=64, bn_stats="sync", num_gpus=2)
    found = values_of(lines)
    assert found["opt_base_learning_rate"] == pytest.approx(0.064)
    assert found["opt_learning_rate_warmup_epochs"] == 5
    assert found["opt_learning_rate_decay_boundary_epochs"] == [30, 60, 80, 90]
    assert found["sgd_opt_momentum"] == 0
    assert found["model_bn_span"] == 128
    lines, _ = planned(model="lenet", optimizer="adam")
    found = values_of(lines)
    assert found["opt_name"] == "adam"
    assert (found["opt_adam_beta_1"], found["opt_adam_beta_2"]) == (0.9, 0.999)
    assert "model_bn_span" not in found
    assert not any(key.startswith("sgd_") for key in found)


OWN_KEYS: dict[str, dict[str, object]] = {
    "sgd": {"opt_name": "sgd", "sgd_opt_momentum": 0.0, "sgd_opt_end_learning_rate": 2.0},
    "momentum": {"opt_name": "sgd", "sgd_opt_momentum": 0.8, "sgd_opt_weight_decay": 0.25},
    "adam": {"opt_adam_beta_2": 0.95},
    "adamw": {"opt_adamw_beta_2": 0.95, "opt_adamw_weight_decay": 0.25},
    "lamb": {"opt_lamb_epsilon": 1e-6, "opt_lamb_weight_decay_rate": 0.25},
    "lars": {"lars_opt_momentum": 0.8, "lars_opt_base_learning_rate": 2.0},
}
"""Some of the keys that MLPerf has for optimizers."""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_have_keys_of_their_own(optimizer):
    lines, _ = planned(
        **{"model": "lenet", "optimizer": optimizer, "init_learning_rate": 2.0},
        **{"weight_decay": 0.25, "adam_beta2": 0.95, "momentum": 0.8},
    )
    found = values_of(lines)
    usual = {"opt_name": optimizer, "opt_weight_decay": 0.25}
    assert found.items() >= {**usual, **OWN_KEYS.get(optimizer, {})}.items()


def test_ssd_has_the_keys_of_its_rules_and_its_precision_as_accuracy():
    lines, log = planned(
        **{"model": "ssd300", "batch_size": 8, "piecewise_learning_rate_schedule": "0;40;1;50;0"},
        **{"num_learning_rate_warmup_epochs": 1.0, "stop_at_top_1_accuracy": 0.212},
        **{"eval_during_training_at_specified_steps": (5,), "num_eval_batches": 1},
    )
    found = values_of(lines)
    assert set(SSD) <= set(found)
    assert found["submission_benchmark"] == "ssd"
    assert found["opt_learning_rate_decay_boundary_epochs"] == [40, 50]
    assert found["opt_learning_rate_warmup_steps"] == int(118_287 / 8)
    log.training_begins(0, 20)
    for step, precision in ((15, 0.2), (20, 0.213)):
        metrics = {"map": precision, "map_50": 0.9, "map_75": 0.9}
        log.evaluation_begins(step)
        log.evaluation_completed(
            Evaluation(global_step=step, examples=8, images_per_sec=1.0, metrics=metrics)
        )
    log.training_ended(20, 20, 1.0, 1.0)
    log.close()
    accuracies = [line for line in parsed("\n".join(lines)) if line["key"] == "eval_accuracy"]
    assert [line["value"] for line in accuracies] == [0.2, 0.213]
    assert accuracies[0]["metadata"] == {"epoch_num": 15 * 8 / 118_287, "samples_count": 120}
    assert parsed(lines[-1])[0]["metadata"] == {"status": "success"}


def test_files_of_coco_have_crops_and_examples_without_padding(tmp_path):
    for subset in ("train", "validation"):
        with tf.io.TFRecordWriter(str(tmp_path / f"coco-{subset}-00000-of-00001")) as writer:
            for _ in range(5):
                writer.write(b"")  # a plan counts them and reads none
    lines, _ = planned(
        **{"model": "ssd300", "batch_size": 2, "data_dir": str(tmp_path), "num_batches": 3},
        **{"eval_during_training_at_specified_steps": (1,), "num_eval_epochs": 1.0},
    )
    found = values_of(lines)
    assert found["max_samples"] == 50
    assert (found["train_samples"], found["eval_samples"]) == (5, 5)


@pytest.mark.parametrize(
    ("model", "metric"), [("ncf", "hit_rate_10"), ("deepspeech2", "word_error_rate")]
)
def test_accuracy_is_what_a_model_is_judged_by(model, metric):
    lines, log = planned(model=model)
    log.evaluation_completed(
        Evaluation(global_step=1, examples=1, images_per_sec=1.0, metrics={metric: 0.25})
    )
    assert values_of(lines)["eval_accuracy"] == 0.25


def test_a_log_keeps_to_the_rules(tmp_path, run):
    folder, record = write_weather(tmp_path, 40, 53), tmp_path / "record.json"
    _, err = run(
        *(f"--{name}={value}" for name, value in WEATHER.items()),
        *(f"--data_dir={folder}", "--batch_size=4", "--num_gpus=2", "--num_batches=7"),
        *("--num_warmup_batches=3", "--eval_during_training_every_n_steps=2"),
        *("--eval_batch_size=4", "--num_eval_epochs=1", "--ml_perf_compliance_logging"),
        *("--variable_update=replicated", f"--result_json={record}"),
    )
    lines = parsed(err)
    assert [line["time_ms"] for line in lines] == sorted(line["time_ms"] for line in lines)
    kinds = {line["key"]: line["event_type"] for line in lines}
    assert kinds["run_start"] == "INTERVAL_START"
    assert kinds["run_stop"] == "INTERVAL_END"
    assert kinds["eval_accuracy"] == "POINT_IN_TIME"
    keys = [line["key"] for line in lines]
    for key in ONCE:
        assert keys.count(key) == 1, key
    values = {line["key"]: line["value"] for line in lines}
    assert values["eval_samples"] == 53
    evaluations = RunRecord.from_json(record.read_text()).evaluations
    assert {one.examples for one in evaluations} == {53}
    assert values["global_batch_size"] == 8
    assert values["train_samples"] == 40
    assert values["seed"] == 1234
    # Blocks of two steps, the first within the warm-up of three, and what is left.
    blocks = [line["metadata"] for line in lines if line["key"] == "block_start"]
    assert blocks == [
        {"first_epoch_num": 0.0, "epoch_count": 0.4, "samples_count": 0},
        {"first_epoch_num": 0.4, "epoch_count": 0.4, "samples_count": 16},
        {"first_epoch_num": 0.8, "epoch_count": 0.4, "samples_count": 32},
        {"first_epoch_num": 1.2, "epoch_count": 0.8, "samples_count": 48},
    ]
    stops = [line["metadata"] for line in lines if line["key"] == "block_stop"]
    assert [stop["first_epoch_num"] for stop in stops] == [0.0, 0.4, 0.8, 1.2]
    for name in ("eval_start", "eval_accuracy", "eval_stop"):
        found = [line["metadata"] for line in lines if line["key"] == name]
        assert [one["epoch_num"] for one in found] == [0.4, 0.8, 1.2, 2.0]
        assert [one["samples_count"] for one in found] == [16, 32, 48, 80]
    order = [key for key in keys if key.startswith(("init_", "run_", "block_", "eval_st"))]
    cycle = ["block_start", "block_stop", "eval_start", "eval_stop"]
    assert order == ["init_start", "init_stop", "run_start", *cycle * 4, "run_stop"]


@pytest.mark.parametrize(
    ("target", "ended", "status"),
    [(False, True, "success"), (False, False, "aborted"), (True, True, "aborted")],
)
def test_a_log_ends_with_what_became_of_the_training(target, ended, status):
    flags = {"stop_at": "top_1:0.5", "eval_during_training_every_n_steps": 9} if target else {}
    lines, log = planned(model="trivial", **flags)
    log.close()
    assert "run_stop" not in values_of(lines)  # of a training that never began
    log.training_begins(0, 20)
    if ended:
        log.training_ended(20, 20, 1.0, 1.0)
    log.close()
    assert [line["key"] for line in parsed("\n".join(lines))][-2:] == ["block_stop", "run_stop"]
    assert parsed(lines[-1])[0]["metadata"] == {"status": status}


def test_the_log_of_a_training_that_fails_is_on_standard_error(run):
    out, err = run(
        "--ml_perf_compliance_logging", "--init_learning_rate=1e30", code=4, weight_decay=1
    )
    assert PREFIX not in out
    lines = parsed(err)
    assert [line["key"] for line in lines[-3:]] == ["block_start", "block_stop", "run_stop"]
    assert lines[-1]["metadata"] == {"status": "aborted"}


def test_the_passes_of_a_step_are_named():
    lines, _ = planned(model="trivial", batch_size=8, gradient_accumulation_steps=3, num_gpus=2)
    found = values_of(lines)
    assert found["gradient_accumulation_steps"] == 3
    assert found["global_batch_size"] == 48


def test_the_flags_that_differ_from_their_defaults_are_named():
    lines, _ = planned(model="trivial", precision="bf16")
    flags = values_of(lines)["cnnbench_flags"]
    assert flags["precision"] == "bf16"
    assert "ml_perf_compliance_logging" not in flags
