"""`cnnbench bisect`: finds the commit that made a model slower.

The candidates are listed by ``git rev-list --bisect``; the repository is not changed.

First, BAD is compared with GOOD as by `cnnbench ab`. If, for example, BAD is slower by a quarter,
changes of 3 % between other commits do not matter. Therefore, a commit between GOOD and BAD counts
as slower than GOOD from half of BAD's change (on a logarithmic scale). This needs far fewer pairs,
and is robust against other programs on the machine. If the result for a commit is inconclusive with
this threshold, the commit is bad if it is slower by the usual threshold. The candidates depend only
on the answers, so a bisection can be resumed.
"""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cnnbench.base.document import (
    Answer,
    Paragraph,
    Row,
    Section,
    TableCell,
    make_table,
    numeric_cell,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.inference import ANALYSIS_STEP, FIRST_ANALYSIS
from cnnbench.base.text import (
    NONE,
    count_text,
    format_duration,
    integer,
    item_count,
    percent,
    percent_range,
)
from cnnbench.campaigns.ab.explain import (
    PROFILES_OF_SIDES,
    AbProfiler,
    NotExplainedError,
    explain_once,
)
from cnnbench.campaigns.ab.pairs import (
    AB,
    SIDES,
    ExperimentRunner,
    ExperimentSettings,
    ExperimentState,
    find_experiment,
)
from cnnbench.campaigns.ab.shared_code import refuse_shared_code
from cnnbench.campaigns.ab.side import AbSide, choose_time_slice_seconds, resolve_flags, worktree
from cnnbench.campaigns.processes.answers import store_answer, stored_answers
from cnnbench.campaigns.processes.campaign import Campaign, ProcessRequests, last_output_text
from cnnbench.campaigns.processes.child import Command, execute, log_tail
from cnnbench.campaigns.processes.journal import JOURNAL, PROCESS, Journal
from cnnbench.campaigns.processes.results_dir import CampaignKind, ResultsFolder
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.judge.compare import (
    ComparedConfiguration,
    Comparison,
    Criteria,
    Judgement,
    MetricResult,
    Policy,
    processes_needed,
)
from cnnbench.judge.compare.estimate import (
    Verdict,
    change_magnitude,
    exceeds_limit,
    is_too_many_further_runs,
)
from cnnbench.judge.metrics import THROUGHPUT
from cnnbench.machine import repository
from cnnbench.machine.repository import (
    CommitGraph,
    GitError,
    abbreviate_hash,
    find_commit_hash,
    git,
    missing_commit_reason,
    reverted_commit,
)
from cnnbench.records.profiles import Explanation

# Selects the commits between GOOD and BAD to measure, and narrows down the first bad commit.


class GitHistory(NamedTuple):
    """Queries the git history of a repository. `first_parent` treats a merge as one commit."""

    repository: Path
    first_parent: bool = False

    def suspects(self, good: Sequence[str], bad: str) -> list[str]:
        """Candidates for the first bad commit, including `bad`. The best commit to test is first.

        This is the commit that divides the candidates most evenly.
        """
        options = ["--first-parent"] if self.first_parent else []
        commits = [bad, *(f"^{commit}" for commit in good)]
        listed = git(
            *("rev-list", "--bisect-all", *options, *commits, "--"), folder=self.repository
        )
        return [line.split()[0] for line in listed.splitlines()]

    def order_by_ancestry(self, commits: Collection[str], good: str, bad: str) -> tuple[str, ...]:
        """Sorts commits between GOOD and BAD so that parents precede their children."""
        listed = git(
            *("rev-list", "--reverse", "--topo-order", bad, f"^{good}", "--"),
            folder=self.repository,
        )
        return tuple(line for line in listed.splitlines() if line in commits)

    def format_commit(self, commit: str, git_format: str = "%s") -> str:
        """Output of `git show` in `git_format`; by default, the first line of the message."""
        words = ("show", "--no-patch", f"--format={git_format}", commit, "--")
        return git(*words, folder=self.repository)

    def parent(self, commit: str) -> str:
        """The first parent of a commit, which must have one."""
        return git("rev-parse", f"{commit}^1", folder=self.repository)


def find_repository_root(text: str) -> Path:
    """The root of the git working tree that contains a folder (the value of --repository).

    Raises FlagError if the folder is not in a git repository.
    """
    try:
        return Path(git("rev-parse", "--show-toplevel", folder=text))
    except GitError as error:
        raise FlagError("repository", text, f"must be in a git repository: {error}") from None


def good_and_bad_hashes(good: str, bad: str, repository: Path) -> tuple[str, str]:
    """The commit hashes of the revisions GOOD and BAD.

    Raises UsageError if a revision is unknown, or if GOOD is not an ancestor of BAD.
    """
    commits = []
    for name, text in (("GOOD", good), ("BAD", bad)):
        try:
            commits.append(find_commit_hash(text, repository))
        except GitError as error:
            raise UsageError(
                f"{name} {text!r}: is not a revision of {repository}: {error}"
            ) from None
    if commits[0] == commits[1]:
        raise UsageError(f"GOOD {good!r} and BAD {bad!r} are the same commit")
    try:
        base = git("merge-base", *commits, folder=repository)
    except GitError as error:
        why = missing_commit_reason(repository) or error
        raise UsageError(f"GOOD {good!r} and BAD {bad!r} have no common ancestor: {why}") from None
    if base == commits[1]:
        raise UsageError(f"GOOD {good!r}: BAD is an ancestor of GOOD; swap GOOD and BAD")
    if base != commits[0]:
        replaced = CommitGraph(repository).replacing_commits(commits).items()
        reasons = [
            "it is not an ancestor of BAD",
            *(
                f"{abbreviate_hash(a)} was replaced, as by {how}: it is now {abbreviate_hash(b)}"
                for a, (b, how) in replaced
            ),
            f"give their common ancestor: {abbreviate_hash(base)}",
        ]
        raise UsageError(f"GOOD {good!r}: {'; '.join(reasons)}")
    return commits[0], commits[1]


GOOD, BAD, SKIP = "good", "bad", "skip"
_TO_SLOWER = {
    Verdict.SLOWER: BAD,
    Verdict.FASTER: GOOD,
    Verdict.SAME: GOOD,
    Verdict.NOT_SLOWER: GOOD,
}
_TO_CHANGED_WORK = {
    Verdict.CHANGED_WORK: BAD,
    Verdict.FAILED: SKIP,
    Verdict.NOT_COMPARABLE: SKIP,
    Verdict.NOT_MEASURED: SKIP,
}


@dataclass(frozen=True, kw_only=True)
class BisectionStep:
    """The answer (good, bad or skip) about one commit, which was compared with GOOD or could not be
    measured.

    Attributes:
      answer: "good", "bad" or "skip".
      judgement: change of images/sec relative to GOOD. `needed` is the number of pairs for an
        answer.
      confidence: confidence of the judgement's interval.
      pairs: number of measured pairs.
      lost: whether the commit's processes were killed from outside too often.
      good_fails: whether processes of GOOD failed.
    """

    commit: str
    answer: str
    judgement: Judgement
    confidence: float = 0.0
    pairs: int = 0
    lost: bool = False
    good_fails: bool = False

    @property
    def is_undecided(self) -> bool:
        """Whether more pairs of processes may give an answer about the commit."""
        return self.answer == SKIP and self.judgement.verdict is Verdict.INCONCLUSIVE


class CommitSearch:
    """Selects the commits to measure, and excludes commits that cannot be the first bad commit."""

    def __init__(self, history: GitHistory, good: str, bad: str) -> None:
        self._history = history
        self._good = [good]
        self.bad = bad
        self._skipped: set[str] = set()
        self._misses = 0
        self._suspects = history.suspects(self._good, bad)

    @property
    def suspects(self) -> tuple[str, ...]:
        """The remaining candidates for the first bad commit."""
        return tuple(self._suspects)

    @property
    def steps_left(self) -> int:
        """Estimated number of commits that must still be measured."""
        return math.ceil(math.log2(len(self._untested_suspects()) + 1))

    def next_commit(self) -> str | None:
        """Selects the next commit to measure; None if no answer can reduce the candidates.

        After each skipped commit, the distance to the next commit grows, because broken commits are
        often consecutive.
        """
        candidates = self._untested_suspects()
        if not candidates:
            return None
        return candidates[min((1 << self._misses) - 1, len(candidates) // 2)]

    def add_answer(self, step: BisectionStep) -> None:
        """Adds an answer about a commit. Excludes commits that cannot be the first bad commit."""
        if step.answer == SKIP:
            self._skipped.add(step.commit)
            self._misses += 1
            return
        if step.answer == BAD:
            self.bad = step.commit
        else:
            self._good.append(step.commit)
        self._misses = 0
        self._suspects = self._history.suspects(self._good, self.bad)

    def _untested_suspects(self) -> list[str]:
        return [
            commit
            for commit in self._suspects
            if commit != self.bad and commit not in self._skipped
        ]


def is_search_for_changed_work(bad_step: BisectionStep | None) -> bool:
    """Whether bisect looks for the commit that changed the work, such as FLOPs, and not the speed.

    `bad_step` is the comparison of BAD with GOOD.
    """
    return bad_step is not None and bad_step.judgement.verdict is Verdict.CHANGED_WORK


def shared_configuration(comparison: Comparison) -> ComparedConfiguration | None:
    """The configuration of the runs of GOOD and of another commit; None if their configurations
    differ.
    """
    deciding = [entry for entry in comparison.entries if entry.affects_exit_code]
    return deciding[0] if len(deciding) == 1 else None


def policy_for_middle_commit(step: BisectionStep, usual: Policy) -> Policy:
    """Decision thresholds for a commit between GOOD and BAD: half of BAD's change. The whole
    interval of the commit's change must lie on one side of it.

    `step` is the comparison of BAD with GOOD. `usual` contains the thresholds of that comparison.
    """
    change = step.judgement.change
    if change is None:
        return usual
    half = math.expm1(abs(math.log1p(change)) / 2)
    return usual.replace(threshold=max(usual.threshold, half), by_interval=True)


def bisect_answer(result: MetricResult, usual_policy: Policy, searches_changed_work: bool) -> str:
    """The answer about a commit ("good", "bad" or "skip"), from its comparison with GOOD.

    In a search for changed work, one pair is enough. In a search for lower speed, an open commit is
    bad if the whole interval is slower by more than the threshold in `usual_policy`.
    """
    if searches_changed_work:
        return _TO_CHANGED_WORK.get(result.verdict, GOOD)
    high = result.judgement.high
    if result.verdict is Verdict.INCONCLUSIVE and high is not None and high < 0:
        threshold = usual_policy.threshold_of(result.metric)
        if exceeds_limit(change_magnitude(high, result.metric), threshold):
            return BAD
    return _TO_SLOWER.get(result.verdict, SKIP)


def follow_up_pairs(undecided: Sequence[BisectionStep], most_pairs: int) -> int:
    """Number of pairs per commit that should give answers about the undecided commits.

    The number is above `most_pairs`. 0 if more pairs would not help.
    """
    pairs = most_pairs + ANALYSIS_STEP
    for step in undecided:
        needed = step.judgement.needed
        if needed is None or is_too_many_further_runs(needed - step.pairs, paired=True):
            return 0
        pairs = max(pairs, needed)
    return pairs


# Compares a commit with GOOD: creates a worktree, builds it, and measures pairs.

_OTHER_CONFIGURATION = "its runs have a different configuration from the runs of GOOD"


@dataclass(frozen=True, kw_only=True)
class BisectionSettings:
    """Settings of a bisection, which apply to all measured commits.

    Attributes:
      good, bad: hashes of commits. All other commits are compared with `good`.
      side: flags and Python interpreter of the processes.
      build: shell command that prepares a worktree; None to leave it as it is.
      experiment: settings of the experiments that compare commits with GOOD.
      most_pairs: maximum number of pairs if the answer is not clear.
      pairing: value of --pairing: how the processes of a pair alternate.
    """

    history: GitHistory
    good: str
    bad: str
    side: AbSide
    build: str | None
    experiment: ExperimentSettings
    most_pairs: int
    pairing: str


BISECT = CampaignKind(command="bisect", noun="bisection")
"""Kind of campaign for bisections. The journal contains the commits that cannot be measured. Every
other commit has a folder of `cnnbench ab`, named by its hash. The answer about a commit is computed
from this folder, so `report` and `history` can read the whole bisection.
"""


class _BuildFailedError(Exception):
    """A commit cannot be built, so bisect skips the commit. The message contains the reason."""


class CommitBenchmark:
    """Compares commits with GOOD. The worktree of GOOD exists until `stack` is closed.

    `bad_step` is the comparison of BAD with GOOD; None before BAD was measured.
    """

    def __init__(
        self,
        setting: BisectionSettings,
        results: ResultsFolder,
        campaign: Campaign,
        stack: contextlib.ExitStack,
    ) -> None:
        self.setting = setting
        self.campaign = campaign
        self._results = results
        self._stack = stack
        self._good: AbSide | None = None
        self.bad_step: BisectionStep | None = None

    def build_good(self) -> None:
        """Creates and builds the worktree of the commit GOOD, unless this was done before.

        Raises BenchmarkError if the build fails, and UsageError if GOOD refuses the flags.
        """
        if self._good is not None:
            return
        good = self.setting.good
        try:
            self._good = self._stack.enter_context(self._built_worktree_side(good, "a"))
        except _BuildFailedError as error:
            raise BenchmarkError(f"GOOD ({good[:12]}) {error}") from None
        except UsageError as error:
            raise UsageError(f"GOOD ({good[:12]}): {error}") from None

    @property
    def seconds_per_pair(self) -> float | None:
        """Mean seconds per pair of processes so far, or a first estimate; None if unknown."""
        seconds = self.campaign.mean_process_seconds(None)
        work = None if self._good is None else self._good.resolved.work
        if seconds is None and work is not None:
            seconds = work.estimate_seconds(self.campaign.facts)
        return None if seconds is None else len(SIDES) * seconds

    def stored_answer(self, commit: str) -> BisectionStep | None:
        """The answer about a commit from earlier sessions; None if the commit must be measured.

        See `measure`.
        """
        unusable = self._results.last_process_events.get(commit)
        if unusable is not None and self.bad_step is not None:
            return _skipped_step(commit, unusable["problem"])
        state, step = self._stored_state_and_answer(commit)
        return None if self._target_number_of_pairs(state, step) else step

    def compare_with_good(self, number: int, commit: str) -> ProcessRequests[BisectionStep]:
        """Compares a commit with GOOD, and returns the answer. Call `build_good` first.

        `number` counts the measured commits, from 0. Pairs from earlier sessions are included.
        Raises BenchmarkError if GOOD failed, or if results cannot be written.
        """
        assert self._good is not None
        setting = self.setting
        with contextlib.ExitStack() as stack:
            try:
                new = stack.enter_context(self._built_worktree_side(commit, "b"))
                sides = {"a": self._good, "b": new}
                in_turn = choose_time_slice_seconds(setting.pairing, sides, self.campaign.reporter)
            except (_BuildFailedError, UsageError) as error:
                if (
                    self.bad_step is None
                    and isinstance(error, FlagError)
                    and error.flag == "pairing"
                ):
                    raise
                problem = str(error)
                self._results.journal.add(PROCESS, name=commit, status="failed", problem=problem)
                return _skipped_step(commit, problem)
            refuse_shared_code(sides)
            state, step = self._stored_state_and_answer(commit)
            burn_in = 0 if is_search_for_changed_work(self.bad_step) else setting.experiment.burn_in
            while most := self._target_number_of_pairs(state, step):
                if step is not None:
                    text = f"{commit[:12]} is undecided: continuing with up to {most} pairs"
                    self.campaign.reporter.notice(text)
                first = setting.experiment.seed + number
                experiment = replace(
                    setting.experiment,
                    sides=sides,
                    most_pairs=most,
                    earlier=state,
                    sequential=not is_search_for_changed_work(self.bad_step),
                    seed=first if state is None else state.last_session_settings["seed"],
                    burn_in=burn_in,
                    turn_seconds=in_turn
                    if state is None
                    else state.last_session_settings["turn_seconds"],
                    criteria=self._criteria_for_next_commit(),
                )
                place = self._pairs_folder(commit)
                with ResultsFolder(AB, place, resume=True, within=self._results) as results:
                    yield from ExperimentRunner(experiment, results, self.campaign).requests()
                burn_in = 0
                state = find_experiment(self._pairs_folder(commit))
                step = self._answer_from_journal(commit, state)
        assert step is not None
        if step.good_fails:
            raise BenchmarkError(f"GOOD ({setting.good[:12]}) fails: {step.judgement.reason}")
        return step

    def explain(self, parent: str, commit: str) -> Explanation:
        """Explains why the steps of a commit and of its parent take different times, by profiles of
        this session or an earlier one.

        Raises NotExplainedError if this is impossible.
        """
        return explain_once(self._results, partial(self._profile, parent, commit), commit=commit)

    def _profile(self, parent: str, commit: str) -> Explanation:
        text = f"profiling {commit[:12]} and {parent[:12]}, the commit before it"
        self.campaign.reporter.notice(text)
        with contextlib.ExitStack() as stack:
            try:
                a = stack.enter_context(self._built_worktree_side(parent, "a"))
                b = stack.enter_context(self._built_worktree_side(commit, "b"))
            except (_BuildFailedError, UsageError) as error:
                raise NotExplainedError(str(error)) from error
            place = self._results.folder / f"explain-{commit[:12]}"
            kind = PROFILES_OF_SIDES
            with ResultsFolder(kind, place, resume=True, within=self._results) as results:
                return AbProfiler(
                    sides={"a": a, "b": b},
                    results=results,
                    campaign=self.campaign,
                    timeout=self.setting.experiment.timeout,
                ).explain_and_store()

    def _pairs_folder(self, commit: str) -> Path:
        """The results folder with the pairs of a commit and GOOD."""
        return self._results.folder / commit[:12]

    @contextlib.contextmanager
    def _built_worktree_side(self, commit: str, name: str) -> Iterator[AbSide]:
        """Context manager that creates and builds a temporary worktree of a commit, and yields a
        `AbSide` that runs its code.

        The flags of the runs are resolved in the worktree.
        """
        setting = self.setting
        with worktree(commit, setting.history.repository) as folder:
            # The build may change files that git tracks, so the commit is determined first.
            subject = replace(repository.read_repository_state(folder), side=name)
            if setting.build is not None:
                self._run_build(setting.build, commit, folder)
            side = replace(setting.side, checkout=folder, revision=commit[:12], subject=subject)
            yield replace(side, resolved=resolve_flags(side))

    def _run_build(self, command: str, commit: str, folder: Path) -> None:
        log = self._results.folder / f"build-{commit[:12]}.log"
        build = Command(words=("/bin/sh", "-c", command), log=log, folder=folder)
        self._results.raise_if_replaced()
        done = execute(build, self.setting.experiment.timeout)
        if done.timed_out:
            raise _BuildFailedError(
                f"does not build: takes more than {format_duration(done.seconds)}"
            )
        if done.code != 0:
            problem = f"exit status {done.code}; {last_output_text(log_tail(log))}"
            raise _BuildFailedError(f"does not build: {problem}")

    def _stored_state_and_answer(
        self, commit: str
    ) -> tuple[ExperimentState | None, BisectionStep | None]:
        """The state of a commit's experiment after earlier sessions, and the answer (good, bad or
        skip) about the commit.

        The answer is None if the commit must be measured again, because processes were killed from
        outside, GOOD failed, or BAD failed when it was compared with GOOD.
        """
        state = find_experiment(self._pairs_folder(commit))
        step = self._answer_from_journal(commit, state)
        if step is not None and (step.lost or step.good_fails):
            step = None
        if step is not None and self.bad_step is None and step.judgement.verdict is Verdict.FAILED:
            step = None
        return state, step

    def _target_number_of_pairs(
        self, state: ExperimentState | None, step: BisectionStep | None
    ) -> int:
        """The number of pairs up to which a commit is measured; 0 if its answer is final."""
        if state is None:
            return (
                1
                if is_search_for_changed_work(self.bad_step)
                else self.setting.experiment.most_pairs
            )
        if step is None:
            return state.most_pairs_of_last_session
        most = self.setting.most_pairs
        needed = step.judgement.needed
        decides = step.is_undecided and needed is not None and needed <= most
        return most if decides and state.most_pairs_of_last_session < most else 0

    def _criteria_for_next_commit(self) -> Criteria:
        criteria = self.setting.experiment.criteria
        if self.bad_step is None or is_search_for_changed_work(self.bad_step):
            return criteria
        policy = policy_for_middle_commit(self.bad_step, criteria.policy)
        return replace(criteria, policy=policy)

    def _answer_from_journal(
        self, commit: str, state: ExperimentState | None
    ) -> BisectionStep | None:
        """The answer about a commit from its stored pairs; None if its experiment has not ended."""
        if state is None or state.last_end_event is None:
            return None
        comparison = state.final_comparison(judge_together=state.is_alpha_spent)
        assert comparison is not None
        policy = self.setting.experiment.criteria.policy
        entry = shared_configuration(comparison)
        if entry is None:
            step = _skipped_step(commit, _OTHER_CONFIGURATION, Verdict.NOT_COMPARABLE)
        else:
            pairs, judgement = min(len(entry.base), len(entry.new)), entry.main.judgement
            fewest = processes_needed(policy, paired=True)
            step = BisectionStep(
                commit=commit,
                answer=bisect_answer(entry.main, policy, is_search_for_changed_work(self.bad_step)),
                judgement=replace(judgement, needed=fewest) if pairs < fewest else judgement,
                confidence=policy.confidence,
                pairs=pairs,
            )
        judgement = step.judgement
        if self.bad_step is None and judgement.verdict is Verdict.CHANGED_WORK:
            # If BAD has different FLOPs, bisect looks for the commit that changed the FLOPs.
            step = replace(step, answer=BAD)
        return replace(
            step,
            judgement=replace(
                judgement, reason=state.last_end_event["failure"] or judgement.reason
            ),
            lost=state.last_end_event.get("lost", False),
            good_fails=any(
                record.status != "ok" for entry in comparison.entries for record in entry.base
            ),
        )


def _skipped_step(commit: str, reason: str, verdict: Verdict = Verdict.FAILED) -> BisectionStep:
    judgement = Judgement(verdict=verdict, reason=reason)
    return BisectionStep(commit=commit, answer=SKIP, judgement=judgement)


# Runs a bisection (first BAD, then commits between GOOD and BAD), and writes its result as text.

# Changes of at least this size are printed as whole percentages.
_LARGE = 0.1


class Bisection:
    """Searches for the first bad commit. Commits with stored results are not measured again.

    Attributes:
      steps: steps of this session and earlier ones, by commit, beginning with the comparison of BAD
        with GOOD.
      suspects: candidates for the first bad commit, the oldest first; empty if GOOD and BAD do not
        differ.
    """

    def __init__(self, bench: CommitBenchmark) -> None:
        self._bench = bench
        self.setting = setting = bench.setting
        self._notice = bench.campaign.reporter.notice
        self._search = CommitSearch(setting.history, setting.good, setting.bad)
        self.steps: dict[str, BisectionStep] = {}
        self.suspects: tuple[str, ...] = ()

    @property
    def bad_step(self) -> BisectionStep:
        """The comparison of BAD with GOOD, which is the first step of a bisection."""
        assert self._bench.bad_step is not None
        return self._bench.bad_step

    @property
    def unanswered_steps(self) -> list[BisectionStep]:
        """The steps without an answer (good or bad) whose commits may be the first bad commit.

        If BAD is not slower than GOOD, this is only the comparison of BAD with GOOD.
        """
        if not self.suspects:
            return [self.bad_step]
        skipped = (step for step in self.steps.values() if step.answer == SKIP)
        return [step for step in skipped if step.commit in self.suspects]

    def requests(self) -> ProcessRequests[None]:
        """Measures commits until the first bad commit is found, or no commit is left to measure.

        After an interrupt, complete pairs are kept.
        """
        setting = self.setting
        commit: str | None = setting.bad
        while commit is not None:
            known = self._bench.stored_answer(commit)
            step = known or (yield from self._measure_commit(commit))
            if self._bench.bad_step is None:
                self._bench.bad_step = step
            else:
                self._search.add_answer(step)
            before = "" if known is None else ", as measured before"
            self._notice(f"{commit[:12]} is {step_answer_text(step, self.bad_step)}{before}")
            self.steps[commit] = step
            commit = self._search.next_commit() if self.bad_step.answer == BAD else None
        if self.bad_step.answer == BAD:
            suspects = self._search.suspects
            self.suspects = setting.history.order_by_ancestry(suspects, setting.good, setting.bad)

    def explain(self) -> Explanation | None:
        """Explains why the first bad commit is slower; None if this commit was not found.

        Raises NotExplainedError if the commit cannot be profiled.
        """
        if len(self.suspects) != 1:
            return None
        (commit,) = self.suspects
        return self._bench.explain(self.setting.history.parent(commit), commit)

    def _measure_commit(self, commit: str) -> ProcessRequests[BisectionStep]:
        self._bench.build_good()
        steps_left, done = self._search.steps_left, len(self.steps)
        what = f"step {done} of about {done + steps_left - 1}" if done else "GOOD against BAD"
        self._notice(self._remaining_steps_text(steps_left + (not done)))
        self._notice(f"{what}: {commit[:12]} {self.setting.history.format_commit(commit)}")
        return (yield from self._bench.compare_with_good(done, commit))

    def _remaining_steps_text(self, steps: int) -> str:
        """Describes how many commits will still be measured, with the estimated time."""
        number = len(self._search.suspects)
        text = f"{count_text(number, 'commit', 'commits')} may be the first bad one: about "
        text += f"{count_text(steps, 'step', 'steps')} of "
        experiment = self.setting.experiment
        most, burn_in = experiment.most_pairs, experiment.burn_in
        least = min(FIRST_ANALYSIS, most)
        if is_search_for_changed_work(self._bench.bad_step):
            least, most, burn_in = 1, 1, 0
        text += count_text(least, "pair", "pairs") if least == most else f"{least} to {most} pairs"
        per_pair = self._bench.seconds_per_pair
        if per_pair is None:
            return text
        times = [format_duration(steps * (pairs + burn_in) * per_pair) for pairs in (least, most)]
        basis = "as before" if self._bench.campaign.mean_process_seconds(None) else "a first guess"
        return f"{text}, {' to '.join(dict.fromkeys(times))}, {basis}"


def step_answer_text(step: BisectionStep, bad_step: BisectionStep) -> str:
    """The answer about a commit as text. `bad_step` is the comparison of BAD with GOOD."""
    if step.answer == SKIP:
        return f"{'undecided' if step.is_undecided else 'skipped'}: {step.judgement.reason}"
    if is_search_for_changed_work(bad_step):
        return "bad: other work to do" if step.answer == BAD else "good: the same work to do"
    return f"{step.answer}: {_speed_change_text(step)}"


def _speed_change_text(step: BisectionStep) -> str:
    """A commit's change of speed, "37 % slower (15 to 61 %)" or "+0.3 % (-1.0 to +1.6 %)"."""
    change, low, high = step.judgement.change, step.judgement.low, step.judgement.high
    if change is None or low is None or high is None:
        return f"{step.judgement.verdict.value}, {step.judgement.reason}"
    if low <= 0 <= high:
        return f"{THROUGHPUT.change_text(change)} ({THROUGHPUT.range_text(low, high)})"
    digits = 0 if abs(change) >= _LARGE else 1
    least, most = sorted((abs(low), abs(high)))
    direction = "slower" if change < 0 else "faster"
    return f"{percent(abs(change), digits)} {direction} ({percent_range(least, most, digits)})"


def bisection_text(bisection: Bisection) -> str:
    """The result of a bisection as text: a table of the measured commits, and the bad commit."""
    steps = make_table(
        (_step_row(step, bisection.setting.history) for step in bisection.steps.values()),
        whole=True,
    )
    more = (
        _first_bad_commit_texts(bisection)
        if len(bisection.suspects) == 1
        else _suspect_range_texts(bisection)
    )
    return sections_to_text([[steps], more if bisection.suspects else []])


_TITLE = "Bisection"


def store_result(folder: ResultsFolder, bisection: Bisection) -> None:
    """Stores the result of a bisection in its journal, for `stored_result`."""
    history, suspects = bisection.setting.history, bisection.suspects
    if len(suspects) == 1:
        text, *details = (paragraph.text for paragraph in _first_bad_commit_texts(bisection))
    elif suspects:
        text, *details = (paragraph.text for paragraph in _suspect_range_texts(bisection))
    else:
        text, details = no_difference_reason(bisection.bad_step), []
    tone = "bad" if len(suspects) == 1 else "unsure"
    store_answer(
        folder,
        Answer(_TITLE, text, tone, tuple(filter(None, details))),
        "The commits that cnnbench bisect compared with GOOD, in the order of the measurements. "
        "The paired change is the change against GOOD; the interval is its confidence interval.",
        (_step_row(step, history) for step in bisection.steps.values()),
    )


def stored_result(folder: Path) -> tuple[Answer, list[Section]] | None:
    """Reads the result of the bisection in a folder, as an answer and sections for a report.

    Returns None if the folder contains no bisection. If the bisection has not ended, the answer
    says so.
    """
    for answer, section in stored_answers(BISECT, folder):
        return answer, [section]
    if BISECT.last_identity(Journal(folder / JOURNAL).read()) is None:
        return None
    more = "cnnbench bisect with the same arguments and --resume continues it"
    return Answer(_TITLE, "The bisection has not ended", "unsure", (more,)), []


def no_difference_reason(step: BisectionStep) -> str:
    """Says why bisect cannot search (BAD is not slower than GOOD), and what the user can do."""
    if step.is_undecided:
        return f"whether BAD is slower than GOOD is undecided: {step.judgement.reason}"
    text = f"BAD is not slower than GOOD: {step.judgement.verdict.value}, {step.judgement.reason}; "
    if step.judgement.verdict in (Verdict.SAME, Verdict.NOT_SLOWER):
        return text + "check revisions and flags, or look for a smaller change with --threshold"
    if step.judgement.verdict is Verdict.FASTER:
        return text + "bisect looks for slower commits only: check which is GOOD and which is BAD"
    return text + "measure comparable commits"


def _step_row(step: BisectionStep, history: GitHistory) -> Row:
    return {
        "commit": step.commit[:12],
        "answer": step.answer,
        "paired change": TableCell(_change_cell(step), kinds="number"),
        "interval": TableCell(_interval_cell(step), kinds="number"),
        "pairs": numeric_cell(step.pairs, integer),
        "subject": history.format_commit(step.commit),
    }


def _first_bad_commit_texts(bisection: Bisection) -> list[Paragraph]:
    (commit,), history = bisection.suspects, bisection.setting.history
    step = bisection.steps[commit]  # The only remaining candidate must have been measured.
    sides = [f"--a_checkout={history.parent(commit)[:12]}", f"--b_checkout={commit[:12]}"]
    again = shlex.join(["cnnbench", "ab", *sides, "--", *bisection.setting.side.flags])
    if not Path.cwd().is_relative_to(history.repository):
        again = f"cd {shlex.quote(str(history.repository))} && {again}"
    what = step_answer_text(step, bisection.bad_step)
    if not is_search_for_changed_work(bisection.bad_step) and step.judgement.low is not None:
        what = f"{_change_cell(step)} images/sec within pairs, against GOOD "
        what += (
            f"({percent(step.confidence, 0)} interval {_interval_cell(step)}, {step.pairs} pairs)"
        )
    lines = (
        history.format_commit(commit),
        history.format_commit(commit, "%an, %as"),
        what,
        *_merge_and_revert_remarks(commit, history),
    )
    return [
        Paragraph(f"{commit} is the first bad commit"),
        *(Paragraph(line, indent=6, whole=True) for line in lines),
        Paragraph(f"against the commit before it: {again}", indent=6, whole=True),
    ]


def _merge_and_revert_remarks(commit: str, history: GitHistory) -> Iterator[str]:
    """Yields remarks about a commit: one if it is a merge, and one if it reverts another commit."""
    first, *merged = history.format_commit(commit, "%P").split()
    if merged:
        text = f"a merge of {' and '.join(map(abbreviate_hash, (first, *merged)))}; "
        text += (
            "--first_parent did not search the merged commits"
            if history.first_parent
            else "each of these is good alone"
        )
        yield text
    if other := reverted_commit(history.format_commit(commit, "%b")):
        yield f"it reverts {abbreviate_hash(other)}"


def _suspect_range_texts(bisection: Bisection) -> list[Paragraph]:
    number = item_count(bisection.suspects)
    text = [
        Paragraph(f"the first bad commit is one of these {number}; skipped commits hide which:")
    ]
    for commit in bisection.suspects:
        step = bisection.steps.get(commit)
        why = (
            ""
            if step is None
            else BAD
            if step.answer == BAD
            else step_answer_text(step, bisection.bad_step)
        )
        title = f"{commit[:12]} {bisection.setting.history.format_commit(commit)}"
        text += [Paragraph(title, indent=6, whole=True), Paragraph(why, indent=12, whole=True)]
    return text


def _change_cell(step: BisectionStep) -> str:
    return NONE if step.judgement.change is None else THROUGHPUT.change_text(step.judgement.change)


def _interval_cell(step: BisectionStep) -> str:
    if step.judgement.low is None or step.judgement.high is None:
        return NONE
    return THROUGHPUT.range_text(step.judgement.low, step.judgement.high)
