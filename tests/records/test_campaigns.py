"""Documents of strategies and tune: what they refuse, and what is computed from their rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cnnbench.records.campaigns import (
    DIFFERENT,
    EQUAL,
    REFERENCE,
    RefusedCandidate,
    StrategiesDocument,
    StrategyProcess,
    StrategyRow,
    TuneDocument,
    TuneRow,
    images_per_sec_of_mode,
    weight_comparison_lines,
)


def row(mode: str = "a", **parts: Any) -> StrategyRow:
    return StrategyRow(**{"mode": mode, "all_reduce": "", "processes": 3, **parts})


@pytest.mark.parametrize(
    "parts",
    [
        {"weights": "odd"},
        {"images_per_sec": math.inf},
        {"build_seconds": -1.0},
        {"peak_memory_bytes": math.inf},
        {"overhead": math.inf},
        {"overhead": math.nan},
    ],
)
def test_rows_of_modes_that_cannot_be(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"rows.{next(iter(parts))}"):
        row(**parts)


def test_rows_of_modes_that_can_be() -> None:
    made = row(overhead=-0.25, weight_distance=math.nan, weights=DIFFERENT)
    assert made.overhead == -0.25


def strategies(**parts: Any) -> StrategiesDocument:
    values = {
        **{"run_id": "r", "started_at": "2026-11-20T13:00:00+00:00", "command": ("cnnbench",)},
        **{"config": {}, "rows": (row(),), "processes": (), "weights_tolerance": 1e-4, **parts},
    }
    return StrategiesDocument(**values)


def test_a_document_of_modes_has_rows_and_a_time() -> None:
    made = strategies(incomplete="interrupted", planned=3)
    assert StrategiesDocument.from_json(made.to_json()) == made
    with pytest.raises(ValueError, match="rows: none"):
        strategies(rows=())
    with pytest.raises(ValueError, match="yesterday"):
        strategies(started_at="yesterday")


def test_speeds_of_a_mode_are_those_that_are_known() -> None:
    processes = [
        StrategyProcess(mode=mode, round=at, run_id="r", images_per_sec=speed)
        for at, (mode, speed) in enumerate((("a", 1.0), ("b", 2.0), ("a", None), ("a", 3.0)))
    ]
    assert images_per_sec_of_mode(processes, "a").values == (1.0, 3.0)
    with pytest.raises(ValueError, match="images_per_sec"):
        replace(processes[0], images_per_sec=-1.0)


def test_weights_are_compared_in_words_with_whether_they_are_as_expected() -> None:
    first = row("first", weights=REFERENCE, weight_distance=0.0)
    same = [row(name, weights=EQUAL, weight_distance=0.0) for name in ("b", "c")]
    near = row("d", weights=EQUAL, weight_distance=2e-6)
    far = row("e", weights=DIFFERENT, weight_distance=0.5, weight_variable="w")
    ((text, good),) = weight_comparison_lines([row()], 1e-4)
    assert good
    ((text, good),) = weight_comparison_lines([first, *same], 1e-4)
    assert (good, "all bits" in text) == (True, True)
    assert text.endswith(": b, c")
    (text, good), (other, bad) = weight_comparison_lines([first, *same, near, far], 1e-4)
    assert (good, bad) == (True, False)
    assert "2.000e-06" in text
    assert all(part in other for part in ("of e ", "of first: w by 0.5000 ", "0.0001"))


def tuned(**parts: Any) -> TuneDocument:
    values: dict[str, Any] = {
        **{"started_at": "2026-01-02T03:04:05+00:00", "search_command": ("cnnbench", "tune")},
        **{"command": ("cnnbench",), "verdict": "faster", "reason": "", "leader": "a"},
        **{"gain": 0.1, "low": 0.05, "high": 0.15, "confidence": 0.95, "pairs": 8},
        **{"given": (), "seed": 1, "seconds": 1.0, "budget_seconds": 2.0},
        **{"scatter": None, "failure": "", "rows": (), "refused": ()},
    }
    return TuneDocument(**{**values, **parts})


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"verdict": "better"}, "verdict: 'better' is none of "),
        ({"started_at": "2026-01-02T03:04:05"}, "started_at"),
        *(({name: math.inf}, f"{name}: inf is not finite") for name in ("gain", "low", "high")),
    ],
)
def test_searches_that_cannot_be(parts: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        tuned(**parts)


def test_rows_of_candidates_that_cannot_be() -> None:
    for parts in ({"images_per_sec": 0.0}, {"gain": math.nan}, {"high": math.inf}):
        with pytest.raises(ValueError, match=f"rows.{next(iter(parts))}"):
            TuneRow(candidate="a", flags=(), **parts)


def test_a_search_survives_its_file() -> None:
    refused = RefusedCandidate(group="g", candidate="b", reason="no GPU")
    made = tuned(
        rows=(TuneRow(candidate="a", flags=("--x=1",), variables={"A": "b"}, gain=0.1),),
        refused=(refused,),
        enough_minutes=3,
    )
    assert TuneDocument.from_json(made.to_json()) == made
