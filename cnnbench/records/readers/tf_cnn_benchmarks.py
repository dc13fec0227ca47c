"""Reads the standard output of all versions of tf_cnn_benchmarks and of its forks.

The patterns cover all lines that any version of tf_cnn_benchmarks printed. cnnbench prints the same
lines. A log may have several runs, one after the other, or the output of all processes of a job as
mpirun tags it; messages of TensorFlow may be mixed in.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cnnbench.base.files import parse_json, read_file
from cnnbench.records.codec import is_valid_amount
from cnnbench.records.launchers import Line, with_prefixes
from cnnbench.records.readers import MIXED, ResultFile, register_reader
from cnnbench.records.run import Batch, Placement, PrintedSpeed, RunRecord

PROGRAM = "tf_cnn_benchmarks"

# All patterns are bounded in length, so that the time is linear in the size of a line.
_NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
_STEP = r"\d{1,15}"
_KNOWN = rf"Model: {{3,9}}\S|{_STEP}\s{{1,9}}images/sec: "
"""How lines of every run begin, from which the prefixes of a launcher are learned."""
_HEADER = re.compile(
    r"(TensorFlow|Model|Dataset|Mode|SingleSess|Batch size|Num batches|Num epochs|Devices|"
    r"NUMA bind|Data format|Data type|Input image|Layout optimizer|RewriterConfig|Optimizer|"
    r"Variables|Use NCCL|AllReduce|Sync|Staged vars|Horovod on):(?:\s{1,20}(.*))?$"
)
_GROUP = "batches per prepocessing group"
_MORE = re.compile(rf"\s{{2,40}}(\S{{1,40}}) (per device|{_GROUP})$")
_ROW = re.compile(
    rf"({_STEP})\s{{1,9}}images/sec: ({_NUMBER}) \+/- ({_NUMBER}) \(jitter = ({_NUMBER})\)"
    rf"((?:\s{{1,9}}{_NUMBER}){{0,40}})$"
)
# The first versions of tf_cnn_benchmarks called top-1 accuracy "precision", and top-5 "recall".
_ACCURACY = re.compile(
    rf"(?:Accuracy|Precision) @ 1 = ({_NUMBER}) (?:Accuracy|recall) @ 5 = ({_NUMBER}) "
    rf"\[{_STEP} examples\]$"
)
_PRECISIONS = {"float32": "fp32", "float16": "fp16"}
_TOTAL = re.compile(rf"total images/sec: ({_NUMBER})$")
_GPU = re.compile(
    rb"device:GPU:(\d{1,4}) with .{1,60}-> physical GPU \(device: \d{1,4}, name: ([^,\n]{1,80}),"
)
# These lines of tf_cnn_benchmarks contain no value for the record.
_OTHER = re.compile(
    r"=+$|-+$|Generating (?:training |evaluation )?model$|Initializing graph$|Running warm up$|"
    r"Done warm up$|Waiting for other replicas to finish warm up$|Round up warm up steps|"
    r"Starting real work at step|Finishing real work at step|Step\s{1,9}Img/sec|"
    rf"Running (?:final )?evaluation at global_step {_STEP}$|Resuming training$|"
    r"Done with training$|"
    r"Stopping, as (?:eval accuracy at least|the model indicates)|Successfully loaded model from|"
    r"Checkpoint not found in|"
    rf"Attempting to restore|{_STEP}\s{{1,9}}{_NUMBER} examples/sec$|:::ML|"
    r"Running parameter server|"
    r"Starting worker \d|Writing (?:partitioned )?GraphDef as|Dumping (?:trace|ProfileProto) to|"
    r"The (?:TensorBoard debugger plugin|CLI TensorFlow debugger) will be used"
)
# A run prints each of these lines once.
_ONCE = re.compile("Generating training model$|Running warm up$|Done warm up$|total images/sec: ")
_UNKNOWN = ("commit", "step_seconds", "memory", "startup")


@register_reader(PROGRAM, with_prefixes(rf"{_KNOWN}|total images/sec: "))
def read(file: ResultFile) -> Iterable[RunRecord]:
    """Creates a record for each run in a log of tf_cnn_benchmarks, with the values that the run
    printed.
    """
    gpus = {int(place): name.decode() for place, name in _GPU.findall(file.data)}
    part = 0
    for lines, time in file.processes(_KNOWN):
        logs = [_ParsedLog(file, run) for run in _split_runs(lines)]
        mixed = [log.mixed for log in logs if log.mixed]
        if mixed:
            file.skip(*mixed[0], MIXED)
            continue
        for log in logs:
            if log.header or log.rows:
                part += 1
                yield log.make_record(part, time, gpus)


def _split_runs(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """Splits the lines of one process into the lines of its runs. A header starts a new run."""
    ranks_seen: set[str] = set()
    run: list[Line] = []
    for line in lines:
        label = line[1].partition(":")[0] if _HEADER.match(line[1]) else ""
        if label in ("TensorFlow", "Model"):
            if label in ranks_seen or "Model" in ranks_seen:
                yield run
                ranks_seen, run = set(), []
            ranks_seen.add(label)
        run.append(line)
    yield run


_METRIC_LOG, _RUN_LOG = "metric.log", "benchmark_run.log"
_SPEEDS = ("current_examples_per_sec", "average_examples_per_sec")
# Maps the names of run parameters in benchmark_run.log to the labels of the printed header.
_PARAMETERS = {
    **{"model": "Model", "dataset": "Dataset", "mode": "Mode", "devices": "Devices"},
    **{"batch_size": "Batch size", "batch_size_per_device": "per device"},
    **{"num_batches": "Num batches", "data_format": "Data format", "optimizer": "Optimizer"},
    **{"variables": "Variables", "variable_update": "Variables", "all_reduce_spec": "AllReduce"},
}


@register_reader("benchmark_log_dir", rb'^\{.*"(?:run_parameters|global_step)":')
def read_log_dir(file: ResultFile) -> Iterable[RunRecord]:
    """Creates a record for each run in a folder of --benchmark_log_dir.

    Runs append a line for each value to metric.log. benchmark_run.log describes the last run.
    Reading either of the two files results in the same records.
    """
    folder, name = os.path.split(file.path)
    other = os.path.join(folder, _METRIC_LOG if name == _RUN_LOG else _RUN_LOG)
    facts: dict[str, Any] = {}
    if name in (_METRIC_LOG, _RUN_LOG) and os.path.exists(other):
        both = [file.data, read_file(other)]
        metrics, about = both if name == _METRIC_LOG else reversed(both)
        facts = _parse_json_line(about) or {}
        # The records depend on both files, so both files are included in the digest.
        path = os.path.join(folder, _METRIC_LOG)
        own = ResultFile(path, metrics, file.options, file.skipped)
        own.sha256 = hashlib.sha256(metrics + about).hexdigest()
        file = own
    runs: list[_ParsedLog] = []
    times: list[str] = []
    for number, text in file.lines:
        if not text.strip():
            continue
        value = _parse_json_line(text.encode())
        if value is not None and "run_parameters" in value:
            facts = value
            continue
        metric, speed = (value or {}).get("name"), (value or {}).get("value")
        if (
            metric not in _SPEEDS
            or not isinstance(speed, (int, float))
            or not is_valid_amount(speed)
        ):
            file.skip(number, text)
            continue
        assert value is not None
        step = value.get("global_step") or 0
        if not runs or runs[-1].is_complete or (runs[-1].rows and step < runs[-1].rows[-1].step):
            runs.append(_ParsedLog(file, ()))
            times.append(str(value.get("timestamp") or ""))
        if metric == _SPEEDS[1]:
            runs[-1].values["total_images_per_sec"] = float(speed)
            runs[-1].is_complete = True
        else:
            runs[-1].rows.append(PrintedSpeed(step=step, images_per_sec=float(speed)))
    for part, (run, time) in enumerate(zip(runs, times, strict=True), start=1):
        environment = run.fill_header_and_return_machine_facts(facts) if part == len(runs) else {}
        yield run.make_record(part, time, {}, environment)


def _parse_json_line(data: bytes) -> dict[str, Any] | None:
    """Parses a line that contains a JSON object; None for other lines."""
    try:
        parsed = parse_json(data)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _metrics_of_printed_row(row: PrintedSpeed, *, has_loss: bool) -> dict[str, float]:
    """Returns the values of the last row that a run printed, by name of the metric. Set `has_loss`
    to False if the run printed no loss.
    """
    printed = {
        "images_per_sec": row.images_per_sec,
        "images_per_sec_uncertainty": row.uncertainty,
        "images_per_sec_jitter": row.jitter,
        "final_loss": row.loss if has_loss else None,
    }
    return {name: value for name, value in printed.items() if value is not None}


class _ParsedLog:
    """Values that were parsed from the output of one run."""

    def __init__(self, file: ResultFile, lines: Iterable[Line]) -> None:
        self.file = file
        self.header: dict[str, str] = {}
        self.rows: list[PrintedSpeed] = []
        self.values: dict[str, float] = {}
        self.is_complete = False
        self._seen: set[str] = set()
        self.mixed: Line | None = None
        """The first line that shows that the lines of several processes are mixed."""
        for number, text in lines:
            self._parse_line(number, text)

    def _parse_line(self, number: int, text: str) -> None:
        if match := _HEADER.match(text):
            self._note_repetition(match[1] in self.header, number, text)
            self.header[match[1]] = (match[2] or "").strip()
        elif match := _MORE.match(text):
            self.header[match[2]] = match[1]
        elif match := _ROW.match(text):
            speed, uncertainty, jitter, *loss = map(
                float, (*match.groups()[1:4], *match[5].split())
            )
            if not is_valid_amount(speed):
                return self.file.skip(number, text, "is not a speed")
            step = int(match[1])
            self._note_repetition(bool(self.rows) and step <= self.rows[-1].step, number, text)
            of = {"uncertainty": uncertainty, "jitter": jitter, "loss": loss[0] if loss else None}
            self.rows.append(PrintedSpeed(step=step, images_per_sec=speed, **of))
        elif match := _ACCURACY.match(text):
            top_1, top_5 = map(float, match.groups())
            self.values |= {"accuracy": top_1, "top_1": top_1, "top_5": top_5}
        elif match := _TOTAL.match(text):
            if not is_valid_amount(float(match[1])):
                return self.file.skip(number, text, "is not a speed")
            self.values["total_images_per_sec"] = float(match[1])
            self.is_complete = True
        elif not _OTHER.match(text):
            self.file.skip(number, text)
        if match := _ONCE.match(text):
            self._note_repetition(match[0] in self._seen, number, text)
            self._seen.add(match[0])
        # A training with evaluations prints no total speed; these lines show that it is complete.
        self.is_complete |= text.startswith(("Running final evaluation", "Done with training"))
        return None

    def _note_repetition(self, is_repeated: bool, number: int, text: str) -> None:
        if is_repeated and self.mixed is None:
            self.mixed = number, text

    def fill_header_and_return_machine_facts(self, run_log: dict[str, Any]) -> dict[str, Any]:
        """Fills in the header from the content of benchmark_run.log (`run_log`). Returns properties
        of the machine by name.
        """
        for parameter in run_log.get("run_parameters") or ():
            value = next((parameter[key] for key in parameter if key.endswith("_value")), None)
            if parameter.get("name") in _PARAMETERS and value is not None:
                self.header[_PARAMETERS[parameter["name"]]] = str(value)
        if version := (run_log.get("tensorflow_version") or {}).get("version"):
            self.header["TensorFlow"] = str(version)
        machine = run_log.get("machine_config") or {}
        cpu, gpu = (machine.get(name) or {} for name in ("cpu_info", "gpu_info"))
        facts_known = {
            "cpu_model": cpu.get("cpu_info"),
            "logical_cpus": cpu.get("num_cores"),
            "memory_bytes": machine.get("memory_total"),
            "gpu_names": [gpu.get("model")] * (gpu.get("count") or 0) or None,
        }
        return {name: value for name, value in facts_known.items() if value is not None}

    def make_record(
        self,
        part: int,
        time: str,
        gpus: dict[int, str],
        environment: Mapping[str, Any] | None = None,
    ) -> RunRecord:
        """Creates the record of the run. `gpus` are the names of GPUs in TensorFlow's log lines, by
        GPU number.
        """
        header, config, places = self.header, self._flags_from_header(), self._device_names()
        last = self.rows[-1] if self.rows else None
        if last is not None:
            self.values |= _metrics_of_printed_row(last, has_loss=not config["forward_only"])
        per_device, whole = (self._header_number(name) for name in ("per device", "Batch size"))
        batch, workers = None, 1
        if per_device and whole:
            batch = Batch(per_device=per_device, global_=whole)
            workers = max(1, whole // (per_device * max(1, len(places))))
        # If the log of a single worker has no total speed, its last row has the same value.
        speed, steps = self.values.get("total_images_per_sec"), self._header_number("Num batches")
        if speed is None and last and workers == 1 and last.step == steps:
            speed = last.images_per_sec
        if speed is not None:
            self.values["throughput"] = speed
        version = header.get("TensorFlow")
        placement = Placement(
            device="gpu" if places and "gpu" in places[0].lower() else "cpu",
            devices=tuple(places),
            num_towers=len(places) * workers,
            num_workers=workers,
            variable_update=header.get("Variables", "unknown"),
            all_reduce=tuple(filter(None, [header.get("AllReduce")])),
        )
        return self.file.run(
            PROGRAM,
            config | {"batch_size": per_device, "num_gpus": len(places) or None},
            started_at=time,
            status="ok" if self.is_complete else "interrupted",
            part=part,
            environment={
                **({"tensorflow_version": version} if version else {}),
                **({"gpu_names": [gpus[number] for number in sorted(gpus)]} if gpus else {}),
                **(environment or {}),
            },
            values=self.values,
            printed=tuple(self.rows),
            unknown=(
                *_UNKNOWN,
                *(() if "precision" in config else ("precision",)),
                *(() if version else ("tensorflow_version",)),
                *(() if gpus or environment else ("machine",)),
                *(() if places else ("devices",)),
                *(() if batch else ("batch",)),
            ),
            batch=batch,
            placement=placement if places else None,
        )

    def _flags_from_header(self) -> dict[str, Any]:
        """Returns the flags whose values follow from the header of the log, except flags for batch
        size and number of devices.
        """
        header, mode = self.header, self.header.get("Mode", "")
        dataset, _, synthetic = header.get("Dataset", "").partition(" (")
        places = self._device_names()
        flags = {
            "model": header.get("Model"),
            "data_name": dataset.lower() or None,
            # The log says whether the data was real, but does not contain its folder.
            "data_dir": None if synthetic or dataset == "synthetic" else "unknown",
            "eval": mode == "evaluation",
            "forward_only": "forward" in mode,
            "num_batches": self._header_number("Num batches"),
            "device": ("gpu" if "gpu" in places[0].lower() else "cpu") if places else None,
            "variable_update": header.get("Variables"),
            "optimizer": header.get("Optimizer"),
            "precision": _PRECISIONS.get(header.get("Data type", "")),
            "data_format": header.get("Data format"),
            "all_reduce_spec": header.get("AllReduce"),
            "horovod_device": header.get("Horovod on"),
            "cross_replica_sync": header.get("Sync", "True") == "True",
            "staged_vars": "Staged vars" in header or None,
            "batch_group_size": self._header_number(_GROUP),
            # The log contains neither the number of the worker nor the number of workers.
            "job_name": "worker" if places and places[0].startswith("/job:worker") else None,
            "training_and_evaluation": "+" in mode or None,
        }
        return {name: value for name, value in flags.items() if value is not None}

    def _device_names(self) -> list[str]:
        return re.findall(r"'([^']{1,200})'", self.header.get("Devices", ""))

    def _header_number(self, name: str) -> int | None:
        """Reads a whole number from the header (early versions print 32 as 32.0); None if there is
        none.
        """
        try:
            number = float(self.header.get(name, "").removesuffix(" global"))
        except ValueError:
            return None
        return int(number) if number.is_integer() and number > 0 else None
