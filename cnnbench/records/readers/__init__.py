"""Defines the classes and the registry of readers for `cnnbench import`, and finds the reader of a
file.

A reader is a function of a `ResultFile` with the decorator `register_reader`, in a module of
`cnnbench.records.readers` or in a plug-in. It creates records from a result file of another
program. A reader never guesses: values that the file does not contain remain unknown in the record.
If it does not understand a line or a value, it reports this with `ResultFile.skip`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar

from cnnbench.base import interfaces, plugins
from cnnbench.base.files import parse_json, read_file
from cnnbench.base.registry import Registry
from cnnbench.base.text import shortened
from cnnbench.base.values import FLAG as RESULT_LABEL
from cnnbench.base.values import parse_labels
from cnnbench.errors import UsageError
from cnnbench.records.codec import is_valid_amount
from cnnbench.records.launchers import Line
from cnnbench.records.run import BENCHMARK_SCORE, Imported, RunRecord
from cnnbench.records.subject import Subject

MIXED = (
    "repeats a value, so lines of several processes are mixed, which cannot be told apart; print "
    "lines with the rank, as srun --label and mpirun --tag-output do"
)
"""Why the lines of a log are left out if several processes wrote into it without tags."""

CNNBENCH = "cnnbench"
UNKNOWN_OF_OWN_RUN = ("step_seconds", "memory", "startup")
_MOST_SHOWN = 60

LONGEST_LINE = 1 << 20
"""Longest line of a log or table that is read, in characters."""

_FRACTION = re.compile(r"\.\d{1,20}")
# Words for infinity and NaN that C libraries write into JSON files, although they are not valid
# JSON.
_BARE_WORD = re.compile(rb"(?<=[:\[,\s])-?(?:inf|nan)(?=\s*[,}\]])")

CLOCKS = ("real", "cpu")
"""Values of --clock: real time, or CPU time."""

START = "started_at"
"""Name of the start time in `Imported.unknown`."""

_UNITS: Mapping[str, tuple[str, float]] = {
    "s": ("benchmark_seconds", 1.0),
    "ms": ("benchmark_seconds", 1e-3),
    "us": ("benchmark_seconds", 1e-6),
    "ns": ("benchmark_seconds", 1e-9),
    "bytes": ("benchmark_bytes", 1.0),
    "B": ("benchmark_bytes", 1.0),
}
"""Kind of a benchmark, and the factor for its values, by the unit in the file."""


class SkippedLine(NamedTuple):
    """A line of a result file that a reader could not read. If `line` is 0, the reader could not
    read the whole file or one of its values. A foreign line is from another program, such as a
    library, because the results in the file are complete without it.
    """

    path: str
    line: int
    reason: str
    is_foreign: bool = False

    @classmethod
    def quoting(
        cls, path: str, line: int, text: str, reason: str, *, is_foreign: bool = False
    ) -> SkippedLine:
        """Creates a `SkippedLine` whose reason begins with the quoted, shortened `text`."""
        return cls(path, line, f"{shortened(text, _MOST_SHOWN)!r} {reason}", is_foreign)

    def __str__(self) -> str:
        where = f"{self.path}: line {self.line}" if self.line else self.path
        return f"{where}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What users say about result files, because the files do not.

    Attributes:
      labels: labels of the records, in the form of --result_label.
      higher_is_better: patterns for the names of benchmarks whose larger values are better.
      clock: which time to read if a file has both, one of `CLOCKS`.
    """

    labels: str = ""
    higher_is_better: tuple[str, ...] = ()
    clock: str = CLOCKS[0]


