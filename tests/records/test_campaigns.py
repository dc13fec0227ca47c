"""Documents of tune: what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cnnbench.records.campaigns import RefusedCandidate, TuneDocument, TuneRow


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
