"""Figures worked by hand, and the JSON document."""

import dataclasses
import json

import pytest

from cnnbench.base.stats.descriptive import nearest_rank
from cnnbench.records.allreduce import (
    AllReduceRecord,
    Copying,
    Point,
    RingDevices,
)
from cnnbench.records.parts import ErrorInfo
from cnnbench.records.tables import REDUCTIONS, allreduce_row
from cnnbench.variable_mgr.aggregation.spec import Packing


def point(**changes):
    values = {
        "spec": "xring#2",
        "packing": Packing(),
        "workload": "8000000",
        "dtype": "float32",
        "bytes": 8_000_000,
        "tensors": 1,
        "elements": 2_000_000,
        "devices": 4,
        "seconds": (0.004, 0.002, 0.001),
        "checked": 16_000_000,
    }
    return Point(**{**values, **changes})


def record(**changes):
    values = {
        "run_id": "r1",
        "started_at": "2026-11-20T10:00:00+00:00",
        "status": "ok",
        "command": ("cnnbench", "allreduce"),
        "config": {"dtype": "float32", "iters_per_step": 5},
        "placement": RingDevices(device="cpu", devices=("/device:CPU:0", "/device:CPU:1")),
        "copies": (Copying(bytes=8_000_000, devices=4, seconds=(0.003, 0.002, 0.001)),),
        "points": (point(), point(spec="copy", devices=2)),
        "peers": (point(spec="reduction_to_one_device"),),
        "environment": {"hostname": "h"},
    }
    return AllReduceRecord(**{**values, **changes})


def test_bandwidths():
    # 8 MB in 2 ms are 4 GB/s; of 4 devices each sends 2 * 3/4 times its bytes: 6 GB/s.
    assert point().median == 0.002
    assert point().algorithm_bandwidth == pytest.approx(4e9)
    assert point().bus_bandwidth == pytest.approx(6e9)
    # Two devices send what they have once.
    assert point(devices=2).bus_bandwidth == pytest.approx(4e9)
    # Between the middle two of an even number of calls.
    assert point(seconds=(0.001, 0.002, 0.003, 0.1)).median == pytest.approx(0.0025)


def test_a_point_without_times_has_no_figures():
    empty = point(seconds=(), error="boom")
    assert (empty.median, empty.p99, empty.algorithm_bandwidth, empty.bus_bandwidth) == (None,) * 4
    assert empty.failed
    assert point(wrong=1).failed
    assert not point().failed


@pytest.mark.parametrize(
    ("count", "rank"), [(1, 1), (2, 2), (20, 20), (99, 99), (100, 99), (101, 100), (1000, 990)]
)
def test_p99_by_nearest_rank(count, rank):
    # The smallest value that 99 % do not exceed: number ceil(0.99 n) in ascending order.
    values = [float(v) for v in range(count, 0, -1)]
    assert nearest_rank(values, 0.99) == rank
    timed = point(seconds=tuple(values))
    assert timed.p99 == (rank if count >= 100 else None)
    assert timed.longest == count


def test_the_bound_by_memory_copies():
    # 4 devices copy 8 MB each in 2 ms: 16 GB/s. An all-reduce of 4 x 8 MB moves 2 * 3/4 of
    # it, 48 MB, in 3 ms.
    copy = Copying(bytes=8_000_000, devices=4, seconds=(0.003, 0.002, 0.001))
    assert copy.rate == pytest.approx(16e9)
    assert copy.bound_seconds(8_000_000, 4) == pytest.approx(0.003)
    assert record().share_of_bound(point()) == pytest.approx(1.5)
    # Nothing was copied on two devices.
    assert record().share_of_bound(point(devices=2)) is None
    assert record().share_of_bound(point(seconds=())) is None


def test_the_copy_rate_of_a_run_is_that_of_its_largest_copy():
    small = Copying(bytes=1000, devices=4, seconds=(1e-6,))
    assert record(copies=(small, *record().copies, small)).copy_bytes_per_sec == pytest.approx(16e9)
    assert record(copies=()).copy_bytes_per_sec is None


