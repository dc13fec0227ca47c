"""Figures worked by hand, the JSON document, and rows of --result_csv.

Tests cnnbench/records/all_reduce.py and cnnbench/records/result_files.py.
"""

import dataclasses
import json
from dataclasses import replace

import pytest

from cnnbench.records.all_reduce import AllReduceRecord, Copying
from cnnbench.records.result_files import REDUCTIONS, all_reduce_row
from cnnbench.records.run import ErrorInfo
from cnnbench.variable_mgr.packing import Packing

TIMES = (0.004, 0.002, 0.001)
# 4 devices copy 8 MB each in 2 ms: 16 GB/s.
COPY = Copying(bytes=8_000_000, devices=4, seconds=(0.003, 0.002, 0.001))


@pytest.fixture
def point(make_reductions):
    """point(seconds=(), devices=2): a row of 8 MB on 4 devices, with these changes."""
    return lambda **parts: make_reductions.point(None, **{"seconds": TIMES, **parts})


@pytest.fixture
def record(reductions, point):
    rows = point(), point(spec="copy", devices=2)
    peers = (point(spec="reduction_to_one_device"),)
    return reductions(*rows, copies=(COPY,), peers=peers, flags={"iters_per_step": 5})


def test_bandwidths(point):
    # 8 MB in 2 ms are 4 GB/s; of 4 devices each sends 2 * 3/4 times its bytes: 6 GB/s.
    assert point().median_seconds == 0.002
    assert point().algorithm_bandwidth == pytest.approx(4e9)
    assert point().bus_bandwidth == pytest.approx(6e9)
    # Two devices send what they have once.
    assert point(devices=2).bus_bandwidth == pytest.approx(4e9)
    # Between the middle two of an even number of calls.
    assert point(seconds=(0.001, 0.002, 0.003, 0.1)).median_seconds == pytest.approx(0.0025)


def test_a_point_without_times_has_no_figures(point):
    empty = point(seconds=(), error="boom")
    assert (
        empty.median_seconds,
        empty.p99_seconds,
        empty.algorithm_bandwidth,
        empty.bus_bandwidth,
    ) == (None,) * 4
    assert [one.failed for one in (empty, point(wrong=1), point())] == [True, True, False]


def test_the_fastest_two_of_each_workload(reductions, point):
    slow, fast, other = (
        point(spec=spec, seconds=(s,)) for spec, s in zip("abc", (3, 1, 2), strict=True)
    )
    wrong, empty = point(wrong=1, seconds=(0.5,)), point(seconds=())
    alone, peer = point(devices=2), point(spec="peer", seconds=(4.0,), devices=8)
    record = reductions(slow, wrong, fast, empty, alone, other, peers=(peer,))
    assert record.fastest_points() == [(fast, other), (alone, None), (peer, None)]
    assert record.copy_bytes_per_sec is None
    largest = replace(COPY, bytes=2 * COPY.bytes)
    both = reductions(slow, copies=(COPY, largest, replace(COPY, devices=2)))
    assert both.copy_bytes_per_sec == largest.bytes_per_sec


@pytest.mark.parametrize(("count", "rank"), [(99, None), (100, 99), (101, 100), (1000, 990)])
def test_p99_by_nearest_rank(point, count, rank):
    # The smallest value that 99 % do not exceed: number ceil(0.99 n) in ascending order.
    timed = point(seconds=tuple(float(v) for v in range(count, 0, -1)))
    assert (timed.p99_seconds, timed.longest_seconds) == (rank, count)


def test_the_bound_by_memory_copies(record, point):
    # An all-reduce of 4 x 8 MB moves 2 * 3/4 of it, 48 MB, in 3 ms.
    assert COPY.bytes_per_sec == pytest.approx(16e9)
    assert COPY.equivalent_copy_seconds(8_000_000, 4) == pytest.approx(0.003)
    assert record.copy_time_share(point()) == pytest.approx(1.5)
    # Nothing was copied on two devices.
    assert record.copy_time_share(point(devices=2)) is None
    assert record.copy_time_share(point(seconds=())) is None


def test_json_round_trip(record, point, holds):
    failed = dataclasses.replace(
        record,
        status="failed",
        error=ErrorInfo(type="BenchmarkError", message="x"),
        points=(
            point(packing=Packing(gradient_repacking=8, compact_dtype="bfloat16")),
            point(seconds=(), error="boom", checked=0),
            point(trace_seconds=0.5, build_seconds=1.5, operations=99),
        ),
    )
    for one in (record, failed):
        holds("allreduce", json.loads(one.to_json()))
        assert AllReduceRecord.from_json(one.to_json()) == one


@pytest.mark.parametrize("rows", ["copies", "points", "peers"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("bytes", value) for value in (10**400, 0, -1)),
        *(("devices", value) for value in (10**400, 0)),
        # What overflows statistics is no measurement.
        *(("seconds", [value]) for value in (0.0, "Infinity", 1e308, 5e-324)),
    ],
)
def test_rows_that_cannot_be_are_named(record, rows, key, value):
    document = record.to_dict()
    document[rows][0][key] = value
    with pytest.raises(ValueError, match=rf"^{rows}\[0\]\.{key}: "):
        AllReduceRecord.from_dict(document)


def test_a_copy_without_times_is_none(record):
    document = record.to_dict()
    document["copies"][0]["seconds"] = []
    with pytest.raises(ValueError, match=r"^copies\[0\]\.seconds: none"):
        AllReduceRecord.from_dict(document)


def test_a_failure_has_a_reason(record):
    with pytest.raises(ValueError, match="error: status 'failed'"):
        dataclasses.replace(record, status="failed")


def test_a_row_of_the_table(record):
    nowhere = dataclasses.replace(record, placement=None)
    row = REDUCTIONS.format_cells(all_reduce_row(nowhere, nowhere.points[0]))
    assert tuple(row) == REDUCTIONS.columns
    expected = {
        "run_id": record.run_id,
        "device": "",
        "devices": "4",
        "peer": "false",
        "agg_small_grads_max_group": "10",
        "compact_dtype": "",
        "calls": "3",
        "iters_per_step": "5",
        "median_seconds": "0.002",
        "share_of_copy_bound": "1.5",
        "hostname": "box",
        "error": "",
        "command": "cnnbench allreduce",
        "schema": "1",
    }
    assert {name: row[name] for name in expected} == expected
    assert all_reduce_row(record, record.peers[0])["peer"] is True
    assert all_reduce_row(record, record.points[0])["device"] == "cpu"
