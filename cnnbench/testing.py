"""Classes of the pytest fixture ``cnnbench``. docs/pytest.md contains examples.

Every run is a fresh process with a hard time-out, so it is independent of what the tests imported
or set, and TensorFlow is not loaded into the process of the tests.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Literal, TextIO, TypeAlias

import pytest

from cnnbench.base.files import read_json
from cnnbench.base.stats import median
from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab.asking import resolve_flags
from cnnbench.campaigns.ab.side import AbSide, benchmark_command, refuse_flags
from cnnbench.campaigns.processes import Campaign, main_result_text
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import split_comma_separated
from cnnbench.judge.compare import (
    METRICS,
    Comparison,
    Criteria,
    Policy,
    compare_records,
    load_records,
)
from cnnbench.judge.compare.comparability import check_fact_names
from cnnbench.judge.report.renderers import render
from cnnbench.records.files import write_atomically
from cnnbench.records.load import BaselineDocument
from cnnbench.records.run import RunRecord

_LOG_LINES = 15
_LABEL = 60

Undecided = Literal["warn", "skip", "fail", "ignore"]

Baseline: TypeAlias = "Result | str | os.PathLike[str]"
"""Baseline of a comparison: another result, a file, or records as compare takes them."""


class CnnbenchWarning(UserWarning):
    """Warning that a comparison has no clear verdict."""


@dataclass(frozen=True)
class Result:
    """The result of one call of the fixture ``cnnbench``: records and record files of the measured
    processes, and the baseline of the call.
    """

    records: tuple[RunRecord, ...]
    paths: tuple[Path, ...]
    baseline: Baseline | None = None

    @property
    def images_per_sec(self) -> float:
        """Images per second in the timed steps: the median over the processes."""
        return self.value("throughput")

    @property
    def record(self) -> RunRecord:
        """The record of the first process."""
        return self.records[0]

    def value(self, metric: str) -> float:
        """Returns the value of a metric, the median over the processes, in the unit of the metric.
        Accepts the metrics of `cnnbench compare --metrics`.

        docs/metrics.md lists the metrics. KeyError for an unknown metric; ValueError if no process
        measured the metric.
        """
        all_values = METRICS[metric].values(self.records)
        values = [value for value in all_values if value is not None]
        if not values:
            raise ValueError(f"these runs did not measure {metric}")
        return median(values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all records into one file, so that later results can be compared with them.

        An existing file is replaced.
        """
        document = BaselineDocument(records=self.records).to_dict()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            Path(path).resolve(), (json.dumps(document, indent=1) + "\n").encode("ascii")
        )


