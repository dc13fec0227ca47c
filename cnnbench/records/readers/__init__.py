"""Defines the classes and the registry of readers for `cnnbench import`, and finds the reader of a
file.

A reader is a function of a `ResultFile` with the decorator `register_reader`, in a module of
`cnnbench.records.readers` or in a plug-in. It creates records from a result file of another
program. A reader never guesses: values that the file does not contain remain unknown in the record.
If it does not understand a line or a value, it reports this with `ResultFile.skip`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
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
from cnnbench.records.run import Imported, RunRecord
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

START = "started_at"
"""Name of the start time in `Imported.unknown`."""


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


@dataclass
class ResultFile:
    """A result file of another program, from which a reader creates records.

    Attributes:
      path: its path.
      data: its content.
      labels: labels of the records, in the form of --result_label.
      skipped: the parts that the reader did not understand.
    """

    path: str
    data: bytes
    labels: str = ""
    skipped: list[SkippedLine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reported: set[SkippedLine] = set()
        self._counted = 0

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
        time = self.time(started_at)
        known = {key: imported.pop(key) for key in ("batch", "placement") if key in imported}
        labels = self.labels
        config = {**unknown, **config, "imported_from": program}
        config |= {RESULT_LABEL: labels} if labels else {}
        if config["model"] is None:
            # Two runs of unknown networks may differ, so they never count as repetitions.
            config["model_of_file"] = f"{self.sha256[:12]}-{part}"
        if time is None:
            imported["unknown"] = (*imported.get("unknown", ()), START)
        return RunRecord(
            run_id=self.run_id(program, part),
            started_at=time or self.changed_at,
            status=status,
            command=(),
            config=config,
            environment=environment or {},
            subject=Subject().with_labels(parse_labels(labels)),
            imported=self._origin(program, part, imported),
            **known,
        )

    def time(self, time: str) -> str | None:
        """Converts a time as `time_text` does; None if it is "". Reports other values that are not
        understood, and also returns None.
        """
        text = time_text(time)
        if time and not text:
            self.skip(0, time, "is not a time")
        return text or None

    def _take_skipped(self) -> tuple[int, ...]:
        """Numbers of the lines that were skipped since the previous record was made."""
        last = self.skipped[self._counted :]
        numbers = [one.line for one in last if one.line and not one.is_foreign]
        self._counted = len(self.skipped)
        return tuple(sorted(numbers))

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
        labels = self.labels
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


def time_text(time: str) -> str:
    """Converts a time to ISO 8601 with an offset; without an offset, it is in UTC. Returns "" for
    other texts.
    """
    try:
        # In Python 3.10, `fromisoformat` accepts neither Z nor nanoseconds.
        whole = _FRACTION.sub(lambda digits: f"{digits[0]:0<7.7}", time.replace("Z", "+00:00"))
        moment = datetime.fromisoformat(whole)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        moment.astimezone(timezone.utc)  # Fails outside of the years 1 to 9999.
        return moment.isoformat()
    except (OverflowError, ValueError):
        return ""


def parse_json_object(text: str) -> dict[str, Any] | None:
    """Parses a text that is a JSON object, such as a line of a log; None for other texts."""
    try:
        parsed = parse_json(text, any_number=True)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def is_amount(value: object) -> TypeGuard[float]:
    """Whether a value of a file is a number that a record can contain as a time, size or rate."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return is_valid_amount(value)


Read: TypeAlias = "Callable[[ResultFile], Iterable[RunRecord]]"
IsAnywhere: TypeAlias = "Callable[[bytes], bool]"
_R = TypeVar("_R", bound=Read)


class Reader(NamedTuple):
    """A registered reader of result files.

    Attributes:
      name: name of the program, as in --reader.
      pattern: regular expression that matches the beginning of its files only.
      read: makes the records of a file.
      is_anywhere: whether a file contains, at any place, a line that identifies its program.
    """

    name: str
    pattern: re.Pattern[bytes]
    read: Read
    is_anywhere: IsAnywhere


READERS: Registry[str, Reader] = Registry(
    "reader",
    "cnnbench.records.readers.register_reader(name, pattern)",
    flag="reader",
    group="cnnbench.readers",
    own=__name__,
)
"""All readers by name. A file is read by the first reader whose pattern it matches."""


def _nowhere(data: bytes) -> bool:
    return False


def register_reader(
    name: str, pattern: bytes, is_anywhere: IsAnywhere = _nowhere
) -> Callable[[_R], _R]:
    """Decorator that registers a function of a `ResultFile` as a reader.

    Args:
      name: name of the program.
      pattern: regular expression that is searched in the first 64 KiB of a file; ^ matches at every
        line.
      is_anywhere: function of a whole file that no pattern matches, such as a log that begins with
        the output of an installer: whether any line identifies the program. It must take less
        than a second for 100 MB.

    Raises:
      UsageError: the name is already registered, or the pattern is invalid.
    """

    def register(read: _R) -> _R:
        if not str(read.__module__).startswith(f"{__name__}."):
            # cnnbench's own readers are registered before plug-ins, which therefore cannot take
            # their names.
            READERS.load_own()
        plugins.check_name("a reader", name)
        try:
            compiled = re.compile(pattern, re.MULTILINE)
            compiled.search(b"")  # Fails for a pattern of a text.
        except (re.error, TypeError) as error:
            raise UsageError(
                f"reader {name!r}: {pattern!r} is not a regular expression: {error}"
            ) from None
        checked = interfaces.with_checked_results(read, Iterable[RunRecord], ("file",))
        READERS.add(name, Reader(name, compiled, checked, is_anywhere))
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


def read_results(
    path: str, labels: str = "", reader: str = ""
) -> tuple[Sequence[RunRecord], Sequence[SkippedLine]]:
    """Reads the records in a result file of another program. Also returns the lines that could not
    be read.

    Args:
      path: path of the file.
      labels: labels of the records, in the form of --result_label.
      reader: name of the reader; "" means the first one that knows the file.

    Raises:
      PathError: the file cannot be read.
    """
    READERS.load_own()
    READERS.load_packages()
    file = ResultFile(path, read_file(path), labels)
    chosen = READERS[reader] if reader else _find_reader(file.data)
    if chosen is None:
        return (), (SkippedLine(path, 0, "no reader knows this kind of file"),)
    try:
        with plugins.reporting_plugin_errors(UsageError):
            records = tuple(chosen.read(file))
    except _MALFORMED as error:
        if plugins.plugin_of_object("reader", chosen.name) is not None:
            raise
        fault = f"{type(error).__name__}: {shortened(str(error))}"
        what = f"is not a complete file of {chosen.name}: {fault}"
        return (), (*file.skipped, SkippedLine(path, 0, what))
    if not records and not file.skipped:
        return (), (SkippedLine(path, 0, f"contains no complete result of {chosen.name}"),)
    return records, tuple(sorted(file.skipped, key=lambda skipped: skipped.line))


def _find_reader(data: bytes) -> Reader | None:
    """The first reader whose pattern the beginning of a file matches or, if there is none, the
    first that finds a line of its program anywhere in the file.
    """
    readers, beginning = [*READERS.values()], data[:_BEGINNING]
    found = next((one for one in readers if one.pattern.search(beginning)), None)
    if found is None and len(data) > len(beginning):
        with plugins.reporting_plugin_errors(UsageError):
            found = next((one for one in readers if one.is_anywhere(data)), None)
    return found
