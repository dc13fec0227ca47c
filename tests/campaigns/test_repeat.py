"""Repeated runs whose processes never start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from golden import golden
from stand_ins import StandIns, failed, well

from cnnbench.campaigns import repeat
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.flags.groups.repeat import RepeatFlags
from cnnbench.records.run import RunRecord

FLAGS = ("--model=lenet", "--device=cpu", "--batch_size=4")


@pytest.fixture
def repeated(
    monkeypatch: pytest.MonkeyPatch, make_record: Callable[..., RunRecord], tmp_path: Path
) -> Callable[..., list[BenchmarkCommand]]:
    """repeated([SPEED, ...], FLAG..., repeats=...): processes of these speeds; None fails."""

    def repeated(
        speeds: Sequence[float | None], *flags: str, **options: Any
    ) -> list[BenchmarkCommand]:
        left, started = iter(speeds), list[BenchmarkCommand]()

        def end(command: BenchmarkCommand) -> ProcessResult:
            started.append(command)
            record, speed = make_record(), next(left)
            if speed is None:
                return failed(record)
            return well(replace(record, step_seconds=(4 / speed,) * record.steps))

        monkeypatch.setattr(repeat, "Campaign", partial(StandIns, end))
        repeat.measure_repeatedly(
            RepeatFlags(**options), [*FLAGS, *flags], str(tmp_path / "results")
        )
        return started

    return repeated


def test_each_process_has_a_record_and_all_have_a_mean(
    repeated: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    started = repeated([100.0, 101.0, 102.0], repeats=3)
    assert [one.log.stem for one in started] == ["r1", "r2", "r3"]
    assert sorted(path.name for path in (tmp_path / "results").glob("r*.json")) == [
        *("r1.json", "r2.json", "r3.json")
    ]
    golden(Path(__file__).parent / "golden" / "repeats.txt", capsys.readouterr().out)


def test_the_length_is_chosen_by_a_first_process_that_leaves_no_record(
    repeated: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A step of 4 images at 100 images/sec takes 0.04 s.
    started = repeated([100.0] * 3, repeats=2, seconds=2.0)
    assert [one.log.stem for one in started] == ["burn-in", "r1", "r2"]
    lengths = [[w for w in one.words if w.startswith("--num_batches=")][-1] for one in started]
    assert lengths == ["--num_batches=10", "--num_batches=50", "--num_batches=50"]
    assert len(list((tmp_path / "results").glob("r*.json"))) == 2
    assert capsys.readouterr().out.count("\n") >= 4


def test_what_was_measured_before_a_failure_is_printed(
    repeated: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BenchmarkError, match=r"r2 .*no good"):
        repeated([100.0, None, 100.0], repeats=3)
    assert "100.0" in capsys.readouterr().out
    assert {path.stem for path in (tmp_path / "results").glob("r*.json")} == {"r1", "r2"}


@pytest.mark.slow
def test_a_first_process_that_fails_leaves_nothing_to_print(
    repeated: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BenchmarkError, match=r"r1 .*no good"):
        repeated([None], repeats=3)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "flags", "flag"),
    [
        ({"results": "r"}, (), "results"),
        ({"seconds": 1.5}, (), "seconds"),
        ({"repeats": 2}, ("--result_json=r.json",), "result_json"),
        ({"repeats": 2}, ("--train_dir=there",), "train_dir"),
        ({"repeats": 2}, ("--worker_hosts=a:1,b:1",), "worker_hosts"),
        ({"repeats": 2, "seconds": 1.0}, ("--num_batches=5",), "num_batches"),
    ],
)
def test_flags_that_cannot_be_repeated(
    repeated: Callable[..., Any], options: dict[str, Any], flags: tuple[str, ...], flag: str
) -> None:
    with pytest.raises(FlagError) as refused:
        repeated([], *flags, **options)
    assert refused.value.flag == flag


@pytest.mark.slow
def test_the_length_may_be_given_without_seconds(repeated: Callable[..., Any]) -> None:
    started = repeated([100.0, 100.0], "--num_batches=5", repeats=2)
    assert all("--num_batches=5" in one.words for one in started)
