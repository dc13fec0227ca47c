"""Steps of a bisection (GOOD against BAD, then the commits between) and its result as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from cnnbench.base.document import Row, TableCell, Text, numeric, table, terminal
from cnnbench.base.text.numbers import NONE, count, duration, integer, number_of, percent, percents
from cnnbench.campaigns.bisect.bench import CommitBench
from cnnbench.campaigns.bisect.search import BAD, SKIP, CommitSearch, History, Step, is_about_work
from cnnbench.campaigns.processes.campaign import RunPolicy
from cnnbench.judge.compare.judgement import Verdict
from cnnbench.judge.compare.sequential import FIRST
from cnnbench.judge.metrics.registry import THROUGHPUT
from cnnbench.machine.commits import reverted, short
from cnnbench.records.explanation import Explanation

# Larger changes are printed in whole per cent.
_LARGE = 0.1


class Bisection:
    """One bisection; what its folder already holds is not measured again.

    Attributes:
      steps: those of this session and of earlier ones, GOOD against BAD first.
      suspects: the commits that may be the first bad one, the oldest first; none if GOOD and BAD do
        not differ.
    """

    def __init__(self, bench: CommitBench) -> None:
        self._bench = bench
        self.setting = setting = bench.setting
        self._notice = bench.campaign.reporter.notice
        self._search = CommitSearch(setting.history, setting.good, setting.bad)
        self.steps: list[Step] = []
        self.suspects: tuple[str, ...] = ()

    @property
    def differ(self) -> Step:
        """The step that compares BAD with GOOD."""
        assert self._bench.differ is not None
        return self._bench.differ

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

    def policy(self) -> RunPolicy[None]:
        """Measures until an answer is found or no commit is left; whole pairs are kept."""
        setting = self.setting
        commit: str | None = setting.bad
        while commit is not None:
            known = self._bench.known(commit)
            step = known or (yield from self._measure(commit))
            if self._bench.differ is None:
                self._bench.differ = step
            else:
                self._search.add(step)
            before = "" if known is None else ", as measured before"
            self._notice(f"{commit[:12]} is {word(step, self.differ)}{before}")
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

    def _measure(self, commit: str) -> RunPolicy[Step]:
        self._bench.prepare()
        left, done = self._search.steps_left, len(self.steps)
        what = f"step {done} of about {done + left - 1}" if done else "GOOD against BAD"
        self._notice(self._outlook(left + (not done)))
        self._notice(f"{what}: {commit[:12]} {self.setting.history.show(commit)}")
        return (yield from self._bench.measure(done, commit))

    def _outlook(self, steps: int) -> str:
        """Number of remaining steps, and their estimated time."""
        number = len(self._search.suspects)
        text = f"{count(number, 'commit', 'commits')} may be the first bad one: about "
        text += f"{count(steps, 'step', 'steps')} of "
        experiment = self.setting.experiment
        most, burn_in = experiment.most_pairs, experiment.burn_in
        least = min(FIRST, most)
        if is_about_work(self._bench.differ):
            least, most, burn_in = 1, 1, 0
        text += count(least, "pair", "pairs") if least == most else f"{least} to {most} pairs"
        per_pair = self._bench.seconds_per_pair
        if per_pair is None:
            return text
        times = [duration(steps * (pairs + burn_in) * per_pair) for pairs in (least, most)]
        basis = "as before" if self._bench.campaign.seconds_of(None) else "a first guess"
        return f"{text}, {' to '.join(dict.fromkeys(times))}, {basis}"


def word(step: Step, differ: Step) -> str:
    """An answer in words; `differ` is how BAD compares with GOOD."""
    if step.answer == SKIP:
        return f"{'undecided' if step.undecided else 'skipped'}: {step.judgement.reason}"
    if is_about_work(differ):
        return "bad: other work to do" if step.answer == BAD else "good: the same work to do"
    return f"{step.answer}: {_speed(step)}"


def _speed(step: Step) -> str:
    """The change of images/sec, as "37 % slower (15 to 61 %)" or "+0.3 % (-1.0 to +1.6 %)"."""
    change, low, high = step.judgement.change, step.judgement.low, step.judgement.high
    if change is None or low is None or high is None:
        return f"{step.judgement.verdict.value}, {step.judgement.reason}"
    if low <= 0 <= high:
        return f"{THROUGHPUT.change_text(change)} ({THROUGHPUT.range_text(low, high)})"
    digits = 0 if abs(change) >= _LARGE else 1
    least, most = sorted((abs(low), abs(high)))
    direction = "slower" if change < 0 else "faster"
    return f"{percent(abs(change), digits)} {direction} ({percents(least, most, digits)})"


def text_of(found: Bisection) -> str:
    """A table of the steps, and the first bad commit or the candidates for it."""
    steps = table((_row(step, found.setting.history) for step in found.steps), whole=True)
    more = _culprit(found) if len(found.suspects) == 1 else _range(found)
    return terminal.text_of([[steps], more if found.suspects else []])


def no_difference(step: Step) -> str:
    """The reason why there is nothing to search for, and advice."""
    if step.undecided:
        return f"whether BAD is slower than GOOD is undecided: {step.judgement.reason}"
    text = f"BAD is not slower than GOOD: {step.judgement.verdict.value}, {step.judgement.reason}; "
    if step.judgement.verdict is Verdict.SAME:
        return text + "check revisions and flags, or look for a smaller change with --threshold"
    if step.judgement.verdict is Verdict.FASTER:
        return text + "bisect looks for slower commits only: check which is GOOD and which is BAD"
    return text + "measure what can be compared"


def _row(step: Step, history: History) -> Row:
    return {
        "commit": step.commit[:12],
        "answer": step.answer,
        "change": TableCell(_change(step), kinds="number"),
        "interval": TableCell(_interval(step), kinds="number"),
        "pairs": numeric(step.pairs, integer),
        "subject": history.show(step.commit),
    }


def _culprit(found: Bisection) -> list[Text]:
    (commit,), history = found.suspects, found.setting.history
    step = found.of(commit)
    assert step is not None  # a single suspect was measured
    sides = [f"--a_checkout={history.parent(commit)[:12]}", f"--b_checkout={commit[:12]}"]
    again = shlex.join(["cnnbench", "ab", *sides, "--", *found.setting.side.flags])
    if not Path.cwd().is_relative_to(history.repository):
        again = f"cd {shlex.quote(str(history.repository))} && {again}"
    what = word(step, found.differ)
    if not is_about_work(found.differ) and step.judgement.low is not None:
        what = f"{_change(step)} median images/sec against GOOD "
        what += f"({percent(step.confidence, 0)} interval {_interval(step)}, {step.pairs} pairs)"
    told = (history.show(commit), history.show(commit, "%an, %as"), what, *_kind(commit, history))
    return [
        Text(f"{commit} is the first bad commit"),
        *(Text(one, indent=6, whole=True) for one in told),
        Text(f"against the commit before it: {again}", indent=6, whole=True),
    ]


def _kind(commit: str, history: History) -> Iterator[str]:
    """Says that a commit is a merge or reverts another one."""
    first, *merged = history.show(commit, "%P").split()
    if merged:
        text = f"a merge of {' and '.join(map(short, (first, *merged)))}; "
        text += (
            "--first_parent did not search what it merged"
            if history.first_parent
            else "each of these is good by itself"
        )
        yield text
    if other := reverted(history.show(commit, "%b")):
        yield f"it reverts {short(other)}"


def _range(found: Bisection) -> list[Text]:
    number = number_of(found.suspects)
    text = [Text(f"the first bad commit is one of these {number}; skipped commits hide which:")]
    for commit in found.suspects:
        step = found.of(commit)
        why = "" if step is None else BAD if step.answer == BAD else word(step, found.differ)
        title = f"{commit[:12]} {found.setting.history.show(commit)}"
        text += [Text(title, indent=6, whole=True), Text(why, indent=12, whole=True)]
    return text


def _change(step: Step) -> str:
    return NONE if step.judgement.change is None else THROUGHPUT.change_text(step.judgement.change)


def _interval(step: Step) -> str:
    if step.judgement.low is None or step.judgement.high is None:
        return NONE
    return THROUGHPUT.range_text(step.judgement.low, step.judgement.high)