@dataclass
class ResultFile:
    """A result file of another program, from which a reader creates records.

    Attributes:
      path: its path.
      data: its content.
      options: what the user says about the file.
      skipped: the parts that the reader did not understand.
      only_describes: whether the file only describes results in other files, so that no record is
        expected from it.
      json_fault: ": " and why the content is no JSON, if it begins as JSON and `document` was read.
    """

    path: str
    data: bytes
    options: ReadOptions = field(default_factory=ReadOptions)
    skipped: list[SkippedLine] = field(default_factory=list)
    only_describes: bool = False

    def __post_init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._reported: set[SkippedLine] = set()
        self._counted = 0
        self.json_fault = ""

    @cached_property
    def sha256(self) -> str:
        """SHA-256 digest of the file's content. The run_id of every record contains the digest."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def changed_at(self) -> str:
        """Time of the file's last change (ISO 8601, UTC). The program that wrote the file ended
        then or earlier.
        """
        return datetime.fromtimestamp(os.stat(self.path).st_mtime, timezone.utc).isoformat()

    @cached_property
    def text(self) -> str:
        """The content of the file. Invalid UTF-8 is replaced. Lines of more than `LONGEST_LINE`
        characters are reported, and empty in the text.
        """
        text = self.data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
        if len(text) <= LONGEST_LINE:
            return text
        lines = text.split("\n")
        for number, line in enumerate(lines, start=1):
            if len(line) > LONGEST_LINE:
                self.skip(number, line, f"has more than {LONGEST_LINE:,} characters")
                lines[number - 1] = ""
        return "\n".join(lines)

    @property
    def lines(self) -> Iterator[Line]:
        """All lines of the file, each with its line number; see `text`."""
        return enumerate(self.text.split("\n"), start=1)

    def skip(
        self, line: int, text: str, reason: str = "is not understood", *, is_foreign: bool = False
    ) -> None:
        """Reports a line that the reader could not read or, if `line` is 0, a value of the whole
        file.
        """
        skipped = SkippedLine.quoting(self.path, line, text, reason, is_foreign=is_foreign)
        if skipped not in self._reported:
            self._reported.add(skipped)
            self.skipped.append(skipped)

    def skip_unknown_lines(self, lines: Iterable[Line], is_complete: bool) -> None:
        """Reports the lines of a run that the reader does not know. They are foreign if the results
        of the run are complete.
        """
        for number, text in lines:
            self.skip(number, text, is_foreign=is_complete)

    def run(
        self,
        program: str,
        config: Mapping[str, Any],
        *,
        started_at: str = "",
        status: str = "ok",
        part: int = 1,
        environment: Mapping[str, Any] | None = None,
        **imported: Any,
    ) -> RunRecord:
        """Creates the record of a run of a network.

        Args:
          program: program that wrote the file.
          config: known flags. Unknown flags that identify a configuration are set to None.
          started_at: ISO 8601; "": `changed_at`.
          status: "ok", or "interrupted" if the results are not complete.
          part: number of the process in the file, from 1.
          environment: known properties of machine and software.
          **imported: further attributes of `Imported`, and of `RunRecord` such as `batch`.
        """
        unknown = {
            **{"model": None, "batch_size": None, "precision": None},
            **{"num_gpus": None, "device": None, "variable_update": None},
        }
        return self._make_record(
            program,
            {**unknown, **config},
            started_at,
            status,
            part,
            environment,
            Subject(),
            **imported,
        )

    def benchmark(
        self,
        program: str,
        name: str,
        value: object,
        unit: str,
        part: int,
        *,
        position: int = 1,
        higher_is_better: bool = False,
        parameters: Mapping[Any, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        subject: Subject | None = None,
        started_at: object = None,
    ) -> Iterator[RunRecord]:
        """Yields the record of a benchmark that is not a run of a network. Yields nothing if the
        value is not a positive number.

        Args:
          program: program that wrote the file.
          name: name of the benchmark.
          value: its value in one process.
          unit: unit of the value, as in the file; "" if the value is a number. Times and sizes are
            converted to seconds and bytes. Other units are recorded.
          part: number of the value in the file, from 1.
          position: see `position`.
          higher_is_better: whether larger values are better. Users can also say so.
          parameters: parameters of the benchmark by name.
          environment: properties of machine and software; None or "" where unknown.
          subject: the measured code.
          started_at: ISO 8601, without an offset in UTC, or seconds since 1970; None: the date of
            the commit or, if it is unknown, `changed_at`.
        """
        if not is_amount(value):
            self.skip(0, name, f"has no value: {shortened(repr(value), _MOST_SHOWN)}")
            return
        if higher_is_better or self.says_higher_is_better(name):
            kind, factor = BENCHMARK_SCORE, 1.0
        else:
            kind, factor = _UNITS.get(unit, ("benchmark_number", 1.0))
        config: dict[str, Any] = {"benchmark": name}
        config |= {f"parameter_{key}": str(value) for key, value in (parameters or {}).items()}
        config |= {"position": position} if position > 1 else {}
        items = (environment or {}).items()
        known = {key: value for key, value in items if value not in (None, "")}
        if unit and (kind == BENCHMARK_SCORE or unit not in _UNITS):
            known["unit"] = unit
        yield self._make_record(
            program,
            config,
            started_at,
            "ok",
            part,
            known,
            subject or Subject(),
            kind=kind,
            values={kind: factor * value},
        )

    def says_higher_is_better(self, name: str) -> bool:
        """Whether the user says that larger values of a benchmark are better."""
        return any(fnmatchcase(name, pattern) for pattern in self.options.higher_is_better)

    def time(self, time: object) -> str | None:
        """Converts a time as `time_text` does; None if it is None or "". Reports other values that
        are not understood, and also returns None.
        """
        text = time_text(time)
        if time not in (None, "") and not text:
            self.skip(0, str(time), "is not a time")
        return text or None

    def position(self, name: str, parameters: Mapping[Any, Any] | None = None) -> int:
        """Counts the benchmarks of the file that have the same name and parameters: 1 for the first
        call with them, 2 for the second one. They may be different benchmarks, so values of
        different positions are never combined.
        """
        key = repr((name, parameters))
        self._names[key] += 1
        return self._names[key]

    def json(self) -> Any:
        """Parses the file as JSON. The words for infinity and NaN that asv and old versions of
        google/benchmark write are accepted. ValueError if the content is not JSON.
        """
        try:
            return parse_json(self.data, any_number=True)
        except ValueError:
            words = {b"inf": b"Infinity", b"-inf": b"-Infinity"}
            changed, number = _BARE_WORD.subn(lambda at: words.get(at[0], b"NaN"), self.data)
            if not number:
                raise
            return parse_json(changed, any_number=True)

    @cached_property
    def document(self) -> Any:
        """The content of the file as JSON; None if the content is not JSON. See `json_fault`."""
        if self.data[:_BEGINNING].lstrip()[:1] not in (b"{", b"["):
            return None
        try:
            return self.json()
        except ValueError as error:
            self.json_fault = f": {error}"
            return None

    def _take_skipped(self) -> tuple[int, ...]:
        """Numbers of the lines that were skipped since the previous record was made."""
        last = self.skipped[self._counted :]
        numbers = [one.line for one in last if one.line and not one.is_foreign]
        self._counted = len(self.skipped)
        return tuple(sorted(numbers))

    def _make_record(
        self,
        program: str,
        config: Mapping[str, Any],
        started_at: object,
        status: str,
        part: int,
        environment: Mapping[str, Any] | None,
        subject: Subject,
        **imported: Any,
    ) -> RunRecord:
        time = self.time(started_at)
        known = {key: imported.pop(key) for key in ("batch", "placement") if key in imported}
        labels = self.options.labels
        config = {**config, "imported_from": program, **({RESULT_LABEL: labels} if labels else {})}
        if "model" in config and config["model"] is None:
            # Two runs of unknown networks may differ, so they never count as repetitions.
            config["model_of_file"] = f"{self.sha256[:12]}-{part}"
        if time is None:
            imported["unknown"] = (*imported.get("unknown", ()), START)
        # If a label names another commit, the commit's date no longer applies.
        measured = subject.with_labels(parse_labels(labels))
        committed_at = None if measured is None else measured.committed_at
        return RunRecord(
            run_id=self.run_id(program, part),
            started_at=time or committed_at or self.changed_at,
            status=status,
            command=(),
            config=config,
            environment=environment or {},
            subject=measured,
            imported=self._origin(program, part, imported),
            **known,
        )

    def own_run(self, run: RunRecord, part: int = 1, **imported: Any) -> RunRecord:
        """Creates the record of a run of cnnbench whose configuration the file describes
        completely. It belongs to the same configuration as the record that the run itself wrote.

        Args:
          run: what is known of the run.
          part: number of the run in the file, from 1.
          **imported: further attributes of `Imported`.
        """
        imported.setdefault("unknown", UNKNOWN_OF_OWN_RUN)
        origin = self._origin(CNNBENCH, part, imported)
        labels = self.options.labels
        if not labels:
            return replace(run, imported=origin)
        subject = (run.subject or Subject()).with_labels(parse_labels(labels))
        config = {**run.config, RESULT_LABEL: labels}
        return replace(run, imported=origin, config=config, subject=subject)

    def run_id(self, program: str, part: int) -> str:
        """The unique name of a run in this file: equal content has equal names."""
        return f"{program}-{self.sha256[:20]}-{part}"

    def _origin(self, program: str, part: int, imported: Mapping[str, Any]) -> Imported:
        return Imported(
            program=program,
            file=os.path.basename(self.path),
            sha256=self.sha256,
            part=part,
            skipped_lines=self._take_skipped(),
            **imported,
        )


def time_text(time: object) -> str:
    """Converts a time to ISO 8601 with an offset. A text without an offset is in UTC, and a number
    is in seconds since 1970. Returns "" for other values.
    """
    try:
        if isinstance(time, str):
            # In Python 3.10, `fromisoformat` accepts neither Z nor nanoseconds.
            whole = _FRACTION.sub(lambda digits: f"{digits[0]:0<7.7}", time.replace("Z", "+00:00"))
            moment = datetime.fromisoformat(whole)
        elif is_amount(time):
            moment = datetime.fromtimestamp(time, timezone.utc)
        else:
            return ""
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        moment.astimezone(timezone.utc)  # Fails outside of the years 1 to 9999.
        return moment.isoformat()
    except (OSError, OverflowError, ValueError):
        return ""


def mean_or_invalid(values: Sequence[object]) -> object:
    """Returns the mean of values, or the first value that cannot be in a record."""
    amounts = [value for value in values if is_amount(value)]
    if len(amounts) < len(values):
        return next(value for value in values if not is_amount(value))
    return fmean(amounts) if amounts else None


def parse_json_object(text: str) -> dict[str, Any] | None:
    """Parses a text that is a JSON object, such as a line of a log; None for other texts."""
    try:
        parsed = parse_json(text, any_number=True)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def scalars(mapping: object) -> Iterator[tuple[str, Any]]:
    """Yields the items of a mapping. Lists and objects are converted to JSON text, and null is left
    out. Yields nothing if `mapping` is no mapping.
    """
    for key, value in mapping.items() if isinstance(mapping, dict) else ():
        if isinstance(value, (list, dict)):
            yield key, json.dumps(value, sort_keys=True)
        elif value is not None:
            yield key, value


def is_amount(value: object) -> TypeGuard[float]:
    """Whether a value of a file is a number that a record can contain as a time, size or rate."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return is_valid_amount(value)


