"""``cnnbench import``: convert logs of tf_cnn_benchmarks and cnnbench to records."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.base import plugins
from cnnbench.base.document import Row, TableCell, make_table
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.files import read_file
from cnnbench.base.tables import natural_key
from cnnbench.base.terminal import ProgressLine, print_notice, print_result, print_warning
from cnnbench.base.text import count_text, first_few, shortened
from cnnbench.base.values import result_label_fault
from cnnbench.cli.commands import PluginFlags
from cnnbench.errors import BenchmarkError, ExitCode, PathError, UsageError
from cnnbench.flags import flag, parse_command, specs_of
from cnnbench.judge.compare.configuration import Configuration, configuration_name
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.records.files import ensure_writable, write_atomically
from cnnbench.records.readers import READERS, START, SkippedLine, read_results
from cnnbench.records.run import Imported, RunRecord

_ABOUT = """\
Usage: cnnbench import FILE... --results=DIR [FLAGS]

Converts logs of tf_cnn_benchmarks and cnnbench, folders of --benchmark_log_dir and tables of
--result_csv to records, one for each process, for history, report and compare. A plug-in can read
other files. All files of a folder are read. The name of a record depends on the content of its
file, so importing twice changes nothing. Values that a file does not contain stay unknown, and
lines that are not understood are named.
The page cnnbench docs integrations lists what is read.

  cnnbench import logs --results=old
  cnnbench report old -o report.html
"""
_EXIT_CODES = """\
Exit codes: 0 everything was imported; 3 lines or files were not understood and left out; 2 wrong
use, or with --strict lines or files that are not understood (then nothing is written); 4 a record
could not be written.
"""
_MOST_NAMED = 3
NEW, REPLACED, KNOWN = "new", "replaced, because they were different", "were there already"


def _reader_names() -> Sequence[str]:
    READERS.load_own()
    return sorted(READERS)


@dataclass(frozen=True, kw_only=True)
class ImportFlags(PluginFlags):
    """Flags of `cnnbench import`."""

    results: str | None = flag(None, "Folder for the records; required.", path="folder")
    label: str = flag(
        "",
        "Labels of the records, in the form of --result_label. commit=... is the measured commit.",
        fault=result_label_fault,
    )
    reader: str = flag(
        "",
        "Read all files as output of this program; do not detect the program from their first "
        "lines.",
        known=_reader_names,
    )
    strict: bool = flag(
        False, "If a file has a line that cannot be understood, refuse the file and write nothing."
    )
    dry_run: bool = flag(False, "List the files and runs without importing them.")


HELP = (_ABOUT, [("Flags", specs_of(ImportFlags))], _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Reads all files, then writes the new records."""
    values, paths = parse_command(argv, specs_of(ImportFlags))
    options = ImportFlags(**values)
    if not paths:
        raise UsageError("cnnbench import takes files or folders of results")
    if not options.results:
        raise UsageError("--results=DIR is missing: the folder for the records")
    plugins.load_plugins_of_flags(values)
    if options.reader:
        READERS.find(options.reader)
    found = [*_find_files(paths)]
    texts, records, skipped, copies = _read_records(found, options)
    foreign = [line for line in skipped if line.is_foreign]
    if skipped and options.strict:
        more = f" and {len(skipped) - 1} more" if skipped[1:] else ""
        raise UsageError(f"{skipped[0]}{more} (--strict)")
    if not records and not skipped:
        raise UsageError(f"{', '.join(paths)}: no files")
    if not options.dry_run:
        ensure_writable("results", options.results)
    for text in _line_warnings(line for line in skipped if not line.is_foreign):
        print_warning(text, "skipped")
    if foreign:
        lines = count_text(len(foreign), "line", "lines")
        print_notice(f"{lines} of other programs ignored, such as {foreign[0]}")
    if undated := [record for record in records if START in _imported(record).unknown]:
        names = sorted({_imported(record).file for record in undated}, key=natural_key)
        which = first_few(names, _MOST_NAMED)
        print_notice(f"{which}: no time of the run; the time of the file's last change is used")
    if options.dry_run:
        print_result(
            sections_to_text([[make_table(map(_record_row, records))]]) if records else "no records"
        )
    else:
        written = _write_records(Path(options.results), records, texts)
        done = [f"{count_text(written[NEW], 'record', 'records')} written to {options.results}"]
        for outcome in (REPLACED, KNOWN):
            done += [f"{written[outcome]} {outcome}"] if written[outcome] else []
        if copies:
            done.append(f"{count_text(copies, 'copy', 'copies')} with the same content left out")
        print_notice("; ".join(done))
    return ExitCode.INCONCLUSIVE if len(skipped) > len(foreign) else ExitCode.OK


