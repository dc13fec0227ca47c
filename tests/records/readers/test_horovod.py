"""Output of Horovod's examples."""

from __future__ import annotations

import pytest
from imports import HOROVOD, edited, read

from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import Placement


def test_a_job_on_gpus(tmp_path):
    (record,), reasons = read(tmp_path, HOROVOD)
    assert reasons == []
    known = {name: value for name, value in record.config.items() if value is not None}
    assert known == {
        **{"model": "resnet50", "batch_size": 32, "num_gpus": 4, "device": "gpu"},
        **{"variable_update": "horovod", "imported_from": "horovod"},
    }
    assert (record.status, record.batch.global_, throughput(record)) == ("ok", 128, 882.8)
    assert record.placement == Placement(
        device="gpu", devices=(), num_towers=4, num_workers=4, variable_update="horovod"
    )
    printed = [(one.step, one.images_per_sec) for one in record.imported.printed]
    assert printed == [(0, 220.1), (1, 221.3)]
    assert not {"batch", "devices"} & {*record.imported.unknown}


def test_a_job_on_cpus(tmp_path):
    (record,), _ = read(tmp_path, HOROVOD.replace("GPU", "CPU"))
    assert (record.config["device"], record.placement.device) == ("cpu", "cpu")
    assert record.batch.global_ == 128


def test_mpirun_twice_and_killed(tmp_path):
    text = HOROVOD + HOROVOD.partition("Img/sec per")[0] + "ORTE has lost communication\n"
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines())
    records, reasons = read(tmp_path, tagged + "[1,3]<stderr>:WARNING: OMP\n")
    assert [(one.imported.part, one.status, throughput(one)) for one in records] == [
        (1, "ok", 882.8),
        (2, "interrupted", None),
    ]
    assert reasons == ["'ORTE has lost communication' is not understood"]
    assert records[1].imported.skipped_lines == (17,)
    assert records[1].batch.global_ == 128  # as the header says


def test_a_log_without_its_header_has_the_devices_of_the_total(tmp_path):
    text = HOROVOD.partition("Running benchmark...\n")[2]
    (record,), _ = read(tmp_path, text)
    assert (record.config["num_gpus"], record.config["device"]) == (4, "gpu")
    assert (record.batch, record.config["batch_size"]) == (None, None)
    assert "batch" in record.imported.unknown


@pytest.mark.parametrize(
    ("edits", "unknown"),
    [
        ({"Batch size: 32": "Batch size: some"}, {"batch"}),
        ({"Batch size: 32": "Batch size: 0"}, {"batch"}),
        (
            {"Number of GPUs: 4": "Number of GPUs: all", "on 4 GPU(s)": "on all GPU(s)"},
            {"batch", "devices"},
        ),
    ],
)
def test_what_the_header_does_not_say_as_a_number_is_unknown(tmp_path, edits, unknown):
    (record,), _ = read(tmp_path, edited(HOROVOD, edits))
    assert {"batch", "devices"} & {*record.imported.unknown} == unknown
    assert record.batch is None


@pytest.mark.parametrize(
    "line", ["Iter #2: inf img/sec per GPU", "Total img/sec on 4 GPU(s): inf +-1.0", "Img/sec: 1"]
)
def test_a_line_of_results_without_a_value_is_named(tmp_path, line):
    (record,), (reason,) = read(tmp_path, HOROVOD + line + "\n")
    assert reason == f"{line!r} is not understood"
    assert record.imported.skipped_lines == (10,)
