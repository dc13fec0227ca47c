"""All sentences that verdicts consist of: templates, whose values are named.

Whoever reads this module knows what a comparison can say. The functions take values and texts of
values, not results, so other modules decide which sentence applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cnnbench.base.text import NONE, count_text, first_few, p_value
from cnnbench.judge.compare.estimate import from_test_scale
from cnnbench.judge.metrics import CPU_TIME
from cnnbench.records.metric import Metric

# Values within sentences.


def change_text(metric: Metric, change: float | None, low: float | None, high: float | None) -> str:
    """A change and, if it is known, its confidence interval: "-0.9 % (-13.9 to +15.6 %)"."""
    if change is None:
        return NONE
    text = metric.change_text(change)
    return text if low is None or high is None else f"{text} ({metric.range_text(low, high)})"


def size_text(metric: Metric, change: float | None, low: float | None, high: float | None) -> str:
    """The size and the direction of a change, and its confidence interval: "13.2 % slower (10.1 to
    16.0 %)".
    """
    assert change is not None
    assert low is not None
    assert high is not None
    size = metric.change_text(abs(change), signed=False)
    least, most = sorted((abs(low), abs(high)))
    ends = metric.range_text(least, most, signed=False)
    return f"{size} {direction(metric, change)} ({ends})"


def known_change(
    metric: Metric, change: float | None, low: float | None, high: float | None
) -> str:
    """What is known about a change: its size and direction if the interval excludes no change,
    otherwise the change with its sign; with the interval.
    """
    is_certain = low is not None and high is not None and low * high > 0
    return (size_text if is_certain else change_text)(metric, change, low, high)


def direction(metric: Metric, change: float) -> str:
    """The word for a change that fits the metric, such as "slower"."""
    return metric.better if (change > 0) == metric.higher_is_better else metric.worse


def chance(p: float | None, family: int = 1) -> str:
    """A p-value and, if several configurations were tested, their number."""
    assert p is not None
    text = f"p = {p_value(p)}"
    return text if family < 2 else f"{text} over {family} configurations"


def metric_name(metric: Metric) -> str:
    """The words for a metric: its name, but "CPU time" for `cpu_time`."""
    return "CPU time" if metric is CPU_TIME else metric.name


def scatter_text(scatter: float, metric: Metric, is_named: bool) -> str:
    """How much pairs or processes differ: "4.7 %" or "4.7 % in CPU time"."""
    text = metric.change_text(from_test_scale(scatter, metric), signed=False)
    return f"{text} in {metric_name(metric)}" if is_named else text


def runs_text(base: int, new: int, paired: bool) -> str:
    """How many pairs or processes were compared."""
    if paired:
        return count_text(base, "pair", "pairs")
    return f"{base} and {count_text(new, 'process', 'processes')}"


def more_runs_text(more: int, paired: bool) -> str:
    """How many further pairs or processes lead to a verdict, with the verb."""
    if paired:
        return count_text(more, "more pair settles", "more pairs settle")
    return count_text(more, "more process per side settles", "more processes per side settle")


def _plural(paired: bool) -> str:
    return "pairs" if paired else "processes"


# Reasons for verdicts of tests.


def tested(change: str, p: str) -> str:
    """A significant change."""
    return f"{change}, {p}"


def tested_without_verdict(change: str, p: str, why: str) -> str:
    """A change that is not certain."""
    return f"{change}, {p}: {why}"


def within_margin(interval: str, margin: str, word: str = "") -> str:
    """No change in the interval exceeds the margin. `word` is the only direction that was tested,
    such as "slower"; "" for both.
    """
    limit = f"{margin} {word}" if word else margin
    return f"the change is {interval}, less than {limit}"


def open_question(margin: str) -> str:
    """The interval contains changes above the margin."""
    return f"the threshold of {margin} may be exceeded"


def uncertain_change(word: str, floor: str) -> str:
    """The interval exceeds the smallest relevant change, but the test is not significant."""
    return f"{word} by more than {floor}, but not certainly so"


def perhaps_spread(word: str, floor: str) -> str:
    """The change may be one between sessions."""
    return f"{word}, but perhaps within the A/A spread of {floor}"


def too_noisy(scatter: str, paired: bool) -> str:
    """Further pairs or processes would not lead to a verdict."""
    runs = _plural(paired)
    return f"{runs} differ by {scatter}: more {runs} will not help"


def new_experiment_settles(scatter: str, paired: bool, pairs: int) -> str:
    """A new experiment leads to a verdict."""
    return f"{_plural(paired)} differ by {scatter}: a new experiment of {pairs} pairs settles it"


def more_runs_settle(scatter: str, paired: bool, more: int) -> str:
    """Further pairs or processes lead to a verdict."""
    return f"{_plural(paired)} differ by {scatter}: about {more_runs_text(more, paired)} it"


def too_few(
    base: int, new: int, paired: bool, family: int, needed: str, provable: str | None
) -> str:
    """There are too few values to prove a change.

    Args:
      family: number of configurations that are tested together.
      needed: what could prove a change (see `needed_runs`).
      provable: the change that this could prove; None if unknown.
    """
    runs = runs_text(base, new, True) if paired else f"{base} against {_processes(new)}"
    verb = "is" if paired and base == 1 else "are"
    among = f" in only one of {family} configurations" if family > 1 else ""
    text = f"{runs} {verb} too few to prove a change{among}, of whatever size; {needed} could prove"
    return f"{text} one" if provable is None else f"{text} one of {provable}"


def needed_runs(number: int, paired: bool, new_experiment: bool) -> str:
    """A number of pairs (or processes of each side) that a verdict needs."""
    if new_experiment:
        return f"a new experiment of {number} pairs"
    return f"{number} {'pairs' if paired else 'on each side'}"


def fewest_runs(number: int, paired: bool, new_experiment: bool) -> str:
    """The minimum number of pairs (or processes of each side) that a verdict needs."""
    if new_experiment:
        return f"a new experiment of at least {number} pairs"
    return f"at least {number} {'pairs' if paired else 'on each side'}"


def too_few_to_test(number: int, side: str, needed: str) -> str:
    """One side has too few processes for a test."""
    return f"{_processes(number)} in {side}; a verdict needs {needed}"


def unusable_values(bad: int, values: int, metric: str, side: str, first: str) -> str:
    """Values cannot be tested."""
    of = f"{bad} of {count_text(values, 'value', 'values')} of {metric}"
    return f"{of} in {side} cannot be used, the first is {first}"


def no_values(side: str, metric: str) -> str:
    """One side has no value at all."""
    return f"{side} has no value of {metric}"


def no_pairs(base: int, new: int) -> str:
    """The numbers of values differ, although pairs are compared."""
    return f"{count_text(base, 'value', 'values')} in BASE and {new} in NEW make no pairs"


def opposite_medians(change: str, paired: bool) -> str:
    """The estimated change and the change of the medians have opposite signs."""
    of = "within pairs" if paired else "between processes of BASE and NEW"
    return f"the change is the median {of}, Hodges-Lehmann; the two medians differ by {change}"


def _processes(number: int) -> str:
    return count_text(number, "process", "processes")


# Reasons for verdicts that consider the CPU time.

WAITS = "its steps wait longer: for input, for each other, or with fewer threads at work"
SPINS = "more threads are at work, or threads that wait keep a CPU busy"


def opposite_cpu_time(speed: str, cpu_time: str, slower: bool) -> str:
    """Throughput and CPU time changed in opposite directions."""
    return f"{speed}, but CPU time {cpu_time}: {WAITS if slower else SPINS}"


def waits(like: str, certain: bool) -> str:
    """A throughput that is lower, although the CPU time is `like` before."""
    return f"CPU time is {like}: {WAITS}" if certain else f"CPU time is {like}: perhaps {WAITS}"


OTHER_MACHINES = "other machines use the CPUs"


def by_cpu_time(size: str, p: str, others: str) -> str:
    """The CPU time changed, on a machine that other programs use (`others`)."""
    return f"CPU time {size}, {p}; {others}"


def of_cpu_time(reason: str, others: str = "") -> str:
    """The reason for a verdict on the CPU time, on a machine that `others` use."""
    return f"CPU time: {reason}; {others}" if others else f"CPU time: {reason}"


# Additions to reasons.


def with_medians(verdict: str, base: str, new: str) -> str:
    """A verdict with the medians of BASE and of NEW."""
    return f"{verdict}; medians {base} -> {new}"


def slow_steps(side: str, steps: str) -> str:
    """Slow steps of one side."""
    return f"in {side} {steps}"


def median_step(change: str, paired: bool) -> str:
    """The change of the speed at the median step."""
    return f"{'paired change' if paired else 'change'} at the median step {change}"


def undisturbed(runs: int, most: str) -> str:
    """No run was disturbed, with the largest load."""
    return f"none of {count_text(runs, 'run', 'runs')} was disturbed ({most})"


NOT_CHECKED = "as far as they could be checked"


def disturbed(number: int, runs: int, causes: Iterable[str]) -> str:
    """How many runs were disturbed, by what."""
    verb = "was" if number == 1 else "were"
    of = count_text(runs, "run", "runs")
    return f"{number} of {of} {verb} disturbed: {', '.join(causes)}"


def disturbance(condition: str, runs: int, amount: str) -> str:
    """One kind of disturbance, its runs and its amount ("" if unknown)."""
    return f"{condition} in {runs} ({amount})" if amount else f"{condition} in {runs}"


def most_load(cpus: float) -> str:
    """The largest load of other programs."""
    return f"others kept at most {cpus:.2f} CPUs busy"


def most_stolen(share: str) -> str:
    """The largest share of time that other virtual machines used."""
    return f"at most {share}"


def load(cpus: float, usable: int | None) -> str:
    """The usual load of other programs."""
    of = " CPUs" if usable is None else f" of {count_text(usable, 'CPU', 'CPUs')}"
    return f"other programs use {cpus:.1f}{of}"


def lost_process(side: str, how: str, times: int) -> str:
    """A process that was killed, perhaps several times."""
    text = f"a process of {side} was {how}"
    return f"{text} ({times} times)" if times > 1 else text


def repeated_pairs(pairs: int, causes: Iterable[str]) -> str:
    """Pairs that were measured again."""
    text = count_text(pairs, "pair was", "pairs were")
    return f"{text} measured again: {', '.join(causes)}"


# Reasons that follow from records, without a test.


def not_measured(missing: str, metric: str) -> str:
    """Runs did not measure a metric."""
    return f"{missing} did not measure {metric}"


def only_one_side(absent: str, there: str) -> str:
    """BASE or NEW lacks the configuration."""
    return f"{absent} has no run of this configuration, only {there} has"


def mixed_side(parts: str, side: str) -> str:
    """The runs of one side differ."""
    how = f"give the files of one as {side}: a subfolder or a quoted pattern"
    return f"{parts} within {side}; {how}"


def share_of_runs(number: int, runs: int, side: str) -> str:
    """How many runs of a side something applies to."""
    return f"{number} of {count_text(runs, 'run', 'runs')} in {side}"


def interrupted(number: int, runs: str) -> str:
    """Runs that did not end."""
    return f"{runs} {'was' if number == 1 else 'were'} interrupted"


def mistimed(number: int, runs: str) -> str:
    """Runs with wrong step times."""
    return (
        f"{runs} {'has' if number == 1 else 'have'} step times that alternate between those of two "
        "steps and none, as earlier versions of cnnbench mis-timed steps on GPUs; measure again"
    )


def shared_runs(number: int) -> str:
    """Runs that are in both sides."""
    runs = count_text(number, "run is", "runs are")
    return f"{runs} in BASE and in NEW; a comparison needs two sets"


NO_PARTNERS = "no run in BASE has its partner in NEW"


def failed(runs: str, kind: str, message: str) -> str:
    """Runs that failed, and the first error."""
    return f"{runs} failed: {kind}: {message}"


def different_work(kinds: str, changes: str, metric: str) -> str:
    """Other work per step, such as a wider network."""
    return f"Different {kinds}: {changes}. {metric} not judged."


def measured_rate(rates: str) -> str:
    """The rates of computing in BASE and in NEW."""
    return f"Measured rate: {rates} GFLOP/s."


def other_differences(facts: str) -> str:
    """Further properties that differ."""
    return f"Also different: {facts}."


# The answer of a comparison. Sentences have no full stop if something may follow them.

NOTHING = "Nothing was compared"
SAME_CODE = "The measured code is the same: no file differs. Nothing was measured"


def same_files(count: int, names: str) -> str:
    """Two commits were not measured, because no run loads any of the files that differ."""
    files = "file that differs" if count == 1 else f"{count} files that differ"
    text = f"The measured code is the same: no run loads the {files} ({names})"
    return f"{text}. Nothing was measured"


def all_same(count: int) -> str:
    """Several configurations are all the same."""
    return f"All {count} configurations are the same"


def count_of_worst(alike: int, count: int, word: str) -> str:
    """How many configurations have the worst verdict."""
    return f"{alike} of {count} configurations {word}"


def changed(new: str, size: str, runs: str, p: str) -> str:
    """A change of the speed was found."""
    return f"{new} is {size}, {runs}, {p}"


def changed_metric(new: str, metric: str, size: str, runs: str, p: str) -> str:
    """A change of another metric was found."""
    return f"{new}: {metric} {size}, {runs}, {p}"


def changed_by_cpu_time(new: str, word: str, size: str, runs: str, p: str) -> str:
    """A change was found in the CPU time."""
    return f"{new} is {word}: CPU time {size}, {runs}, {p}"


def labelled(metric: str, change: str) -> str:
    """A change and its metric, which is "" for the speed as the only metric that was judged."""
    return f"{metric} {change}" if metric else change


def same(new: str, base: str, change: str, runs: str) -> str:
    """No relevant change is possible."""
    return f"{new} and {base} are the same: {change}, {runs}"


def limited(new: str, word: str, change: str, runs: str) -> str:
    """A change of the speed in one direction was excluded: NEW is not slower, for example."""
    return f"{new} is {word}: {change}, {runs}"


def limited_metric(new: str, metric: str, word: str, change: str, runs: str) -> str:
    """A change of another metric in one direction was excluded."""
    return f"{new}: {metric} {word}, {change}, {runs}"


def noisy(noise: str) -> str:
    """Noise prevents a verdict."""
    return f"Too noisy for a verdict: {noise}"


def undecided(change: str, runs: str, question: str) -> str:
    """A test without a verdict."""
    return f"Undecided: {change}, {runs}: {question}"


def other_verdict(word: str, reason: str) -> str:
    """A verdict that follows from records."""
    return f"{word.capitalize()}: {reason}"


def all_pairs(word: str, pairs: int, base: str, new: str) -> str:
    """All pairs show the same direction, although the CPU time was also judged."""
    return f"{word} by throughput in all {pairs} pairs (medians {base} → {new})"


def known_so_far(change: str, question: str) -> str:
    """What is known before a verdict."""
    return f"{change}: {question}"


TOO_FEW = "too few values to prove a change"


def two_speeds(quick: str, slow: str) -> str:
    """Processes with equal flags have two speeds, in milliseconds per step."""
    return f"processes run at two speeds, about {quick} and {slow} ms a step"


def differ(scatters: Sequence[str], paired: bool) -> str:
    """How much pairs or processes differ, in each judged metric."""
    return f"{_plural(paired)} differ by {' and '.join(scatters)}"


def of_metric(metric: str, finding: str) -> str:
    """What was found about a further metric."""
    return f"{metric.capitalize()}: {finding}"


def still_undecided(known: str) -> str:
    """What is known about a further metric without a verdict."""
    return f"undecided, {known}"


def sentence(finding: str, configuration: str) -> str:
    """A sentence about the worst of several configurations ("" for the only one)."""
    return f"{finding} in {configuration}." if configuration else f"{finding}."


def confirmed(metric: str, reason: str, is_confirmed: bool) -> str:
    """The result of a second experiment. `metric` is "" for the speed."""
    word = "Confirmed" if is_confirmed else "Not confirmed"
    finding = f"{metric}: {reason}" if metric else reason
    return f"{word} by a second measurement: {finding}."


def accepted(sources: Iterable[str]) -> str:
    """What accepts regressions."""
    return f"Accepted: {'; '.join(sources)}."


def measured_again(reason: str, again: str) -> str:
    """The reason for a verdict, and that of a second experiment."""
    return f"{reason}; measured again: {again}"


def so_far(reason: str, change: str) -> str:
    """An experiment that has not ended, and its estimate."""
    return f"{reason}; so far {change}"


# Advice after an undecided verdict. `name` is the configuration, or "" for the only one.


def advise_new_experiment(name: str, pairs: int) -> str:
    """A new experiment leads to a verdict."""
    return _about(name, f"A new experiment of {pairs} pairs settles it.")


def advise_more_runs(name: str, more: int, paired: bool) -> str:
    """Further pairs or processes lead to a verdict."""
    return _about(name, f"About {more_runs_text(more, paired)} it.")


def advise_remedies(name: str, paired: bool, remedies: Sequence[str]) -> str:
    """Only less noise leads to a verdict."""
    *others, last = remedies
    listed = f"{', '.join(others)} or {last}" if others else last
    return _about(name, f"More {_plural(paired)} will not help: use {listed}.")


def _about(name: str, sentence: str) -> str:
    return f"{name}: {sentence}" if name else sentence


LONGER_RUNS = "longer runs (five seconds of timed steps)"
ONE_THREAD = "--num_intra_threads=1"
IDLE_MACHINE = "an idle machine (cnnbench env --check)"

# How a comparison was made.

PAIRED = (
    "Compared in pairs: a change is estimated from the changes within pairs, not from the medians"
)
UNPAIRED = (
    "Compared by one value per process: a change is the median of the changes from each process of "
    "BASE to each process of NEW, not the change of the medians"
)
SPREAD = "changes within the A/A spread are ignored"
SPREAD_OF_PAIRS = (
    "the A/A spread has no part in the verdict, because A and B run in random order"
)


def ignored_changes(floors: str) -> str:
    """Changes that are too small to be relevant."""
    return f"changes under {floors} are ignored"


def tested_together(count: int, share: str) -> str:
    """The share of false discoveries among the reported changes of several configurations."""
    return (
        f"{count} configurations were tested together: on average, at most {share} of the reported "
        "changes are false"
    )


def mean_change(metric: str, change: str, known: int, count: int) -> str:
    """The geometric mean of the changes of several configurations."""
    of = count_text(count, "configuration", "configurations")
    of = of if known == count else f"{known} of {of}"
    return f"{metric} {change} in the geometric mean of {of}"


def verdict_counts(metric: str, counts: str) -> str:
    """How many configurations have each verdict on a metric."""
    return f"{metric}: {counts}"


# Meanings of exit codes.

SAME_CODE_MEANING = "the measured code is the same"
AA_MEANING = "an A/A measurement, whatever the verdict"
UNCONFIRMED_MEANING = "not confirmed"
ACCEPTED_MEANING = "an accepted change"
ALLOWED_MEANING = "a regression, which --fail_on or a rule does not name"
MEANINGS = {
    0: "no regression",
    3: "undecided",
    4: "the benchmark failed",
    130: "interrupted",
}
FAILURES = {"slower": "a regression", "faster": "an unexpected gain", "changed": "changed work"}
"""Meanings of exit code 1, by the words of --fail_on."""


def exit_code(code: int, meaning: str) -> str:
    """The exit code and its meaning."""
    return f"exit code {code}: {meaning}"


# Notes.

MOST_NAMED = 5
"""Maximum number of configurations that a note names."""


def note(text: str) -> str:
    """A remark about the records."""
    return f"note: {text}"


def also_different(difference: str) -> str:
    """A property that differs, but does not prevent a verdict."""
    return f"also different: {difference}"


def skipped(file: str) -> str:
    """A file without a usable record."""
    return f"skipped: {file}"


def unpaired(name: str, runs: int) -> str:
    """Runs of a configuration that have no partner."""
    return f"{name}: {count_text(runs, 'run', 'runs')} left out, without a partner"


def infinite_losses(name: str, diverged: int, runs: int, side: str) -> str:
    """Runs whose training diverged."""
    return f"{name}: losses of {share_of_runs(diverged, runs, side)} are not finite"


def left_out(number: str, side: str, statuses: str) -> str:
    """Runs that failed or were interrupted."""
    return f"left out of medians and values: {number} in {side} ({statuses})"


def without_metrics(configurations: int, kind: str, metrics: Iterable[str]) -> str:
    """Configurations that lack the metrics to judge."""
    text = count_text(configurations, "configuration", "configurations")
    return f"{text} of {kind} left out: they have no {' or '.join(metrics)}"


def interrupted_reductions(stopped: int, reductions: int, side: str) -> str:
    """All-reduce processes that were interrupted, but may have completed some rows."""
    of = count_text(reductions, "all-reduce measurement", "all-reduce measurements")
    verb = "was" if stopped == 1 else "were"
    return f"{stopped} of {of} in {side} {verb} interrupted: rows not reached are missing"


def unusable_spread(name: str, reason: str) -> str:
    """A/A runs that cannot be used."""
    return f"A/A runs of {name} cannot be used: {reason}"


def several(name: str, others: int) -> str:
    """Many configurations."""
    return f"{name} and {others} more configurations"


def no_spread(configurations: int) -> str:
    """Configurations whose A/A spread is unknown."""
    text = count_text(configurations, "configuration", "configurations")
    return f"no A/A spread for {text}: only the threshold is used"


def too_few_spread(runs: int, least: int) -> str:
    """Too few A/A runs."""
    return f"{count_text(runs, 'run', 'runs')}, at least {least} are needed"


def applied_rule(source: str, digest: str, title: str, names: Sequence[str], effects: str) -> str:
    """A rule, and the configurations to which it applies."""
    named = first_few(names, MOST_NAMED)
    what = f"applies to {named}: {effects}" if names else "fits no configuration"
    return f"{source}, digest {digest}: {title} {what}"


def accepted_result(name: str, word: str, metric: str, source: str, has_ended: bool) -> str:
    """A regression that a rule accepts, or accepted until it ended."""
    return f"{name}: {word} of {metric} {'was' if has_ended else 'is'} accepted by {source}"


def would_accept(name: str, source: str) -> str:
    """A commit message that accepts a regression, although the rules do not allow it."""
    return f"{name}: {source} accepts this only if rules contain accept_by_message = true"
