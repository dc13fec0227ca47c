"""Renderings against files that were looked at; UPDATE_GOLDEN=1 rewrites them.

Tests cnnbench/judge/report/renderers.py, cnnbench/judge/report/comparison.py,
cnnbench/judge/report/junit.py and cnnbench/judge/report/github.py.
"""

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from golden import golden
from step_profiles import CONV, changed

from cnnbench.base.document.markdown import COMMENT_LIMIT
from cnnbench.judge.compare import Criteria, SkippedFile, compare_records
from cnnbench.judge.compare.verdicts import SameCode
from cnnbench.judge.explain import explain
from cnnbench.judge.explain.blocks import explanation_rows
from cnnbench.judge.report.comparison import (
    mean_sentences,
    mentioned_differences,
)
from cnnbench.judge.report.renderers import FORMATS, render, terminal_text, wants_colour
from cnnbench.records.profiles import UPDATE
from cnnbench.records.run import ModelInfo
from cnnbench.records.subject import Subject

GOLDEN = Path(__file__).parent / "golden"
BASE = (100.0, 100.2, 99.8, 100.1, 99.9)
HOSTILE = (
    "a|b`c``<script>alert(1)</script>&\"'\n## x\r\n::error::%0A @you #1 [l](http://x) www.x.y"
    " **bold** _it_ ~~no~~ $x$ \\| \x1b[31m\x00 \u202ekcab\u2066 \x9b \udc80"
)


FACTS = {"logical_cpus": 2, "tensorflow_version": "2.21.0", "git_commit": "a" * 40}


def suite(full_runs, factors, **more):
    return [
        record
        for model, factor in factors.items()
        for record in full_runs.of(
            *(speed * factor for speed in BASE), flags={"model": model}, **more
        )
    ]


@pytest.fixture
def full_runs(machine_runs):
    """Runs as for comparisons, not those that tests of reports make."""
    return machine_runs


@pytest.fixture(scope="module")
def everything(lenet_runs):
    """A comparison in which every verdict occurs."""
    full_runs = lenet_runs(FACTS)
    like = {"slow": 1.0, "fast": 1.0, "same": 1.0, "failed": 1.0}
    base = suite(full_runs, {**like, "other": 1.0, "gone": 1.0})
    base += full_runs.of(90, 95, 100, 105, 110, 115, flags={"model": "noisy"})
    base += full_runs.with_memory(*[1000] * 6, flags={"model": "greedy"})
    new = suite(full_runs, {**like, "slow": 0.9, "fast": 1.1}, environment={"git_commit": "b" * 40})
    new += suite(full_runs, {"other": 1.0}, environment={"cpu_model": "Slow CPU"})
    new += full_runs.of(91, 94, 99, 104, 109, 116, flags={"model": "noisy"})
    new += full_runs.with_memory(*[1500] * 6, flags={"model": "greedy"})
    new.append(
        full_runs(None, flags={"model": "failed"}, error=("ResourceExhaustedError", "no memory"))
    )
    base += suite(full_runs, {"wider": 1.0})
    sizes = {"parameters": 40, "trainable_parameters": 40, "forward_flops_per_image": 80}
    wider = ModelInfo(name="wider", training_flops_per_image=240, **sizes)
    new += suite(full_runs, {"wider": 0.3}, model=wider)
    return compare_records(
        base,
        new,
        labels=("results/base", "results/new"),
        skipped=(
            SkippedFile("results/new/cut.json", "cut off after 10 characters"),
            SkippedFile("results/new/ar.json", "holds another kind", defect=False),
        ),
    )


@pytest.fixture(scope="module")
def hostile(lenet_runs):
    """A comparison with hostile text wherever a record or a path can bring it in."""
    full_runs = lenet_runs(FACTS)
    flags = {"model": HOSTILE}
    base = full_runs.of(*BASE, flags=flags, environment={"cpu_model": HOSTILE, "hostname": HOSTILE})
    new = full_runs.of(*BASE, flags=flags)
    failed = {"model": f"failed {HOSTILE}"}
    new.append(full_runs(None, flags=failed, error=("Error", HOSTILE)))
    return compare_records(
        [*base, *full_runs.of(*BASE, flags=failed)],
        new,
        labels=(HOSTILE, HOSTILE),
        skipped=(SkippedFile(HOSTILE, HOSTILE),),
    )


