"""The record: its document, strict reading, and a summary that is always recomputed."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import pickle
from datetime import datetime, timezone

import numpy as np
import pytest

from cnnbench.records.codec import started
from cnnbench.records.parts import (
    Batch,
    Cluster,
    ErrorInfo,
    Evaluation,
    InputStage,
    LossScaling,
    Measured,
    ModelInfo,
    Placement,
    StartupSeconds,
)
from cnnbench.records.run import RunRecord

RESNET = ModelInfo(
    name="resnet50",
    parameters=25_000_000,
    trainable_parameters=24_900_000,
    forward_flops_per_image=1000,
    training_flops_per_image=3000,
)


def make_record(**changes):
    values = {
        "run_id": "r1",
        "started_at": "2026-05-04T03:02:01+00:00",
        "status": "ok",
        "command": ("cnnbench", "--model=resnet50"),
        "config": {"model": "resnet50", "forward_only": False, "steps": [1, 2], "decay": None},
        "explicit_flags": ("model",),
        "model": RESNET,
        "placement": Placement(
            device="cpu",
            devices=("/cpu:0", "/cpu:1"),
            num_towers=2,
            num_workers=1,
            variable_update="replicated",
            all_reduce=("copy",),
        ),
        "batch": Batch(per_device=4, global_=8),
        "startup_seconds": StartupSeconds(import_=1.5, build=0.5, first_step=2.0),
        "warmup_step_seconds": (0.9,),
        "step_seconds": (0.1, 0.2, 0.4),
        "losses": (3.0, 2.0, 1.0),
        "warmup_losses": (4.0,),
        "evaluations": (
            Evaluation(global_step=4, top_1=0.5, top_5=0.75, examples=16, images_per_sec=99.0),
        ),
        "measured": Measured(
            loop_seconds=0.8,
            loop_images=24,
            input_wait_seconds=0.2,
            peak_memory_bytes=1 << 30,
            peak_flops_per_sec=1e6,
            peak_flops_source="measured: matmul",
        ),
        "environment": {"hostname": "h", "cpu_count": 2},
    }
    return RunRecord(**{**values, **changes})


def test_latencies_of_forward_only_runs():
    hundred = [0.001 * n for n in range(100, 0, -1)]
    run = dataclasses.replace(make_record(), step_seconds=hundred, losses=[0.0] * 100)
    assert run.summary().latency_p50_seconds is None  # it trains
    found = dataclasses.replace(run, config={**run.config, "forward_only": True}).summary()
    assert found.latency_p50_seconds == pytest.approx(0.050)
    assert found.latency_p90_seconds == pytest.approx(0.090)
    assert found.latency_p99_seconds == pytest.approx(0.099)
    fewer = dataclasses.replace(
        run, config={"forward_only": True}, step_seconds=hundred[:99], losses=[0.0] * 99
    ).summary()
    assert fewer.latency_p90_seconds == pytest.approx(0.091)
    assert fewer.latency_p99_seconds is None


def test_latencies_of_steps_launched_ahead_are_of_batches_by_themselves():
    placement = dataclasses.replace(make_record().placement, device="gpu")
    flags = {"forward_only": True}
    run = make_record(config=flags, placement=placement, step_seconds=(0.008,) * 3)
    # The records of earlier versions have distances between completions alone.
    assert run.summary().latency_p50_seconds is None
    alone = dataclasses.replace(run, latency_seconds=(0.014, 0.013, 0.016))
    assert alone.summary().latency_p50_seconds == 0.014
    assert alone.summary().latency_p90_seconds == 0.016
    assert alone.summary().images_per_sec == pytest.approx(8 / 0.008)
    with pytest.raises(ValueError, match=r"latency_seconds\[1\]: 0.0 is not a time"):
        dataclasses.replace(run, latency_seconds=(1.0, 0.0))


def test_cpu_time_of_steps_and_of_the_loop():
    spent = {"loop_user_seconds": 1.0, "loop_system_seconds": 0.2}
    measured = dataclasses.replace(make_record().measured, **spent)
    run = make_record(step_cpu_seconds=(0.2, 0.0, 0.7), measured=measured)
    summary = run.summary()
    assert summary.cpu_seconds_per_step == pytest.approx(0.3)
    assert summary.busy_cpus == pytest.approx(1.2 / 0.8)
    assert summary.images_per_cpu_second == pytest.approx(8 / 0.3)
    # Other processes of a job have worked on its images, too.
    job = Cluster(tasks=(), workers=())
    assert dataclasses.replace(run, cluster=job).summary().images_per_cpu_second is None
    # An evaluation run has no steps: 24 images in 1.2 s.
    nothing = {"step_seconds": (), "step_cpu_seconds": (), "losses": ()}
    evaluating = dataclasses.replace(run, **nothing).summary()
    assert evaluating.images_per_cpu_second == pytest.approx(20.0)
    assert evaluating.cpu_seconds_per_step is None


@pytest.mark.parametrize(
    ("times", "reason"),
    [((0.1, 0.2), ": 2 values for 3 steps"), ((0.1, -0.1, 0.2), r"\[1\]: -0.1 is not a CPU time")],
)
def test_wrong_cpu_times_are_refused(times, reason):
    with pytest.raises(ValueError, match=f"step_cpu_seconds{reason}"):
        make_record(step_cpu_seconds=times)


def test_negative_flops_are_refused():
    model = make_record().model
    with pytest.raises(ValueError, match=r"^model.forward_flops_per_image: -1 is not an amount$"):
        dataclasses.replace(model, forward_flops_per_image=-1)


@pytest.mark.parametrize(
    "section",
    [
        {"step_cpu_seconds": (0.1, 0.2, 0.3)},
        {"latency_seconds": (0.1,)},
        {"loss_scaling": LossScaling(start=8.0, end=4.0, skipped_steps=(2, 3))},
        {"input_stages": (InputStage(name="device", examples=90, seconds=2.0),)},
        {"ab": {"side": "a", "seed": 7, "pair": 3, "position": 2}},
    ],
    ids=lambda section: next(iter(section)),
)
def test_a_section_survives_and_earlier_records_lack_it(section):
    record = make_record(**section)
    document = json.loads(record.to_json())
    assert RunRecord.from_dict(document) == record
    del document[next(iter(section))]
    assert RunRecord.from_dict(document) == make_record()


def test_summary_worked_by_hand():
    # 8 images per step; mean step 0.7/3 s; 3000 FLOPs per image; peak 1e6 FLOP/s;
    # 24 images in a loop of 0.8 s, 0.2 s of it waiting.
    summary = make_record().summary()
    assert summary.images_per_sec == pytest.approx(24 / 0.7)
    assert summary.images_per_sec_uncertainty == pytest.approx(math.sqrt(5600 / 27))
    assert summary.images_per_sec_jitter == pytest.approx(29.652)
    assert summary.total_images_per_sec == pytest.approx(30.0)
    assert summary.achieved_flops_per_sec == pytest.approx(24 / 0.7 * 3000)
    assert summary.mfu == pytest.approx(24 / 0.7 * 3000 / 1e6)
    assert summary.input_wait_fraction == pytest.approx(0.25)
    assert summary.peak_memory_bytes == 1 << 30
    assert summary.peak_flops_source == "measured: matmul"


def test_forward_only_counts_forward_flops():
    record = make_record(config={"forward_only": True})
    assert record.summary().achieved_flops_per_sec == pytest.approx(24 / 0.7 * 1000)


def test_summary_of_a_run_that_never_started_is_unknown_not_zero():
    record = make_record(
        status="failed",
        error=ErrorInfo(type="FlagError", message="no"),
        model=None,
        placement=None,
        batch=None,
        startup_seconds=StartupSeconds(),
        warmup_step_seconds=(),
        warmup_losses=(),
        step_seconds=(),
        losses=(),
        measured=Measured(),
    )
    assert set(dataclasses.asdict(record.summary()).values()) == {None}
    assert RunRecord.from_json(record.to_json()) == record


def test_losses_that_are_not_finite_stay_valid_json_and_come_back():
    record = make_record(
        losses=(math.nan, math.inf, -math.inf),
        evaluations=(
            Evaluation(
                global_step=1, top_1=0, top_5=0, loss=math.inf, examples=1, images_per_sec=1.0
            ),
        ),
    )
    text = record.to_json()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"token {name}"))
    assert document["losses"] == ["NaN", "Infinity", "-Infinity"]
    back = RunRecord.from_json(text)
    assert math.isnan(back.losses[0])
    assert back.losses[1:] == (math.inf, -math.inf)
    assert back.evaluations[0].loss == math.inf


def test_numpy_scalars_are_plain_numbers_in_json():
    record = make_record(
        losses=(np.float32(0.5), np.float64(0.25), np.int64(1)),
        config={"seed": np.int32(7)},
    )
    document = json.loads(record.to_json())
    assert document["losses"] == [0.5, 0.25, 1]
    assert document["config"] == {"seed": 7}


def test_stored_summary_is_not_trusted():
    document = make_record().to_dict()
    document["summary"]["images_per_sec"] = 1e9
    assert RunRecord.from_dict(document).summary().images_per_sec == pytest.approx(24 / 0.7)
    del document["summary"]
    assert RunRecord.from_dict(document) == make_record()


@pytest.mark.parametrize(
    ("key", "numbers"),
    [
        ("skipped_steps", (0,)),
        ("skipped_steps", (4,)),
        ("skipped_steps", (2, 1)),
        ("skipped_steps", (1, 1)),
        ("warmup_skipped_steps", (2,)),
    ],
)
def test_skipped_steps_are_steps_of_the_run(key, numbers):
    with pytest.raises(ValueError, match=rf"^loss_scaling\.{key}: "):
        make_record(loss_scaling=LossScaling(start=2.0, end=1.0, **{key: numbers}))


def test_unknown_keys_are_ignored():
    document = make_record().to_dict()
    document["added_later"] = {"x": 1}
    document["model"]["added_later"] = 1
    assert RunRecord.from_dict(document) == make_record()


@pytest.mark.parametrize("schema", [0, 2, "1", None, True, [1]])
def test_other_schemas_are_refused(schema):
    document = {**make_record().to_dict(), "schema": schema}
    with pytest.raises(ValueError, match="schema"):
        RunRecord.from_dict(document)


def within(document, path):
    """The innermost object on a path."""
    return functools.reduce(operator.getitem, path[:-1], document)


@pytest.mark.parametrize("path", ["run_id", "step_seconds", "model.parameters", "batch.global"])
def test_missing_key_is_named(path):
    document = make_record().to_dict()
    keys = path.split(".")
    del within(document, keys)[keys[-1]]
    with pytest.raises(ValueError, match="^" + path.replace(".", r"\.") + ": missing"):
        RunRecord.from_dict(document)


def test_the_last_stage_of_the_input_is_all_of_it():
    assert make_record().summary().input_images_per_sec is None
    read = InputStage(name="read", examples=300, seconds=0.5)
    whole = InputStage(name="device", examples=90, seconds=2.0)
    assert make_record(input_stages=(read, whole)).summary().input_images_per_sec == 45.0


def test_a_run_without_a_network_computes_nothing():
    assert make_record(config={"input_only": True}).summary().achieved_flops_per_sec is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("run_id", 7),
        ("started_at", "yesterday"),
        ("status", "fine"),
        ("error", {"type": "X", "message": "for an ok run"}),
        ("command", "cnnbench"),
        ("command", [1]),
        ("config", []),
        ("explicit_flags", {}),
        ("model", "resnet50"),
        ("model.parameters", "many"),
        ("model.parameters", 1.5),
        ("model.parameters", True),
        ("model.training_flops_per_image", 2**64),
        ("placement.devices", [None]),
        ("placement.num_towers", None),
        ("batch.global", 0),
        ("batch.global", "8"),
        ("batch.global", 10**400),
        ("startup_seconds.import", -1.0),
        ("startup_seconds.build", "NaN"),
        ("step_seconds", None),
        ("step_seconds", [0.1, 0.2, "0.4"]),
        ("step_seconds", [0.1, 0.2, "NaN"]),
        ("step_seconds", [0.1, 0.2, 0.0]),
        ("step_seconds", [0.1, 0.2, -0.4]),
        # What overflows statistics is no measurement.
        ("step_seconds", [0.1, 0.2, 1e308]),
        ("step_seconds", [0.1, 0.2, 5e-324]),
        ("warmup_step_seconds", [1e308]),
        ("measured.loop_seconds", 1e308),
        ("startup_seconds.build", 5e-324),
        ("input_stages", [{"name": "read", "examples": 3, "seconds": 0.0}]),
        ("losses", [1.0]),
        ("losses", [1.0, 2.0, "nan"]),
        ("losses", [1.0, 2.0, 10**400]),
        ("warmup_losses", [1.0, 2.0]),
        ("evaluations", [{}]),
        ("measured.loop_seconds", "Infinity"),
        ("measured.peak_memory_bytes", 0.5),
        ("measured.peak_memory_bytes", 10**400),
        ("measured.loop_images", 10**400),
        ("conditions", {"before": {}, "during": {"other_cpus": 10**400}, "notes": []}),
        ("config", {"model": [{"batch_size": -(10**400)}]}),
        ("environment", None),
        ("ab", 3),
    ],
)
def test_wrong_value_is_named(path, value):
    document = make_record().to_dict()
    keys = path.split(".")
    within(document, keys)[keys[-1]] = value
    with pytest.raises(ValueError, match="^" + path.replace(".", r"\.")):
        RunRecord.from_dict(document)


def test_whole_numbers_may_be_as_large_as_64_bits_and_within_mappings_as_doubles():
    document = make_record().to_dict()
    # What a container without a limit of its memory says of it, and what somebody asked for.
    document["environment"]["cgroup_memory_limit_bytes"] = 2**64 - 1
    document["measured"]["peak_memory_bytes"] = 2**64 - 1
    document["config"]["num_batches"] = 10**300
    record = RunRecord.from_dict(document)
    assert record.environment["cgroup_memory_limit_bytes"] == 2**64 - 1
    assert record.measured.peak_memory_bytes == 2**64 - 1
    assert record.config["num_batches"] == 10**300


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": NaN}'])
def test_what_is_no_record_is_refused(text):
    with pytest.raises(ValueError):
        RunRecord.from_json(text)


def test_records_are_immutable_come_back_from_json_and_can_be_pickled():
    record = make_record()
    assert RunRecord.from_json(record.to_json()) == record
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.status = "failed"
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize("text", ["04T03:02:01Z", "04T03:02:01+00:00", "03T20:02:01-07:00"])
def test_one_moment_is_one_moment_whatever_the_offset(text):
    text = f"2026-05-{text}"
    assert started(text) == datetime(2026, 5, 4, 3, 2, 1, tzinfo=timezone.utc)
    assert started(text).tzinfo is timezone.utc


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("yesterday", "is not an ISO 8601 time"),
        ("2026-05-04T03:02:01", "lacks its offset from UTC"),
        ("0001-01-01T00:00:00+14:00", "is in no year of UTC"),
        ("9999-12-31T23:59:59-14:00", "is in no year of UTC"),
    ],
)
def test_what_is_no_start_is_named(text, reason):
    with pytest.raises(ValueError, match=f"^started_at: '.*' {reason}$"):
        started(text)
