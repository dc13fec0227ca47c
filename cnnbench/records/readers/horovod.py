"""Reads the standard output of Horovod's synthetic benchmarks for TensorFlow, Keras, PyTorch and
MXNet.

Programs that are derived from them, such as those of KungFu and BlueFog, print the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from cnnbench.records.codec import is_valid_amount
from cnnbench.records.launchers import Line, lines_of_processes, prefixed_pattern
from cnnbench.records.readers import MIXED, ResultFile, register_reader
from cnnbench.records.run import Batch, Placement, PrintedSpeed, RunRecord

PROGRAM = "horovod"

# All patterns have a bounded length, so that matching takes linear time in the length of a line.
_NUMBER = r"(\d{1,40}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,4})?)"
_KNOWN = r"Model: {1,9}\S|Iter #\d{1,15}: |Img/sec per |Running warmup\."
_HEADER = re.compile(r"(Model|Batch size|Number of (?:GPU|CPU)s): {0,9}(\S{1,200})$")
_ITERATION = re.compile(rf"Iter #(\d{{1,15}}): {_NUMBER} img/sec per \S{{1,20}}$")
_MEAN = re.compile(rf"Img/sec per \S{{1,20}}: {_NUMBER} ?\+-{_NUMBER}$")
_TOTAL = re.compile(
    rf"Total img/sec on (\d{{1,15}}) ([^\s(]{{1,20}})\(s\): {_NUMBER} ?\+-{_NUMBER}$"
)
_OTHER = re.compile(r"Running (?:warmup|benchmark)\.\.\.$")
_UNKNOWN = """
    precision optimizer num_batches framework commit machine
    step_seconds memory startup
""".split()


@register_reader(PROGRAM, prefixed_pattern(r"Iter #\d{1,15}: |Img/sec per |Running warmup\."))
def read(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each run in a log. Only the first process of a job prints results."""
    part = 0
    for lines, time in lines_of_processes(file.text, _KNOWN):
        runs = [*_split_runs(lines)]
        mixed = next(filter(None, map(_mixed_line, runs)), None)
        if mixed:
            file.skip(*mixed, MIXED)
            continue
        for run in runs:
            record = _record(file, run, part + 1, time)
            if record is not None:
                part += 1
                yield record


def _mixed_line(lines: Sequence[Line]) -> Line | None:
    """Returns the first line that repeats a value of the run, so that lines of several processes
    are mixed; None if there is none.
    """
    seen = set()
    for line in lines:
        match = _HEADER.match(line[1]) or _ITERATION.match(line[1])
        if match and match[1] in seen:
            return line
        seen.add(match and match[1])
    return None


def _split_runs(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    starts = [place for place, (_, text) in enumerate(lines) if text.startswith("Model:")]
    bounds = [0, *starts[1:], len(lines)]
    yield from (lines[start:end] for start, end in pairwise(bounds))


def _placement(devices: int, kind: str) -> Placement:
    """Returns the placement of a job. Each process of Horovod has one device."""
    return Placement(
        device="cpu" if kind == "cpu" else "gpu",
        devices=(),
        num_towers=devices,
        num_workers=devices,
        variable_update="horovod",
    )


def _record(file: ResultFile, lines: Sequence[Line], part: int, time: str) -> RunRecord | None:
    """Creates the record of one run; None if its lines contain neither a result nor a header."""
    header: dict[str, str] = {}
    rows: list[PrintedSpeed] = []
    unknown: list[Line] = []
    total, is_complete, devices, kind = None, False, 0, ""
    for number, text in lines:
        if match := _HEADER.match(text):
            header[match[1]] = match[2]
        elif (match := _ITERATION.match(text)) and is_valid_amount(float(match[2])):
            rows.append(PrintedSpeed(step=int(match[1]), images_per_sec=float(match[2])))
        elif (match := _TOTAL.match(text)) and is_valid_amount(float(match[3])):
            devices, kind, total = int(match[1]), match[2].lower(), float(match[3])
        elif _MEAN.match(text):
            is_complete = True
        elif " img/sec" in text or "Img/sec" in text:
            file.skip(number, text)
        elif not _OTHER.match(text):
            unknown.append((number, text))
    file.skip_unknown_lines(unknown, is_complete)
    if not (header or rows or total):
        return None
    for name in ("GPU", "CPU"):
        count = header.get(f"Number of {name}s", "")
        if not devices and count.isdecimal():
            devices, kind = int(count), name.lower()
    size = header.get("Batch size", "")
    images = int(size) if size.isdecimal() and int(size) else None
    batch = Batch(per_device=images, global_=images * devices) if images and devices else None
    config = {
        "model": header.get("Model"),
        "batch_size": images,
        "num_gpus": devices or None,
        "device": kind or None,
        "variable_update": "horovod",
    }
    absent = [name for name, given in (("batch", batch), ("devices", kind)) if not given]
    return file.run(
        PROGRAM,
        config,
        started_at=time,
        status="ok" if is_complete else "interrupted",
        part=part,
        batch=batch,
        placement=_placement(devices, kind) if devices else None,
        values={} if total is None else {"throughput": total, "total_images_per_sec": total},
        printed=tuple(rows),
        unknown=(*_UNKNOWN, *absent),
    )