class Bench:
    """Measures training in new processes, and compares the results with a baseline.

    Args:
      folder: folder for records and logs.
      root: folder to which paths of baselines are relative, such as pytest's root folder.
      timeout: seconds that each process may run, unless a call sets another limit.
      update_baselines: whether `compare` writes the baseline instead of comparing with it.
      terminal: stream that shows progress and the remaining time; None for no output.
    """

    def __init__(
        self,
        folder: Path,
        *,
        root: Path,
        timeout: float,
        update_baselines: bool = False,
        terminal: TextIO | None = None,
    ) -> None:
        self.folder = folder
        self._root = root
        self._reporter = ChildProcessReporter(io.StringIO() if terminal is None else terminal)
        self._timeout = timeout
        self._update = update_baselines
        self._calls = 0

    def __call__(
        self,
        *flags: str,
        processes: int = 1,
        timeout: float | None = None,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        baseline: Baseline | None = None,
    ) -> Result:
        """Runs ``cnnbench run FLAGS`` in one or more processes. The test fails if a process fails.

        Args:
          *flags: flags as on the command line.
          processes: number of processes, which run one after another. A comparison needs at
            least 4.
          timeout: seconds after which a process is killed with all its children.
          python: interpreter with an installed cnnbench; None for the interpreter of the test.
          env: additional environment variables.
          baseline: baseline for `compare`. If it cannot be used, the test fails before anything is
            measured.

        Raises:
          cnnbench.errors.UsageError: a flag is invalid. No process was started.
        """
        __tracebackhide__ = True
        if processes < 1:
            raise ValueError(f"processes={processes}: must be at least 1")
        side = AbSide(flags=flags, python=python, variables=dict(env or {}))
        side = _resolve_flags(side, processes)
        if baseline is not None and not self._writes_baseline(baseline):
            self._load_baseline(baseline)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._calls += 1
        limit = self._timeout if timeout is None else timeout
        records: list[RunRecord] = []
        paths: list[Path] = []
        label = shorten(" ".join(("cnnbench", *flags)), _LABEL, placeholder=" ...")
        campaign = Campaign(self._reporter)
        left: float | None = None
        for number in range(1, processes + 1):
            path = self.folder / f"{self._calls}-{number}.json"
            log = path.with_suffix(".log")
            try:
                self._reporter.show_started(number, processes, label, left)
                (ended,) = campaign.run([benchmark_command(side, path, log)], limit)
            finally:
                self._reporter.hide()
            outcome, left = ended.message or main_result_text(ended.record), ended.seconds
            left *= processes - number
            self._reporter.report_ended(number, processes, label, outcome, ended.seconds, left)
            if ended.status != "ok":
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                report = ["its last lines of output:" if lines else "it printed nothing"]
                command = " ".join(("cnnbench", "run", *flags))
                pytest.fail(
                    "\n".join([f"{command}: {ended.message}", *report, *lines[-_LOG_LINES:]])
                )
            records.append(ended.record)
            paths.append(path)
        return Result(tuple(records), tuple(paths), baseline)

    def _writes_baseline(self, baseline: Baseline) -> bool:
        return self._update and not isinstance(baseline, Result)

    def compare(
        self,
        result: Result,
        baseline: Baseline | None = None,
        *,
        threshold: float | None = None,
        allow_different: Sequence[str] = (),
        undecided: Undecided = "warn",
    ) -> Comparison:
        """Compares a result with a baseline by the rules of ``cnnbench compare``.

        The test fails if the result is worse.

        Args:
          result: the new result.
          baseline: another result, a file written by `Result.save` or ``--cnnbench-update``, or
            records as ``cnnbench compare`` accepts them (file, folder, pattern). None for the
            baseline that was given in the call that measured the result.
          threshold: smallest change that matters, in per cent.
          allow_different: names of recorded properties of machine or software that may differ.
            FlagError for an unknown name.
          undecided: what to do if the verdict is inconclusive or the records are not comparable:
            "warn" (with a `CnnbenchWarning`), "skip", "fail" or "ignore".

        Returns:
          The comparison. With ``--cnnbench-update``, the result is compared with itself.
        """
        __tracebackhide__ = True
        if undecided not in ("warn", "skip", "fail", "ignore"):
            raise ValueError(f"undecided={undecided!r}: must be warn, skip, fail or ignore")
        policy = Policy() if threshold is None else Policy(threshold=threshold / 100)
        baseline = result.baseline if baseline is None else baseline
        if baseline is None:
            raise ValueError(
                "compare needs a baseline: pass it to compare, or to the call that measures"
            )
        updating = self._writes_baseline(baseline)
        if updating:
            assert not isinstance(baseline, Result)
            result.save(self._root / baseline)
        base, label = self._load_baseline(baseline)
        allowed = split_comma_separated(",".join(allow_different))
        check_fact_names(allowed, (*base, *result.records))
        criteria = Criteria(policy=policy, allow_different=allowed)
        labels = (label, "this test")
        comparison = compare_records(base, result.records, criteria, labels=labels)
        if updating or comparison.exit_code == ExitCode.OK:
            return comparison
        text = render(comparison, "table")
        if comparison.exit_code != ExitCode.INCONCLUSIVE or undecided == "fail":
            pytest.fail(text)
        if undecided == "skip":
            pytest.skip(_undecided(comparison))
        if undecided == "warn":
            warnings.warn(_undecided(comparison), CnnbenchWarning, stacklevel=2)
        return comparison

    def _load_baseline(self, baseline: Baseline) -> tuple[tuple[RunRecord, ...], str]:
        __tracebackhide__ = True
        if isinstance(baseline, Result):
            return baseline.records, "the baseline"
        label, reason = os.fspath(baseline), "it contains no run records"
        path = self._root / baseline
        records: tuple[RunRecord, ...] | None = ()
        try:
            records = _read_saved(path)
            if records is None:
                loaded = load_records([path])
                if loaded.defects:
                    raise UsageError(str(loaded.defects[0]))
                records = loaded.records
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", str(error))
        if not records:
            # In the exception handler, this call would make pytest show two chained errors.
            hint = "pytest --cnnbench-update writes it"
            pytest.fail(f"baseline {label} cannot be used: {reason}; {hint}", pytrace=False)
        return records, label


def _resolve_flags(side: AbSide, processes: int) -> AbSide:
    """Checks the flags of a fixture call before any process is started. Returns a copy of the side
    with resolved flags.
    """
    refuse_flags(side, ("result_json",), "cannot be used with the fixture, which keeps the records")
    if processes > 1:
        refuse_flags(
            side, ("result_csv",), "each process would replace the file of the previous process"
        )
        if not {"eval", "forward_only"} & side.given_flags.keys():
            refuse_flags(
                side,
                ("train_dir",),
                "each process would resume the training of the previous process",
            )
    return resolve_flags(side)


def _read_saved(path: Path) -> tuple[RunRecord, ...] | None:
    """Reads the records from a file that `Result.save` has written. Returns None for any other
    file.
    """
    if not path.is_file():
        return None
    document = read_json(path)
    if not isinstance(document, dict) or document.get("kind") != BaselineDocument.kind:
        return None
    return BaselineDocument.from_dict(document).records


def _undecided(comparison: Comparison) -> str:
    reasons = [
        f"{entry.name}: {entry.main.word}: {entry.main.judgement.reason}"
        for entry in comparison.by_severity()
        if entry.main.verdict.is_undecided
    ]
    return "cnnbench: " + "; ".join(reasons)
