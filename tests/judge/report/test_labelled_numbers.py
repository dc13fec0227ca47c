"""Each number of a comparison is in all outputs the same, or they say what it is of.

The records are made so that the values differ: pairs drift, so that the changes within pairs are
not those of the medians; throughput varies more than CPU time; few steps are of different length,
so that a median step is no step.
"""

import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass

import pytest
from pages import report_of

from cnnbench.base.document import Table
from cnnbench.base.document.markdown import report_to_markdown
from cnnbench.judge.compare import compare_records
from cnnbench.judge.compare.estimate import from_test_scale
from cnnbench.judge.compare.result import Comparison
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT
from cnnbench.judge.report import build, gather
from cnnbench.judge.report.renderers import FORMATS
from cnnbench.records.load import Loaded
from cnnbench.records.run import ConditionNote, Conditions

BUSY = Conditions(
    before={},
    during={"other_cpus": 1.0, "steal_fraction": 0.0},
    notes=(ConditionNote(id="load", when="during", text="x", advice="y"),),
)


@dataclass(frozen=True)
class Case:
    """How the runs of B differ from those of A, and by how much equal runs vary."""

    wall: float = 1.0
    wall_noise: float = 0.04
    cpu_noise: float = 0.02
    drift: float = 0.15
    pause: float = 0.0
    conditions: Conditions | None = None
    steps: int = 60
    paired: bool = True

    def runs(self, full_runs):
        draw = random.Random(7)
        made = []
        for pair in range(1, 9):
            drift = 1 + draw.gauss(0, self.drift)
            for position, side in enumerate("ab", 1):
                is_b = side == "b"
                step = 0.08 * drift * (self.wall if is_b else 1.0)
                step *= 1 + draw.gauss(0, self.wall_noise)
                cpu = 0.08 * (1 + draw.gauss(0, self.cpu_noise))
                seconds = tuple(
                    step * (1 + abs(draw.gauss(0, 0.05))) + self.pause * (is_b and at % 3 == 0)
                    for at in range(self.steps)
                )
                place = {"side": side, "seed": 1, "pair": pair, "position": position}
                made.append(
                    full_runs(
                        step_seconds=seconds,
                        step_cpu_seconds=(cpu,) * self.steps,
                        losses=(),
                        conditions=self.conditions,
                        flags={"num_batches": self.steps},
                        **({"ab": place} if self.paired else {}),
                    )
                )
        return made


CASES = {
    "undecided": Case(wall=1.02, wall_noise=0.2, conditions=BUSY),
    "too noisy": Case(wall=1.02, wall_noise=0.25, cpu_noise=0.3, conditions=BUSY),
    "slower": Case(wall=1.1),
    "pauses": Case(pause=0.03),
    "few steps": Case(wall=1.02, steps=4),
    "sessions": Case(pause=0.03, paired=False),
}
ONE_METRIC = ("slower", "pauses", "few steps", "sessions")


@pytest.fixture(scope="module", params=CASES)
def case(request, make_full_runs):
    """Name, comparison, report, and all outputs by name."""
    runs = CASES[request.param].runs(make_full_runs())
    found = compare_records(runs[::2], runs[1::2])
    report = build(gather(Loaded(tuple(runs), ()), comparison=found))
    outputs = {name: write(found) for name, write in FORMATS.items()}
    outputs["page"] = report_to_markdown(report)
    return request.param, found, report, {name: plain(text) for name, text in outputs.items()}


def plain(text):
    """An output without the breaks of its lines and the escapes of its format."""
    for escaped, letter in (("%25", "%"), ("%3A", ":"), ("%2C", ","), ("\\u2192", "→")):
        text = text.replace(escaped, letter)
    return " ".join(text.split())


def result_of(found: Comparison, metric):
    (entry,) = found.entries
    return next((one for one in entry.results if one.metric is metric), None)


def test_variation_is_of_one_metric_or_names_it(case):
    name, found, _, outputs = case
    said = {
        of: THROUGHPUT.change_text(from_test_scale(one.judgement.scatter, metric), signed=False)
        for of, metric in (("throughput", THROUGHPUT), ("CPU time", CPU_TIME))
        if (one := result_of(found, metric)) is not None
    }
    count = 0
    for output, text in outputs.items():
        for first, second in re.findall(
            r"(?:pairs|processes) differ by ([\d.]+ %(?: in [a-zC][\w ]*?)?)"
            r"(?: and ([\d.]+ % in [a-zC][\w ]*?))?(?=[:;.,\"<]| \|)",
            text,
        ):
            for value in filter(None, (first, second)):
                size, _, of = value.partition(" in ")
                assert bool(of) == (name not in ONE_METRIC), output
                assert size == said[of or "throughput"], output
                count += 1
    assert bool(count) == (name in ("undecided", "too noisy"))


