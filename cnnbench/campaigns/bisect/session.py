"""Steps of a bisection (GOOD against BAD, then the commits between) and its result as text."""

from __future__ import annotations

import shlex
from dataclasses import asdict, fields
from pathlib import Path

from cnnbench.base.text.escape import one_line
from cnnbench.base.text.numbers import NONE, count, duration, percent, percents
from cnnbench.base.text.table import fitted
from cnnbench.campaigns.bisect.bench import CommitBench
from cnnbench.campaigns.bisect.search import BAD, SKIP, CommitSearch, History, Step, is_about_work
from cnnbench.campaigns.processes.question import Question
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.judge.compare.judgement import Verdict
from cnnbench.judge.compare.sequential import FIRST
from cnnbench.judge.metrics.registry import THROUGHPUT
from cnnbench.records.explanation import Explanation

_TITLES = ("commit", "answer", "change", "interval", "pairs", "subject")

_STEP = frozenset(field.name for field in fields(Step))
# Larger changes are printed in whole per cent.
_LARGE = 0.1


class BisectFolder(ResultsFolder):
    """Results directory of a bisection, held by one process; `steps` has known answers by commit.

    It has a journal, and a results directory of `cnnbench ab` for every measured commit, named by
    its hash, so that `report` and `history` read the whole.
    """

    command = "bisect"
    noun = "bisection"
    file = "bisect.jsonl"

    def __init__(self, folder: str, question: Question, *, resume: bool) -> None:
        super().__init__(folder, question, resume=resume)
        self.steps: dict[str, Step] = {}
        for event in self.earlier:
            if event.get("event") == "step":
                step = Step(**{name: event[name] for name in _STEP & event.keys()})
                self.steps[step.commit] = step
        self.begin(steps=len(self.steps))

    def add(self, step: Step) -> None:
        """Appends an answer to the journal."""
        self.journal.add("step", **asdict(step))


class Bisection:
    """One bisection; answers that the folder already holds are not measured again.

    Attributes:
      steps: those of this session and of earlier ones, GOOD against BAD first.
      suspects: the commits that may be the first bad one, the oldest first; none if GOOD and BAD do
        not differ.
    """

    def __init__(self, bench: CommitBench, folder: BisectFolder) -> None:
        self._bench = bench
        self._folder = folder
        self.setting = setting = bench.setting
        self._notice = bench.reporter.notice
        self._search = CommitSearch(setting.history, setting.good, setting.bad)
        self.steps: list[Step] = []
        self.suspects: tuple[str, ...] = ()

    @property
    def differ(self) -> Step:
        """The step that compares BAD with GOOD."""
        return self.steps[0]

    def of(self, commit: str) -> Step | None:
        """The step that measured a commit."""
        return next((step for step in self.steps if step.commit == commit), None)

    @property
    def without_answer(self) -> list[Step]:
        """Steps without an answer."""
        if not self.suspects:
            return self.steps[:1]
        found = map(self.of, self.suspects)
        return [step for step in found if step is not None and step.answer == SKIP]

    def run(self) -> None:
        """Measures until an answer is found or no commit is left; whole pairs are kept."""
        known = {commit: step for commit, step in self._folder.steps.items() if self._holds(step)}
        if known:
            self._notice(f"{count(len(known), 'step is', 'steps are')} done already")
        setting = self.setting
        commit: str | None = setting.bad
        while commit is not None:
            step = known.get(commit) or self._measure(commit)
            if self.steps:
                self._search.add(step)
            self.steps.append(step)
            commit = self._search.next() if self.differ.answer == BAD else None
        if self.differ.answer == BAD:
            suspects = self._search.suspects
            self.suspects = setting.history.ordered(suspects, setting.good, setting.bad)

    def explain(self) -> Explanation | None:
        """Explains the difference that the found commit makes; None without one.

        NotExplainedError if it cannot be profiled.
        """
        if len(self.suspects) != 1:
            return None
        (commit,) = self.suspects
        parent = self.setting.history.parent(commit)
        self._notice(f"profiling {commit[:12]} and {parent[:12]}, the commit before it")
        return self._bench.explain(parent, commit)

    def _holds(self, step: Step) -> bool:
        """Whether an earlier answer counts; not if more pairs may change it."""
        return not (step.lost or (step.undecided and step.most_pairs < self.setting.most_pairs))

    def _measure(self, commit: str) -> Step:
        self._bench.prepare()
        left, done = self._search.steps_left, len(self.steps)
        differ = self.differ if done else None
        what = f"step {done} of about {done + left - 1}" if done else "GOOD against BAD"
        self._notice(self._outlook(left + (differ is None), differ))
        self._notice(f"{what}: {commit[:12]} {self.setting.history.show(commit)}")
        before = self._folder.steps.get(commit)
        again = before is not None and before.undecided
        step = self._bench.measure(done, commit, differ, again)
        if differ is not None or step.verdict != Verdict.FAILED.value:
            self._folder.add(step)
        self._notice(f"{commit[:12]} is {word(step, differ or step)}")
        return step

    def _outlook(self, steps: int, differ: Step | None) -> str:
        """Number of remaining steps, and their estimated time."""
        number = len(self._search.suspects)
        text = f"{count(number, 'commit', 'commits')} may be the first bad one: about "
        text += f"{count(steps, 'step', 'steps')} of "
        least, most = min(FIRST, self.setting.pairs), self.setting.pairs
        burn_in = self.setting.burn_in
        if differ is not None and is_about_work(differ):
            least, most, burn_in = 1, 1, 0
        text += count(least, "pair", "pairs") if least == most else f"{least} to {most} pairs"
        per_pair = self._bench.seconds_per_pair
        if per_pair is None:
            return text
        times = [duration(steps * (pairs + burn_in) * per_pair) for pairs in (least, most)]
        basis = "a first guess" if differ is None else "as the last one took"
        return f"{text}, {' to '.join(dict.fromkeys(times))}, {basis}"


