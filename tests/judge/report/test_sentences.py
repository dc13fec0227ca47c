"""The wording of reports: answers, remarks and paragraphs of constructed results against a file.

Other tests of this folder test values, rows and tones. The Markdown of two whole reports is in
golden/report.md and golden/picture.md. UPDATE_GOLDEN=1 writes the file anew.

Tests cnnbench/judge/report/sections/__init__.py, cnnbench/judge/report/sections/baseline.py,
cnnbench/judge/report/sections/tune.py, cnnbench/judge/report/sections/steps.py and
cnnbench/judge/report/sections/quantities.py.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from golden import golden
from pages import report_of
from studies import ROWS, roofline, step_profile, tuning

from cnnbench.base.document import ChartGroup, Items, Paragraph, Table
from cnnbench.records.all_reduce import Copying
from cnnbench.records.campaigns import NOT_FASTER
from cnnbench.records.run import ConditionNote, Conditions, Imported, ResourceUse
from cnnbench.records.subject import Subject

GOLDEN = Path(__file__).parent / "golden"


def told(report, seen):
    """Answers, remarks, paragraphs, and titles and notes of charts; one a line.

    Lines of sections that were `seen` in an earlier report are left out.
    """
    yield report.title
    for answer in report.answers:
        yield f"{answer.name} ({answer.tone or 'neutral'}): {answer.text}"
        yield from (f"  {detail}" for detail in answer.details)
        if answer.chart is not None:
            yield f"  chart: {answer.chart.title}; {answer.chart.note}"
    for section in report.sections:
        lines = [] if section.visible_when_folded is None else [section.visible_when_folded.text]
        for block in section.blocks:
            if isinstance(block, Paragraph):
                lines.append(block.text)
            if isinstance(block, Items):
                lines += [f"  {text}" for text in (block.title, *block.texts) if text]
            if isinstance(block, Table) and block.title:
                folded = ", folded" if block.folded else ""
                lines.append(f"table of {len(block.rows)} rows{folded}: {block.title}")
            if isinstance(block, ChartGroup):
                charts = (
                    f"{one.title}{'; ' if one.note else ''}{one.note}" for one in block.charts
                )
                lines += (f"chart: {one}" for one in charts)
        if fresh := [line for line in dict.fromkeys(lines) if line not in seen]:
            seen |= {*fresh}
            yield f"{section.title}"
            yield from (f"  {line}" for line in fresh)


def used(leak):
    """Samples of a minute; from second 10 on, memory grows by `leak` MiB a second."""
    seconds = tuple(map(float, range(1, 61)))
    return ResourceUse(
        seconds=seconds,
        memory_bytes=tuple(2.0**20 * (100 + leak * max(0, at - 10)) for at in seconds),
        device_memory_bytes=(2.0**20,) * 60,
        busy_cpus=(1.5,) * 60,
        loop_start=10.0,
        loop_end=50.0,
        sampler_cpu_seconds=0.015,
    )


def faster_than_estimated(runs):
    quick = [dataclasses.replace(row, seconds=row.seconds / 2) for row in ROWS]
    return roofline(runs(100), rows=(ROWS[0], *quick[1:3], ROWS[3]))


NOISY = (100.0, 104.0, 101.0, 99.0, 98.0, 103.0)
LOAD = ConditionNote(id="load", when="during", text="others kept 1.5 CPUs", advice="stop")
REPORTS = {
    "nothing": lambda runs: report_of(),
    "one run": lambda runs: report_of(runs(100)),
    "three runs": lambda runs: report_of(*runs.of(99, 100, 104)),
    "two configurations": lambda runs: report_of(
        *runs.of(99, 100, 104), *runs.of(300, 302, 304, flags={"batch_size": 16})
    ),
    "as fast as the fastest": lambda runs: report_of(
        *runs.of(*NOISY), *runs.of(*(one - 1 for one in NOISY), flags={"batch_size": 16})
    ),
    "a failed and an interrupted run": lambda runs: report_of(
        runs(100),
        runs(error=("OSError", "no disk"), step_seconds=(), losses=()),
        runs(status="interrupted", step_seconds=(0.1,), losses=(1.0,)),
    ),
    "losses that are not finite": lambda runs: report_of(runs(100, losses=(math.nan,) * 24)),
    "other machines": lambda runs: report_of(
        *(runs(100, environment={"cpu_governor": one}) for one in ("performance", "powersave"))
    ),
    "no peak": lambda runs: report_of(runs.with_peak(None, None)),
    "above the peak": lambda runs: report_of(runs.with_peak(78e9)),
    "unsteady": lambda runs: report_of(
        *(runs(100, step_seconds=(*[0.08] * 500, *[0.1] * 500), losses=()) for _ in range(10))
    ),
    "disturbed": lambda runs: report_of(
        runs(100, conditions=Conditions(before={}, during={"other_cpus": 1.5}, notes=(LOAD,))),
        runs(100, conditions=Conditions(before={}, during={"other_cpus": 0.0})),
    ),
    "resources over time": lambda runs: report_of(*(runs(100, resources=used(1)) for _ in "ab")),
    "resources of many configurations": lambda runs: report_of(
        *(runs(100, resources=used(0), flags={"batch_size": size}) for size in range(1, 31))
    ),
    "input alone": lambda runs: report_of(runs(100, flags={"input_only": True})),
    "two rooflines": lambda runs: report_of(studies=[roofline(runs(n)) for n in (100, 100)]),
    "notes and skipped files": lambda runs: report_of(
        *runs.of(*NOISY), base=[*runs.of(*NOISY[:3]), runs(error=("OSError", "no disk"))]
    ),
    "imported": lambda runs: report_of(
        *(
            runs(
                100 + part,
                imported=Imported(program="x", file="a.log", sha256="0" * 64, part=part, values={}),
            )
            for part in (1, 2)
        )
    ),
    "many processes": lambda runs: report_of(*runs.of(*(100 + n / 10 for n in range(301)))),
    "many commits": lambda runs: report_of(
        *(
            runs(100 + number, subject=Subject(repository="nets", revision=f"{number:040x}"[::-1]))
            for number in range(80)
        )
    ),
    "slower than the baseline": lambda runs: report_of(
        *runs.of(100, 101, 99, 100, 102, 100), base=runs.of(110, 111, 109, 110, 112, 110)
    ),
    "undecided": lambda runs: report_of(
        *runs.of(101, 106, 97),
        *runs.of(*[100, 101, 99] * 4, flags={"batch_size": 16}),
        base=[*runs.of(100, 105, 95), *runs.of(*[100, 101, 99] * 4, flags={"batch_size": 16})],
    ),
    "another network than the baseline": lambda runs: report_of(
        *runs.of(
            *(432, 433, 431, 432),
            model=dataclasses.replace(
                runs(1).model, parameters=40, training_flops_per_image=12 * 10**9
            ),
        ),
        base=runs.of(100, 101, 99, 100),
    ),
    "scaling": lambda runs: report_of(runs(100), runs(180, devices=2)),
    "a roofline": lambda runs: report_of(runs(200), studies=[roofline(runs(190))]),
    "a roofline that is too low": lambda runs: report_of(studies=[faster_than_estimated(runs)]),
    "a profile": lambda runs: report_of(
        studies=[step_profile(runs, input_wait_seconds=(0.002,) * 8)]
    ),
    "faster flags": lambda runs: report_of(studies=[tuning()]),
    "flags that train otherwise": lambda runs: report_of(studies=[tuning(leader="precision=bf16")]),
    "a gain of one pair": lambda runs: report_of(studies=[tuning(low=None, pairs=1)]),
    "a gain of which one end is known": lambda runs: report_of(studies=[tuning(high=None)]),
    "flags that may be faster": lambda runs: report_of(
        studies=[tuning(verdict="open", reason="no time")]
    ),
    "no candidate": lambda runs: report_of(studies=[tuning(verdict="open", leader="as given")]),
    "flags that are as fast": lambda runs: report_of(studies=[tuning(verdict="same")]),
    "flags that are slower": lambda runs: report_of(studies=[tuning(verdict="slower")]),
    "flags that are not faster": lambda runs: report_of(studies=[tuning(verdict=NOT_FASTER)]),
    "no faster flags": lambda runs: report_of(studies=[tuning(verdict="none", gain=None)]),
    "many candidates and layers": lambda runs: report_of(
        studies=[
            tuning(
                rows=tuple(
                    dataclasses.replace(tuning().rows[0], candidate=f"num_threads={number}")
                    for number in range(13)
                )
            ),
            roofline(
                runs(100),
                rows=tuple(dataclasses.replace(ROWS[0], layer=f"conv{n}") for n in range(60)),
            ),
        ]
    ),
}


def test_sentences(full_runs, reductions):
    reports = {title: make(full_runs) for title, make in REPORTS.items()}
    points = [reductions.point(2.0, bytes=size, devices=2) for size in (4096, 65536)]
    points.append(
        reductions.point(None, spec="nccl", devices=2, checked=0, error="no such library")
    )
    copies = tuple(Copying(bytes=size, devices=2, seconds=(1e-6,)) for size in (4096, 65536))
    reports["reductions"] = report_of(reductions=[reductions(*points, copies=copies)])
    seen = set()
    text = "\n\n".join(
        "\n".join((f"== {title}", *told(one, seen))) for title, one in reports.items()
    )
    assert text == golden(GOLDEN / "sentences.txt", text)
