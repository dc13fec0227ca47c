"""All sentences of a comparison: templates with named values. Whoever reads this module knows what
a comparison can say.

A function returns a sentence that has variants, such as a singular. Other modules decide which
sentence applies. A sentence has no full stop if something may follow it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.text import NONE, count_text, item_count, p_value
from cnnbench.judge.compare.estimate import Estimate, SampleStatistics, from_test_scale
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT
from cnnbench.records.metric import Metric

# Values within sentences.


def change_text(metric: Metric, estimate: Estimate) -> str:
    """A change and, if it is known, its confidence interval: "-0.9 % (-13.9 to +15.6 %)"."""
    if estimate.change is None:
        return NONE
    text, low, high = metric.change_text(estimate.change), estimate.low, estimate.high
    return text if low is None or high is None else f"{text} ({metric.range_text(low, high)})"


def size_text(metric: Metric, estimate: Estimate) -> str:
    """The size and the direction of a change, and its confidence interval: "13.2 % slower (10.1 to
    16.0 %)".
    """
    change, low, high = estimate.change, estimate.low, estimate.high
    assert change is not None
    assert low is not None
    assert high is not None
    size = metric.change_text(abs(change), signed=False)
    least, most = sorted((abs(low), abs(high)))
    ends = metric.range_text(least, most, signed=False)
    return f"{size} {direction(metric, change)} ({ends})"


def known_change(metric: Metric, estimate: Estimate) -> str:
    """What is known about a change: its size and direction if the interval excludes no change,
    otherwise the change with its sign; with the interval.
    """
    low, high = estimate.low, estimate.high
    is_certain = low is not None and high is not None and low * high > 0
    return (size_text if is_certain else change_text)(metric, estimate)


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


def labelled(metric: str, change: str) -> str:
    """A change and its metric, which is "" for the speed as the only metric that was judged."""
    return f"{metric} {change}" if metric else change


def scatter_text(scatter: float, metric: Metric, is_named: bool) -> str:
    """How much pairs or processes differ: "4.7 %" or "4.7 % in CPU time"."""
    text = metric.change_text(from_test_scale(scatter, metric), signed=False)
    return f"{text} in {metric_name(metric)}" if is_named else text


def runs_text(base: int, new: int, paired: bool) -> str:
    """How many pairs or processes were compared."""
    if paired:
        return count_text(base, "pair", "pairs")
    return f"{base} and {count_text(new, 'process', 'processes')}"


def plural(paired: bool) -> str:
    """The word for what is compared."""
    return "pairs" if paired else "processes"


def needed_runs(number: int, paired: bool, new_experiment: bool, least: str = "") -> str:
    """A number of pairs (or processes of each side) that a verdict needs. `least` is "at least "
    for a minimum.
    """
    if new_experiment:
        return f"a new experiment of {least}{number} pairs"
    return f"{least}{number} {'pairs' if paired else 'on each side'}"


AT_LEAST = "at least "

# Reasons for verdicts of tests.

WITHIN_MARGIN = "the change is {interval}, less than {margin}"
WITHIN_MARGIN_OF_ONE_DIRECTION = "the change is {interval}, less than {margin} {word}"
OPEN_QUESTION = "the threshold of {margin} may be exceeded"
UNCERTAIN_CHANGE = "{word} by more than {floor}, but not certainly so"
PERHAPS_SPREAD = "{word}, but perhaps within the A/A spread of {floor}"
TOO_NOISY = "{runs} differ by {scatter}: more {runs} will not help"
NEW_EXPERIMENT_SETTLES = "{runs} differ by {scatter}: a new experiment of {pairs} pairs settles it"
MORE_RUNS_SETTLE = "{runs} differ by {scatter}: about {more} it"
TOO_FEW_TO_TEST = "{processes} in {side}; a verdict needs {needed}"
UNUSABLE_VALUES = "{bad} of {values} of {metric} in {side} cannot be used, the first is {first}"
NO_VALUES = "{side} has no value of {metric}"
NO_PAIRS = "{base} in BASE and {new} in NEW make no pairs"
WITH_MEDIANS = "{verdict}; medians {base} -> {new}"


def more_runs_text(more: int, paired: bool) -> str:
    """How many further pairs or processes lead to a verdict, with the verb."""
    if paired:
        return count_text(more, "more pair settles", "more pairs settle")
    return count_text(more, "more process per side settles", "more processes per side settle")


def too_few(statistics: SampleStatistics, needed: str, provable: float | None) -> str:
    """There are too few values to prove a change.

    Args:
      needed: what could prove a change (see `needed_runs`).
      provable: the change that this could prove; None if unknown.
    """
    base, paired, family = item_count(statistics.base), statistics.paired, statistics.family
    runs = f"{base} against {count_text(statistics.new, 'process', 'processes')}"
    if paired:
        runs = count_text(base, "pair", "pairs")
    verb = "is" if paired and base == 1 else "are"
    among = f" in only one of {family} configurations" if family > 1 else ""
    text = f"{runs} {verb} too few to prove a change{among}, of whatever size; {needed} could prove"
    if provable is None:
        return f"{text} one"
    return f"{text} one of {statistics.metric.change_text(provable, signed=False)}"


def opposite_medians(change: str, paired: bool) -> str:
    """The estimated change and the change of the medians have opposite signs."""
    of = "within pairs" if paired else "between processes of BASE and NEW"
    return f"the change is the median {of}, Hodges-Lehmann; the two medians differ by {change}"


def slow_steps(
    change: float | None, slow: Sequence[str], names: Sequence[str], paired: bool
) -> str:
    """What adds to a change of the throughput: "in NEW every third step takes 90 ms more; paired
    change at the median step +0.1 %".

    Args:
      change: change of the speed at the median step; "" is returned if it is None.
      slow: texts about the slow steps of BASE and of NEW; "" for none.
      names: names of BASE and NEW in the text.
      paired: whether the change was estimated within pairs. It then differs from the change of the
        medians over the processes.
    """
    if change is None:
        return ""
    parts = [f"in {name} {steps}" for name, steps in zip(names, slow, strict=True) if steps]
    of = "paired change" if paired else "change"
    return "; ".join([*parts, f"{of} at the median step {THROUGHPUT.change_text(change)}"])


# Reasons for verdicts that consider the CPU time, and disturbances by other programs.

WAITS = "its steps wait longer: for input, for each other, or with fewer threads at work"
SPINS = "more threads are at work, or threads that wait keep a CPU busy"
OPPOSITE_CPU_TIME = "{speed}, but CPU time {cpu_time}: {why}"
WAITS_CERTAINLY = f"CPU time is {{like}}: {WAITS}"
WAITS_PERHAPS = f"CPU time is {{like}}: perhaps {WAITS}"
BY_CPU_TIME = "CPU time {size}, {p}; {others}"
OF_CPU_TIME = "CPU time: {reason}"
OF_CPU_TIME_UNDER_LOAD = "CPU time: {reason}; {others}"
OTHER_MACHINES = "other machines use the CPUs"
OTHER_PROGRAMS = "other programs use {cpus:.1f} of {usable}"
OTHER_PROGRAMS_USE = "other programs use {cpus:.1f} CPUs"
UNDISTURBED = "none of {runs} was disturbed ({most})"
NOT_CHECKED = "as far as they could be checked"
MOST_LOAD = "others kept at most {cpus:.2f} CPUs busy"
MOST_STOLEN = "at most {share}"
LOST_PROCESS = "a process of {side} was {how}"
LOST_PROCESSES = "a process of {side} was {how} ({times} times)"


def disturbed(number: int, runs: int, causes: Sequence[str]) -> str:
    """How many runs were disturbed, by what."""
    verb = "was" if number == 1 else "were"
    of = count_text(runs, "run", "runs")
    return f"{number} of {of} {verb} disturbed: {', '.join(causes)}"


def repeated_pairs(pairs: int, causes: Sequence[str]) -> str:
    """Pairs that were measured again."""
    text = count_text(pairs, "pair was", "pairs were")
    return f"{text} measured again: {', '.join(causes)}"


# Reasons that follow from records, without a test.

NOT_MEASURED = "{runs} did not measure {metric}"
ONLY_ONE_SIDE = "{absent} has no run of this configuration, only {there} has"
MIXED_SIDE = (
    "{parts} within {side}; give the files of one as {side}: a subfolder or a quoted pattern"
)
NO_PARTNERS = "no run in BASE has its partner in NEW"
FAILED = "{runs} failed: {kind}: {message}"
DIFFERENT_WORK = "Different {kinds}: {changes}. {metric} not judged."
MEASURED_RATE = "Measured rate: {rates} GFLOP/s."
OTHER_DIFFERENCES = "Also different: {facts}."
PARAMETERS = "{change} parameters"
TRAINABLE = "{change} trainable parameters"
FLOPS = "{change} FLOPs per image"
IMAGES = "{change} images per step"
UNLIKE = "{name} is {base} in BASE and {new} in {there}"
UNLIKE_WITHIN_BOTH = "{name} is {base} within BASE and within NEW"
UNKNOWN_IN_BOTH = "{name} is unknown in BASE and in {there}"


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


# The answer of a comparison.

NOTHING = "Nothing was compared"
SAME_CODE = "The measured code is the same: no file differs. Nothing was measured"
SAME_FILES = (
    "The measured code is the same: no run loads the {files} ({names}). Nothing was measured"
)
ALL_SAME = "All {count} configurations are the same"
COUNT_OF_WORST = "{alike} of {count} configurations {word}"
CHANGED = "{new} is {size}, {runs}, {p}"
CHANGED_METRIC = "{new}: {metric} {size}, {runs}, {p}"
CHANGED_BY_CPU_TIME = "{new} is {word}: CPU time {size}, {runs}, {p}"
SAME = "{new} and {base} are the same: {change}, {runs}"
LIMITED = "{new} is {word}: {change}, {runs}"
LIMITED_METRIC = "{new}: {metric} {word}, {change}, {runs}"
NOISY = "Too noisy for a verdict: {noise}"
UNDECIDED = "Undecided: {change}, {runs}: {question}"
ALL_PAIRS = "{word} by throughput in all {pairs} pairs (medians {base} → {new})"
TOO_FEW = "too few values to prove a change"
TWO_SPEEDS = "processes run at two speeds, about {quick} and {slow} ms a step"
DIFFER = "{runs} differ by {scatters}"
STILL_UNDECIDED = "undecided, {known}"
CONFIRMED = "Confirmed by a second measurement: {finding}."
NOT_CONFIRMED = "Not confirmed by a second measurement: {finding}."
ACCEPTED = "Accepted: {sources}."
MEASURED_AGAIN = "{reason}; measured again: {again}"
SO_FAR = "{reason}; so far {change}"

# Advice after an undecided verdict, or if runs are not comparable.

ALLOW_DIFFERENT = "To compare them nevertheless, use --allow_different={names}."
NEW_EXPERIMENT = "A new experiment of {pairs} pairs settles it."
MORE_RUNS = "About {more} it."
REMEDIES = "More {runs} will not help: use {remedies}."
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
SPREAD_OF_PAIRS = "the A/A spread has no part in the verdict, because A and B run in random order"
IGNORED_CHANGES = "changes under {floors} are ignored"
TESTED_TOGETHER = (
    "{count} configurations were tested together: on average, at most {share} of the reported "
    "changes are false"
)
MEAN = "{metric} {change} in the geometric mean of {configurations}"
PART_OF_MEAN = "{metric} {change} in the geometric mean of {known} of {configurations}"
NOTE = "note: {text}"
ALSO_DIFFERENT = "also different: {difference}"
SKIPPED = "skipped: {file}"
EXIT_CODE = "exit code {code}: {meaning}"

# Meanings of exit codes.

SAME_CODE_MEANING = "the measured code is the same"
AA_MEANING = "an A/A measurement, whatever the verdict"
UNCONFIRMED_MEANING = "not confirmed"
ACCEPTED_MEANING = "an accepted change"
ALLOWED_MEANING = "a regression, which --fail_on or a rule does not name"
MEANINGS = {0: "no regression", 3: "undecided", 4: "the benchmark failed", 130: "interrupted"}
FAILURES = {"slower": "a regression", "faster": "an unexpected gain", "changed": "changed work"}
"""Meanings of exit code 1, by the words of --fail_on."""

# Notes.

MOST_NAMED = 5
"""Maximum number of configurations that a note names."""

IMPORTED = (
    "Imported: {sources}. Each has one value and no step times, so slow steps, disturbances and "
    "the noise within a process are not judged. Properties that it lacks, such as the machine, "
    "are not compared."
)
IMPORTED_AND_UNKNOWN = f"{IMPORTED} Unknown of at least one: {{unknown}}."
UNPAIRED_RUNS = "{name}: {runs} left out, without a partner"
INFINITE_LOSSES = "{name}: losses of {runs} are not finite"
LEFT_OUT = "left out of medians and values: {number} in {side} ({statuses})"
WITHOUT_METRICS = "{configurations} of {kind} left out: they have no {metrics}"
RULE = "{source}, digest {digest}: {title} applies to {names}: {effects}"
UNUSED_RULE = "{source}, digest {digest}: {title} fits no configuration"
ACCEPTED_RESULT = "{name}: {word} of {metric} is accepted by {source}"
ONCE_ACCEPTED_RESULT = "{name}: {word} of {metric} was accepted by {source}"
WOULD_ACCEPT = "{name}: {source} accepts this only if rules contain accept_by_message = true"
UNUSABLE_SPREAD = "A/A runs of {name} cannot be used: {reason}"
SEVERAL = "{name} and {others} more configurations"
NO_SPREAD = "no A/A spread for {configurations}: only the threshold is used"
TOO_FEW_FOR_SPREAD = "{runs}, at least {least} are needed"


def interrupted_reductions(stopped: int, reductions: int, side: str) -> str:
    """All-reduce processes that were interrupted, but may have completed some rows."""
    of = count_text(reductions, "all-reduce measurement", "all-reduce measurements")
    verb = "was" if stopped == 1 else "were"
    return f"{stopped} of {of} in {side} {verb} interrupted: rows not reached are missing"
