"""Plan of measured modes (their flags, and which must train alike), their processes and records."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cnnbench.campaigns.ab.side import Side, measuring
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.processes.commands import Resolved, resolve_run
from cnnbench.campaigns.processes.outcome import headline
from cnnbench.campaigns.processes.results_dir import LOGS, ResultsFolder
from cnnbench.campaigns.sweep.runner import NOT_IN_TRIALS
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import FLAGS
from cnnbench.flags.checks import LOOKING
from cnnbench.flags.retired import OBSOLETE
from cnnbench.records.run import RunRecord
from cnnbench.records.strategies import ONE_TOWER, StrategiesDocument
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.modes import DEFAULT, Mode

_OTHERWISE = "trains differently from the modes without it; compare it with cnnbench ab"
_NOT_FOR_WEIGHTS = (
    *(*NOT_IN_TRIALS, *LOOKING, "init_learning_rate", "piecewise_learning_rate_schedule"),
    *("learning_rate_schedule", "num_epochs_per_decay", "learning_rate_decay_factor"),
    *("minimum_learning_rate", "num_learning_rate_warmup_epochs", "resnet_base_lr"),
)
# Modes add gradients in different orders. A network that learns at its usual rate amplifies such
# rounding a hundredfold and more in each step; at this one it does not.
_RATE_FOR_WEIGHTS = 1e-6
_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 0.02
_OF_THE_COMMAND = {
    "variable_update": "is what the command varies; choose with --modes",
    "result_json": "is set by the command; see --results",
    "result_csv": "is set by the command; see --results and --format=csv",
    "train_dir": "is set by the command: every process keeps its own checkpoint",
    "export_dir": "cannot go with strategies: every process would write there",
    "eval": "cannot go with strategies, which trains",
    "forward_only": "cannot go with strategies, which trains",
    "input_only": "cannot go with strategies, which trains",
    "check_replica_consistency": "is set by the command where weights are compared",
    "staged_vars": _OTHERWISE,
}


@dataclass
class StrategyCase:
    """One row of the table, and its processes.

    Attributes:
      name: the mode, or `ONE_TOWER`.
      flags: of ``cnnbench run``, without those of files.
      apart: why its weights are not compared; "" if they are.
      weights_flags: of the process that trains the weights to compare; empty for none.
      rounds: processes by number, from 1.
      weights: the process that has trained the weights.
      checkpoint: the folder with them; None if there are none.
    """

    name: str
    flags: tuple[str, ...]
    resolved: Resolved
    apart: str = ""
    weights_flags: tuple[str, ...] = ()
    rounds: dict[int, Ended] = field(default_factory=dict)
    weights: Ended | None = None
    checkpoint: Path | None = None

    @property
    def records(self) -> dict[int, RunRecord]:
        """Maps the number of each successful round to its record."""
        return {at: one.record for at, one in self.rounds.items() if one.status == "ok"}

    @property
    def problem(self) -> str:
        """The reason of a failed process, after which the case is not run again; else ""."""
        ended = [one for one in (self.weights, *self.rounds.values()) if one is not None]
        return next((one.message for one in ended if one.status != "ok"), "")


@dataclass(frozen=True)
class StrategiesPlan:
    """The cases of a comparison, and lines to print before the first run."""

    one_tower: StrategyCase
    modes: tuple[StrategyCase, ...]
    notices: tuple[str, ...]

    @property
    def cases(self) -> tuple[StrategyCase, ...]:
        """All of them, one tower first."""
        return (self.one_tower, *self.modes)


def make_plan(
    given: Mapping[str, object],
    modes: Sequence[str] | None,
    *,
    on_gpu: bool,
    weights_steps: int = 0,
) -> StrategiesPlan:
    """Checks the flags of every mode; loads no TensorFlow.

    Args:
      given: values of the flags of all runs, by name.
      modes: names; None for all that work with these flags in one process.
      on_gpu: whether devices are GPUs. Towers on a CPU share its cores, so that one tower with all
        their images is an upper limit of their speed. On GPUs it has the images of one device.
      weights_steps: after which weights are compared; 0: never.
    """
    _refuse(given)
    if given.get(registry.PLUGIN_FLAG):
        registry.load_plugin(str(given[registry.PLUGIN_FLAG]))
    texts = {name: _text(name, value) for name, value in given.items()}
    if not on_gpu and texts.get("device", "auto") == "auto":
        texts["device"] = "cpu"  # modes that need GPUs are then left out
    first = _resolved({**texts, "variable_update": DEFAULT})
    towers = int(first.config["num_gpus"])
    if towers < 2:
        raise FlagError("num_gpus", towers, "must be at least 2: one device has nothing to reduce")
    alone = {**texts, "variable_update": DEFAULT, "num_gpus": "1"}
    alone["batch_size"] = str(first.batch_size * (1 if on_gpu else towers))
    if texts.get("gpu_indices"):
        alone["gpu_indices"] = texts["gpu_indices"].split(",")[0]
    cases, notices = [], []
    there_are = registry.names()
    for name in dict.fromkeys(there_are if modes is None else modes):
        if name not in there_are:
            raise FlagError("modes", name, f"must be some of {', '.join(there_are)}")
        mode = registry.find(name)
        flags = {**mode.needs, **texts, "variable_update": name}
        try:
            cases.append(_case(mode, flags, weights_steps))
        except UsageError as error:
            if modes is not None:
                raise
            notices.append(f"{name} is left out: {error}")
    return StrategiesPlan(
        StrategyCase(ONE_TOWER, _words(alone), _resolved(alone), "it sees all images as one batch"),
        tuple(cases),
        (*notices, *dict.fromkeys(f"{c.name}: {n}" for c in cases for n in c.resolved.notices)),
    )


def _case(mode: Mode, flags: Mapping[str, str], weights_steps: int) -> StrategyCase:
    apart = mode.apart or ("" if mode.in_sync else "its towers train apart")
    compared = weights_steps and not apart
    few = _words(flags_for_weights(flags, weights_steps)) if compared else ()
    return StrategyCase(mode.name, _words(flags), _resolved(flags), apart, few)


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
    """The largest `WeightDistance` that rounding explains at a precision."""
    return _TOLERANCE if precision == "fp32" else _TOLERANCE_16_BITS


def _refuse(given: Mapping[str, object]) -> None:
    """Refuses flags that the command sets, and those with which modes train differently."""
    for name, reason in _OF_THE_COMMAND.items():
        if given.get(name):
            raise FlagError(name, _text(name, given[name]), reason)
    if given.get("variable_consistency", "strong") != "strong":
        raise FlagError("variable_consistency", given["variable_consistency"], _OTHERWISE)


def _resolved(flags: Mapping[str, str]) -> Resolved:
    try:
        return resolve_run(_words(flags))
    except DataError as error:
        raise UsageError(str(error)) from None


def _words(flags: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"--{name}={text}" for name, text in flags.items())


_SPECS = {spec.name: spec for spec in (*OBSOLETE, *FLAGS)}


def _text(name: str, value: object) -> str:
    return "" if value is None else _SPECS[name].text(value)


_CHECKPOINTS = "checkpoints"
_SUMMARY = "strategies.json"


class StrategiesFolder(ResultsFolder):
    """A new results directory: DIR/MODE has a record per round, DIR/strategies.json the rows."""

    def __init__(self, folder: str, plan: StrategiesPlan) -> None:
        names = (one.name for one in plan.cases)
        super().__init__(folder, folders=(*names, _CHECKPOINTS, LOGS))
        self.checkpoints = self.folder / _CHECKPOINTS

    def summarise(self, document: StrategiesDocument) -> None:
        """Writes the rows, for reports."""
        self.write(self.folder / _SUMMARY, document.to_json().encode("ascii"))

    def __exit__(self, *error: object) -> None:
        """Removes the weights, which are not needed after the comparison."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        super().__exit__(*error)


