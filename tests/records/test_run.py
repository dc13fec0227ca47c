"""The record: its document, strict reading, and a summary that is always recomputed.

Tests cnnbench/records/input.py, too.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import pickle
from dataclasses import replace

import pytest

from cnnbench.records.input import InputStage
from cnnbench.records.run import (
    Evaluation,
    LossScaling,
    Measured,
    RunRecord,
    StartupSeconds,
    Target,
)


@pytest.fixture
def record(runs):
    """Three steps of 8 images, 20 FLOPs of a forward pass and 60 of training each."""
    return runs(
        startup_seconds=StartupSeconds(import_=1.5, build=0.5, first_step=2.0),
        warmup_step_seconds=(0.9,),
        step_seconds=(0.1, 0.2, 0.4),
        losses=(3.0, 2.0, 1.0),
        warmup_losses=(4.0,),
        evaluations=(
            Evaluation(global_step=4, top_1=0.5, top_5=0.75, examples=16, images_per_sec=99.0),
        ),
        loss_scaling=LossScaling(start=8.0, end=4.0, skipped_steps=(2, 3)),
        measured=Measured(
            loop_seconds=0.8,
            loop_images=24,
            input_wait_seconds=0.2,
            peak_memory_bytes=1 << 30,
            peak_flops_per_sec=1e5,
            peak_flops_source="measured: matmul",
        ),
    )


def with_flags(record, **flags):
    return replace(record, config={**record.config, **flags})


@pytest.mark.parametrize(
    ("key", "value", "without"),
    [
        ("step_cpu_seconds", (0.1, 0.0, 0.3), ()),
        ("latency_seconds", (0.1,), ()),
        ("loss_scaling", LossScaling(start=8.0, end=4.0, skipped_steps=(2, 3)), None),
        ("input_stages", (InputStage(name="device", examples=90, seconds=2.0),), ()),
        ("ab", {"side": "a", "seed": 7, "pair": 3, "position": 2}, None),
    ],
)
def test_a_section_survives_and_earlier_records_lack_it(record, key, value, without):
    record = replace(record, **{key: value})
    document = json.loads(record.to_json())
    assert RunRecord.from_dict(document) == record
    del document[key]
    assert RunRecord.from_dict(document) == replace(record, **{key: without})


def test_the_flops_of_an_image_and_the_cpu_time_of_the_loop(record):
    assert record.flops_per_image() == 60
    assert with_flags(record, forward_only=True).flops_per_image() == 20
    # A run without a network computes nothing.
    assert with_flags(record, input_only=True).flops_per_image() is None
    assert record.measured.loop_cpu_seconds is None
    measured = replace(record.measured, loop_user_seconds=1.0, loop_system_seconds=0.25)
    assert measured.loop_cpu_seconds == 1.25
    # The last stage of the input is all of it.
    read = InputStage(name="read", examples=300, seconds=0.5)
    whole = InputStage(name="device", examples=90, seconds=2.0)
    assert replace(record, input_stages=(read, whole)).summary().input_images_per_sec == 45.0


def test_summary_of_a_run_that_never_started_is_unknown_not_zero(runs):
    nothing = dict.fromkeys(("model", "placement", "batch"))
    record = runs(None, error=("FlagError", "no"), **nothing)
    assert set(record.summary().values()) == {None}
    assert RunRecord.from_json(record.to_json()) == record


def test_stored_summary_is_not_trusted(record):
    document = record.to_dict()
    document["summary"]["images_per_sec"] = 1e9
    assert RunRecord.from_dict(document).summary().images_per_sec == pytest.approx(24 / 0.7)
    del document["summary"]
    assert RunRecord.from_dict(document) == record


def within(document, path):
    """The innermost object on a path, and the last key."""
    *outer, last = path.split(".")
    return functools.reduce(operator.getitem, outer, document), last


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", 2),
        ("started_at", "yesterday"),
        ("status", "fine"),
        ("error", {"type": "X", "message": "for an ok run"}),
        ("model.forward_flops_per_image", -1),
        ("batch.global", 0),
        *(("startup_seconds.build", value) for value in (-1.0, 5e-324)),
        # What overflows statistics is no measurement.
        *(("step_seconds", [0.1, 0.2, value]) for value in ("NaN", 0.0, 1e308, 5e-324)),
        ("step_cpu_seconds", [0.1, 0.2]),
        ("step_cpu_seconds", [0.1, -0.1, 0.2]),
        ("warmup_step_seconds", [1e308]),
        ("latency_seconds", [1.0, 0.0]),
        ("input_stages", [{"name": "read", "examples": 3, "seconds": 0.0}]),
        ("losses", [1.0]),
        ("warmup_losses", [1.0, 2.0]),
        *(("loss_scaling.skipped_steps", steps) for steps in ([0], [4], [2, 1], [1, 1])),
        ("loss_scaling.warmup_skipped_steps", [2]),
        ("measured.loop_seconds", "Infinity"),
        ("conditions", {"before": {}, "during": {"other_cpus": 10**400}, "notes": []}),
    ],
)
def test_wrong_value_is_named(record, path, value):
    document = record.to_dict()
    inner, key = within(document, path)
    inner[key] = value
    with pytest.raises(ValueError, match="^" + path.replace(".", r"\.")):
        RunRecord.from_dict(document)


def test_whole_numbers_may_be_as_large_as_64_bits_and_within_mappings_as_doubles(record):
    document = record.to_dict()
    # What a container without a limit of its memory says of it, and what somebody asked for.
    document["environment"]["cgroup_memory_limit_bytes"] = 2**64 - 1
    document["measured"]["peak_memory_bytes"] = 2**64 - 1
    document["config"]["num_batches"] = 10**300
    record = RunRecord.from_dict(document)
    assert record.environment["cgroup_memory_limit_bytes"] == 2**64 - 1
    assert record.measured.peak_memory_bytes == 2**64 - 1
    assert record.config["num_batches"] == 10**300


def test_records_come_back_from_json_and_can_be_pickled(record):
    assert RunRecord.from_json(record.to_json()) == record
    assert pickle.loads(pickle.dumps(record)) == record


def test_steps_and_kinds_of_devices(record):
    twice = with_flags(replace(record, losses=(), warmup_losses=()), steps_per_execution=2)
    assert (record.steps, twice.steps, twice.warmup_steps) == (3, 6, 2)
    kinds = [replace(record.placement, device=one).kind for one in ("cpu", "gpu", "emulated_gpu")]
    assert kinds == ["cpu", "gpu", "gpu"]


def test_an_evaluation_has_metrics_of_its_own(record):
    evaluation = replace(record.evaluations[0], metrics={"map": 0.25})
    names = ("top_1", "top_5", "map", "other")
    assert [evaluation.metric_value(name) for name in names] == [0.5, 0.75, 0.25, None]


@pytest.mark.parametrize(
    ("lower", "value", "reached"),
    [
        *((False, value, reached) for value, reached in ((0.5, True), (0.6, True), (0.4, False))),
        *((True, value, reached) for value, reached in ((0.5, True), (0.6, False), (0.4, True))),
        *((lower, value, False) for lower in (False, True) for value in (None, math.nan)),
    ],
)
def test_a_target_is_reached_by_values_that_are_as_good(lower, value, reached):
    target = Target(metric="top_1", value=0.5, lower_is_better=lower)
    assert target.is_reached_by(value) is reached
    assert str(target) == "top_1:0.5"
