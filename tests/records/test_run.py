"""The record: its document, strict reading, and a summary that is always recomputed.

Tests cnnbench/records/input.py, too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import pickle
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import pytest

from cnnbench.records import input, run
from cnnbench.records.codec import parse_start_time
from cnnbench.records.input import InputStage
from cnnbench.records.run import (
    Cluster,
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


def test_latencies_of_forward_only_runs(record):
    hundred = [0.001 * n for n in range(100, 0, -1)]
    run = replace(record, step_seconds=hundred, losses=(), loss_scaling=None)
    assert run.summary().latency_p50_seconds is None  # it trains
    run = with_flags(run, forward_only=True)
    found = run.summary()
    assert found.latency_p50_seconds == pytest.approx(0.050)
    assert found.latency_p90_seconds == pytest.approx(0.090)
    assert found.latency_p99_seconds == pytest.approx(0.099)
    fewer = replace(run, step_seconds=hundred[:99]).summary()
    assert fewer.latency_p90_seconds == pytest.approx(0.091)
    assert fewer.latency_p99_seconds is None
    for share in (50, 90, 99):  # of training steps too
        for found, of in ((run.summary(), hundred), (fewer, hundred[:99])):
            expected = sorted(of)[math.ceil(share / 100 * len(of)) - 1]
            expected = None if share == 99 and len(of) < 100 else expected
            assert found[f"step_p{share}_seconds"] == expected


def test_latencies_of_steps_launched_ahead_are_of_batches_by_themselves(record):
    placement = replace(record.placement, device="gpu")
    run = replace(record, placement=placement, step_seconds=(0.008,) * 3)
    run = with_flags(run, forward_only=True)
    # The records of earlier versions have distances between completions alone.
    assert run.summary().latency_p50_seconds is None
    alone = replace(run, latency_seconds=(0.014, 0.013, 0.016)).summary()
    assert (alone.latency_p50_seconds, alone.latency_p90_seconds) == (0.014, 0.016)
    assert alone.images_per_sec == pytest.approx(8 / 0.008)


def test_cpu_time_of_steps_and_of_the_loop(record):
    measured = replace(record.measured, loop_user_seconds=1.0, loop_system_seconds=0.2)
    run = replace(record, step_cpu_seconds=(0.2, 0.0, 0.7), measured=measured)
    summary = run.summary()
    assert summary.cpu_seconds_per_step == pytest.approx(0.3)
    assert summary.busy_cpus == pytest.approx(1.2 / 0.8)
    assert summary.images_per_cpu_second == pytest.approx(8 / 0.3)
    # Other processes of a job have worked on its images, too.
    job = Cluster(tasks=(), workers=())
    assert replace(run, cluster=job).summary().images_per_cpu_second is None
    # An evaluation run has no steps: 24 images in 1.2 s.
    nothing = {"step_seconds": (), "step_cpu_seconds": (), "losses": (), "loss_scaling": None}
    evaluating = replace(run, **nothing).summary()
    assert evaluating.images_per_cpu_second == pytest.approx(20.0)
    assert evaluating.cpu_seconds_per_step is None


@pytest.mark.parametrize(
    ("key", "value", "without"),
    [
        ("step_cpu_seconds", (0.1, 0.2, 0.3), ()),
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


def test_summary_worked_by_hand(record):
    # 8 images per step; mean step 0.7/3 s; 24 images in a loop of 0.8 s, 0.2 s of it waiting.
    summary = record.summary()
    assert summary.images_per_sec == pytest.approx(24 / 0.7)
    assert summary.images_per_sec_uncertainty == pytest.approx(math.sqrt(5600 / 27))
    assert summary.images_per_sec_jitter == pytest.approx(29.652)
    assert summary.total_images_per_sec == pytest.approx(30.0)
    assert summary.achieved_flops_per_sec == pytest.approx(24 / 0.7 * 60)
    assert summary.mfu == pytest.approx(24 / 0.7 * 60 / 1e5)
    assert summary.input_wait_fraction == pytest.approx(0.25)
    assert summary.peak_memory_bytes == 1 << 30
    assert summary.peak_flops_source == "measured: matmul"
    assert summary.input_images_per_sec is None
    forward = with_flags(record, forward_only=True).summary()
    assert forward.achieved_flops_per_sec == pytest.approx(24 / 0.7 * 20)
    # A run without a network computes nothing.
    assert with_flags(record, input_only=True).summary().achieved_flops_per_sec is None
    # The last stage of the input is all of it.
    read = InputStage(name="read", examples=300, seconds=0.5)
    whole = InputStage(name="device", examples=90, seconds=2.0)
    assert replace(record, input_stages=(read, whole)).summary().input_images_per_sec == 45.0


def test_summary_of_a_run_that_never_started_is_unknown_not_zero(runs):
    nothing = dict.fromkeys(("model", "placement", "batch"))
    record = runs(None, error=("FlagError", "no"), **nothing)
    assert set(record.summary().values()) == {None}
    assert RunRecord.from_json(record.to_json()) == record


def test_losses_that_are_not_finite_stay_valid_json_and_come_back(record):
    losses = (math.nan, math.inf, -math.inf)
    evaluation = replace(record.evaluations[0], loss=math.inf)
    text = replace(record, losses=losses, evaluations=(evaluation,)).to_json()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"token {name}"))
    assert document["losses"] == ["NaN", "Infinity", "-Infinity"]
    back = RunRecord.from_json(text)
    assert math.isnan(back.losses[0])
    assert back.losses[1:] == (math.inf, -math.inf)
    assert back.evaluations[0].loss == math.inf


def test_numpy_scalars_are_plain_numbers_in_json(record):
    losses = (np.float32(0.5), np.float64(0.25), np.int64(1))
    document = json.loads(replace(record, losses=losses, config={"seed": np.int32(7)}).to_json())
    assert document["losses"] == [0.5, 0.25, 1]
    assert document["config"] == {"seed": 7}


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


@pytest.mark.parametrize("path", ["run_id", "step_seconds", "model.parameters", "batch.global"])
def test_missing_key_is_named(record, path):
    document = record.to_dict()
    inner, key = within(document, path)
    del inner[key]
    with pytest.raises(ValueError, match="^" + path.replace(".", r"\.") + ": missing"):
        RunRecord.from_dict(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("schema", value) for value in (0, 2, "1", None, True, [1])),
        ("run_id", 7),
        ("started_at", "yesterday"),
        ("status", "fine"),
        ("error", {"type": "X", "message": "for an ok run"}),
        ("command", "cnnbench"),
        ("command", [1]),
        ("config", []),
        ("explicit_flags", {}),
        ("resolved", [1]),
        ("model", "lenet"),
        *(("model.parameters", value) for value in ("many", 1.5, True)),
        ("model.forward_flops_per_image", -1),
        ("model.training_flops_per_image", 2**64),
        ("placement.devices", [None]),
        ("placement.num_towers", None),
        *(("batch.global", value) for value in (0, "8", 10**400)),
        *(("startup_seconds.build", value) for value in (-1.0, "NaN", 5e-324)),
        ("step_seconds", None),
        # What overflows statistics is no measurement.
        *(
            ("step_seconds", [0.1, 0.2, value])
            for value in ("0.4", "NaN", 0.0, -0.4, 1e308, 5e-324)
        ),
        ("step_cpu_seconds", [0.1, 0.2]),
        ("step_cpu_seconds", [0.1, -0.1, 0.2]),
        ("warmup_step_seconds", [1e308]),
        ("latency_seconds", [1.0, 0.0]),
        ("input_stages", [{"name": "read", "examples": 3, "seconds": 0.0}]),
        *(("losses", value) for value in ([1.0], [1.0, 2.0, "nan"], [1.0, 2.0, 10**400])),
        ("warmup_losses", [1.0, 2.0]),
        *(("loss_scaling.skipped_steps", steps) for steps in ([0], [4], [2, 1], [1, 1])),
        ("loss_scaling.warmup_skipped_steps", [2]),
        ("evaluations", [{}]),
        ("measured.loop_seconds", "Infinity"),
        ("measured.loop_seconds", 1e308),
        *(("measured.peak_memory_bytes", value) for value in (0.5, 10**400)),
        ("measured.loop_images", 10**400),
        ("conditions", {"before": {}, "during": {"other_cpus": 10**400}, "notes": []}),
        ("config", {"model": [{"batch_size": -(10**400)}]}),
        ("environment", None),
        ("ab", 3),
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


def sections():
    """The dataclasses that the modules of records and of their input define."""
    return [
        one
        for module in (run, input)
        for one in vars(module).values()
        if dataclasses.is_dataclass(one) and one.__module__ == module.__name__
    ]


@pytest.mark.parametrize("section", sections())
def test_sections_are_values_that_are_made_by_name(section):
    value = object.__new__(section)
    assert hasattr(value, "__dict__") == (section is RunRecord)
    fields = dataclasses.fields(section)
    assert [one.name for one in fields if not one.kw_only] == []
    with pytest.raises(TypeError, match="positional argument"):
        section(*fields)
    for one in fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, one.name, 1)


def test_records_are_immutable_come_back_from_json_and_can_be_pickled(record):
    assert RunRecord.from_json(record.to_json()) == record
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.status = "failed"
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize("text", ["04T03:02:01Z", "04T03:02:01+00:00", "03T20:02:01-07:00"])
def test_one_moment_is_one_moment_whatever_the_offset(text):
    text = f"2026-05-{text}"
    assert parse_start_time(text) == datetime(2026, 5, 4, 3, 2, 1, tzinfo=timezone.utc)
    assert parse_start_time(text).tzinfo is timezone.utc


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("yesterday", "is not an ISO 8601 time"),
        ("2026-05-04T03:02:01", "lacks its offset from UTC"),
        ("0001-01-01T00:00:00+14:00", "is outside the years 1 to 9999 of UTC"),
        ("9999-12-31T23:59:59-14:00", "is outside the years 1 to 9999 of UTC"),
    ],
)
def test_what_is_no_start_is_named(text, reason):
    with pytest.raises(ValueError, match=f"^started_at: '.*' {reason}$"):
        parse_start_time(text)


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