def word(step: Step, differ: Step) -> str:
    """An answer in words; `differ` is how BAD compares with GOOD."""
    if step.answer == SKIP:
        return f"{'undecided' if step.undecided else 'skipped'}: {step.reason}"
    if is_about_work(differ):
        return "bad: other work to do" if step.answer == BAD else "good: the same work to do"
    return f"{step.answer}: {_speed(step)}"


def _speed(step: Step) -> str:
    """The change of images/sec, as "37 % slower (15 to 61 %)" or "+0.3 % (-1.0 to +1.6 %)"."""
    change, low, high = step.change, step.low, step.high
    if change is None or low is None or high is None:
        return f"{step.verdict}, {step.reason}"
    if low <= 0 <= high:
        return f"{THROUGHPUT.change_text(change)} ({THROUGHPUT.range_text(low, high)})"
    digits = 0 if abs(change) >= _LARGE else 1
    least, most = sorted((abs(low), abs(high)))
    direction = "slower" if change < 0 else "faster"
    return f"{percent(abs(change), digits)} {direction} ({percents(least, most, digits)})"


def lines(found: Bisection) -> list[str]:
    """A table of the steps, and the first bad commit or the candidates for it."""
    rows = [_TITLES, *(_row(step, found.setting.history) for step in found.steps)]
    text = [*fitted(rows, left=(0, 1, 5)), ""]
    if len(found.suspects) == 1:
        text += _culprit(found)
    elif found.suspects:
        text += _range(found)
    # Subjects of commits may contain control characters; leading blanks are kept.
    return [" " * (len(line) - len(line.lstrip(" "))) + one_line(line) for line in text]


def no_difference(step: Step) -> str:
    """The reason why there is nothing to search for, and advice."""
    if step.undecided:
        return f"whether BAD is slower than GOOD is undecided: {step.reason}"
    text = f"BAD is not slower than GOOD: {step.verdict}, {step.reason}; "
    if step.verdict == Verdict.SAME.value:
        return text + "check revisions and flags, or look for a smaller change with --threshold"
    if step.verdict == Verdict.FASTER.value:
        return text + "bisect looks for slower commits only: check which is GOOD and which is BAD"
    return text + "measure what can be compared"


def _row(step: Step, history: History) -> tuple[str, ...]:
    return (
        step.commit[:12],
        step.answer,
        _change(step),
        _interval(step),
        str(step.pairs),
        history.show(step.commit),
    )


def _culprit(found: Bisection) -> list[str]:
    (commit,), history = found.suspects, found.setting.history
    step = found.of(commit)
    assert step is not None  # a single suspect was measured
    sides = [f"--a_checkout={history.parent(commit)[:12]}", f"--b_checkout={commit[:12]}"]
    again = shlex.join(["cnnbench", "ab", *sides, "--", *found.setting.flags])
    if not Path.cwd().is_relative_to(history.repository):
        again = f"cd {shlex.quote(str(history.repository))} && {again}"
    what = word(step, found.differ)
    if not is_about_work(found.differ) and step.low is not None:
        what = f"{_change(step)} median images/sec against GOOD "
        what += f"({percent(step.confidence, 0)} interval {_interval(step)}, {step.pairs} pairs)"
    return [
        f"{commit} is the first bad commit",
        f"      {history.show(commit)}",
        f"      {history.show(commit, '%an, %as')}",
        f"      {what}",
        f"      against the commit before it: {again}",
    ]


def _range(found: Bisection) -> list[str]:
    number = len(found.suspects)
    text = [f"the first bad commit is one of these {number}; skipped commits hide which:"]
    for commit in found.suspects:
        step = found.of(commit)
        why = "" if step is None else word(step, found.differ)
        text.append(f"      {commit[:12]} {found.setting.history.show(commit)}")
        text.append(f"            {BAD if step is not None and step.answer == BAD else why}")
    return text


def _change(step: Step) -> str:
    return NONE if step.change is None else THROUGHPUT.change_text(step.change)


def _interval(step: Step) -> str:
    if step.low is None or step.high is None:
        return NONE
    return THROUGHPUT.range_text(step.low, step.high)
