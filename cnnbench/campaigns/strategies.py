"""`cnnbench strategies`: all modes side by side."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from cnnbench.base import plugins
from cnnbench.base.document import Text, table, writers
from cnnbench.base.stats import ProcessValues, median
from cnnbench.base.text import labels_of, number_of
from cnnbench.campaigns.ab.side import Side, request
from cnnbench.campaigns.launch import resolve_run
from cnnbench.campaigns.processes.campaign import (
    Request,
    RunPolicy,
    in_rounds,
    rounds,
    run_one,
)
from cnnbench.campaigns.processes.commands import Resolved
from cnnbench.campaigns.processes.results_dir import (
    LOGS,
    CampaignKind,
    Question,
    ResultsFolder,
    plan_of,
)
from cnnbench.campaigns.sweep import NOT_IN_TRIALS
from cnnbench.errors import BenchmarkError, DataError, FlagError, UsageError
from cnnbench.flags import ParsedArgs, args_of, values_of
from cnnbench.flags.declare import Role, RunPart, named, texts_of
from cnnbench.flags.params import ACCEPTED, FLAGS
from cnnbench.judge.report.sections.campaigns import mode_row
from cnnbench.machine import repository
from cnnbench.records import files
from cnnbench.records.campaigns import (
    APART,
    DIFFERENT,
    EQUAL,
    ONE_TOWER,
    REFERENCE,
    UNKNOWN,
    StrategiesDocument,
    StrategyProcess,
    StrategyRow,
    speeds_of,
    weight_remarks,
)
from cnnbench.records.metrics.figures import throughput, throughputs
from cnnbench.records.run import RunRecord
from cnnbench.run.runtime.loading import without_info_lines
from cnnbench.variable_mgr import modes as registry
from cnnbench.variable_mgr.modes import DEFAULT, Mode

# Comparison of the weights of modes, by their checkpoints.


def distances(checkpoints: Mapping[str, Path]) -> dict[str, tuple[float, str]]:
    """Distances of the weights in folders from those of the first; empty for fewer than two.

    A distance is the largest difference of two elements of a variable from the reference, as a
    share of the largest element of the reference, and the name of that variable; 0 and "" if all
    bits are equal, NaN if some values are NaN. The checkpoints have equally many steps on the same
    data.
    """
    if len(checkpoints) < 2:
        return {}
    values = {name: _read(name, folder) for name, folder in checkpoints.items()}
    reference = next(iter(values.values()))
    return {name: _distance(reference, found) for name, found in values.items()}


def _read(name: str, folder: Path) -> dict[str, np.ndarray]:
    from cnnbench.run.driver.checkpoints import stored_variables  # loads TensorFlow

    path = files.latest(str(folder))
    if path is None:
        raise BenchmarkError(f"{name} wrote no checkpoint")
    return stored_variables(path)


def _distance(reference: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> tuple[float, str]:
    if reference.keys() != found.keys():
        name = min(reference.keys() ^ found.keys())
        raise BenchmarkError(f"only some modes have the variable {name}")
    largest, where = 0.0, ""
    for name, expected in reference.items():
        if expected.tobytes() == found[name].tobytes():
            continue
        a, b = (np.asarray(array, np.float64) for array in (expected, found[name]))
        size = float(np.max(np.abs(a)))
        with np.errstate(invalid="ignore"):
            gap = float(np.max(np.abs(a - b)))
        value = gap / size if size else gap
        if not value <= largest:
            largest, where = value, name
        if np.isnan(value):
            break
    return largest, where


CHECKPOINTS = "checkpoints"
"""Folder of checkpoints until the weights in them have been compared."""

_WEIGHTS = "weights"  # name of a note in the journal


def known_distances(
    folder: ResultsFolder, name: str = ""
) -> Mapping[str, tuple[float, str]] | None:
    """Distances of the weights that an earlier session compared under a name; None if none."""
    for one in folder.notes(_WEIGHTS):
        if one["name"] == name:
            return {of: (float(gap), text) for of, (gap, text) in one["distances"].items()}
    return None


def compare_weights(
    folder: ResultsFolder, checkpoints: Mapping[str, Path], name: str = ""
) -> Mapping[str, tuple[float, str]]:
    """Compares checkpoints (see `distances`), notes the result in the folder and removes them."""
    # TensorFlow, which reads checkpoints, is loaded when all has been measured.
    with without_info_lines():
        found = distances(checkpoints)
    folder.note(_WEIGHTS, name=name, distances=found)
    folder.remove(folder.folder / CHECKPOINTS)
    return found


# Plan of measured modes (their flags, and which must train alike), their processes and records.

_OTHERWISE = "trains differently from the modes without it; compare it with cnnbench ab"
_NOT_FOR_WEIGHTS = (
    *NOT_IN_TRIALS,
    *named(FLAGS, RunPart.LEARNING_RATE),
    *named(FLAGS, Role.PROFILE),
)
# Modes add gradients in different orders. A network that learns at its usual rate amplifies such
# rounding a hundredfold and more in each step; at this one it does not.
_RATE_FOR_WEIGHTS = 1e-6
_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 0.02
_OF_THE_COMMAND = {
    "variable_update": "is varied by the command; choose values with --modes",
    "result_json": "is set by the command; see --results",
    "result_csv": "is set by the command; see --results and --format=csv",
    "train_dir": "is set by the command: every process keeps its own checkpoint",
    "export_dir": "cannot go with strategies: every process would write there",
    **dict.fromkeys(named(FLAGS, RunPart.WORK), "cannot go with strategies, which trains"),
    "check_replica_consistency": "is set by the command where weights are compared",
    "staged_vars": _OTHERWISE,
}


@dataclass(frozen=True)
class StrategyCase:
    """A measured mode, which is a row of the table.

    Attributes:
      name: the mode, or `ONE_TOWER`.
      flags: texts of the flags of ``cnnbench run`` by name, without those of files.
      apart: why its weights are not compared; "" if they are.
      weights_flags: flags of the process that trains the weights to compare; empty for none.
    """

    name: str
    flags: Mapping[str, str]
    resolved: Resolved
    apart: str = ""
    weights_flags: Mapping[str, str] = field(default_factory=dict)


def make_plan(
    given: Mapping[str, Any],
    modes: Sequence[str] | None,
    *,
    on_gpu: bool,
    weights_steps: int = 0,
) -> tuple[list[StrategyCase], list[str]]:
    """Checks the flags of every mode; loads no TensorFlow.

    Returns the cases, one tower first, and lines to print before the first run.

    Args:
      given: values of the flags of all runs, by name.
      modes: names; None for all that work with these flags in one process.
      on_gpu: whether devices are GPUs. Towers on a CPU share its cores, so that one tower with all
        their images is an upper limit of their speed. On GPUs it has the images of one device.
      weights_steps: after which weights are compared; 0: never.
    """
    _refuse(given)
    plugins.load_all(given)
    if not on_gpu and given.get("device", "auto") == "auto":
        given = {**given, "device": "cpu"}  # modes that need GPUs are then left out
    args = args_of(given)
    first = _resolved(args, {"variable_update": DEFAULT})
    towers = int(first.config["num_gpus"])
    if towers < 2:
        raise FlagError("num_gpus", towers, "must be at least 2: one device has nothing to reduce")
    texts = texts_of(given, ACCEPTED)
    alone = {"variable_update": DEFAULT, "num_gpus": "1"}
    if "global_batch_size" in texts:
        alone["global_batch_size"] = "0"
    alone["batch_size"] = str(first.batch_size * (1 if on_gpu else towers))
    if texts.get("gpu_indices"):
        alone["gpu_indices"] = texts["gpu_indices"].split(",")[0]
    apart = "it sees all images as one batch"
    cases = [StrategyCase(ONE_TOWER, {**texts, **alone}, _resolved(args, alone), apart)]
    notices = []
    there_are = registry.names()
    for name in dict.fromkeys(there_are if modes is None else modes):
        if name not in there_are:
            raise FlagError("modes", name, f"takes one or more of {', '.join(there_are)}")
        mode = registry.find(name)
        try:
            cases.append(_case(mode, args, weights_steps))
        except UsageError as error:
            if modes is not None:
                raise
            notices.append(f"{name} is left out: {error}")
    told = dict.fromkeys(f"{one.name}: {n}" for one in cases[1:] for n in one.resolved.notices)
    return cases, [*notices, *told]


def _case(mode: Mode, args: ParsedArgs, weights_steps: int) -> StrategyCase:
    apart = mode.apart or ("" if mode.in_sync else "its towers train apart")
    texts = texts_of(args.given, ACCEPTED)
    flags = {**mode.needs, **texts, "variable_update": mode.name}
    own = {name: text for name, text in flags.items() if name not in texts}
    few = flags_for_weights(flags, weights_steps) if weights_steps and not apart else {}
    return StrategyCase(mode.name, flags, _resolved(args, own), apart, few)


def flags_for_weights(flags: Mapping[str, str], steps: int) -> dict[str, str]:
    """The flags of a process that trains the weights to compare, from those of the run by name."""
    kept = {name: text for name, text in flags.items() if name not in _NOT_FOR_WEIGHTS}
    return {
        **kept,
        "num_batches": str(steps),
        "num_warmup_batches": "0",
        "init_learning_rate": str(_RATE_FOR_WEIGHTS),
        "check_replica_consistency": "1",
    }


def weights_tolerance(precision: str) -> float:
    """The largest distance of weights that rounding explains at a precision."""
    return _TOLERANCE if precision == "fp32" else _TOLERANCE_16_BITS


def _refuse(given: Mapping[str, object]) -> None:
    """Refuses flags that the command sets, and those with which modes train differently."""
    for name, reason in _OF_THE_COMMAND.items():
        if given.get(name):
            raise FlagError(name, ACCEPTED[name].text(given[name]), reason)
    if given.get("variable_consistency", "strong") != "strong":
        raise FlagError("variable_consistency", given["variable_consistency"], _OTHERWISE)


def _resolved(args: ParsedArgs, own: Mapping[str, str]) -> Resolved:
    try:
        return resolve_run(args.including(values_of(own, ACCEPTED)))
    except DataError as error:
        raise UsageError(str(error)) from None


def question_of(
    cases: Sequence[StrategyCase], facts: Mapping[str, Any], weights_steps: int, seed: int
) -> Question:
    """The question of a comparison, which may have more rounds when it goes on."""
    names = [one.name for one in cases]
    return Question(
        plans={one.name: plan_of(one.resolved) for one in cases},
        facts=facts,
        policy={"name": "modes", "modes": names, "weights_steps": weights_steps, "seed": seed},
    )


STRATEGIES = CampaignKind(
    command="strategies",
    noun="comparison",
    inside=(LOGS,),
    kept=(f"{LOGS}/*", "*/r[0-9]*.json", "*/weights.json"),
)
"""Comparisons: DIR/MODE has a record per round, DIR/strategies.json the rows."""


class StrategiesSession:
    """One run of the command.

    Attributes:
      records: records of the successful rounds, by case and number of the round.
      problems: why a process of a case failed, after which the case is not run again.
      checkpoints: folders with the weights to compare, by case.
    """

    def __init__(self, cases: Sequence[StrategyCase], results: ResultsFolder) -> None:
        self.cases = cases
        self._results = results
        self.records: dict[str, dict[int, RunRecord]] = {one.name: {} for one in cases}
        self.problems: dict[str, str] = {}
        self.checkpoints: dict[str, Path] = {}

    def policy(self, repeats: int, seed: int, timeout: float) -> RunPolicy[None]:
        """Trains the weights to compare, then runs every case once per round, in random order.

        `timeout` is in seconds per process.
        """
        cases = {one.name: one for one in self.cases}
        known = known_distances(self._results) is not None
        trained = [(one.name, 0) for one in self.cases if one.weights_flags and not known]

        def measure(name: str, number: int, then: Sequence[Hashable]) -> RunPolicy[bool]:
            request = self._request(cases[name], number)
            ended = yield from run_one(self._results, request, timeout, then)
            if ended.message:
                self.problems[name] = ended.message
            elif number:
                self.records[name][number] = ended.record
            else:
                self.checkpoints[name] = self._results.folder / CHECKPOINTS / name
            return not ended.message

        return in_rounds([*trained, *rounds(cases, repeats, seed)], measure)

    def _request(self, case: StrategyCase, number: int) -> Request:
        """A process of a round, or, with number 0, the one that trains the weights.

        The record of the latter is kept only if it fails.
        """
        stem, flags, checkpoint = f"r{number}", case.flags, None
        if not number:
            checkpoint = self._results.folder / CHECKPOINTS / case.name
            stem, flags = "weights", dict(case.weights_flags)
            flags["train_dir"] = str(self._results.unfinished(checkpoint))
        kept = self._results.folder / case.name / f"{stem}.json"
        return request(
            self._results,
            f"{case.name}-{stem}",
            Side(resolved=case.resolved).including(flags),
            key=(case.name, not number),
            target=kept if number else None,
            failed=kept,
            leaves=checkpoint,
        )


# Results as a table, CSV and JSON; docs/strategies.md defines the columns.

_SPARE = ("variables", "build, s", "copies", "first step, s", "reduction ops", "memory")
"""Columns that a narrow terminal omits, the first one first."""


def _row(
    case: StrategyCase,
    session: StrategiesSession,
    processes: Sequence[StrategyProcess],
    distances: Mapping[str, tuple[float, str]],
    tolerance: float,
) -> StrategyRow:
    records = list(session.records[case.name].values())
    speeds = ProcessValues(speeds_of(processes, case.name))
    low, high = speeds.interval or speeds.range or (None, None)
    distance, variable = distances.get(case.name, (None, ""))
    weights = UNKNOWN
    if case.apart:
        weights = APART
    elif distance is not None:
        weights = EQUAL if distance <= tolerance else DIFFERENT  # also for NaN
        weights = REFERENCE if case.name == next(iter(distances)) else weights
    placed = [record.placement for record in records if record.placement is not None]
    return StrategyRow(
        mode=case.name,
        all_reduce=", ".join(placed[0].all_reduce) if placed else "",
        processes=len(records),
        images_per_sec=speeds.median,
        low=low,
        high=high,
        overhead=_overhead(case.name, session.records),
        peak_memory_bytes=_values(records, lambda r: r.measured.peak_memory_bytes).median,
        build_seconds=_values(records, lambda r: r.startup_seconds.build).median,
        first_step_seconds=_values(records, lambda r: r.startup_seconds.first_step).median,
        variables=placed[0].variables if placed else None,
        variable_copies=placed[0].variable_copies if placed else None,
        reduction_operations=placed[0].reduction_operations if placed else None,
        weights=weights,
        weight_distance=distance,
        weight_variable=variable,
        problem=session.problems.get(case.name, ""),
    )


def _overhead(mode: str, records: Mapping[str, Mapping[int, RunRecord]]) -> float | None:
    """The median over the rounds in which one tower was measured, too."""
    if mode == ONE_TOWER:
        return None
    found = []
    alone = {at: throughput(record) for at, record in records[ONE_TOWER].items()}
    for at, record in records[mode].items():
        speed, reference, placement = throughput(record), alone.get(at), record.placement
        if speed and reference and placement is not None:
            # Devices on the CPU share its cores: together they can be as fast as one.
            ideal = placement.num_towers if placement.kind == "gpu" else 1
            found.append(ideal * reference / speed - 1.0)
    return median(found) if found else None


def _values(
    records: Sequence[RunRecord], value: Callable[[RunRecord], float | None]
) -> ProcessValues:
    return ProcessValues(tuple(v for v in map(value, records) if v is not None))


def failed(found: Sequence[StrategyRow]) -> bool:
    """Whether a process failed, or modes that should train alike differ."""
    return any(row.problem or row.weights == DIFFERENT for row in found)


def table_text(found: StrategiesDocument, cases: Sequence[StrategyCase]) -> str:
    """The table, and remarks: on the weights, failures, an early end."""
    rows, tolerance = found.rows, found.weights_tolerance
    is_interval = any(row.processes >= ProcessValues.FEWEST for row in rows)
    spread = ProcessValues.INTERVAL if is_interval else "range"
    remarks = [text for text, _ in weight_remarks(rows, tolerance)]
    remarks += [f"{case.name}: {case.apart}" for case in cases[1:] if case.apart]
    remarks += [f"failed: {row.mode}: {row.problem}" for row in rows if row.problem]
    remarks += [f"incomplete: {found.incomplete}"] if found.incomplete else []
    shown = table((mode_row(row, spread) for row in rows), spare=_SPARE, whole=True)
    return writers.text_of([[shown, *(Text(remark, hanging=2) for remark in remarks)]])


def document(
    session: StrategiesSession,
    distances: Mapping[str, tuple[float, str]],
    tolerance: float,
    *,
    command: Sequence[str],
    begun: datetime,
    facts: Mapping[str, Any],
    end: str | None = None,
    planned: int = 0,
) -> StrategiesDocument:
    """The rows with unrounded numbers, their processes and the subject; `begun` has a time zone.

    Weights within `tolerance` are called equal; see `cnnbench.campaigns.strategies` for the
    distances. `end` is the reason of an early end, before `planned` processes were measured.
    """
    first = session.cases[1].resolved.config
    processes = tuple(
        StrategyProcess(mode=mode, round=at, run_id=record.run_id, images_per_sec=speed)
        for mode, records in session.records.items()
        # Together, so that a disturbance of few processes counts for none.
        for (at, record), speed in zip(
            records.items(), throughputs([*records.values()]), strict=True
        )
    )
    found = StrategiesDocument(
        run_id=uuid.uuid4().hex,
        started_at=begun.isoformat(timespec="seconds"),
        command=tuple(command),
        config=first,
        rows=tuple(_row(one, session, processes, distances, tolerance) for one in session.cases),
        processes=processes,
        weights_tolerance=tolerance,
        environment=facts,
        subject=repository.of_work(first).labelled(labels_of(first)),
        planned=None if end is None else planned,
    )
    if end is None:
        return found
    measured = f"{number_of(found.processes)} of {found.planned} processes measured"
    return replace(found, incomplete=f"{end}; {measured}")
