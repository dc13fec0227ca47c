"""The modes of --variable_update that are measured: their flags, their processes, and the results
as a table and a document (docs/strategies.md).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.stats import ValuesByProcess, median
from cnnbench.base.text import unknown_name_reason
from cnnbench.base.values import labels_from_config
from cnnbench.campaigns.ab.side import AbSide, make_process_request
from cnnbench.campaigns.launch import resolve_run
from cnnbench.campaigns.processes import (
    LOGS,
    CampaignKind,
    ProcessRequest,
    ProcessRequests,
    ResolvedRun,
    ResultsFolder,
    Rounds,
    make_rounds,
    run_process,
)
from cnnbench.campaigns.strategies.weights import (
    CHECKPOINTS,
    WeightDistance,
    flags_of_weights_process,
    stored_weight_distances,
)
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import (
    ACCEPTED,
    FLAGS,
    ParsedArgs,
    RunPart,
    args_from_values,
    flag_texts,
    names_of_flags,
    parse_flag_texts,
)
from cnnbench.judge.report.sections.strategies import strategies_sections
from cnnbench.machine import repository
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
    images_per_sec_of_mode,
)
from cnnbench.records.metrics.figures import throughput, throughputs
from cnnbench.records.run import RunRecord
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.modes import DEFAULT, Mode

STRATEGIES = CampaignKind(command="strategies", noun="comparison", subfolders=(LOGS,))
"""Kind of campaign for comparisons of modes. DIR/MODE contains a record per round, and
DIR/strategies.json contains the rows.
"""

_OTHERWISE = "trains differently from the modes without it; compare it with cnnbench ab"
_OF_THE_COMMAND = {
    "variable_update": "is varied by the command; choose values with --modes",
    "result_json": "is set by the command; use --results",
    "result_csv": "is set by the command; use --results and --format=csv",
    "train_dir": "is set by the command: every process keeps its own checkpoint",
    "export_dir": "cannot be used with strategies: every process would write there",
    **dict.fromkeys(
        names_of_flags(FLAGS, RunPart.WORK), "cannot be used with strategies, which trains"
    ),
    "check_replica_consistency": "is set by the command where weights are compared",
    "staged_vars": _OTHERWISE,
}


@dataclass(frozen=True)
class StrategyCase:
    """A mode of --variable_update to measure, with its flags: one row of the table.

    Attributes:
      name: the mode, or `ONE_TOWER`.
      flags: texts of the flags of ``cnnbench run`` by name, without flags for files.
      apart: the reason why the weights are not compared; "" if they are.
      weights_flags: flags of the process that trains weights for the comparison; empty if there is
        no comparison.
    """

    name: str
    flags: Mapping[str, str]
    resolved: ResolvedRun
    apart: str = ""
    weights_flags: Mapping[str, str] = field(default_factory=dict)


def select_strategy_cases(
    values: Mapping[str, Any],
    modes: Sequence[str] | None,
    *,
    on_gpu: bool,
    weights_steps: int = 0,
) -> tuple[list[StrategyCase], list[str]]:
    """Selects the modes to measure, and checks their flags without loading TensorFlow.

    Returns the cases (`ONE_TOWER` is the first case) and lines to print before the first run.

    Args:
      values: values of the flags for all runs, by name.
      modes: names of modes; None for all modes that work with these flags in one process.
      on_gpu: whether devices are GPUs. On a CPU, towers share the cores, so the case with one tower
        gets the images of all towers and is an upper limit of their speed. On GPUs, it gets the
        images of one device.
      weights_steps: number of steps after which weights are compared; 0 for no comparison.
    """
    _refuse_flags(values)
    plugins.load_plugins_of_flags(values)
    if not on_gpu and values.get("device", "auto") == "auto":
        values = {**values, "device": "cpu"}  # --device=cpu excludes modes that need GPUs.
    args = args_from_values(values)
    first = _resolve_flags(args, {"variable_update": DEFAULT})
    towers = int(first.config["num_gpus"])
    if towers < 2:
        raise FlagError("num_gpus", towers, "must be at least 2: one device has nothing to reduce")
    texts = flag_texts(values, ACCEPTED)
    alone = {"variable_update": DEFAULT, "num_gpus": "1"}
    if "global_batch_size" in texts:
        alone["global_batch_size"] = "0"
    alone["batch_size"] = str(first.batch_size * (1 if on_gpu else towers))
    if texts.get("gpu_indices"):
        alone["gpu_indices"] = texts["gpu_indices"].split(",")[0]
    reason = "it sees all images as one batch"
    cases = [StrategyCase(ONE_TOWER, {**texts, **alone}, _resolve_flags(args, alone), reason)]
    notices = []
    there_are = registry.names()
    for name in dict.fromkeys(there_are if modes is None else modes):
        if name not in there_are:
            unknown = unknown_name_reason(name, there_are, "takes one or more of")
            raise FlagError("modes", name, unknown)
        mode = registry.find_mode(name)
        try:
            cases.append(_strategy_case(mode, args, weights_steps))
        except UsageError as error:
            if modes is not None:
                raise
            notices.append(f"{name} is left out: {error}")
    notices_of_cases = dict.fromkeys(
        f"{case.name}: {n}" for case in cases[1:] for n in case.resolved.notices
    )
    return cases, [*notices, *notices_of_cases]


def _strategy_case(mode: Mode, args: ParsedArgs, weights_steps: int) -> StrategyCase:
    reason = mode.apart or ("" if mode.in_sync else "its towers train apart")
    texts = flag_texts(args.given, ACCEPTED)
    flags = {**mode.needs, **texts, "variable_update": mode.name}
    own = {name: text for name, text in flags.items() if name not in texts}
    few = flags_of_weights_process(flags, weights_steps) if weights_steps and not reason else {}
    return StrategyCase(mode.name, flags, _resolve_flags(args, own), reason, few)


def _refuse_flags(values: Mapping[str, object]) -> None:
    """Raises FlagError for flags that `cnnbench strategies` sets itself, and for flags with which
    only some modes train differently.
    """
    for name, reason in _OF_THE_COMMAND.items():
        if values.get(name):
            raise FlagError(name, ACCEPTED[name].text(values[name]), reason)
    if values.get("variable_consistency", "strong") != "strong":
        raise FlagError("variable_consistency", values["variable_consistency"], _OTHERWISE)


def _resolve_flags(args: ParsedArgs, own: Mapping[str, str]) -> ResolvedRun:
    try:
        return resolve_run(args.including(parse_flag_texts(own, ACCEPTED)))
    except DataError as error:
        raise UsageError(str(error)) from None


class StrategiesSession:
    """Generates the processes of `cnnbench strategies`, and contains their results.

    Attributes:
      records: records of successful rounds, by case and round number.
      problems: by case, why a process failed. After a failure, the case is not run again.
      checkpoints: by case, folder with the weights to compare.
    """

    def __init__(self, cases: Sequence[StrategyCase], results: ResultsFolder) -> None:
        self.cases = cases
        self._results = results
        self.records: dict[str, dict[int, RunRecord]] = {case.name: {} for case in cases}
        self.problems: dict[str, str] = {}
        self.checkpoints: dict[str, Path] = {}

    def requests(self, repeats: int, seed: int, timeout: float) -> ProcessRequests[None]:
        """Yields all processes to run: trainings whose weights are compared, then rounds of all
        modes.

        Each round runs every mode once, in random order. `timeout` is in seconds per process.
        """
        cases = {case.name: case for case in self.cases}
        known = stored_weight_distances(self._results) is not None
        trained = [(case.name, 0) for case in self.cases if case.weights_flags and not known]
        rounds = Rounds([*trained, *make_rounds(cases, repeats, seed).order])
        for name, number, later_keys in rounds:
            request = self._case_request(cases[name], number)
            ended = yield from run_process(self._results, request, timeout, later_keys)
            if ended.message:
                self.problems[name] = ended.message
                rounds.left_out.add(name)
            elif number:
                self.records[name][number] = ended.record
            else:
                self.checkpoints[name] = self._results.folder / CHECKPOINTS / name

    def _case_request(self, case: StrategyCase, number: int) -> ProcessRequest:
        """Creates the request for a mode's process in round `number` (from 1).

        Number 0 is the process that trains weights for the comparison. Its record is only stored if
        it fails.
        """
        stem, flags, checkpoint = f"r{number}", case.flags, None
        if not number:
            checkpoint = self._results.folder / CHECKPOINTS / case.name
            stem, flags = "weights", dict(case.weights_flags)
            flags["train_dir"] = str(self._results.unfinished_path(checkpoint))
        path = self._results.folder / case.name / f"{stem}.json"
        return make_process_request(
            self._results,
            f"{case.name}-{stem}",
            AbSide(resolved=case.resolved).with_added_flags(flags),
            key=(case.name, not number),
            target=path if number else None,
            failed=path,
            leaves=checkpoint,
        )


def _strategy_row(
    case: StrategyCase,
    session: StrategiesSession,
    processes: Sequence[StrategyProcess],
    distances: Mapping[str, WeightDistance],
    tolerance: float,
) -> StrategyRow:
    records = list(session.records[case.name].values())
    speeds = images_per_sec_of_mode(processes, case.name)
    low, high = speeds.interval or speeds.range or (None, None)
    distance, variable = distances.get(case.name, (None, ""))
    weights = UNKNOWN
    if case.apart:
        weights = APART
    elif distance is not None:
        weights = EQUAL if distance <= tolerance else DIFFERENT  # NaN counts as DIFFERENT.
        weights = REFERENCE if case.name == next(iter(distances)) else weights
    placed = [record.placement for record in records if record.placement is not None]
    return StrategyRow(
        mode=case.name,
        all_reduce=", ".join(placed[0].all_reduce) if placed else "",
        processes=len(records),
        images_per_sec=speeds.median,
        low=low,
        high=high,
        overhead=_median_overhead(case.name, session.records),
        peak_memory_bytes=_process_values(records, lambda r: r.measured.peak_memory_bytes).median,
        build_seconds=_process_values(records, lambda r: r.startup_seconds.build).median,
        first_step_seconds=_process_values(records, lambda r: r.startup_seconds.first_step).median,
        variables=placed[0].variables if placed else None,
        variable_copies=placed[0].variable_copies if placed else None,
        reduction_operations=placed[0].reduction_operations if placed else None,
        weights=weights,
        weight_distance=distance,
        weight_variable=variable,
        problem=session.problems.get(case.name, ""),
    )


def _median_overhead(mode: str, records: Mapping[str, Mapping[int, RunRecord]]) -> float | None:
    """Median overhead of a mode against a single tower, over the rounds that measured both."""
    if mode == ONE_TOWER:
        return None
    overheads = []
    alone = {at: throughput(record) for at, record in records[ONE_TOWER].items()}
    for at, record in records[mode].items():
        speed, reference, placement = throughput(record), alone.get(at), record.placement
        if speed and reference and placement is not None:
            # CPU devices share the cores, so several devices are at most as fast as one.
            ideal = placement.num_towers if placement.kind == "gpu" else 1
            overheads.append(ideal * reference / speed - 1.0)
    return median(overheads) if overheads else None


def _process_values(
    records: Sequence[RunRecord], value: Callable[[RunRecord], float | None]
) -> ValuesByProcess:
    return ValuesByProcess(tuple(v for v in map(value, records) if v is not None))


def has_failures(rows: Sequence[StrategyRow]) -> bool:
    """Whether a process failed, or the weights that a mode trained are not as expected."""
    return any(row.problem or row.weights == DIFFERENT for row in rows)


def table_text(document: StrategiesDocument, cases: Sequence[StrategyCase]) -> str:
    """The results of all modes as text: the answer, remarks, and tables."""
    apart = {case.name: case.apart for case in cases[1:] if case.apart}
    return sections_to_text(strategies_sections(document, apart))


def strategies_document(
    session: StrategiesSession,
    distances: Mapping[str, WeightDistance],
    tolerance: float,
    *,
    command: Sequence[str],
    started_at: datetime,
    facts: Mapping[str, Any],
    end: str | None = None,
    planned: int = 0,
) -> StrategiesDocument:
    """Collects the results of a comparison of modes in a document, with unrounded numbers.

    `started_at` must have a time zone.

    Weights whose distance (`weight_distances`) is at most `tolerance` are called equal. `end` is
    the reason for an early end, before all `planned` processes were measured.
    """
    first = session.cases[1].resolved.config
    processes = tuple(
        StrategyProcess(mode=mode, round=at, run_id=record.run_id, images_per_sec=speed)
        for mode, records in session.records.items()
        # `throughputs` gets all processes of a mode, so that it can remove rare disturbances.
        for (at, record), speed in zip(
            records.items(), throughputs([*records.values()]), strict=True
        )
    )
    document = StrategiesDocument(
        run_id=uuid.uuid4().hex,
        started_at=started_at.isoformat(timespec="seconds"),
        command=tuple(command),
        config=first,
        rows=tuple(
            _strategy_row(case, session, processes, distances, tolerance) for case in session.cases
        ),
        processes=processes,
        weights_tolerance=tolerance,
        environment=facts,
        subject=repository.measured_code(first).with_labels(labels_from_config(first)),
        planned=None if end is None else planned,
    )
    if end is None:
        return document
    measured = f"{len(document.processes)} of {document.planned} processes measured"
    return replace(document, incomplete=f"{end}; {measured}")
