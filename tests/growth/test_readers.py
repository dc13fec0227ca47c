"""CPU time of each reader of other programs' results, by the length of the file."""

from __future__ import annotations

import json
import re

import pytest
from growth import FACTOR, TRIES, check_growth, cpu_seconds, growth
from imports import HOROVOD, TRAINING, read

from cnnbench.records.readers import READERS, read_results

pytestmark = pytest.mark.slow

TIME = "2024-05-01T10:00:00+00:00"


def asv(count):
    """A file of asv with a benchmark for each parameter."""
    names = [f'"{number}"' for number in range(count)]
    row = [[1e-3] * count, [names], "v1", 1_720_000_000_000]
    return {
        **{"commit_hash": "a" * 40, "date": 1_700_000_000_000, "python": "3.11"},
        **{"params": {"machine": "m"}, "env_name": "py3.11", "requirements": {}, "env_vars": {}},
        **{"result_columns": ["result", "params", "version", "started_at"]},
        "results": {"b.time_sum": row},
    }


def benchmark_log(count):
    """The file metric.log of one run, with both speeds of each step."""
    names = ("average_examples_per_sec", "current_examples_per_sec")
    rows = (
        {"name": name, "value": 800.0, "unit": None, "global_step": step, "extras": []}
        for step in range(100, 100 * (count + 1), 100)
        for name in names
    )
    time = "2018-06-01T10:00:00.5Z"
    return "".join(json.dumps({**row, "timestamp": time}) + "\n" for row in rows)


def conbench(count):
    """A page of the API of Conbench."""
    stats = {"data": [1.0, 2.0], "unit": "s", "iterations": 2}
    results = [
        {
            **{"batch_id": "b", "run_id": "r", "timestamp": TIME, "stats": stats},
            "tags": {"name": f"read {number}"},
        }
        for number in range(count)
    ]
    return {"data": results, "metadata": {"next_page_cursor": None}}


def dllogger(count):
    """A log of DLLogger with as many runs."""

    def line(**content):
        return (
            f"DLLL {json.dumps({'timestamp': '1700000000.5', 'elapsedtime': '1.0', **content})}\n"
        )

    run = [
        line(type="LOG", step="PARAMETER", data={"arch": "resnet50"}),
        line(type="METADATA", metric="train_throughput", metadata={"unit": "images/s"}),
        line(type="LOG", step=[0, 10], data={"train_throughput": 1.0}),
        line(type="LOG", step=[], data={"train_throughput": 812.5}),
    ]
    return "".join(run) * count


def google_benchmark(count):
    """A file of google/benchmark."""
    row = {"real_time": 5.0, "cpu_time": 4.0, "time_unit": "ns"}
    return {
        "context": {"date": TIME, "host_name": "h", "num_cpus": 2},
        "benchmarks": [{"name": f"b/{number}", **row} for number in range(count)],
    }


def hyperfine(count):
    """A file of hyperfine."""
    return {
        "results": [
            {"command": f"a {number}", "times": [1.0, 1.1], "exit_codes": [0, 0]}
            for number in range(count)
        ]
    }


def mlperf(count):
    """A log of MLPerf Training with as many runs."""

    def event(key, value=None, seconds=0, **metadata):
        time = {"time_ms": 1_700_000_000_000 + 1000 * seconds, "event_type": "POINT_IN_TIME"}
        content = {"namespace": "", **time, "key": key, "value": value, "metadata": metadata}
        return f":::MLLOG {json.dumps(content)}\n"

    run = [
        *(event("init_start"), event("submission_benchmark", "resnet"), event("run_start")),
        event("tracked_stats", {"throughput": 900.0}, 20, step=1),
        event("run_stop", seconds=70, status="success"),
    ]
    return "".join(run) * count


def pyperf(count):
    """A file of pyperf with as many processes."""
    run = {"metadata": {"date": "2024-05-01 10:00:00.5"}, "values": [1.0, 1.1]}
    benchmarks = [{"metadata": {"name": "sum"}, "runs": [run] * count}]
    return {"benchmarks": benchmarks, "metadata": {}, "version": "1.0"}


def pytest_benchmark(count):
    """A file of pytest-benchmark."""
    return {
        "machine_info": {"python_version": "3.11.7", "cpu": {}},
        **{"commit_info": {"id": "a" * 40, "time": TIME, "dirty": False}, "datetime": TIME},
        "benchmarks": [
            {"fullname": f"t.py::test[{number}]", "options": {}, "stats": {"mean": 1.0}}
            for number in range(count)
        ],
    }


def result_csv(count):
    """A table of --result_csv."""
    head = "run_id,started_at,status,model,flags,images_per_sec"
    rows = (f"r{number},{TIME},ok,lenet,{{}},12.5" for number in range(count))
    return "\n".join([head, *rows, ""])


