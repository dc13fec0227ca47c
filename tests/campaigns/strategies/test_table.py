"""The table, CSV, JSON and chart of made-up records.

Tests cnnbench/campaigns/strategies/session.py.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

import pytest
from golden import golden

from cnnbench.base.tables import dataclasses_to_csv
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.campaigns.strategies.session import (
    StrategiesSession,
    StrategyCase,
    has_failures,
    strategies_document,
    table_text,
)
from cnnbench.cli.commands import strategies as _command  # noqa: F401 (it registers its kinds)
from cnnbench.records.campaigns import (
    APART,
    EQUAL,
    ONE_TOWER,
    REFERENCE,
    UNKNOWN,
    StrategiesDocument,
    StrategyRow,
)
from cnnbench.records.run import Measured, StartupSeconds

TOLERANCE = 1e-4


def case(name: str, apart: str = "") -> StrategyCase:
    return StrategyCase(name, (), ResolvedRun(batch_size=4), apart)


CASES = [
    case(ONE_TOWER, "it sees all images as one batch"),
    case("parameter_server"),
    case("replicated"),
    case("independent", "its towers train apart"),
]
SPEEDS = {
    ONE_TOWER: (100.0, 200.0, 100.0),
    "parameter_server": (80.0, 160.0, 100.0),
    "replicated": (50.0, 100.0, 40.0),
    "independent": (100.0,),
}
DISTANCES = {"parameter_server": (0.0, ""), "replicated": (2e-6, "conv0/w")}


@pytest.fixture
def session(lenet_runs) -> StrategiesSession:
    made = lenet_runs()
    found = StrategiesSession(CASES, None)
    for name, speeds in SPEEDS.items():
        for at, speed in enumerate(speeds, start=1):
            record = made(
                speed,
                devices=2,
                measured=Measured(peak_memory_bytes=2**30),
                startup_seconds=StartupSeconds(import_=1.0, build=2.0, first_step=0.5),
            )
            placement = dataclasses.replace(
                record.placement, variables=8, variable_copies=16, reduction_operations=24
            )
            found.records[name][at] = dataclasses.replace(record, placement=placement)
    found.problems["independent"] = "=no good"
    return found


def summary(
    session: StrategiesSession, distances: Mapping[str, tuple[float, str]] = DISTANCES
) -> StrategiesDocument:
    return strategies_document(
        session,
        distances,
        TOLERANCE,
        command=("cnnbench", "strategies"),
        started_at=datetime(2026, 11, 20, tzinfo=timezone.utc),
        facts={"cpu_model": "Fast CPU"},
    )


def test_rows(session: StrategiesSession) -> None:
    alone, server, *_ = rows = summary(session).rows
    assert [row.mode for row in rows] == list(SPEEDS)
    assert (server.images_per_sec, server.low, server.high) == (100.0, 80.0, 160.0)
    # The rounds are compared with one tower of their own: 1/4, 1/4 and 0.
    assert server.overhead == pytest.approx(0.25)
    assert alone.overhead is None
    assert (server.peak_memory_bytes, server.build_seconds) == (2**30, 2.0)
    assert (server.variables, server.variable_copies, server.reduction_operations) == (8, 16, 24)
    assert [row.weights for row in rows] == [APART, REFERENCE, EQUAL, APART]


def test_on_gpus_a_mode_is_compared_with_so_many_single_devices(session: StrategiesSession) -> None:
    records = session.records["parameter_server"]
    for at, record in records.items():
        placement = dataclasses.replace(record.placement, device="gpu")
        records[at] = dataclasses.replace(record, placement=placement)
    _, server, *_ = summary(session, {}).rows
    assert (server.overhead, server.weights) == (pytest.approx(1.5), UNKNOWN)


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_weights_that_differ_fail_the_command_and_are_named(
    session: StrategiesSession, value: float
) -> None:
    session.problems.clear()
    assert not has_failures(summary(session).rows)
    found = summary(session, {**DISTANCES, "replicated": (value, "conv0/w")})
    assert has_failures(found.rows)
    text = table_text(found, CASES)
    assert "Weights of replicated differ from those of parameter_server: conv0/w by " in text


def test_the_table_for_people(session: StrategiesSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    found = summary(session)
    assert has_failures(found.rows)
    text = table_text(found, CASES)
    stopped = dataclasses.replace(found, incomplete="interrupted; 7 of 12 processes measured")
    text = f"{text}\n\n{table_text(stopped, CASES)}\n"
    golden(Path(__file__).parent / "golden" / "strategies.txt", text)


def test_six_processes_have_an_interval_in_a_narrow_terminal(
    session: StrategiesSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    records = session.records["parameter_server"]
    records |= {at + 3: record for at, record in records.items()}
    text = table_text(summary(session), CASES)
    assert "95 % interval" in text
    assert max(map(len, text.splitlines())) <= 80


def test_csv_and_json_have_all_digits(
    session: StrategiesSession, holds: Callable[..., None]
) -> None:
    made = summary(session)
    text = dataclasses_to_csv(StrategyRow, made.rows)
    lines = list(csv.DictReader(text.splitlines()))
    assert [line["mode"] for line in lines] == list(SPEEDS)
    assert float(lines[2]["weight_distance"]) == 2e-6
    assert lines[3]["problem"] == "'=no good"
    assert StrategiesDocument.from_json(made.to_json()) == made
    holds("strategies", made.to_dict())
