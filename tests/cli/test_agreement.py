"""Headlines, verdicts and tables of each command say values of its JSON document."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from step_profiles import CONV, Profiles, changed
from studies import tuning

from cnnbench.base.document.console import sections_to_text
from cnnbench.base.text import NONE, number, p_value
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.tune.texts import table_text
from cnnbench.judge.explain import explain
from cnnbench.judge.explain.blocks import explanation_sections
from cnnbench.records.campaigns import AS_GIVEN

Json = dict[str, Any]
Cells = tuple[str, ...]
Documented = Callable[..., tuple[str, Json]]
"""Runs a command; what it prints, and its document."""

SHORT = ("--burn_in=0", "--pairing=alternate", "--seed=1", "--pairs=8", "--explain=never")


@pytest.fixture
def documented(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Documented:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")

    def run(*words: object) -> tuple[str, Json]:
        stored = ("--format=json", "--output=document.json")
        out = call(words[0], *stored, *words[1:], code=None).out or call(*words, code=None).out
        return out, json.loads(Path("document.json").read_text())

    return run


def cells(text: str) -> list[Cells]:
    """The cells of each line of a table, as of any other line."""
    return [tuple(re.split(" {2,}", line.strip())) for line in text.splitlines()]


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:+.1f} %"


def difference(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{number(1000 * seconds)}"


def is_said(result: Json, text: str) -> bool:
    """Whether a text has the change, the interval and the p-value of a result."""
    low, high = sorted(abs(100 * result[end]) for end in ("low", "high"))
    said = f"{abs(100 * result['change']):.1f} % {result['word']} ({low:.1f} to {high:.1f} %), "
    return said in text and f"p = {p_value(result['p_adjusted'])}" in text


def comparison_row(entry: Json, result: Json) -> Cells:
    low = result["low"]
    return (
        entry["name"],
        result["word"],
        percent(result["change"]),
        NONE if low is None else f"{100 * low:+.1f} to {percent(result['high'])}",
        number(result["base_median"]),
        number(result["new_median"]),
        p_value(result["p_adjusted"]),
        f"{len(entry['base_runs'])}+{len(entry['new_runs'])}",
    )


def assert_comparison_agrees(text: str, document: Json, *verdicts: str) -> None:
    assert text.startswith(f"{document['answer']}\n")
    assert f"\nexit code {document['exit_code']}: " in text
    rows = [(row[0], row[1].partition(" ")[2], *row[2:]) for row in cells(text) if row[1:]]
    entries = document["configurations"]
    assert sorted(entry["verdict"] for entry in entries) == sorted(verdicts)
    for entry in entries:
        (result,) = (one for one in entry["results"] if one["metric"] == "throughput")
        assert entry["verdict"] == result["verdict"]
        assert comparison_row(entry, result) in rows
        if result["verdict"] in ("slower", "faster"):
            assert is_said(result, result["reason"])
            is_headline = len(entries) == 1 or result["word"] in document["failed_on"]
            assert is_said(result, document["answer"]) == is_headline


@pytest.mark.parametrize(
    "sides",  # how much faster NEW is, how much processes differ, and the verdict
    [
        [(0.9, 0.001, "slower")],
        [(1.1, 0.01, "faster")],
        [(1.0, 0.001, "same")],
        [(0.97, 0.06, "inconclusive")],
        [(0.8, 0.01, "slower"), (1.0, 0.01, "same"), (1.2, 0.02, "faster")],
    ],
)
def test_compare(
    documented: Documented, lenet_runs: Any, saved: Any, tmp_path: Path, sides: Any
) -> None:
    run, noise = lenet_runs(), (0.3, -1.0, 0.6, -0.2, 1.0, -0.7)
    for number_of_side, side in enumerate(("base", "new")):
        records = [
            run(100 * factor**number_of_side * (1 + scatter * one), flags={"batch_size": size})
            for size, (factor, scatter, _) in enumerate(sides, start=8)
            for one in noise
        ]
        saved(tmp_path / side, records)
    verdicts = [verdict for _, _, verdict in sides]
    assert_comparison_agrees(*documented("compare", "base", "new"), *verdicts)


@pytest.mark.usefixtures("quick_processes", "quick_answers")
@pytest.mark.parametrize(("speed", "verdict"), [(90, "slower"), (100, "same"), (110, "faster")])
def test_ab(documented: Documented, fake_python: str, speed: int, verdict: str) -> None:
    words = [f"--{side}_python={fake_python}" for side in "ab"]
    for side, value in (("a", 100), ("b", speed)):
        say = {"parent": os.getpid(), "salt": side, "speed": value}
        words.append(f"--{side}_env=FAKE={json.dumps(say)}")
    told = documented("ab", *words, *SHORT, "--results=results")
    assert_comparison_agrees(*told, verdict)


@pytest.mark.usefixtures("quick_processes", "quick_answers")
def test_gate(
    documented: Documented,
    git: Any,
    fake_python: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, command = tmp_path / "repository", AbSide.command
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repository")
    for speed in (100, 80):
        (folder / "fake.json").write_text(json.dumps({"speed": speed, "salt": speed}))
        git(folder, "add", "fake.json")
        git(folder, "commit", "--quiet", "-m", str(speed))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(
        AbSide, "command", lambda side, record: (fake_python, *command(side, record)[1:])
    )
    results = f"--results={tmp_path}/results"
    told = documented("gate", "main~1", results, *SHORT, "--", "--model=lenet")
    assert_comparison_agrees(*told, "slower")


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.25])
def test_history(
    documented: Documented, lenet_runs: Any, saved: Any, tmp_path: Path, factor: float
) -> None:
    run, records = lenet_runs(), []
    for commit in range(12):
        speed = (100 + commit % 3 / 7) * (factor if commit > 5 else 1)
        label = {"result_label": f"commit=c{commit:02}"}
        records += run.of(speed, speed * 1.003, flags=label)
    text, document = documented("history", saved(tmp_path / "runs", records))
    rows, (series,) = cells(text), document["series"]
    assert len(series["steps"]) == (factor != 1)
    for step in series["steps"]:
        word = "- worse" if step["worse"] else "+ better"
        levels = f"{number(step['before'])} -> {number(step['after'])}"
        row = (word, percent(step["change"]), levels, step["last_good"], step["first_bad"])
        assert row in [one[1 : 1 + len(row)] for one in rows]
        headline = text.partition("\n\nSteps\n")[0]
        assert percent(step["change"]) in headline
        assert step["first_bad"] in headline
    regressions = len(document["regressions"])
    assert f"Steps: {regressions or 'No'} regression" in text
    for point in series["points"]:
        row = (
            point["name"],
            f"{datetime.fromisoformat(point['started_at']):%Y-%m-%d %H:%M}",
            number(point["value"]),
            " to ".join(number(end(point["values"])) for end in (min, max)),
            str(len(point["values"])),
        )
        assert row in [one[: len(row)] for one in rows]


@pytest.mark.parametrize("processes", [1, 3])
def test_explain(lenet_runs: Any, monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    profiles = Profiles(lenet_runs(), 1)
    slower = changed(lambda part: part[:2] == ("conv1", CONV), 1.5, flops=2 * 10**9)
    explanation = explain(profiles.side(None, processes), profiles.side(slower, processes))
    text, document = sections_to_text(explanation_sections(explanation, 0)), explanation.to_dict()
    rows = cells(text)
    assert text.startswith(f"{document['answer']}\n")
    assert f"a step takes {number(1000 * document['difference'])} ms more" in text[:100].lower()
    assert document["causes"][0]["place"] == "conv1"
    for cause in document["causes"]:
        times = (number(1000 * cause[key]) for key in ("base", "new", "spread"))
        assert (cause["place"], difference(cause["difference"]), *times) in rows
    for row in (*document["rows"], document["not_profiled"]):
        where = (row["layer"], row["kind"] or NONE, row["direction"] or NONE)
        times = (number(1000 * row[key]) for key in ("base", "new"))
        found = (*where, *times, difference(row["difference"]))
        assert found in [one[:6] for one in rows]


@pytest.mark.parametrize("verdict", ["faster", "not faster"])
def test_tune(monkeypatch: pytest.MonkeyPatch, verdict: str) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    search = tuning(verdict=verdict)
    text, document = table_text(search), search.to_dict()
    rows = cells(text)
    low, high = (100 * document[end] for end in ("low", "high"))
    said = f"{100 * document['gain']:.1f} % ({low:.1f} to {high:.1f} %) faster"
    assert (said in text) == (verdict == "faster")
    for row in document["rows"]:
        if row["processes"] and row["candidate"] != AS_GIVEN:
            ends = " to ".join(percent(row[end]) for end in ("low", "high"))
            numbers = (percent(row["gain"]), ends, number(row["images_per_sec"]))
            found = (*numbers, str(row["processes"]))
            assert found in [one[1:5] for one in rows]
