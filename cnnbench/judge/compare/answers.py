"""The sentences that answer a comparison: the outcome of the worst configuration, what adds to
it, other metrics that are worse or undecided, and advice. `phrases` contains words that reasons for
verdicts also use.
"""

from __future__ import annotations

from collections.abc import Iterator

from cnnbench.base.stats import median
from cnnbench.base.text import count_text, enumeration, first_few, milliseconds
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.judgement import Verdict
from cnnbench.judge.compare.verdicts import (
    DIRECTIONS,
    LIMITED,
    ComparedConfiguration,
    MetricResult,
    SameCode,
    Verdicts,
)
from cnnbench.judge.metrics.judged import CPU_TIME, SPEEDS, THROUGHPUT
from cnnbench.records.run import RunRecord

_FILES_NAMED = 3
"""Maximum number of files that an answer names."""

_SHORT_SECONDS = 4.0
"""If the timed steps of a run take less time than this, the first advice is to make them longer."""


def opening(verdicts: Verdicts) -> tuple[str, str]:
    """Returns the headline of an answer, and a further circumstance such as slow steps, or "".
    Together, they are the first sentence of the answer, without its full stop.
    """
    if verdicts.same_code is not None:
        return _same_code(verdicts.same_code), ""
    entries = verdicts.deciding_configurations
    if not entries:
        return "Nothing was compared", ""
    worst = entries[0]
    if len(entries) == 1:
        return _outcome(verdicts, worst)
    count = len(entries)
    if worst.main.verdict is Verdict.SAME:
        return f"All {count} configurations are the same", ""
    outcome = "; ".join(filter(None, _outcome(verdicts, worst)))
    alike = sum(entry.main.word == worst.main.word for entry in entries)
    headline = f"{alike} of {count} configurations {worst.main.word}"
    return headline, f"{worst.name}: {outcome}"


def further_sentences(verdicts: Verdicts) -> list[str]:
    """Returns the further sentences: on other metrics and accepted regressions."""
    if verdicts.same_code is not None or not verdicts.deciding_configurations:
        return []
    sentences = [*_other_metrics(verdicts)]
    accepted = [result.accepted for _, result in verdicts.rows if result.accepted is not None]
    sources = {one.source_text for one in accepted if not one.has_ended}
    if sources:
        sentences.append(f"Accepted: {'; '.join(sorted(sources))}.")
    return sentences


def advice(verdicts: Verdicts) -> str:
    """Returns sentences that say how to get a verdict: on configurations that are not comparable,
    and on the first inconclusive configuration; "" if there are none, or if nothing would help.
    """
    sentences = []
    if names := verdicts.names_to_allow:
        what = " and ".join(verdicts.names)
        if len(verdicts.entries) > 1:
            entries = verdicts.deciding_configurations
            what = first_few([entry.name for entry in entries if entry.names_to_allow], 1)
        flag = f"--allow_different={','.join(names)}"
        sentences.append(f"To compare {what} nevertheless, use {flag}.")
    undecided = verdicts.undecided_entries
    if undecided and undecided[0][1].judgement.needed is not None:
        sentences.append(_how_to_decide(verdicts, *undecided[0]))
    return " ".join(sentences)


def _how_to_decide(verdicts: Verdicts, entry: ComparedConfiguration, result: MetricResult) -> str:
    paired, more = result.samples.paired, result.judgement.more or 0
    sentence = f"About {phrases.more_runs_text(more, paired)} it."
    if result.too_noisy:
        remedies = enumeration([*_remedies(entry)])
        sentence = f"More {phrases.plural(paired)} will not help: use {remedies}."
    elif result.judgement.new_experiment:
        sentence = f"A new experiment of {more} pairs settles it."
    return sentence if len(verdicts.entries) == 1 else f"{entry.name}: {sentence}"


def known_text(result: MetricResult) -> str:
    """Returns text with the change, without advice about further pairs or processes."""
    metric, judgement = result.metric, result.judgement
    if result.verdict is Verdict.INCONCLUSIVE and judgement.low is not None:
        return f"{phrases.known_change_text(metric, judgement)}: {_excess_text(result)}"
    if judgement.at_least is not None and judgement.change is not None:
        return f"{phrases.change_text(metric, judgement)}: too few values to prove a change"
    return judgement.reason


def _same_code(same: SameCode) -> str:
    why, files = "no file differs", "file that differs"
    if len(same.files) > 1:
        files = count_text(same.files, files, "files that differ")
    if same.files:
        why = f"no run loads the {files} ({first_few(same.files, _FILES_NAMED, ', ')})"
    return f"The measured code is the same: {why}. Nothing was measured"


def _outcome(verdicts: Verdicts, entry: ComparedConfiguration) -> tuple[str, str]:
    """Returns the outcome of a configuration, and a further circumstance such as slow steps, or "".
    Neither has a full stop.
    """
    result = entry.main
    judgement, verdict = result.judgement, result.verdict
    reason = judgement.reason.rstrip(".")
    if verdict is Verdict.CHANGED_WORK:
        return reason, ""
    of_all_pairs = _all_pairs(result)
    outcome = _tested_outcome(verdicts, entry, result)
    if not outcome:
        word = "undecided" if verdict is Verdict.INCONCLUSIVE else result.word
        return f"{word.capitalize()}: {reason}", of_all_pairs
    slow = (result.base_slow_steps, result.new_slow_steps)
    change, paired = judgement.median_change, result.samples.paired
    beside = phrases.slow_steps(change, slow, verdicts.names, paired)
    if verdict not in DIRECTIONS or judgement.decided_by is not None:
        beside = "; ".join(filter(None, (beside, of_all_pairs)))
    return outcome, beside