def test_the_change_at_the_median_step_says_what_it_is_of(case):
    name, found, _, outputs = case
    result = result_of(found, THROUGHPUT)
    said = [
        (output, before, value)
        for output, text in outputs.items()
        for before, value in re.findall(r"([\w ]+) at the median step ([+-][\d.]+ %)", text)
    ]
    which = "change" if name == "sessions" else "paired change"
    for output, before, value in said:
        assert before.strip() == which, output
        assert value == THROUGHPUT.change_text(result.judgement.median_change), output
    if name in ("pauses", "sessions"):
        assert {output for output, _, _ in said} == {*outputs}
        # The medians over the processes, which the page shows, changed by another share.
        rows = table_rows(case[2], "median step, ms")
        assert len(rows) in (1, 2)


def test_medians_are_called_so_and_are_those_of_the_document(case):
    _, found, _, outputs = case
    document = json.loads(FORMATS["json"](found))
    (entry,) = document["configurations"]
    one = next(one for one in entry["results"] if one["metric"] == "throughput")
    base, new = (
        THROUGHPUT.value_text(one[f"{side}_median"], unit=False) for side in ("base", "new")
    )
    heads = {
        "table": "throughput, median images/sec",
        "markdown": "throughput, median images/sec",
        "junit": "medians: base ",
        "page": "throughput, median images/sec",
    }
    for output, head in heads.items():
        assert head in outputs[output], output
        place = outputs[output].index(head)
        assert base in outputs[output][place:], output
        assert new in outputs[output][place:], output
    for before, after in re.findall(
        r"\(medians ([\d.,]+)(?: images/sec)? (?:→|->) ([\d.,]+)", "".join(outputs.values())
    ):
        assert (before, after) == (base, new)
    # No pair of values stands alone.
    for output, text in outputs.items():
        values = rf"{re.escape(base)}(?: images/sec)? (?:→|->) {re.escape(new)}"
        assert len(re.findall(values, text)) == len(re.findall(f"medians {values}", text)), output


def test_an_estimated_change_says_that_it_is_not_that_of_the_medians(case):
    name, found, _, outputs = case
    how = "within pairs, not from the medians"
    if name == "sessions":
        how = "from each process of BASE to each process of NEW, not the change of the medians"
    for output in ("table", "markdown", "page"):
        assert how in outputs[output], output
    title = "change" if name == "sessions" else "paired change"
    for output in ("table", "markdown", "page", "junit"):
        assert f"{title} " in outputs[output], output
    result = result_of(found, THROUGHPUT)
    change = THROUGHPUT.change_text(result.judgement.change)
    assert f"; {title} {change} (" in outputs["junit"]


def test_if_cpu_time_is_judged_too_the_headline_names_the_metric_of_its_numbers(case):
    name, found, _, outputs = case
    if name in ONE_METRIC:
        return
    result = result_of(found, THROUGHPUT)
    size = THROUGHPUT.change_text(result.judgement.change)
    assert found.answer.startswith((f"Undecided: throughput {size} (", "Too noisy for a verdict"))
    for output in ("table", "markdown", "page", "junit", "github", "json"):
        assert found.answer.rstrip(".").replace("\\u2192", "→") in outputs[output], output


def table_rows(report, title):
    """The texts of a column in all tables of a report."""
    return [text for (_, of), texts in columns_of(report).items() if of == title for text in texts]


def columns_of(report):
    """Texts of the cells of all tables, by name of the row and title of the column."""
    cells = defaultdict(set)
    for section in report.sections:
        for block in section.blocks:
            if isinstance(block, Table):
                titles = [title for title, _, _ in block.columns]
                for row in block.rows:
                    for title, cell in zip(titles, row, strict=True):
                        cells[row[0].text, title].add(cell.text)
    return cells


# What is measured of the processes of different sections.
_PER_SECTION = ("processes", "configuration", "range", "95 % interval", "status", "run")
_PER_SECTION += ("started (UTC)", "images/sec", "metric", "verdict", "why", "command", "its commit")


def test_columns_of_one_title_have_one_value_in_all_tables_of_a_page(case):
    _, _, report, _ = case
    several = {
        key: texts
        for key, texts in columns_of(report).items()
        if len(texts) > 1 and key[1] not in _PER_SECTION
    }
    assert several == {}


def test_each_median_of_steps_on_a_page_says_what_it_is_of(case):
    _, _, report, _ = case
    titles = {title for _, title in columns_of(report)}
    assert {title for title in titles if "median" in title and "step" in title} == {
        "median step, ms",
        "median of all steps, ms",
        "median step_p90_seconds, s",
    }


def test_a_page_without_a_comparison_has_one_median_step(full_runs):
    steps = (0.10, 0.11, 0.20, 0.21)  # the median is no step
    report = report_of(full_runs(step_seconds=steps, losses=(), flags={"num_batches": 4}))
    assert table_rows(report, "median step, ms") == ["155.0"]
    assert not table_rows(report, "median step_p50_seconds, s")
