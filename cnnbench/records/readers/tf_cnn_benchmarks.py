"""Reads the standard output of all versions of tf_cnn_benchmarks and of its forks.

The patterns cover all lines that any version of tf_cnn_benchmarks printed. cnnbench prints the same
lines. A log may have several runs, one after the other, or the output of all processes of a job as
mpirun tags it; messages of TensorFlow may be mixed in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cnnbench.records.codec import is_valid_amount
from cnnbench.records.launchers import Line, lines_of_processes, prefixed_pattern
from cnnbench.records.readers import (
    CNNBENCH,
    MIXED,
    START,
    UNKNOWN_OF_OWN_RUN,
    ResultFile,
    parse_json_object,
    register_reader,
)
from cnnbench.records.run import Batch, Placement, PrintedSpeed, RunRecord

PROGRAM = "tf_cnn_benchmarks"

# All patterns have a bounded length, so that matching takes linear time in the length of a line.
_NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
_STEP = r"\d{1,15}"
_KNOWN = rf"Model: {{3,9}}\S|{_STEP}\s{{1,9}}images/sec: "
"""How lines of every run begin, from which the prefixes of a launcher are learned."""
_HEADER = re.compile(
    r"(TensorFlow|Model|Dataset|Mode|SingleSess|Batch size|Num batches|Num epochs|Devices|"
    r"NUMA bind|Data format|Data type|Input image|Layout optimizer|RewriterConfig|Optimizer|"
    r"Variables|Use NCCL|AllReduce|Sync|Staged vars|Horovod on|Flags):(?:\s{1,20}(.*))?$"
)
_GROUP = "batches per prepocessing group"
_MORE = re.compile(
    rf"\s{{2,40}}(\S{{1,40}}) (per device|{_GROUP})(?: and pass, (\d{{1,9}}) (passes))?$"
)
_ROW = re.compile(
    rf"({_STEP})\s{{1,9}}images/sec: ({_NUMBER}) \+/- ({_NUMBER}) \(jitter = ({_NUMBER})\)"
    rf"((?:\s{{1,9}}{_NUMBER}){{0,40}})$"
)
# In its first versions, tf_cnn_benchmarks called the top-1 accuracy "precision" and the top-5
# accuracy "recall".
_ACCURACY = re.compile(
    rf"(?:Accuracy|Precision) @ 1 = ({_NUMBER}) (?:Accuracy|recall) @ 5 = ({_NUMBER}) "
    rf"\[{_STEP} examples\]$"
)
# Names of networks in the header that differ from the values of --model.
_MODELS = {"lenet5": "lenet", "official_ncf": "ncf"}
_OFFICIAL_RESNET = re.compile(r"official_resnet_(\d{1,4})_v([12])$")
_PRECISIONS = {"float32": "fp32", "float16": "fp16"}
_TOTAL = re.compile(rf"total images/sec: ({_NUMBER})$")
_GPU = re.compile(
    rb"device:GPU:(\d{1,4}) with .{1,60}-> physical GPU \(device: \d{1,4}, name: ([^,\n]{1,80}),"
)
# Lines of tf_cnn_benchmarks that are known, but contain no value for the record.
_OTHER = re.compile(
    r"=+$|-+$|Generating (?:training |evaluation )?model$|Initializing graph$|Running warm up$|"
    r"Done warm up$|Waiting for other replicas to finish warm up$|Round up warm up steps|"
    r"Starting real work at step|Finishing real work at step|Step\s{1,9}Img/sec|"
    rf"Running (?:final )?evaluation at global_step {_STEP}$|Resuming training$|"
    r"Done with training$|"
    r"Stopping, as (?:eval |the model indicates)|Successfully loaded model from|"
    r"Checkpoint not found in|"
    rf"Attempting to restore|{_STEP}\s{{1,9}}{_NUMBER} examples/sec$|:::ML|"
    r"Running parameter server|"
    r"Starting worker \d|Writing (?:partitioned )?GraphDef as|Dumping (?:trace|ProfileProto) to|"
    r"The (?:TensorBoard debugger plugin|CLI TensorFlow debugger) will be used|"
    rf"(?:[\w@/ ]{{1,40}} = {_NUMBER} ){{1,20}}\[{_STEP} examples\]$"
)
# An unknown line with one of these texts may be a result, so it is reported.
_RESULT = re.compile(r"images/sec|(?:Accuracy|Precision) @ ")
# A run prints each of these lines only once, so a repetition means mixed lines of several
# processes.
_ONCE = re.compile("Generating training model$|Running warm up$|Done warm up$|total images/sec: ")
_UNKNOWN = ("commit", "step_seconds", "memory", "startup")


_IDENTIFYING = re.compile(prefixed_pattern(rf"{_KNOWN}|total images/sec: "), re.MULTILINE)
# Python searches a pattern that begins with a text quickly. Each line that `_IDENTIFYING` matches
# contains one of these patterns, except lines of an unknown form.
_MARKS = (
    re.compile(rb"Model: {3,9}\S"),
    re.compile(rb"images/sec: (?<=[\d \t][ \t]images/sec: )(?=\S{1,40} \+/- )"),
    re.compile(rb"total images/sec: "),
)
_LONGEST_PREFIX = 250


def _is_anywhere(data: bytes) -> bool:
    """Whether a line of a file is a line of tf_cnn_benchmarks, possibly behind a prefix."""
    for mark in _MARKS:
        for match in mark.finditer(data):
            begin = max(0, match.start() - _LONGEST_PREFIX)
            start = data.rfind(b"\n", begin, match.start()) + 1
            if (start or not begin) and _IDENTIFYING.match(data, start):
                return True
    return False


@register_reader(PROGRAM, _IDENTIFYING.pattern, _is_anywhere)
def read(file: ResultFile) -> Iterable[RunRecord]:
    """Creates a record for each run in a log of tf_cnn_benchmarks, with the printed values."""
    gpus = {int(place): name.decode() for place, name in _GPU.findall(file.data)}
    part = 0
    for lines, time in lines_of_processes(file.text, _KNOWN):
        logs = [RunLog(file, run) for run in _split_runs(lines)]
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


def _row_metrics(row: PrintedSpeed, *, has_loss: bool) -> dict[str, float]:
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


def _flag_of_model(name: str | None) -> str | None:
    """Returns the value of --model for the name of a network in the header."""
    official = _OFFICIAL_RESNET.match(name or "")
    if official:
        return f"official_resnet{official[1]}{'_v2' if official[2] == '2' else ''}"
    return None if name is None else _MODELS.get(name, name)


class RunLog:
    """Values that were parsed from the output of one run.

    Attributes:
      file: the file with the output.
      header: values of the header by label.
      rows: rows of the table of speeds.
      values: values by name of the metric.
      parameters: further entries of `config`, by name.
      software: further properties of the software, by name in records.
      is_complete: whether the output has its last lines.
      mixed: the first line that shows that lines of several processes are mixed.
    """

    def __init__(self, file: ResultFile, lines: Iterable[Line] = ()) -> None:
        self.file = file
        self.header: dict[str, str] = {}
        self.rows: list[PrintedSpeed] = []
        self.values: dict[str, float] = {}
        self.parameters: dict[str, str] = {}
        self.software: dict[str, Any] = {}
        self.is_complete = False
        self._seen: set[str] = set()
        self.mixed: Line | None = None
        self._unknown: list[Line] = []
        for number, text in lines:
            self._parse_line(number, text)
        # Unknown lines are of other programs if the results of the run are complete.
        for number, text in self._unknown:
            self.file.skip(number, text, is_foreign=self.is_complete)

    def _parse_line(self, number: int, text: str) -> None:
        if match := _HEADER.match(text):
            self._note_repetition(match[1] in self.header, number, text)
            self.header[match[1]] = (match[2] or "").strip()
        elif match := _MORE.match(text):
            self.header[match[2]] = match[1]
            self.header[match[4] or "passes"] = match[3] or "1"
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
        elif _RESULT.search(text):
            self.file.skip(number, text)
        elif not _OTHER.match(text):
            self._unknown.append((number, text))
        if match := _ONCE.match(text):
            self._note_repetition(match[0] in self._seen, number, text)
            self._seen.add(match[0])
        # A training with evaluations prints no total speed. One of these lines shows that the
        # training is complete.
        self.is_complete |= text.startswith(("Running final evaluation", "Done with training"))
        return None

    def _note_repetition(self, is_repeated: bool, number: int, text: str) -> None:
        if is_repeated and self.mixed is None:
            self.mixed = number, text

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
        config, (batch, placement) = self._header_flags(), self._placement()
        last = self.rows[-1] if self.rows else None
        # An earlier row shows the speed of the first steps alone, and no final loss.
        if last is not None and last.step == self._header_number("Num batches"):
            self.values |= _row_metrics(last, has_loss=not config["forward_only"])
        speed = self._speed(last, placement is None or placement.num_workers == 1)
        if speed is not None:
            self.values["throughput"] = speed
        version = self.header.get("TensorFlow")
        known: dict[str, Any] = {"tensorflow_version": version} if version else {}
        if gpus:
            known["gpu_names"] = [gpus[number] for number in sorted(gpus)]
        known |= {**self.software, **(environment or {})}
        status = "ok" if self.is_complete else "interrupted"
        started = self.file.time(time)
        # cnnbench prints the flags that differ from their defaults; tf_cnn_benchmarks does not.
        flags = parse_json_object(self.header.get("Flags", ""))
        if flags is not None:
            run = RunRecord(
                run_id=self.file.run_id(CNNBENCH, part),
                started_at=started or self.file.changed_at,
                status=status,
                command=(),
                config=flags,
                environment=known,
                batch=batch,
                placement=placement,
            )
            return self._own_record(run, part, () if started else (START,))
        lacks = {
            "model": "model" not in config,
            "precision": "precision" not in config,
            "tensorflow_version": not version,
            "machine": not (gpus or environment),
            "devices": "num_gpus" not in config,
            "batch": batch is None,
        }
        return self.file.run(
            PROGRAM,
            config | self.parameters,
            started_at=started or "",
            status=status,
            part=part,
            environment=known,
            values=self.values,
            printed=tuple(self.rows),
            unknown=(*_UNKNOWN, *(name for name, is_unknown in lacks.items() if is_unknown)),
            batch=batch,
            placement=placement,
        )

    def _speed(self, last: PrintedSpeed | None, alone: bool) -> float | None:
        """The total speed. If the log of a single worker has none, its last row has the value."""
        speed, steps = self.values.get("total_images_per_sec"), self._header_number("Num batches")
        if speed is None and last and alone and last.step == steps:
            return last.images_per_sec
        return speed

    def _own_record(self, run: RunRecord, part: int, unknown_start: Sequence[str]) -> RunRecord:
        """Creates the record of a run of cnnbench, whose throughput is the speed at the mean step:
        the last row, if it is the row of the last step.
        """
        values = dict(self.values)
        last = self.rows[-1] if self.rows else None
        unknown = [*UNKNOWN_OF_OWN_RUN, *unknown_start]
        if run.config.get("eval"):
            # In an evaluation, the printed total is the speed of the steps, not of the whole loop.
            values.pop("total_images_per_sec", None)
        if last is not None and last.step == self._header_number("Num batches"):
            values["throughput"] = last.images_per_sec
        elif last is not None:
            values.pop("throughput", None)
            unknown.append("throughput")
        return self.file.own_run(
            run, part, values=values, printed=tuple(self.rows), unknown=tuple(unknown)
        )

    def _placement(self) -> tuple[Batch | None, Placement | None]:
        """Returns what the header says about images and devices. The number of workers follows from
        both: the header of a worker has its own devices, and the images of the whole job; the
        header of a controller has the devices of all workers.
        """
        places = self._device_names()
        per_device, whole = (self._header_number(name) for name in ("per device", "Batch size"))
        if not (per_device and whole):
            return None, None
        batch = Batch(per_device=per_device, global_=whole)
        if not places:
            return batch, None
        passes = self._header_number("passes") or 1
        copies = max(1, whole // (per_device * passes * len(places)))
        placement = Placement(
            device="gpu" if "gpu" in places[0].lower() else "cpu",
            devices=tuple(places),
            num_towers=len(places) * copies,
            num_workers=len({place.rpartition("/")[0] for place in places}) * copies,
            variable_update=self.header.get("Variables", "unknown"),
            all_reduce=tuple(filter(None, [self.header.get("AllReduce")])),
        )
        return batch, placement

    def _header_flags(self) -> dict[str, Any]:
        """Returns the flags whose values follow from the header of the log."""
        header, mode = self.header, self.header.get("Mode", "")
        dataset, _, synthetic = header.get("Dataset", "").partition(" (")
        places = self._device_names()
        device = None
        if places:
            device = "gpu" if "gpu" in places[0].lower() else "cpu"
        flags = {
            "model": _flag_of_model(header.get("Model")),
            "data_name": dataset.lower() or None,
            # The header shows whether the data was real, but not in which folder it was.
            "data_dir": None if synthetic or dataset == "synthetic" else "unknown",
            "eval": mode == "evaluation",
            "forward_only": "forward" in mode,
            "batch_size": self._header_number("per device"),
            "num_batches": self._header_number("Num batches"),
            "num_gpus": len(places) or None,
            "device": device,
            "variable_update": header.get("Variables"),
            "optimizer": header.get("Optimizer"),
            "precision": _PRECISIONS.get(header.get("Data type", "")),
            "data_format": header.get("Data format"),
            "all_reduce_spec": header.get("AllReduce"),
            "horovod_device": header.get("Horovod on"),
            "cross_replica_sync": header.get("Sync", "True") == "True",
            "staged_vars": "Staged vars" in header or None,
            "batch_group_size": self._header_number(_GROUP),
            # Which worker wrote the log, and how many there were, is unknown.
            "job_name": "worker" if places and places[0].startswith("/job:worker") else None,
            "training_and_evaluation": "+" in mode or None,
        }
        return {name: value for name, value in flags.items() if value is not None}

    def _device_names(self) -> list[str]:
        return re.findall(r"'([^']{1,200})'", self.header.get("Devices", ""))

    def _header_number(self, name: str) -> int | None:
        """Reads a whole number of the header (early versions print 32 as 32.0); None if none."""
        try:
            number = float(self.header.get(name, "").removesuffix(" global"))
        except ValueError:
            return None
        return int(number) if number.is_integer() and number > 0 else None