Read: TypeAlias = "Callable[[ResultFile], Iterable[RunRecord]]"
_R = TypeVar("_R", bound=Read)


class Reader(NamedTuple):
    """A registered reader of result files.

    Attributes:
      name: name of the program, as in --reader.
      pattern: regular expression that matches the beginning of its files only; None for a reader of
        JSON.
      read: makes the records of a file.
      fits: whether a JSON document is from the program; None for a reader of text.
      after: names of readers that have priority.
    """

    name: str
    pattern: re.Pattern[bytes] | None
    read: Read
    fits: Callable[[Any], bool] | None = None
    after: tuple[str, ...] = ()

    def can_read(self, file: ResultFile) -> bool:
        """Whether a file is from the program."""
        if self.fits is not None:
            return file.document is not None and self.fits(file.document)
        return self.pattern is not None and bool(self.pattern.search(file.data[:_BEGINNING]))


READERS: Registry[str, Reader] = Registry(
    "reader",
    "cnnbench.records.readers.register_reader(name, pattern)",
    flag="reader",
    group="cnnbench.readers",
    own=__name__,
)
"""All readers by name. A file is read by the first reader that can read it."""


def has_keys(*paths: str) -> Callable[[Any], bool]:
    """Returns a function that says whether a JSON document has all the given keys.

    A dot stands for nesting: "results.command" is the key "command" in the value of "results". If a
    value is a list, its first item is used.
    """

    def has_key(document: Any, path: str) -> bool:
        for key in path.split("."):
            if isinstance(document, list):
                document = document[0] if document else None
            if not isinstance(document, dict) or key not in document:
                return False
            document = document[key]
        return True

    return lambda document: all(has_key(document, path) for path in paths)