class StrategiesSession:
    """One run of the command; the seed is that of the order within rounds, time-outs in seconds."""

    def __init__(
        self,
        plan: StrategiesPlan,
        results: StrategiesFolder,
        campaign: Campaign,
        *,
        rounds: int,
        seed: int,
        timeout: float,
    ) -> None:
        self._results = results
        self._campaign = campaign
        self._rounds = rounds
        self._coins = random.Random(seed)
        self._timeout = timeout
        self.cases = plan.cases

    @property
    def progress(self) -> str:
        """Number of successful processes of the rounds."""
        done = sum(len(one.records) for one in self.cases)
        return f"{done} of {self._rounds * len(self.cases)} processes measured"

    def run(self) -> None:
        """Trains the weights to compare, then runs every case once per round, in random order.

        A case that fails is not run again. On KeyboardInterrupt earlier results are kept.
        """
        training = [one for one in self.cases if one.weights_flags]
        due: list[tuple[StrategyCase, int]] = []
        for number in range(1, self._rounds + 1):
            shuffled = list(self.cases)
            self._coins.shuffle(shuffled)
            due += ((one, number) for one in shuffled)
        self._campaign.expect(f"{one.name} weights" for one in training)
        self._campaign.expect(one.name for one, _ in due)
        for one in training:
            self._train(one)
        for one, number in due:
            if not one.problem:
                self._measure(one, number)

    def _train(self, case: StrategyCase) -> None:
        """Trains the weights to compare; the record is kept only if the process fails."""
        folder = self._results.checkpoints / case.name
        flags = (*case.weights_flags, f"--train_dir={folder}")
        case.weights = self._process(case, "weights", flags, lambda record: "ok")
        if case.problem:
            self._keep(case, "weights", case.weights)
        else:
            case.checkpoint = folder

    def _measure(self, case: StrategyCase, number: int) -> None:
        ended = self._process(case, f"r{number}", case.flags, headline)
        self._keep(case, f"r{number}", ended)
        case.rounds[number] = ended

    def _process(
        self,
        case: StrategyCase,
        stem: str,
        flags: tuple[str, ...],
        said: Callable[[RunRecord], str],
    ) -> Ended:
        name = f"{case.name}-{stem}"
        self._campaign.begin(name)
        pending = self._results.folder / case.name / f"{name}.part"
        command = measuring(
            Side(flags=flags, resolved=case.resolved),
            pending,
            self._results.log(name),
            facts=self._campaign.facts,
        )
        (ended,) = self._campaign.run([command], self._timeout)
        pending.unlink(missing_ok=True)
        if ended.status != "ok":
            self._campaign.drop(case.name)
        self._campaign.end(name, ended.message or said(ended.record), ended.seconds)
        return ended

    def _keep(self, case: StrategyCase, stem: str, ended: Ended) -> None:
        target = self._results.folder / case.name / f"{stem}.json"
        self._results.keep(ended.document, target)
