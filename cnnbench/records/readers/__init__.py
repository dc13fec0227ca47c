"""Defines the classes and the registry of readers for `cnnbench import`, and finds the reader of a
file.

A reader is a function of a `ResultFile` with the decorator `register_reader`, in a module of
`cnnbench.records.readers` or in a plug-in. It creates records from a result file of another
program. A reader never guesses: values that the file does not contain remain unknown in the record.
If it does not understand a line or a value, it reports this with `ResultFile.skip`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cnnbench.base import plugins
from cnnbench.base.files import read_file
from cnnbench.base.text import FLAG as RESULT_LABEL
from cnnbench.base.text import parse_labels
from cnnbench.errors import UsageError
from cnnbench.records import readers
from cnnbench.records.codec import is_valid_amount
from cnnbench.records.launchers import Line, ProcessLines, lines_of_processes
from cnnbench.records.run import BENCHMARKS, Imported, RunRecord, Subject

ENTRY_POINT_GROUP = "cnnbench.readers"

MIXED = (
    "repeats a value, so lines of several processes are mixed, which cannot be told apart; print "
    "lines with the rank, as srun --label and mpirun --tag-output do"
)
"""Why the lines of a log are left out if several processes wrote into it without tags."""

_MOST_SHOWN = 60


class SkippedLine(NamedTuple):
    """A line of a result file that a reader could not read. If `line` is 0, the reader could not
    read the whole file or one of its values.
    """

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.path}: line {self.line}" if self.line else self.path
        return f"{where}: {self.reason}"


@dataclass
class ResultFile:
    """A result file of another program, from which a reader creates records.

    Attributes:
      path: its path.
      data: its content.
      labels: labels of the records, in the form of --result_label.
      skipped: the parts that the reader did not understand.
      others: paths of further files that are part of the same results.
    """

    path: str
    data: bytes
    labels: str = ""
    skipped: list[SkippedLine] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

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

    @property
    def lines(self) -> Iterator[Line]:
        """All lines of the file, each with its line number. Invalid UTF-8 is replaced."""
        text = self.data.decode("utf-8-sig", "replace")
        return enumerate(text.replace("\r\n", "\n").split("\n"), start=1)

    def processes(self, known: str) -> Sequence[ProcessLines]:
        """Returns the lines of each process in a log, without prefixes of launchers, log lines of
        libraries and empty lines. `known` is as in `lines_of_processes`.
        """
        return lines_of_processes(self.data.decode("utf-8-sig", "replace"), known)

    def skip(self, line: int, text: str, reason: str = "is not understood") -> None:
        """Reports a line that the reader could not read or, if `line` is 0, a value of the whole
        file.
        """
        shown = text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
        self.skipped.append(SkippedLine(self.path, line, f"{shown!r} {reason}"))

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
        parameters: Mapping[Any, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        subject: Subject | None = None,
        started_at: str | None = None,
    ) -> Iterator[RunRecord]:
        """Yields the record of a benchmark that is not a run of a network. Yields nothing if the
        value is not a positive number.

        Args:
          program: program that wrote the file.
          name: name of the benchmark.
          value: its value in one process; less is better.
          unit: unit of the value: "s", "bytes" or "number".
          part: number of the value in the file, from 1.
          parameters: parameters of the benchmark by name.
          environment: properties of machine and software; None where unknown.
          subject: the measured code.
          started_at: ISO 8601, without an offset in UTC; None: `changed_at`.
        """
        if not isinstance(value, (int, float)) or not is_valid_amount(value):
            self.skip(0, name, f"has no value: {value!r}")
            return
        kind = next(kind for kind, of in BENCHMARKS.items() if of == unit)
        config = {"benchmark": name}
        config |= {f"parameter_{key}": str(value) for key, value in (parameters or {}).items()}
        known = {key: value for key, value in (environment or {}).items() if value is not None}
        yield self._make_record(
            program,
            config,
            _with_utc_offset(started_at),
            "ok",
            part,
            known,
            subject or Subject(),
            kind=kind,
            values={kind: float(value)},
        )

    def json(self) -> Any:
        """Parses the file as JSON. The words Infinity and NaN, which asv writes, are accepted.
        ValueError if the content is not JSON.
        """
        return json.loads(self.data)

    def _make_record(
        self,
        program: str,
        config: Mapping[str, Any],
        started_at: str,
        status: str,
        part: int,
        environment: Mapping[str, Any] | None,
        subject: Subject,
        **imported: Any,
    ) -> RunRecord:
        known = {key: imported.pop(key) for key in ("batch", "placement") if key in imported}
        labels = {RESULT_LABEL: self.labels} if self.labels else {}
        config = {**config, "imported_from": program, **labels}
        return RunRecord(
            run_id=f"{program}-{self.sha256[:20]}-{part}",
            started_at=started_at or self.changed_at,
            status=status,
            command=(),
            config=config,
            environment=environment or {},
            subject=subject.with_labels(parse_labels(self.labels)),
            imported=Imported(
                program=program,
                file=os.path.basename(self.path),
                sha256=self.sha256,
                part=part,
                skipped_lines=tuple(line.line for line in self.skipped if line.line),
                **imported,
            ),
            **known,
        )


def _with_utc_offset(time: str | None) -> str:
    """Adds +00:00 (UTC) to an ISO 8601 time that has no offset. Returns "" for an unknown time."""
    try:
        moment = datetime.fromisoformat((time or "").replace("Z", "+00:00"))
    except ValueError:
        return ""
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).isoformat()


Read: TypeAlias = "Callable[[ResultFile], Iterable[RunRecord]]"
_R = TypeVar("_R", bound=Read)


class Reader(NamedTuple):
    """A registered reader of result files.

    Attributes:
      name: name of the program, as in --reader.
      pattern: regular expression that matches the beginning of its files only.
      read: makes the records of a file.
    """

    name: str
    pattern: re.Pattern[bytes]
    read: Read


READERS: dict[str, Reader] = {}
"""All readers by name. A file is read by the first reader whose pattern matches."""


def register_reader(name: str, pattern: bytes) -> Callable[[_R], _R]:
    """Decorator that registers a function of a `ResultFile` as a reader.

    Args:
      name: name of the program.
      pattern: regular expression that is searched in the first 64 KiB of a file; ^ matches at every
        line.

    Raises:
      UsageError: the name is already registered, or the pattern is invalid.
    """

    def register(read: _R) -> _R:
        if not str(read.__module__).startswith(f"{__name__}."):
            # cnnbench's own readers are registered first, so plug-ins cannot use their names.
            load_readers()
        plugins.check_name("a reader", name)
        if name in READERS:
            raise UsageError(f"reader {name!r} is registered already; choose another name")
        try:
            compiled = re.compile(pattern, re.MULTILINE)
        except (re.error, TypeError) as error:
            raise UsageError(
                f"reader {name!r}: {pattern!r} is not a regular expression: {error}"
            ) from None
        checked = plugins.with_checked_results(read, Iterable[RunRecord], ("file",))
        READERS[name] = Reader(name, compiled, checked)
        return read

    return register


@cache
def load_readers() -> None:
    """Registers the readers that are part of cnnbench. Plug-ins register their own readers."""
    for module in plugins.submodule_names(readers):
        importlib.import_module(f"{__name__}.{module}")


_BEGINNING = 1 << 16


def read_results(
    path: str, labels: str = "", reader: str = ""
) -> tuple[Sequence[RunRecord], Sequence[SkippedLine]]:
    """Reads the records in a result file of another program. Also returns the lines that could not
    be read.

    Args:
      path: path of the file.
      labels: labels of the records, in the form of --result_label.
      reader: name of the reader; "" means the first one whose pattern matches.

    Raises:
      PathError: the file cannot be read.
    """
    load_readers()
    plugins.load_entry_points(ENTRY_POINT_GROUP)
    file = ResultFile(path, read_file(path), labels)
    beginning = file.data[:_BEGINNING]
    fitting = (reader for reader in READERS.values() if reader.pattern.search(beginning))
    chosen = READERS[reader] if reader else next(fitting, None)
    if chosen is None:
        return (), (SkippedLine(path, 0, "no reader knows this kind of file"),)
    try:
        with plugins.reporting_plugin_errors(UsageError):
            records = tuple(chosen.read(file))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if plugins.plugin_of_object("reader", chosen.name) is not None:
            raise
        what = f"is not a complete file of {chosen.name}: {type(error).__name__}: {error}"
        return (), (*file.skipped, SkippedLine(path, 0, what))
    if not records and not file.skipped and not file.others:
        return (), (SkippedLine(path, 0, f"contains no complete result of {chosen.name}"),)
    return records, tuple(file.skipped)


plugins.add_plugin_kind(
    plugins.PluginKind(
        flag="reader",
        noun="reader",
        call="cnnbench.records.readers.register_reader(name, pattern)",
        table=lambda: READERS,
        prepare=load_readers,
    )
)