def register_reader(
    name: str,
    pattern: bytes | None = None,
    *,
    fits: Callable[[Any], bool] | None = None,
    after: tuple[str, ...] = (),
) -> Callable[[_R], _R]:
    """Decorator that registers a function of a `ResultFile` as a reader.

    Args:
      name: name of the program.
      pattern: for files of text: regular expression that is searched in the first 64 KiB of a file;
        ^ matches at every line.
      fits: for files of JSON, instead of a pattern: whether a document is from the program, such as
        `has_keys("results.command")`. The order of keys and white space do not matter.
      after: names of readers that read a file if both can read it.

    Raises:
      UsageError: the name is already registered, or the pattern is invalid or missing.
    """

    def register(read: _R) -> _R:
        if not str(read.__module__).startswith(f"{__name__}."):
            # cnnbench's own readers are registered before plug-ins, which therefore cannot take
            # their names.
            READERS.load_own()
        plugins.check_name("a reader", name)
        if (pattern is None) == (fits is None):
            raise UsageError(f"reader {name!r}: either a pattern or fits= must be given")
        try:
            compiled = None if pattern is None else re.compile(pattern, re.MULTILINE)
        except (re.error, TypeError) as error:
            raise UsageError(
                f"reader {name!r}: {pattern!r} is not a regular expression: {error}"
            ) from None
        checked = interfaces.with_checked_results(read, Iterable[RunRecord], ("file",))
        READERS.add(name, Reader(name, compiled, checked, fits, after))
        return read

    return register


