"""How often an interval of few processes contains the mean of many; the whole is the script."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import measure_intervals
import pytest
from command_line import run_script

from cnnbench.records.run import RunRecord


@pytest.fixture
def pool(
    lenet_runs: Callable[[], Callable[..., RunRecord]], saved: Callable[..., Path], tmp_path: Path
) -> Callable[..., str]:
    """pool([SPEED, ...]): the folder with a process of each speed, one after the other."""

    def made(speeds: list[float]) -> str:
        run = lenet_runs()
        records = [
            run(speed, started_at=f"2026-11-20T{at // 60:02}:{at % 60:02}:00+00:00")
            for at, speed in enumerate(speeds)
        ]
        return str(saved(tmp_path / "pool", records))

    return made


@pytest.fixture
def measured(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[float]]]:
    """measured(FLAG...): the exit status, and the printed shares in per cent."""

    def measured(*flags: str) -> tuple[int, list[float]]:
        code = measure_intervals.main(flags)
        lines = capsys.readouterr().out.splitlines()
        return code, [float(line.partition(" %")[0].rpartition(" ")[2]) for line in lines]

    return measured


@pytest.mark.slow
def test_independent_processes_reach_the_share(
    pool: Callable[..., str], measured: Callable[..., tuple[int, list[float]]]
) -> None:
    draw = random.Random(3)
    folder = pool([draw.gauss(100.0, 2.0) for _ in range(60)])
    code, (deviation, at_random, in_order) = measured(f"--results={folder}")
    assert code == 0
    assert deviation == pytest.approx(2.0, abs=0.5)
    assert 94.0 < at_random < 99.0
    assert in_order > 80.0
    assert measured(f"--results={folder}") == (0, [deviation, at_random, in_order])


@pytest.mark.slow
def test_levels_in_time_and_rare_outliers_do_not(
    pool: Callable[..., str], measured: Callable[..., tuple[int, list[float]]]
) -> None:
    draw = random.Random(3)
    levels = [draw.gauss(100.0 + 20 * (at >= 30), 0.5) for at in range(60)]
    # Consecutive processes have one of the two speeds, but the mean lies between them.
    _, (_, at_random, in_order) = measured(f"--results={pool(levels)}")
    assert at_random > 90.0
    assert in_order < 20.0
    outlier = [100.0] * 59 + [1000.0]
    code, (_, at_random, _) = measured(f"--results={pool(outlier)}", "--draws=200")
    assert (code, at_random < 20.0) == (1, True)


@pytest.mark.parametrize(("flags", "said"), [((), "--results="), (("--size=8",), "8 processes")])
def test_wrong_use_is_one_line(
    flags: tuple[str, ...],
    said: str,
    pool: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [f"--results={pool([100.0] * 8)}"] if flags else []
    monkeypatch.setattr("sys.argv", ["scripts/measure_intervals.py", *results, *flags])
    with pytest.raises(SystemExit) as stopped:
        run_script(measure_intervals.main)
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
