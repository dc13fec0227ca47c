"""Numbers in records that no measurement gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cnnbench.records.load import record_of

FROZEN = Path(__file__).parents[1] / "frozen"


def frozen(name, place, value):
    """A frozen document with one value exchanged, at a place such as "points.0.seconds.0"."""
    document = json.loads((FROZEN / f"{name}.json").read_text())
    *keys, last = (int(key) if key.isdigit() else key for key in place.split("."))
    inner = document
    for key in keys:
        inner = inner[key]
    inner[last] = value
    return document


@pytest.mark.parametrize("value", [1e308, 5e-324])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("runs/lenet-1", "step_seconds.0"),
        ("runs/lenet-1", "warmup_step_seconds.0"),
        ("runs/lenet-1", "measured.loop_seconds"),
        ("runs/lenet-1", "startup_seconds.build"),
        ("allreduce", "points.0.seconds.0"),
    ],
)
def test_what_overflows_statistics_is_no_measurement(name, place, value):
    with pytest.raises(ValueError, match=place.split(".")[0]):
        record_of(frozen(name, place, value))
    record_of(frozen(name, place, 1e-30))


def test_an_input_stage_takes_time():
    stage = {"name": "read", "examples": 3, "seconds": 0.0}
    with pytest.raises(ValueError, match=r"input_stages\.seconds: 0 is no time"):
        record_of(frozen("runs/lenet-1", "input_stages", [stage]))
