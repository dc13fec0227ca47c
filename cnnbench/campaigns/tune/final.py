"""The proof: the given flags against the leader, in pairs of `cnnbench ab`.

The pairs are measured anew, so that a leader that was lucky in its races has no advantage: of equal
candidates, `ab` calls the leader faster in at most 2 % of searches, whatever the races. Then a few
steps of both are trained, and their weights compared, with the same kernels: others round
differently, which changes gradients near 0 by per cents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.campaigns.ab.pairs import Experiment, PairFailedError, Pairs
from cnnbench.campaigns.ab.results import SIDES, Begun, PairsFolder, begun
from cnnbench.campaigns.ab.side import request
from cnnbench.campaigns.launch.tasks import command_words
from cnnbench.campaigns.processes.campaign import RequestBatch, RunPolicy
from cnnbench.campaigns.strategies.session import flags_for_weights, weights_tolerance
from cnnbench.campaigns.tune.bench import FEWEST_PAIRS, FINAL, MOST_PAIRS, RaceBench
from cnnbench.campaigns.tune.dimensions import COMPUTING, Settings
from cnnbench.campaigns.tune.space import Candidate, name_of
from cnnbench.errors import UsageError
from cnnbench.judge.compare import DEFAULT_METRICS
from cnnbench.judge.compare.sequential import STEP
from cnnbench.judge.metrics.comparable_facts import MODEL_SIZE, WORK
from cnnbench.machine import repository
from cnnbench.records.codec import encode
from cnnbench.records.tune import FASTER, NONE, OPEN, SAME, SLOWER
from cnnbench.variable_mgr import registry

WEIGHTS_STEPS = 3
_PLAN, _PROOF = "final", "proof"  # events of the journal


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Result of the leader in pairs with the given flags.

    Attributes:
      verdict: `FASTER`, `SAME`, `SLOWER`, `OPEN` or `NONE`.
      reason: "" for `NONE`.
      gain: relative speed of the leader minus 1; None without pairs.
      low, high: confidence interval of gain; None for too few pairs.
      p: p value of the test; None if there was none.
      failure: error that ended it early, or "".
      more: whether more pairs, within the maximum of a final, may decide it.
      enough_minutes: see `TuneDocument`.
    """

    verdict: str
    reason: str = ""
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    p: float | None = None
    pairs: int = 0
    failure: str = ""
    more: bool = False
    enough_minutes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Whether the leader trains the same weights as the flags as given.

    Attributes:
      trains_alike: None if that was not compared.
      remark: why the weights were not, or could not be, compared; "" if they were.
      computing: the flags for kernels, which both trainings had; "" for none.
      weights_steps: number of steps after which they were compared.
      weight_distance: largest difference, as a share of the largest value of its variable, or NaN.
      weight_variable: the variable with that difference; "" if all bits are equal.
      weights_tolerance: largest distance of weights that are called equal.
    """

    trains_alike: bool | None = None
    remark: str = ""
    computing: str = ""
    weights_steps: int | None = None
    weight_distance: float | None = None
    weight_variable: str = ""
    weights_tolerance: float | None = None

    @property
    def text(self) -> str:
        """A sentence without its full stop; "" if nothing was to be compared."""
        if self.weight_distance is None:
            return self.remark
        steps = f"after {self.weights_steps} steps{self.computing}"
        if not self.trains_alike:
            size = f"{self.weight_distance:.2g} of its largest value"
            more = f"more than {self.weights_tolerance:g}"
            return f"weights differ {steps}: {self.weight_variable} by {size}, {more}"
        close = f"within {self.weight_distance:.1g} of the largest value"
        return f"weights are the same {steps}, {close if self.weight_distance else 'all bits'}"


class _TimedPairs(Pairs):
    """Pairs as long as there is time; `is_late` if they ended for lack of it."""

    def __init__(self, experiment: Experiment, results: PairsFolder, bench: RaceBench) -> None:
        super().__init__(experiment, results, bench.campaign)
        self._bench = bench
        self.is_late = False

    def measure(self, number: int, left: int = 0, burn_in: bool = False) -> RunPolicy[None]:
        """See `Pairs.measure`; a pair for which there is no time ends the experiment."""
        seconds = self.seconds_per_pair or 0.0
        if number > FEWEST_PAIRS and self._bench.left < seconds:
            self.is_late = True
            raise PairFailedError("the time is up", lost=True)
        yield from super().measure(number, left, burn_in)


class Final:
    """The end of a search, in the folder and within the time of its races."""

    def __init__(self, bench: RaceBench) -> None:
        self.bench, self.question = bench, bench.question
        self.folder, self.campaign = bench.folder, bench.campaign

    def prove(self, leader: Candidate) -> RunPolicy[Proof]:
        """Measures pairs until they are clear or the time is up; an interrupt keeps whole pairs."""
        if leader.key == self.question.first.key:
            return Proof(verdict=NONE)
        plans = {one["leader"]: one for one in self.folder.events(_PLAN)}
        own = plans.get(leader.key)
        if own is not None:
            pairs, number = own["plan"]["pairs"], own["plan"]["number"]
        else:
            number = 1 + len(plans)
            pairs = self._planned(leader, number, 0)
        if pairs < FEWEST_PAIRS:
            return self.too_late(f"the {FEWEST_PAIRS} pairs that a verdict needs")
        proof = yield from self._measure(leader, pairs, number)
        is_open = proof.verdict == OPEN and not proof.failure and proof.pairs >= pairs
        if own is not None and is_open and own["minutes"] < self.question.seconds / 60:
            more = self._planned(leader, number, proof.pairs)
            if more > pairs:
                proof = yield from self._measure(leader, more, number)
        self.folder.journal.add(
            _PROOF, leader=leader.key, settings=leader.settings, proof=encode(proof)
        )
        return proof

    def too_late(self, what: str) -> Proof:
        """The proof without a result, for lack of time for something."""
        return Proof(verdict=OPEN, reason=f"no time for {what}", more=True)

    def proven_before(self) -> Settings | None:
        """Settings of the leader that was last proven to be faster in an earlier session."""
        proven = [
            dict(one["settings"])
            for one in self.folder.events(_PROOF)
            if one["proof"]["verdict"] == FASTER
        ]
        return proven[-1] if proven else None

    def _measure(self, leader: Candidate, most: int, number: int) -> RunPolicy[Proof]:
        with self.folder.pairs(number) as results:
            earlier = begun(results.folder)
            experiment = self._experiment(leader, most, self._alpha(number), earlier)
            pairs = _TimedPairs(experiment, results, self.bench)
            yield from pairs.policy()
        main = next((entry.main for entry in pairs.comparison.entries), None)
        failure = "" if pairs.is_late else pairs.failure
        measured = len(pairs.records["a"])
        if main is None or failure:
            return Proof(verdict=OPEN, reason=failure, pairs=measured, failure=failure)
        judged = main.judgement
        word = main.verdict.value
        needed = judged.needed if judged.low is not None else FEWEST_PAIRS
        return Proof(
            verdict=word if word in (FASTER, SAME, SLOWER) else OPEN,
            reason=judged.reason,
            gain=judged.change,
            low=judged.low,
            high=judged.high,
            confidence=1 - pairs.alpha,
            p=judged.p_adjusted,
            pairs=measured,
            more=needed is not None and measured < max(needed, measured + 1) <= MOST_PAIRS,
        )

    def _alpha(self, number: int) -> float:
        """The level of all analyses of a leader, by its number from 1 in the order of the finals.

        Each leader has half the level of the one before: together at most twice that of the first.
        """
        return self.question.policy.alpha * 0.5 ** (number - 1)

    def _planned(self, leader: Candidate, number: int, there: int) -> int:
        """Number of pairs that the time allows, with the measured ones; noted if enough."""
        left = self.bench.left - 2 * self.bench.process_seconds  # for the weights
        fitting = int(left / (2 * self.bench.final_seconds))
        # A number after which the last interim analysis comes.
        most = min(there + fitting, MOST_PAIRS)
        most = most // STEP * STEP if most >= 2 * STEP else most
        if most >= FEWEST_PAIRS and most > there:
            plan = {"pairs": most, "number": number, "alpha": self._alpha(number)}
            self.folder.journal.add(_PLAN, leader=leader.key, plan=plan)
        return most

    def _experiment(
        self, leader: Candidate, most: int, alpha: float, earlier: Begun | None
    ) -> Experiment:
        sides = {}
        for name, one in zip(SIDES, (self.question.first, leader), strict=True):
            flags = {**one.flags, **self.bench.length_flags(one, FINAL)}
            sides[name] = replace(
                self.question.side(flags, one.resolved),
                own=command_words(one.settings),
                subject=replace(repository.of_work(one.resolved.config), side=name),
            )
        work = [name for name in WORK if name not in MODEL_SIZE] if leader.changes else []
        return Experiment(
            sides=sides,
            most_pairs=most,
            earlier=earlier,
            seed=self.question.seed,
            burn_in=0,
            timeout=self.question.timeout,
            turn_seconds=self.question.turn_seconds,
            policy=self.question.policy.replace(alpha=alpha),
            metrics=DEFAULT_METRICS[:1],
            allow_different=tuple(work),
        )

    def weights(self, leader: Candidate) -> RunPolicy[Weights]:
        """Compares the weights that both sides train, with the leader's flags for kernels."""
        no_promise = self._no_promise(leader)
        if no_promise:
            return Weights(remark=no_promise)
        computing = {name: text for name, text in leader.settings.items() if name in COMPUTING}
        both = f" with {name_of(computing)}" if computing else ""
        try:
            reference = self.question.space.make(computing)
        except UsageError as error:
            remark = f"weights are not compared: the flags as given cannot run{both}: {error}"
            return Weights(remark=remark)
        if reference.key == leader.key:
            return Weights(remark="weights are not compared: only how operations compute differs")
        distances = self.folder.distances(leader.key)
        if distances is None:
            folders = {}
            for name, one in (("as given", reference), ("tuned", leader)):
                folders[name] = self.folder.checkpoints / name.replace(" ", "-")
                problem = yield from self._train(name, one, folders[name])
                if problem:
                    self.folder.discard()
                    remark = f"weights could not be compared: {name}: {problem}"
                    return Weights(remark=remark, trains_alike=False)
            distances = self.folder.compare(folders, leader.key)
        distance, variable = distances["tuned"]
        tolerance = weights_tolerance(str(self.question.first.resolved.config["precision"]))
        return Weights(
            trains_alike=distance <= tolerance,  # False for NaN
            computing=both,
            weights_steps=WEIGHTS_STEPS,
            weight_distance=distance,
            weight_variable=variable,
            weights_tolerance=tolerance,
        )

    def _no_promise(self, leader: Candidate) -> str:
        """Why the weights need not be the same; "" where they must."""
        config = leader.resolved.config
        if config.get("forward_only"):
            return "nothing is trained"
        if leader.changes:
            return f"it trains differently: {', '.join(leader.changes)}"
        for one in (self.question.first, leader):
            mode = registry.find(str(one.resolved.config["variable_update"]))
            if mode.apart or not mode.in_sync:
                return f"weights are not compared: {mode.name} trains its towers apart"
            if one.resolved.asynchronous:
                return "weights are not compared: workers train asynchronously"
        return ""

    def _train(self, name: str, one: Candidate, target: Path) -> RunPolicy[str]:
        """Trains weights to compare; returns why that failed, or ""."""
        flags = flags_for_weights(one.flags, WEIGHTS_STEPS)
        flags["train_dir"] = str(self.folder.unfinished(target))
        training = request(
            self.folder,
            f"weights-{one.key}",
            self.question.side(flags, replace(one.resolved, explicit_flags=())),
            label=f"weights: {name}",
            key="weights",
            leaves=target,
        )
        (ended,) = yield RequestBatch(
            folder=self.folder, requests=[training], timeout=self.question.timeout
        )
        message: str = ended.message
        return message