_BEGINNING = 1 << 16
# Exceptions that a reader may raise if a file does not have the expected form.
_MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


def _find_reader(file: ResultFile) -> Reader | None:
    for reader in READERS.values():
        if reader.can_read(file) and not any(READERS[name].can_read(file) for name in reader.after):
            return reader
    return None


def read_results(
    path: str, options: ReadOptions | None = None, reader: str = ""
) -> tuple[Sequence[RunRecord], Sequence[SkippedLine]]:
    """Reads the records in a result file of another program. Also returns the lines that could not
    be read.

    Args:
      path: path of the file.
      options: what the user says about the file.
      reader: name of the reader; "" means the first one that can read the file.

    Raises:
      PathError: the file cannot be read.
    """
    READERS.load_own()
    READERS.load_packages()
    file = ResultFile(path, read_file(path), options or ReadOptions())
    chosen = READERS[reader] if reader else None
    try:
        with plugins.reporting_plugin_errors(UsageError):
            chosen = chosen or _find_reader(file)
            records = () if chosen is None else tuple(chosen.read(file))
    except _MALFORMED as error:
        if chosen and plugins.plugin_of_object("reader", chosen.name) is not None:
            raise
        of = f" of {chosen.name}" if chosen else ""
        what = f"is not a complete file{of}: {type(error).__name__}: {shortened(str(error))}"
        return (), (*file.skipped, SkippedLine(path, 0, what))
    if chosen is None:
        unknown = f"no reader knows this kind of file{file.json_fault}"
        return (), (SkippedLine(path, 0, unknown),)
    if not records and not file.skipped and not file.only_describes:
        return (), (SkippedLine(path, 0, f"contains no complete result of {chosen.name}"),)
    return records, tuple(sorted(file.skipped, key=lambda skipped: skipped.line))
