"""Builds a report from its sections. A section is omitted if the records contain nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from cnnbench.base.document import Answer, Content, Report, Section
from cnnbench.base.text import count_text, counted_names, first_few, integer
from cnnbench.judge.compare.notes import imported_records_note
from cnnbench.judge.metrics.measurement import readable_fact, short_commit
from cnnbench.judge.report.results import ReportSubject, start_time_text
from cnnbench.judge.report.sections import (
    all_reduce,
    baseline,
    environment,
    quantities,
    roofline,
    runs,
    scaling,
    steps,
    tune,
)
from cnnbench.version import __version__

SECTIONS: Mapping[str, tuple[str, Callable[[ReportSubject], Iterable[Content]]]] = {
    "baseline": ("Against the baseline", baseline.baseline_section),
    "why": ("Where the difference is", baseline.explanation_section),
    "reach": ("What the machine reaches", quantities.best_section),
    "reproduce": ("How to reproduce it", runs.reproduction_section),
    "problems": ("Failed and skipped", runs.failures_section),
    "flags": ("Best flags", tune.best_flags_section),
    "scaling": ("Scaling", scaling.scaling_section),
    "allreduce": ("All-reduce", all_reduce.all_reduce_section),
    "throughput": ("Throughput", quantities.throughput),
    "mfu": ("Use of the hardware", quantities.mfu),
    "roofline": ("Where the time of a step goes", roofline.roofline_section),
    "timeline": ("One step in time", steps.timeline_section),
    "memory": ("Memory", quantities.memory),
    "accuracy": ("Accuracy and losses", quantities.accuracy),
    "warmup": ("Start-up and warm-up", quantities.warmup),
    "steps": ("Step times", steps.steps_section),
    "use": ("Memory and CPUs over time", steps.use_section),
    "conditions": ("Conditions", environment.conditions_section),
    "environment": ("Environment", environment.environment_section),
}
"""Maps the key of a section to its title and the function that yields its contents, in order."""

_FOLDED = [*SECTIONS][[*SECTIONS].index("memory") :]
"""Keys of the sections that pages show folded, which are the last ones."""

_ABOUT_VERDICT = ("baseline", "why", "problems")
"""Keys of the sections that a page with a comparison shows first and open. The others, which are
about what was measured, are folded.
"""

_WHOLE = ("problems",)
"""Sections that show all configurations, not only the newest ones."""

_FACTS = (
    ("GPUs", ("gpu_names",)),
    ("processor", ("cpu_model", "usable_cpus", "memory_bytes")),
    ("driver, CUDA, cuDNN", ("gpu_driver", "cuda_version", "cudnn_version")),
    ("loaded cuBLAS, cuDNN, NCCL", ("loaded_cublas", "loaded_cudnn", "loaded_nccl")),
    ("TensorFlow", ("tensorflow_version",)),
    ("Python", ("python_version",)),
    ("cnnbench", ("cnnbench_version", "git_commit")),
    ("operating system", ("platform",)),
)
"""Titles of the summary, and the properties that each shows. The first must be known."""

_UNITS = {"usable_cpus": " CPUs", "memory_bytes": " of memory"}
_MOST = 3


def build(
    results: ReportSubject,
    title: str = "",
    answers: Sequence[Answer] = (),
    first: Sequence[Section] = (),
    before: Sequence[Answer] = (),
) -> Report:
    """Returns the report with all sections that have content. The default of `title` contains the
    names of the networks.

    If there are many configurations, most sections show only the newest ones (see
    `ReportSubject.limited_to_newest`).

    Args:
      answers: answers that replace the verdict against a baseline, such as those of a history.
      first: sections that are put before all other sections.
      before: answers that are put before all other answers.
    """
    bounded = results.limited_to_newest()
    verdict: Sequence[Answer | None] = answers
    if not answers and results.comparison is not None:
        verdict = (baseline.baseline_answer(results.comparison),)
    elif not answers and not results.studies:  # A search has an answer.
        verdict = (runs.speed_answer(results),)
    keys, folded = [*SECTIONS], _FOLDED
    if results.comparison is not None:
        folded = [key for key in keys if key not in _ABOUT_VERDICT]
        keys = [*_ABOUT_VERDICT, *folded]
    sections = (_section(key, results if key in _WHOLE else bounded, key in folded) for key in keys)
    all_answers = (
        *before,
        *verdict,
        _failures_answer(results),
        *baseline.explanation_answers(results),
        *tune.search_verdict_answers(results),
        *all_reduce.all_reduce_answers(results),
        *roofline.roofline_answers(results),
        environment.conditions_answer(results),
        _omitted_answer(bounded),
    )
    asked = results.processes or results.studies or results.comparison
    return Report(
        title=title or _report_title(results),
        subtitle=_subtitle(results),
        answers=tuple(answer for answer in all_answers if answer is not None) if asked else (),
        highlights=tuple(_highlights(results)),
        sections=(*first, *(section for section in sections if section.blocks)),
    )


def _section(key: str, results: ReportSubject, folded: bool) -> Section:
    title, contents = SECTIONS[key]
    return Section.of(contents(results), key, title, folded)


def _report_title(results: ReportSubject) -> str:
    named = (
        *(group.model for group in (*results.configured, *results.profiled.values())),
        *map(tune.searched_network, results.tunings),
    )
    if not named and results.explanations:
        return "Why B differs from A"
    if not named and not results.allreduces and results.comparison is not None:
        return f"{results.comparison.new_label} against {results.comparison.base_label}"
    if not named:
        return "All-reduce of gradients" if results.allreduces else "No results"
    return f"Speed of {first_few([*dict.fromkeys(named)], _MOST, ', ')}"


def _subtitle(results: ReportSubject) -> str:
    starts = sorted(start_time_text(record.started_at)[:16] for _, record in results.processes)
    ends = " to ".join(dict.fromkeys((*starts[:1], *starts[-1:])))
    when = f", measured {ends} UTC" if ends else ""
    return f"Measured with cnnbench; report of version {__version__}{when}"


def _omitted_answer(bounded: ReportSubject) -> Answer | None:
    if not bounded.earlier:
        return None
    shown, total = len(bounded.configured), len(bounded.configured) + len(bounded.earlier)
    return Answer(
        "Extent",
        f"Only {shown} of {integer(total)} pairs of configuration and commit are shown in full",
        "unsure",
        ("--format=csv lists all of them; cnnbench history follows them over time",),
    )


def _failures_answer(results: ReportSubject) -> Answer | None:
    bad = [run for _, run in results.processes if run.status != "ok"]
    defects = sum(file.defect for file in results.skipped)
    if not bad and not defects:
        return None
    total = count_text(len(results.processes), "process", "processes")
    parts = (
        f"{len(bad)} of {total} without a result" if bad else "",
        count_text(defects, "faulty file", "faulty files") if defects else "",
    )
    errors = dict.fromkeys(runs.error_text(run) for run in bad)
    details = (first_few([*errors], _MOST),) if errors else ()
    return Answer("Failed", ", ".join(filter(None, parts)), "bad", details)


def _highlights(results: ReportSubject) -> Iterable[tuple[str, str]]:
    origins = [group.origin for group in results.configured]
    commits = {origin.code_state for origin in origins if origin.revision}
    machines = {origin.machine for origin in origins}
    keys = {group.configuration.key for group in results.configured}
    counted: tuple[tuple[Collection[object], str, str], ...] = (
        (keys, "configuration", "configurations"),
        (commits if len(commits) > 1 else (), "commit", "commits"),
        (machines if len(machines) > 1 else (), "machine", "machines"),
        (results.runs, "process", "processes"),
        (results.allreduces, "all-reduce run", "all-reduce runs"),
        (results.tunings, "search of flags", "searches of flags"),
        (results.rooflines, "roofline", "rooflines"),
    )
    measured = [count_text(len(things), one, many) for things, one, many in counted if things]
    if measured:
        yield "measured", ", ".join(measured)
    if imported := imported_records_note(record for _, record in results.processes):
        yield "not judged", imported
    environments = [record.environment for _, record in results.processes]
    for title, names in _FACTS:
        texts = [_values_text(environments, name) for name in names]
        if texts[0]:
            yield title, ", ".join(filter(None, texts))
    if results.skipped:
        defects = sum(file.defect for file in results.skipped)
        files = count_text(len(results.skipped), "file", "files")
        yield "skipped", f"{files}, {defects} of them faulty"


def _values_text(environments: list[Mapping[str, Any]], name: str) -> str:
    values = (facts[name] for facts in environments if name in facts)
    texts = [
        counted_names(value)
        if isinstance(value, list)
        else short_commit(readable_fact(name, value))
        for value in values
    ]
    text = first_few([text for text in dict.fromkeys(texts) if text], _MOST)
    return f"{text}{_UNITS.get(name, '')}" if text else ""