def _find_files(paths: Sequence[str]) -> Iterator[str | SkippedLine]:
    """The given files, and all files in given folders and their subfolders, in natural order.
    Subfolders that are not read follow, each with the reason.
    """
    for path in paths:
        if not os.path.isdir(path):
            if not os.path.exists(path):
                raise PathError(path, "no such file or folder")
            yield path
            continue
        files: list[str] = []
        unread: list[SkippedLine] = []

        def note(error: OSError, unread: list[SkippedLine] = unread) -> None:
            unread.append(SkippedLine(error.filename, 0, f"cannot be read: {error.strerror}"))

        for folder, subfolders, names in os.walk(path, onerror=note):
            files += (os.path.join(folder, name) for name in names)
            links = (os.path.join(folder, name) for name in subfolders)
            unread += (
                SkippedLine(link, 0, "is a link to a folder; name the folder to import its files")
                for link in links
                if os.path.islink(link)
            )
        yield from sorted(files, key=natural_key)
        yield from sorted(unread, key=lambda folder: natural_key(folder.path))


def _read_records(
    found: Sequence[str | SkippedLine], options: ImportFlags
) -> tuple[Sequence[str], Sequence[RunRecord], Sequence[SkippedLine], int]:
    """Reads the records in all found files. Returns the JSON text of each record, the records,
    skipped lines, with those in `found`, and the number of duplicates.

    Files with equal content result in one record. A record whose text cannot be read is skipped.
    """
    texts: dict[str, str] = {}
    records: dict[str, RunRecord] = {}
    copies = 0
    skipped: list[SkippedLine] = []
    progress = ProgressLine()
    progress.start("reading", len(found))
    for number, path in enumerate(found):
        progress.update(number)
        if isinstance(path, SkippedLine):
            skipped.append(path)
            continue
        try:
            records_read, problems = read_results(path, options.label, options.reader)
        except PathError as error:
            records_read, problems = (), (SkippedLine(path, 0, error.reason),)
        for record in records_read:
            if record.run_id in records:
                copies += 1
                continue
            try:
                text = record.to_json()
                RunRecord.from_json(text)
            except ValueError as error:
                skipped.append(_skip_reason(path, record, error))
                continue
            texts[record.run_id], records[record.run_id] = text, record
        skipped += problems
    progress.finish()
    return tuple(texts.values()), tuple(records.values()), skipped, copies


def _skip_reason(path: str, record: RunRecord, error: ValueError) -> SkippedLine:
    """The reason why a record is skipped whose JSON text is not valid."""
    reason = f"makes no valid record: {shortened(str(error))}"
    return SkippedLine.quoting(path, 0, f"run {_imported(record).part}", reason)


def _line_warnings(skipped: Iterable[SkippedLine]) -> Iterator[str]:
    """Yields a warning for each file with lines that could not be read, and quotes some lines."""
    by_file: dict[str, list[SkippedLine]] = {}
    for skipped_line in skipped:
        by_file.setdefault(skipped_line.path, []).append(skipped_line)
    for path, places in by_file.items():
        texts = [str(skipped_line).removeprefix(f"{path}: ") for skipped_line in places]
        yield f"{path}: {first_few(texts, _MOST_NAMED)}; left out"


def _imported(record: RunRecord) -> Imported:
    assert record.imported is not None
    return record.imported


def _write_records(
    folder: Path, records: Sequence[RunRecord], texts: Sequence[str]
) -> Counter[str]:
    """Writes the JSON texts of all records; counts the outcomes of `_write_record`. BenchmarkError
    if a record cannot be written, for example because another program has moved the folder.
    """
    written: Counter[str] = Counter()
    try:
        for record, text in zip(records, texts, strict=True):
            written[_write_record(folder, record, text)] += 1
    except (OSError, PathError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        done = f"{written.total()} of {count_text(records, 'record', 'records')} written"
        raise BenchmarkError(f"--results={folder}: cannot be written: {reason}; {done}") from None
    # `sync` is called only once: calls for thousands of single records would take minutes.
    os.sync()
    return written


def _write_record(folder: Path, record: RunRecord, text: str) -> str:
    """Writes the JSON text of a record, unless the folder already has an equal one. Returns NEW,
    REPLACED or KNOWN.

    A record that was imported with other flags, such as another label, is replaced.
    """
    # Subfolders keep folders small, because writing a file lists its folder.
    # The run_id may come from the file, and may be any text.
    imported = _imported(record)
    program = re.sub(r"[^\w.-]", "_", imported.program)
    name = f"{program}-{imported.sha256[:20]}-{imported.part}.json"
    path = folder / imported.sha256[:2] / name
    exists = path.exists()
    if exists and _contains_record(path, record, text):
        return KNOWN
    path.parent.mkdir(exist_ok=True)
    write_atomically(path.resolve(), text.encode(), durable=False)
    return REPLACED if exists else NEW


def _contains_record(path: Path, record: RunRecord, text: str) -> bool:
    """Whether a file contains a record, apart from the name and the time of the imported file."""
    try:
        there = RunRecord.from_json(read_file(path))
    except ValueError:
        return False
    if START in _imported(record).unknown:
        there = replace(there, started_at=record.started_at)
    imported = there.imported and replace(there.imported, file=_imported(record).file)
    return replace(there, imported=imported).to_json() == text


def _record_row(record: RunRecord) -> Row:
    return {
        "file": TableCell(_imported(record).file, kinds="code"),
        "measures": configuration_name(Configuration.of(record)),
        "status": record.status,
        "value": THROUGHPUT.value_text(THROUGHPUT.value(record)),
        "started (UTC)": TableCell(record.started_at[:16].replace("T", " "), kinds="steady"),
    }
