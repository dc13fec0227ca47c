"""The table of fixed points, to the byte."""

import dataclasses
import re

from cnnbench.flags.groups.all_reduce import params_from_values
from cnnbench.lab.all_reduce import table
from cnnbench.records.all_reduce import AllReduceRecord, Copying, Point
from cnnbench.records.run import RingDevices
from cnnbench.variable_mgr.packing import Packing

COPY = Copying(bytes=8_000_000, devices=4, seconds=(0.003, 0.002, 0.001))
COMMON = {
    "workload": "8000000",
    "dtype": "float32",
    "bytes": 8_000_000,
    "tensors": 1,
    "elements": 2_000_000,
    "devices": 4,
}
POINTS = (
    Point(
        spec="copy",
        packing=Packing(),
        seconds=(0.004, 0.002, 0.001),
        checked=16_000_000,
        trace_seconds=0.25,
        build_seconds=0.5,
        operations=120,
        **COMMON,
    ),
    Point(
        spec="pscpu:32K:xring#2",
        packing=Packing(gradient_repacking=8, compact_dtype="bfloat16"),
        seconds=(0.012,),
        checked=16_000_000,
        wrong=3,
        **COMMON,
    ),
    Point(spec="nccl", packing=Packing(), error="InvalidArgumentError: no GPU", **COMMON),
)
RECORD = AllReduceRecord(
    run_id="r",
    started_at="2026-11-20T10:00:00+00:00",
    status="interrupted",
    command=(),
    config={},
    copies=(COPY,),
    points=POINTS,
)
CASES = [(point.spec, str(point.packing)) for point in POINTS]

TIMES = """\
#         size         count  tensors     dtype  devices  spec               packing                 time          max    algbw    busbw  #wrong   of copy
#          (B)    (elements)                                                                         (us)         (us)   (GB/s)   (GB/s)          estimate
# memory copy: 4 devices at once write 16.00 GB/s (8000000 B each); estimate 3000.0 us
       8000000       2000000        1   float32        4  copy               -                     2000.0       4000.0     4.00     6.00       0     1.500
       8000000       2000000        1   float32        4  pscpu:32K:xring#2  packs8+bfloat16      12000.0      12000.0     0.67     1.00       3     0.250
       8000000       2000000        1   float32        4  nccl               -                          -            -        -        -   error         -
# nccl -: InvalidArgumentError: no GPU
# Wrong values: 3 of 32000000 FAILED
# Rows with errors: 1 FAILED
# of copy estimate: the time in which all devices at once copy 2(n-1)/n x size each,
#   as measured in the same run, over the median time. It is no bound: devices that
#   share a memory may pass 1, as they can add and hand out sums with less traffic.
"""  # noqa: E501

BUILD = """\
#         size         count  tensors     dtype  devices  spec  packing               pieces  operations     trace     build  build/piece
#          (B)    (elements)                                             (devices x tensors)                   (s)       (s)         (us)
       8000000       2000000        1   float32        4  copy  -                          4         120     0.250     0.500     125000.0
"""  # noqa: E501


def test_times():
    rows = table.ResultRowFormatter(CASES, calls=3)
    lines = [*rows.header(), table.copy_line(COPY)]
    for point in POINTS:
        lines += rows.row_lines(point, RECORD.copy_time_share(point))
    assert "\n".join([*lines, *table.footer_lines(RECORD)]) + "\n" == TIMES


def test_lines_above_the_table():
    record = dataclasses.replace(
        RECORD,
        placement=RingDevices(device="cpu", devices=("/cpu:0", "/cpu:1")),
        environment={"tensorflow_version": "2.19.0"},
    )
    flags = {"num_batches": 7, "num_warmup_batches": 3, "iters_per_step": 5}
    first, devices, how = table.header_lines(record, params_from_values(flags))
    assert first == "# cnnbench allreduce, TensorFlow 2.19.0, 2026-11-20T10:00:00+00:00"
    assert devices == "# Devices: /cpu:0 /cpu:1"
    assert re.findall(r"\d+ \w+", how) == ["7 calls", "5 chained", "3 warm"]
    unknown = dataclasses.replace(record, environment={})
    built = table.header_lines(unknown, params_from_values({**flags, "build_only": True}))
    assert [*re.findall(r"\d+ \w+", built[2])] == ["5 reductions"]
    assert "TensorFlow unknown, " in built[0]


def test_a_failed_run_names_its_first_row_and_counts_the_others():
    wrong, failed = POINTS[1:]
    where = "pscpu:32K:xring#2 on 4 devices, 8000000 bytes"
    alone = table.failure_message([wrong])
    assert alone == f"{where}: 3 of 16000000 elements are wrong"
    assert table.failure_message([wrong, failed, wrong]).startswith(f"{alone}; 2 more")
    assert table.failure_message([wrong, failed]).startswith(f"{alone}; 1 more")
    assert table.failure_message([failed]).endswith(f": {failed.error}")


def test_cells_of_rows_without_a_check_or_an_error():
    unchecked = dataclasses.replace(POINTS[0], checked=0)
    (row,) = table.ResultRowFormatter(CASES[:1], calls=3).row_lines(unchecked, None)
    assert row.split()[-2:] == ["-", "-"]


def test_a_column_is_p99_with_a_hundred_calls():
    many = dataclasses.replace(POINTS[0], seconds=tuple(n / 1e6 for n in range(1, 201)))
    rows = table.ResultRowFormatter(CASES[:1], calls=100)
    assert " p99 " in rows.header()[0]
    assert " max " in table.ResultRowFormatter(CASES[:1], calls=99).header()[0]
    assert " 198.0 " in rows.row_lines(many, None)[0]


def test_the_fastest_of_each_size():
    slower = dataclasses.replace(POINTS[0], spec="xring", seconds=(0.003,))
    wrong = dataclasses.replace(POINTS[1], spec="pscpu", seconds=(0.0001,))
    alone = dataclasses.replace(POINTS[0], devices=2)
    record = dataclasses.replace(RECORD, points=(slower, POINTS[0], wrong, alone), copies=())
    assert table.fastest_spec_lines(record) == [
        "# Fastest of 8000000 B on 4 devices: copy, 6.00 GB/s busbw, 1.50 times as fast as the "
        "next, xring"
    ]


def test_build_times():
    rows = table.ResultRowFormatter(CASES[:1], build_only=True)
    row, building = rows.row_lines(POINTS[0], None, verbose=True)
    assert "\n".join([*rows.header(), row]) + "\n" == BUILD
    assert building == "# build: copy -: traced in 0.250 s, built in 0.500 s, 120 operations"


def test_a_time_that_cannot_be_is_doubted():
    assert table.implausible_time_warning(POINTS[0], 20.0) is None
    assert table.implausible_time_warning(POINTS[0], 20.1) is not None
    assert table.implausible_time_warning(POINTS[0], None) is None
    warning = table.implausible_time_warning(POINTS[0], 21.2)
    assert warning == (
        "copy - on 8000000 bytes and 4 devices: 21 times as fast as the memory-copy estimate; "
        "probably an error"
    )
