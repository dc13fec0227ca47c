"""CPU time of each reader of result files, by the length of the file."""

from __future__ import annotations

import json

import pytest
from growth import FACTOR, TRIES, check_growth, cpu_seconds, growth
from imports import TRAINING, read

from cnnbench.records.readers import READERS, read_results

pytestmark = pytest.mark.slow

TIME = "2024-05-01T10:00:00+00:00"


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


def result_csv(count):
    """A table of --result_csv."""
    head = "run_id,started_at,status,model,flags,images_per_sec"
    rows = (f"r{number},{TIME},ok,lenet,{{}},12.5" for number in range(count))
    return "\n".join([head, *rows, ""])


FILES = {
    **{"benchmark_log_dir": benchmark_log, "result_csv": result_csv},
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
        return lambda: read_results(str(tmp_path / "results.log"))

    check_growth(prepare, 120)


BEGINNINGS = (
    *("Model:       x", "1\timages/sec: 1.0 +/- 1.0 (jitter = 1.0)\t1.0", "total images/sec: 1.0"),
    *("Accuracy @ 1 = 1.0 Accuracy @ 5 = 1.0 [8 examples]", "Devices:     ['/cpu:0', ", "x = 1.0 "),
    "[1,0]<stdout>:Model: x",
    *("2026-05-07T10:00:01.5Z 1 1 1/1.1-1 Model: x", "device:GPU:0 with 1-> physical GPU (device"),
    *('{"name": "current_examples_per_sec", "global_step": 1, "value": ', 'run_id,a,"', "' \t:"),
    *("\x1b[36m", "x.py:1: Warning: "),
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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["", *FILES])
def test_hostile_text(name, shape, tmp_path):
    def prepare(count):
        (tmp_path / "a.log").write_text(lines_of(SHAPES[shape], count))
        return lambda: read_results(str(tmp_path / "a.log"), reader=name)

    check_linear(prepare, SIZES.get(shape, 100_000))


LARGE = 100 << 20
FOREIGN = {
    "words": b"Step 17 of 90: loss 0.123, val. loss 0.456 (12.5 s) - /data/images/x.png\n",
    "speeds": b"Training speed images/sec: 123.4\n",
    "models": b"I0101 10:00:00 Model: lenet with 17 images/s\n",
    "digits": b"1234567890 ",
    "JSON": b'{"name": "speed", "value": 3.5, "unit": null, "step": 100, "extras": []}\n',
    "steps in JSON": b'INFO {"global_step": 5}\n',
    "empty lines": b"\n",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_large_foreign_file_is_soon_known_to_be_foreign(kind, tmp_path):
    (tmp_path / "a.log").write_bytes((FOREIGN[kind] * (LARGE // len(FOREIGN[kind]) + 1))[:LARGE])
    seconds = cpu_seconds(lambda: read_results(str(tmp_path / "a.log")))
    assert seconds < 2
    (skipped,) = read_results(str(tmp_path / "a.log"))[1]
    assert skipped.reason == "no reader knows this kind of file"


@pytest.mark.parametrize("name", FILES)
def test_files_with_lines_that_are_left_out(name, tmp_path):
    def prepare(count):
        lines = FILES[name](count).splitlines(keepends=True)
        step = len(lines) // count
        parts = ["".join(lines[at : at + step]) for at in range(0, len(lines), step)]
        text = "".join(f'{part}{at},"{{\n' for at, part in enumerate(parts))
        (tmp_path / "a.log").write_text(text)
        return lambda: read_results(str(tmp_path / "a.log"), reader=name)

    check_linear(prepare, 120)
