"""Plan of measured modes (their flags, and which must train alike), their processes and records."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cnnbench.base import plugins
from cnnbench.campaigns.ab.side import Side, request
from cnnbench.campaigns.launch.tasks import resolve_run
from cnnbench.campaigns.processes.campaign import Request, RequestBatch, RunPolicy
from cnnbench.campaigns.processes.commands import Resolved
from cnnbench.campaigns.processes.question import Question, plan_of
from cnnbench.campaigns.processes.results_dir import LOGS, ResultsFolder
from cnnbench.campaigns.sweep.runner import NOT_IN_TRIALS
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import ParsedArgs, args_of, values_of
from cnnbench.flags.declare import named, texts_of
from cnnbench.flags.params import ACCEPTED, FLAGS
from cnnbench.flags.roles import Role, RunPart
from cnnbench.records.run import RunRecord
from cnnbench.records.strategies import ONE_TOWER
from cnnbench.run.runtime.native import without_info_lines
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.modes import DEFAULT, Mode

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
_WEIGHTS = "weights"  # event of the journal: distances of the weights
_OF_THE_COMMAND = {
    "variable_update": "is what the command varies; choose with --modes",
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
    alone["batch_size"] = str(first.batch_size * (1 if on_gpu else towers))
    if texts.get("gpu_indices"):
        alone["gpu_indices"] = texts["gpu_indices"].split(",")[0]
    apart = "it sees all images as one batch"
    cases = [StrategyCase(ONE_TOWER, {**texts, **alone}, _resolved(args, alone), apart)]
    notices = []
    there_are = registry.names()
    for name in dict.fromkeys(there_are if modes is None else modes):
        if name not in there_are:
            raise FlagError("modes", name, f"must be some of {', '.join(there_are)}")
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


class WeightsFolder(ResultsFolder):
    """A results directory with checkpoints until the weights in them have been compared."""

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"

    def distances(self, name: str = "") -> Mapping[str, tuple[float, str]] | None:
        """Distances of weights that were compared under a name; None if none were."""
        for one in self.journal.read(_WEIGHTS):
            if one["name"] == name:
                return {of: (float(gap), text) for of, (gap, text) in one["distances"].items()}
        return None

    def compare(
        self, checkpoints: Mapping[str, Path], name: str = ""
    ) -> Mapping[str, tuple[float, str]]:
        """Compares, notes and removes checkpoints; see `weights.distances`."""
        # TensorFlow, which reads checkpoints, is loaded when all has been measured.
        with without_info_lines():
            from cnnbench.campaigns.strategies.weights import distances

            found = distances(checkpoints)
        self.journal.add(_WEIGHTS, name=name, distances=found)
        self.discard()
        return found

    def discard(self) -> None:
        """Removes the checkpoints."""
        self.remove(self.checkpoints)


class StrategiesFolder(WeightsFolder):
    """A results directory: DIR/MODE has a record per round, DIR/strategies.json the rows."""

    command = "strategies"
    noun = "comparison"
    inside = (LOGS,)
    kept = (f"{LOGS}/*", "*/r[0-9]*.json", "*/weights.json")


class StrategiesSession:
    """One run of the command.

    Attributes:
      records: records of the successful rounds, by case and number of the round.
      problems: why a process of a case failed, after which the case is not run again.
      checkpoints: folders with the weights to compare, by case.
    """

    def __init__(self, cases: Sequence[StrategyCase], results: StrategiesFolder) -> None:
        self.cases = cases
        self._results = results
        self.records: dict[str, dict[int, RunRecord]] = {one.name: {} for one in cases}
        self.problems: dict[str, str] = {}
        self.checkpoints: dict[str, Path] = {}

    def policy(self, rounds: int, seed: int, timeout: float) -> RunPolicy[None]:
        """Trains the weights to compare, then runs every case once per round, in random order.

        `timeout` is in seconds per process.
        """
        generator = random.Random(seed)
        weights = self._results.distances() is None
        due = [(one, 0) for one in self.cases if one.weights_flags and weights]
        for number in range(1, rounds + 1):
            shuffled = list(self.cases)
            generator.shuffle(shuffled)
            due += ((one, number) for one in shuffled)
        requests = {(one.name, number): self._request(one, number) for one, number in due}
        for at, (case, number) in enumerate(due):
            if case.name in self.problems:
                continue
            left = [one for one in due[at + 1 :] if one[0].name not in self.problems]
            (ended,) = yield RequestBatch(
                folder=self._results,
                requests=[requests[case.name, number]],
                then=[requests[one.name, again].key for one, again in left],
                timeout=timeout,
            )
            if ended.message:
                self.problems[case.name] = ended.message
            elif number:
                self.records[case.name][number] = ended.record
            else:
                self.checkpoints[case.name] = self._results.checkpoints / case.name

    def _request(self, case: StrategyCase, number: int) -> Request:
        """A process of a round, or, with number 0, the one that trains the weights.

        The record of the latter is kept only if it fails.
        """
        stem, flags, checkpoint = f"r{number}", case.flags, None
        if not number:
            checkpoint = self._results.checkpoints / case.name
            stem, flags = "weights", dict(case.weights_flags)
            flags["train_dir"] = str(self._results.unfinished(checkpoint))
        kept = self._results.folder / case.name / f"{stem}.json"
        return request(
            self._results,
            f"{case.name}-{stem}",
            Side(resolved=case.resolved).including(flags),
            key=(case.name, checkpoint is None),
            target=kept if number else None,
            failed=kept,
            leaves=checkpoint,
        )