FILES = {
    "table": "table.txt",
    "markdown": "comment.md",
    "json": "comparison.json",
    "junit": "junit.xml",
    "github": "annotations.txt",
}


@pytest.mark.parametrize("format", FORMATS)
def test_golden(everything, format):
    found = render(everything, format)
    assert found == golden(GOLDEN / FILES[format], found)
    assert found.endswith("\n")


def test_colours_repeat_what_the_words_say(everything):
    plain, coloured = terminal_text(everything), terminal_text(everything, colour=True)
    assert "\x1b" not in plain
    assert "\x1b[31;1m- slower" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_what_is_worse_but_does_not_gate_is_a_warning_in_all_formats(full_runs):
    found = compare_records(full_runs.with_startup(*[5] * 6), full_runs.with_startup(*[9] * 6))
    assert found.exit_code == 0
    assert "\x1b[31;1m- longer" in terminal_text(found, colour=True)
    assert "🔴 longer" in render(found, "markdown")
    assert "::warning title=lenet%2C batch 8%2C 1 cpu%3A startup::" in render(found, "github")
    (skipped,) = xml.fromstring(render(found, "junit")).iter("skipped")
    assert skipped.get("type") == "longer"


def test_the_answer_is_wrapped_to_the_width_of_the_terminal(everything, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = terminal_text(everything)
    head = text.split("\n\n")[0]
    assert max(map(len, head.splitlines())) <= 60
    assert head.split() == f"{everything.answer} {everything.advice}".split()


@pytest.mark.parametrize(
    ("terminal", "environ", "wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_when_there_are_colours(monkeypatch, terminal, environ, wanted):
    class Stream:
        def isatty(self):
            return terminal

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert wants_colour(Stream()) is wanted


def test_a_comment_shows_causes_only_if_the_step_time_differs_significantly(full_runs, profiles):
    slower = changed(lambda part: part[:2] == ("conv1", CONV), 2.0)
    slower = changed(lambda part: part.kind == UPDATE, 0.1, slower)
    found = explain(profiles.side(), profiles.side(slower))
    assert found.causes
    sides = [tuple(full_runs.of(*[speed] * 4)) for speed in (150.0, 100.0)]
    comparison = dataclasses.replace(
        compare_records(*sides), explanation=found, repeat="cnnbench gate A B"
    )
    text = render(comparison, "markdown")
    shown, _, _ = text.partition("<details>")
    cause = f"| {found.causes[0].place} |"
    assert shown.index("| configuration |") < shown.index(cause)
    assert shown.count("cnnbench gate A B") == 1
    unclear = dataclasses.replace(found, spread=2 * abs(found.difference), answer="Unclear.")
    text = render(dataclasses.replace(comparison, explanation=unclear), "markdown")
    shown, _, folded = text.partition("<details>")
    assert not any(words in shown for words in ("Unclear.", cause))
    assert all(words in folded for words in ("Unclear.", cause))
    # Rows in which B takes less time follow the rows that make B slower.
    signs = [row.difference > 0 for row in explanation_rows(found, 5)[:5]]
    assert signs == sorted(signs, reverse=True)


@pytest.mark.parametrize("format", FORMATS)
def test_an_explanation_is_in_all_formats_and_a_command_in_those_for_others(
    full_runs, profiles, format
):
    slower = changed(lambda part: part[:2] == ("conv1", CONV), 2.0, flops=2 * 10**9)
    comparison = dataclasses.replace(
        compare_records(full_runs.of(*[150.0] * 4), full_runs.of(*[100.0] * 4)),
        explanation=explain(profiles.side(), profiles.side(slower)),
        next_step="cnnbench ab --resume=x",
    )
    text = render(comparison, format)
    assert "conv1" in text
    if format == "table":  # whose reader has just seen the command
        return
    assert "cnnbench ab --resume=x" in text.replace("&#61;", "=")
    repeated = render(dataclasses.replace(comparison, repeat="cnnbench gate A B"), format)
    assert "cnnbench gate A B" in repeated
    assert ("cnnbench ab" in repeated) == (format == "json")


@pytest.mark.parametrize("format", FORMATS)
def test_code_that_is_the_same_is_an_answer_in_all_formats(format):
    files = tuple(f"docs/page{number}.md" for number in range(5))
    same = SameCode(base="a" * 40, new="b" * 40, files=files)
    found = dataclasses.replace(compare_records([], []), same_code=same)
    assert found.exit_code == 0
    text = render(found, format)
    assert "5 files" in text
    if format == "junit":
        (suite,) = xml.fromstring(text)
        assert suite.get("name") == "cnnbench compare: code"
        assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
            *("1", "0", "0", "0")
        ]
    if format == "markdown":
        assert [file in text.replace("&#46;", ".") for file in files] == [True] * 5
        alone = render(
            dataclasses.replace(found, same_code=dataclasses.replace(same, files=())), format
        )
        assert "The files that differ" in text
        assert "The files that differ" not in alone


def test_repeated_pairs_are_a_property_in_junit(full_runs):
    lost = [{"side": "b", "how": "killed by SIGKILL"}]
    sides = [
        [full_runs(ab={"side": name, "seed": 1, "pair": n, "lost": lost}) for n in range(1, 9)]
        for name in "ab"
    ]
    text = render(compare_records(*sides), "junit")
    assert '<property name="repeated_pairs" value="8" />' in text


def test_json_is_strict(everything):
    def refuse(name):
        raise AssertionError(name)

    document = json.loads(render(everything, "json"), parse_constant=refuse)
    assert (document["schema"], document["kind"]) == (1, "comparison")


@pytest.mark.parametrize(
    ("base", "new", "ends"),
    [
        ("a", "a", None),
        ("ab", "ab", " 2 configurations"),
        ("abc", "ab", " 2 of 3 configurations"),
        ("abc", "a", None),
    ],
)
def test_a_mean_is_of_two_configurations_or_more(full_runs, base, new, ends):
    sides = (suite(full_runs, dict.fromkeys(names, 1.0)) for names in (base, new))
    found = [*mean_sentences(compare_records(*sides))]
    assert [one.startswith("throughput +0.0 %") for one in found] == [True] * (ends is not None)
    assert all(one.endswith(ends) for one in found)


def test_differences_that_block_nothing_are_mentioned_but_not_the_measured_revision(full_runs):
    def mentioned(base, new, **facts):
        subjects = [Subject(repository="nets", revision=one * 40) for one in (base, new)]
        sides = full_runs.of(*BASE), full_runs.of(*BASE, environment=facts)
        made = [
            [dataclasses.replace(run, subject=subject) for run in side]
            for side, subject in zip(sides, subjects, strict=True)
        ]
        texts = mentioned_differences(compare_records(*made))
        return [text.partition(" ")[0] for text in texts]

    assert mentioned("a", "b") == []
    assert mentioned("a", "a", hostname="box2") == ["hostname"]
    assert mentioned("a", "a", git_commit="b" * 40) == ["git_commit"]
    assert mentioned("a", "b", git_commit="c" * 40) == ["git_commit"]
    # Where cnnbench itself is measured, its commit is the revision.
    assert mentioned("a", "b", git_commit="b" * 40, hostname="x") == ["hostname"]


def test_github_shows_ten_annotations_of_a_level_so_the_tenth_sums_up(full_runs):
    names = {f"net{number}": 1.0 for number in range(12)}
    slow = dict.fromkeys(names, 0.5)
    base = suite(full_runs, names) + suite(full_runs, names)
    found = compare_records(base, suite(full_runs, slow))
    lines = render(found, "github").splitlines()
    errors = [line for line in lines if line.startswith("::error")]
    assert len(errors) == 10
    assert errors[-1].startswith("::error title=3 more::")
    assert errors[-1].count("%0A") == 2


@pytest.mark.parametrize("format", FORMATS)
def test_hostile_text_brings_no_lines_and_no_invisible_characters(hostile, format):
    text = render(hostile, format)
    text.encode()
    assert "".join(text.splitlines()).isprintable()
    if format != "json":
        assert not any(line.startswith(("## x", "::error::")) for line in text.splitlines())


def test_hostile_text_is_escaped_in_markdown(hostile):
    text = render(hostile, "markdown")
    # Whatever has a meaning is an entity, in the middle of code.
    plain = re.sub(r"&#[0-9]+;", "", text)
    for sign in (
        "<script",
        "`",
        "@",
        "#1",
        "[",
        "]",
        "http:",
        "www.",
        "::",
        "**",
        "_it_",
        "~",
        "$",
    ):
        assert sign not in plain
    assert "\\" not in plain
    # The columns of every row are those of its head.
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {9}
    # What we did not write ourselves opens no element but code.
    tags = set(re.findall(r"</?([a-z]+)", text))
    assert tags == {"code", "details", "summary"}


def test_hostile_text_is_text_in_junit(hostile):
    document = render(hostile, "junit")
    root = xml.fromstring(document)
    assert root.find(".//script") is None
    names = [case.get("name") for case in root.iter("testcase")]
    assert any("<script>alert(1)</script>" in name for name in names)


def test_hostile_text_gives_no_commands_to_github(hostile):
    lines = render(hostile, "github").splitlines()
    assert lines
    for line in lines:
        assert re.match(r"::(error|warning|notice) title=[^:,\r\n]*::", line)
        # Every per cent sign begins an escape: %0A in the text came out as %250A.
        assert re.fullmatch(r"([^%]|%25|%0A|%0D|%3A|%2C)*", line)
    assert any("%250A" in line for line in lines)


@pytest.mark.parametrize("length", [300, 20_000])
def test_markdown_of_long_names_is_cut_between_its_sections(full_runs, length):
    """Every character of these names becomes an entity."""
    names = [f"{number}{'|' * length}" for number in range(30)]
    one_each = [full_runs(100.0, flags={"model": name}) for name in names]
    slow = full_runs.of(*BASE, flags={"model": names[0]})
    found = compare_records(
        [*one_each, *full_runs.with_memory(*[1000] * 6, flags={"model": names[0]})],
        [*one_each, *slow, *full_runs.with_memory(*[1500] * 6, flags={"model": names[0]})],
        labels=(names[0], names[1]),
        skipped=[SkippedFile(name, name) for name in names],
    )
    text = render(found, "markdown")
    assert len(text) <= COMMENT_LIMIT
    assert text.endswith("\n</details>\n")
    assert text.count("<details>") == text.count("</details>") > 1
    assert text.count("<code>") == text.count("</code>")
    assert re.search(r"^\| … \d+ more \|", text, re.MULTILINE)


def test_markdown_fits_into_a_comment_and_counts_what_it_leaves_out(full_runs):
    names = [f"net{number:04}{'x' * 400}" for number in range(100)]
    one_each = [full_runs(100.0, flags={"model": name}) for name in names]
    slow = full_runs.of(*(speed * 0.8 for speed in BASE), flags={"model": "slow"})
    found = compare_records(
        [*one_each, *full_runs.of(*BASE, flags={"model": "slow"})],
        [*one_each, *slow],
        Criteria(metrics=("throughput",)),
        skipped=[SkippedFile(f"results/new/{name}.json", "empty") for name in names],
    )
    text = render(found, "markdown")
    assert COMMENT_LIMIT - 1_000 < len(text) <= COMMENT_LIMIT
    assert "| slow, batch 8, 1 cpu | 🔴 slower |" in text
    rows = text.count("| 🟡 inconclusive |")
    assert f"| … {len(names) - rows} more |" in text
    assert re.search(r"^- … and \d+ more reasons$", text, re.MULTILINE)
    assert re.search(r"^- … and \d+ more skipped files$", text, re.MULTILINE)
    assert text.endswith("</details>\n")