def test_json_round_trip():
    before = record(
        status="failed",
        error=ErrorInfo(type="BenchmarkError", message="x"),
        points=(
            point(packing=Packing(gradient_repacking=8, compact_dtype="bfloat16")),
            point(seconds=(), error="boom", checked=0),
            point(trace_seconds=0.5, build_seconds=1.5, operations=99),
        ),
    )
    after = AllReduceRecord.from_json(before.to_json())
    assert after == before


def test_the_document_has_the_agreed_form():
    document = json.loads(record().to_json())
    assert list(document)[:2] == ["schema", "kind"]
    assert (document["schema"], document["kind"], document["status"]) == (1, "allreduce", "ok")
    assert document["error"] is None
    assert document["placement"]["device"] == "cpu"
    assert document["copy_bytes_per_sec"] == pytest.approx(16e9)
    first = document["points"][0]
    assert first["packing"] == {
        "gradient_repacking": 0,
        "agg_small_grads_max_bytes": 0,
        "agg_small_grads_max_group": 10,
        "gradient_bucket_bytes": 0,
        "compact_dtype": None,
        "allreduce_merge_scope": 1,
        "variable_consistency": "strong",
    }
    names = ("spec", "dtype", "bytes", "tensors", "elements", "devices", "wrong", "error")
    values = ("xring#2", "float32", 8_000_000, 1, 2_000_000, 4, 0, None)
    assert tuple(first[name] for name in names) == values
    assert first["seconds"] == [0.004, 0.002, 0.001]
    # Statistics are for the reader to work out.
    assert not {"median", "p99", "busbw"} & set(first)
    assert [p["spec"] for p in document["peers"]] == ["reduction_to_one_device"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "expected an object"),
        ('{"schema": 1}', "kind"),
        ('{"kind": "allreduce", "schema": 2}', "schema: 2"),
        ('{"kind": "allreduce", "schema": 1}', "run_id: missing"),
    ],
)
def test_other_documents_are_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        AllReduceRecord.from_json(text)


@pytest.mark.parametrize("rows", ["copies", "points", "peers"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bytes", 10**400),
        ("bytes", 0),
        ("bytes", -1),
        ("devices", 10**400),
        ("devices", 0),
        ("seconds", [0.0]),
        ("seconds", ["Infinity"]),
    ],
)
def test_rows_that_cannot_be_are_named(rows, key, value):
    document = json.loads(record().to_json())
    document[rows][0][key] = value
    with pytest.raises(ValueError, match=rf"^{rows}\[0\]\.{key}: "):
        AllReduceRecord.from_dict(document)


def test_a_copy_without_times_is_none():
    document = json.loads(record().to_json())
    document["copies"][0]["seconds"] = []
    with pytest.raises(ValueError, match=r"^copies\[0\]\.seconds: none"):
        AllReduceRecord.from_dict(document)


def test_a_failure_has_a_reason():
    with pytest.raises(ValueError, match="error: status 'failed'"):
        record(status="failed")
    with pytest.raises(ValueError, match="error: status 'ok'"):
        record(error=ErrorInfo(type="E", message="m"))
    with pytest.raises(ValueError, match="status: 'done'"):
        dataclasses.replace(record(), status="done")


def test_a_row_of_the_table():
    before = record(placement=None)
    row = REDUCTIONS.cells(allreduce_row(before, before.points[0]))
    assert tuple(row) == REDUCTIONS.columns
    expected = {
        "run_id": "r1",
        "device": "",
        "devices": "4",
        "peer": "false",
        "agg_small_grads_max_group": "10",
        "compact_dtype": "",
        "calls": "3",
        "iters_per_step": "5",
        "median_seconds": "0.002",
        "share_of_copy_bound": "1.5",
        "hostname": "h",
        "error": "",
        "command": "cnnbench allreduce",
        "schema": "1",
    }
    assert {name: row[name] for name in expected} == expected
    assert allreduce_row(record(), record().peers[0])["peer"] is True
    assert allreduce_row(record(), record().points[0])["device"] == "cpu"