def _tested_outcome(verdicts: Verdicts, entry: ComparedConfiguration, result: MetricResult) -> str:
    """Returns the outcome of a test; "" if there was none."""
    decisive = entry.deciding_result(result)
    metric, judgement = decisive.metric, decisive.judgement
    count = len(result.base)
    runs = f"{count} and {count_text(result.new, 'process', 'processes')}"
    if verdicts.paired:
        runs = count_text(count, "pair", "pairs")
    base, new = verdicts.names
    is_speed = result.metric in SPEEDS
    # If the CPU time was also judged, numbers of the throughput are labelled, too.
    label = "" if is_speed and not result.is_joint else phrases.metric_name(metric)
    if result.verdict in DIRECTIONS:
        size, p = phrases.size_text(metric, judgement), phrases.chance(judgement.p_adjusted)
        if decisive is not result:
            return f"{new} is {result.word}: CPU time {size}, {runs}, {p}"
        found = f"{size}, {runs}, {p}"
        return f"{new} is {found}" if is_speed else f"{new}: {result.metric.name} {found}"
    change = phrases.change_text(metric, judgement)
    if result.verdict in LIMITED and not is_speed:
        return f"{new}: {label} {result.word}, {change}, {runs}"
    if result.verdict is Verdict.SAME:
        return f"{new} and {base} are the same: {phrases.labelled(label, change)}, {runs}"
    if result.verdict in LIMITED:
        return f"{new} is {result.word}: {phrases.labelled(label, change)}, {runs}"
    if result.verdict is not Verdict.INCONCLUSIVE or result.judgement.low is None:
        return ""
    if result.too_noisy:
        # The texts name the metrics, if several were judged.
        label = "" if result.is_joint else label
        noise = phrases.labelled(label, "; ".join(_noise(entry, result)))
        return f"Too noisy for a verdict: {noise}"
    change = phrases.labelled(label, phrases.known_change_text(result.metric, result.judgement))
    if verdicts.paired and count != len(result.new):
        return f"Undecided: {change}: {result.judgement.reason}"
    return f"Undecided: {change}, {runs}: {_excess_text(result)}"


def _excess_text(result: MetricResult) -> str:
    """Returns text that says which threshold the change may exceed."""
    floor = result.judgement.floor
    if floor is None:
        return ""
    return phrases.OPEN_QUESTION.format(floor=result.metric.change_text(floor, signed=False))


def _all_pairs(result: MetricResult) -> str:
    """Returns text about a change of the medians that all pairs show, if CPU time was also judged;
    otherwise "". CPU time cannot see waiting, so the text is shown whatever decides.
    """
    metric, samples = result.metric, result.samples
    if not samples.paired or not result.is_joint or metric is not THROUGHPUT:
        return ""
    signs = {after > before for before, after in zip(samples.base, samples.new, strict=True)}
    base, new = result.judgement.base_median, result.judgement.new_median
    if len(signs) != 1 or base is None or new is None or base == new:
        return ""
    word = metric.better if signs == {True} else metric.worse
    medians = f"{metric.value_text(base, unit=False)} → {metric.value_text(new)}"
    return f"{word} by throughput in all {len(samples.base)} pairs (medians {medians})"


def _other_metrics(verdicts: Verdicts) -> Iterator[str]:
    """Yields a sentence for each further metric that is worse, inconclusive or missing in a
    configuration. The sentence is about the worst configuration.

    The main result of the worst configuration is excluded, because the answer contains it.
    """
    entries = verdicts.deciding_configurations
    for metric in verdicts.metrics:
        if metric is entries[0].main.metric:
            continue
        for entry, result in verdicts.deciding_results(metric):
            name, text = metric.name, result.judgement.reason
            if result.verdict is Verdict.NOT_MEASURED:
                name = result.word
            elif result.verdict in DIRECTIONS and verdicts.sets_exit_code(entry, result):
                decisive = entry.deciding_result(result)
                text = phrases.size_text(decisive.metric, decisive.judgement)
            elif result.asked and result.verdict is Verdict.INCONCLUSIVE:
                if result.judgement.low is not None:
                    text = phrases.known_change_text(metric, result.judgement)
                text = f"undecided, {text}"
            else:
                continue
            finding = f"{name.capitalize()}: {text}"
            yield f"{finding} in {entry.name}." if len(entries) > 1 else f"{finding}."
            break


def _noise(entry: ComparedConfiguration, result: MetricResult) -> Iterator[str]:
    """Yields texts that say how much the runs of a configuration differ, and why."""
    if entry.two_speeds is not None:
        quick, slow = map(milliseconds, entry.two_speeds)
        yield f"processes run at two speeds, about {quick} and {slow} ms a step"
    elif result.judgement.scatter is not None:
        judged = (result.metric, CPU_TIME) if result.is_joint else (result.metric,)
        scatters = [
            phrases.scatter_text(one.judgement.scatter, one.metric, result.is_joint)
            for one in entry.results
            if one.metric in judged and one.judgement.scatter is not None
        ]
        yield f"{phrases.plural(result.samples.paired)} differ by {' and '.join(scatters)}"
    if entry.others:
        yield entry.others


def _remedies(entry: ComparedConfiguration) -> Iterator[str]:
    """Yields texts that say what would make the runs of a configuration less noisy."""
    runs = [run for run in entry.runs if isinstance(run, RunRecord)]
    timed = [sum(run.step_seconds) for run in runs if run.step_seconds]
    if timed and median(timed) < _SHORT_SECONDS:
        yield "longer runs (five seconds of timed steps)"
    flags = runs[-1].config if runs else {}
    if flags.get("device") == "cpu" and flags.get("num_intra_threads") != 1:
        yield "--num_intra_threads=1"
    yield "an idle machine (cnnbench env --check)"
