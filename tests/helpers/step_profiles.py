"""Profiles of steps that never ran: of a network of four layers, in a process each."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cnnbench.records.profiles import (
    FORWARD,
    GAPS,
    INPUT_OPERATIONS,
    INPUT_WAIT,
    OUTSIDE,
    PROGRAM,
    REDUCTION,
    REST,
    TO_INPUT,
    TO_KERNEL,
    UPDATE,
    ProfiledLayer,
    ProfiledPart,
    StepPartKey,
    StepProfile,
)
from cnnbench.records.run import RunRecord

CONV = "convolution 3x3"


@dataclass(frozen=True)
class Row:
    """Milliseconds of a row, and what it is made of."""

    ms: float
    flops: int = 0
    bytes: int = 1000
    operations: Mapping[str, int] | None = None

    def times(self, factor: float, **changes: Any) -> Row:
        return replace(self, ms=self.ms * factor, **changes)


def network(type: str = "bfloat16") -> dict[StepPartKey, Row]:
    """A step of about 100 ms."""
    rows: dict[StepPartKey, Row] = {}
    for number, ms in enumerate((4.0, 8.0, 14.0, 6.0)):
        layer = f"conv{number}"
        for direction, kernel in (
            (FORWARD, "_FusedConv2D"),
            (TO_INPUT, "Conv2DBackpropInput"),
            (TO_KERNEL, "Conv2DBackpropFilter"),
        ):
            rows[StepPartKey(layer, CONV, direction)] = Row(
                ms, 10**9, 10**6, {f"{kernel} {type}": 1}
            )
        norm = {"FusedBatchNormV3 float32": 1}
        rows[StepPartKey(layer, "batch norm", FORWARD)] = Row(0.5, operations=norm)
        rows[StepPartKey(layer, "batch norm", TO_INPUT)] = Row(
            0.8, operations={"FusedBatchNormGradV3 float32": 1}
        )
    rows[StepPartKey("Relu", "ReLU", FORWARD)] = Row(1.5, operations={f"Relu {type}": 4})
    rows[StepPartKey(REST, UPDATE, OUTSIDE)] = Row(2.0, operations={"ResourceApplyMomentum": 12})
    rows[StepPartKey(REST, REDUCTION, OUTSIDE)] = Row(3.0, operations={"AddN float32": 12})
    rows[GAPS], rows[PROGRAM] = Row(1.0), Row(0.6)
    rows[INPUT_WAIT], rows[INPUT_OPERATIONS] = Row(0.1), Row(0.0)
    return rows


class Profiles:
    """Makes profiles; each call is another process on the same noisy machine.

    Args:
      record: makes a record of a run.
      seed: of the noise.
      load: how far processes lie apart, as a whole.
      noise: how far rows of like processes lie apart.
      towers: of each process.
    """

    def __init__(
        self,
        record: Callable[..., RunRecord],
        seed: int = 0,
        load: float = 0.1,
        noise: float = 0.02,
        towers: int = 2,
    ) -> None:
        self._record = record
        self._random = random.Random(seed)
        self._load, self._noise, self._towers = load, noise, towers

    def __call__(
        self,
        rows: Mapping[StepPartKey, Row] | None = None,
        steps: int = 8,
        layers: tuple[ProfiledLayer, ...] | None = None,
        **flags: Any,
    ) -> StepProfile:
        draw = self._random
        rows = network() if rows is None else rows
        load = 1 + self._load * draw.random()
        made = []
        for part, row in rows.items():
            mean = row.ms * 1e-3 * load * (1 + self._noise * draw.gauss(0, 1))
            # A step now and then meets somebody else's work.
            late = (1.5 if step % 5 == 4 else 1.0 for step in range(steps))
            seconds = tuple(mean * one * (1 + 0.03 * draw.random()) for one in late)
            made.append(
                ProfiledPart(
                    **part._asdict(),
                    seconds=seconds,
                    flops=row.flops,
                    bytes=row.bytes,
                    operations=row.operations or {},
                )
            )
        totals = tuple(map(sum, zip(*(one.seconds for one in made), strict=True)))
        record = self._record(flags=flags, step_seconds=tuple(0.97 * one for one in totals))
        assert record.placement is not None
        placement = replace(record.placement, num_towers=self._towers)
        return StepProfile(
            step_seconds=totals,
            input_wait_seconds=(0.0,) * steps,
            rows=tuple(made),
            graph={"Conv2D": 4},
            record=replace(record, placement=placement),
            layers=layers,
        )

    def side(
        self, rows: Mapping[StepPartKey, Row] | None = None, processes: int = 3, **flags: Any
    ) -> list[StepProfile]:
        """Some processes of one side."""
        return [self(rows, **flags) for _ in range(processes)]


def exact_row(
    part: StepPartKey,
    *seconds: float,
    flops: int = 0,
    bytes: int = 0,
    operations: Mapping[str, int] | None = None,
) -> ProfiledPart:
    """A row that takes exactly so many seconds in each step."""
    return ProfiledPart(
        **part._asdict(), seconds=seconds, flops=flops, bytes=bytes, operations=operations or {}
    )


def exact_profile(
    record: Callable[..., RunRecord],
    rows: Sequence[ProfiledPart],
    timed: tuple[float, ...] = (),
    layers: tuple[ProfiledLayer, ...] | None = None,
    **parts: Any,
) -> StepProfile:
    """A process whose steps take as long as its rows; `timed` steps ran without a profiler."""
    totals = tuple(map(sum, zip(*(row.seconds for row in rows), strict=True)))
    return StepProfile(
        step_seconds=totals,
        input_wait_seconds=(0.0,) * len(totals),
        rows=tuple(rows),
        graph={},
        record=record(step_seconds=timed or totals, **parts),
        layers=layers,
    )


def changed(
    which: Callable[[StepPartKey], bool],
    factor: float,
    rows: Mapping[StepPartKey, Row] | None = None,
    **changes: Any,
) -> dict[StepPartKey, Row]:
    """The network with some rows that take another time."""
    rows = network() if rows is None else rows
    return {
        part: row.times(factor, **changes) if which(part) else row for part, row in rows.items()
    }


def with_records(profiles: Sequence[StepProfile], **fields: Sequence[Any]) -> list[StepProfile]:
    """The profiles with other fields of their records, a value for each profile."""
    return [
        replace(one, record=replace(one.record, **dict(zip(fields, values, strict=True))))
        for one, values in zip(profiles, zip(*fields.values(), strict=True), strict=True)
    ]


def write_sides(record: Callable[..., RunRecord], folder: Path) -> dict[str, Path]:
    """Files a.json and b.json by side: profiles of A, and of B whose conv1 has twice the work."""
    make = Profiles(record)
    twice = changed(lambda part: part[:2] == ("conv1", CONV), 2.0, flops=2 * 10**9)
    paths = {}
    for side, rows in (("a", None), ("b", twice)):
        paths[side] = folder / f"{side}.json"
        paths[side].write_text(make(rows).to_json())
    return paths


def paused(
    profile: StepProfile, part: StepPartKey, extra: float, slow: Collection[int]
) -> StepProfile:
    """A process of which some of 24 timed and of 24 profiled steps take more, in one part."""

    def later(seconds: tuple[float, ...]) -> tuple[float, ...]:
        repeated = (seconds * 24)[:24]
        return tuple(one + extra * (step in slow) for step, one in enumerate(repeated))

    rows = tuple(
        replace(row, seconds=later(row.seconds) if row.part == part else (row.seconds * 24)[:24])
        for row in profile.rows
    )
    record = replace(
        profile.record,
        losses=(1.0,) * 24,
        step_seconds=later(profile.record.step_seconds),
        step_cpu_seconds=(0.05,) * 24,
    )
    return replace(
        profile,
        step_seconds=later(profile.step_seconds),
        input_wait_seconds=(0.0,) * 24,
        rows=rows,
        record=record,
    )