FILES = {
    **{"asv": asv, "benchmark_log_dir": benchmark_log, "conbench": conbench, "dllogger": dllogger},
    **{"google-benchmark": google_benchmark, "horovod": lambda count: HOROVOD * count},
    **{"hyperfine": hyperfine, "mlperf": mlperf, "pyperf": pyperf},
    **{"pytest-benchmark": pytest_benchmark, "result_csv": result_csv},
    "tf_cnn_benchmarks": lambda count: TRAINING * count,
}
"""By reader, a function that makes a file of so many rows, processes or runs."""


def test_every_reader_has_a_file():
    READERS.load_own()
    assert not READERS.keys() - FILES.keys(), "add their files to FILES in tests/growth"


@pytest.mark.parametrize("name", FILES)
def test_reading(name, tmp_path):
    def prepare(count):
        records, _ = read(tmp_path, FILES[name](count))
        assert len(records) >= (1 if name == "benchmark_log_dir" else count)
        return lambda: read_results(str(tmp_path / "results.json"))

    check_growth(prepare, 120)


BEGINNINGS = (
    *("Model:       x", "1\timages/sec: 1.0 +/- 1.0 (jitter = 1.0)\t1.0", "total images/sec: 1.0"),
    *("Accuracy @ 1 = 1.0 Accuracy @ 5 = 1.0 [8 examples]", "Devices:     ['/cpu:0', ", "x = 1.0 "),
    *("Iter #1: 1.0 img/sec per GPU", "Img/sec per GPU: 1.0 +-1.0", "[1,0]<stdout>:Model: x"),
    *("2026-05-07T10:00:01.5Z 1 1 1/1.1-1 Model: x", "device:GPU:0 with 1-> physical GPU (device"),
    *('{"name": "current_examples_per_sec", "global_step": 1, "value": ', 'run_id,a,"', "' \t:"),
    *('DLLL {"step": [], "data": {"v": ', ':::MLLOG {"time_ms": 1, "key": "run_start", "value": '),
    *(":::MLPv0.5.0 x 1541000000.5 (a.py:1) run_start: ", "\x1b[36m", "x.py:1: Warning: "),
)
"""Beginnings of lines that readers know, and what their patterns look for."""


def lines_of(repeated, count):
    """A text of so many characters, with one line for each beginning that `repeated` continues."""
    length = count // len(BEGINNINGS)
    return "\n".join(repeated(text, length) for text in BEGINNINGS)


SHAPES = {
    "one line": lambda text, length: text * (length // len(text)),
    "many lines": lambda text, length: f"{text}\n" * (length // len(text)),
    "digits": lambda text, length: text + "1" * length,
    "spaces": lambda text, length: text + " " * length + "x",
}
SIZES = {"many lines": 40_000}
"""Characters of the small file, if not 100,000."""


QUICK = 0.1
"""Seconds of CPU time for the large file, below which no quadratic function can be, and below which
caches and memory matter more for the ratio than the length of the file.
"""


def check_linear(prepare, size):
    """Fails if the time of a function grows with the square of its input: the ratio is then 16."""
    if cpu_seconds(prepare(FACTOR * size)) > QUICK:
        most = 2 * FACTOR
        assert any(growth(prepare, size) < most for _ in range(TRIES))


TEXT_READERS = [name for name in FILES if isinstance(FILES[name](1), str)]
JSON_READERS = [name for name in FILES if name not in TEXT_READERS]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["", *TEXT_READERS])
def test_hostile_text(name, shape, tmp_path):
    def prepare(count):
        (tmp_path / "a.log").write_text(lines_of(SHAPES[shape], count))
        return lambda: read_results(str(tmp_path / "a.log"), reader=name)

    check_linear(prepare, SIZES.get(shape, 100_000))


@pytest.mark.parametrize("name", JSON_READERS)
def test_numbers_of_many_digits(name, tmp_path):
    text = json.dumps(FILES[name](1))

    def prepare(count):
        numbers = re.compile(r"(?<=[ \[])\d[\d.e-]*(?=[],}])")
        digits = "1" * (count // len(numbers.findall(text)))
        (tmp_path / "a.json").write_text(numbers.sub(digits, text))
        return lambda: read_results(str(tmp_path / "a.json"))

    check_linear(prepare, 100_000)


@pytest.mark.parametrize("name", TEXT_READERS)
def test_files_with_lines_that_are_left_out(name, tmp_path):
    def prepare(count):
        lines = FILES[name](count).splitlines(keepends=True)
        step = len(lines) // count
        parts = ["".join(lines[at : at + step]) for at in range(0, len(lines), step)]
        text = "".join(f'{part}{at},"{{\n' for at, part in enumerate(parts))
        (tmp_path / "a.log").write_text(text)
        return lambda: read_results(str(tmp_path / "a.log"), reader=name)

    check_linear(prepare, 120)
