"""Whole runs with an automatic loss scale: command line, record, checkpoints, failures."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from cnnbench import BenchmarkCNN, Params, RunRecord, cli
from cnnbench.base.text.progress import Messages
from cnnbench.errors import ExitCode, NonFiniteLossError
from cnnbench.run.step.loss_scale import CAP

pytestmark = pytest.mark.usefixtures("quick_start")

FLAGS = {
    "model": "trivial",
    "data_name": "cifar10",
    "device": "cpu",
    "batch_size": 2,
    "num_warmup_batches": 0,
    "init_learning_rate": 0.01,
    "precision": "fp16",
    "fp16_enable_auto_loss_scale": True,
}


def run(**flags: object) -> tuple[RunRecord, str]:
    err = io.StringIO()
    record = BenchmarkCNN(Params(**{**FLAGS, **flags}), messages=Messages(err)).run()
    return record, err.getvalue()


@pytest.mark.parametrize(
    "mode", [["--variable_update=replicated"], ["--variable_update=independent"]]
)
def test_a_scale_that_overflows_settles(
    mode: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    status = cli.main(
        [
            "--model=trivial",
            "--data_name=cifar10",
            "--device=cpu",
            "--num_gpus=2",
            "--batch_size=2",
            "--num_warmup_batches=2",
            "--num_batches=16",
            "--init_learning_rate=0.01",
            "--precision=fp16",
            "--fp16_enable_auto_loss_scale",
            f"--fp16_loss_scale={CAP}",
            f"--result_json={path}",
            "--peak_flops=1e12",
            *mode,
        ]
    )
    assert status == ExitCode.OK
    record = RunRecord.from_json(path.read_text())
    scaling = record.loss_scaling
    losses = [*record.warmup_losses, *record.losses]
    assert scaling.warmup_skipped_steps == (1, 2)
    # Two in the warm-up and the first ones of the loop; a gradient that grows may come later.
    skipped = 2 + len(scaling.skipped_steps)
    at_first = 2 + sum(n == i for i, n in enumerate(scaling.skipped_steps, start=1))
    assert 2 < at_first <= skipped < 14
    assert scaling.start == CAP
    assert scaling.end == CAP / 2**skipped
    # Nothing moves while all towers skip, and training goes on from there.
    still = 2 if mode == ["--variable_update=independent"] else at_first
    assert losses[: still + 1] == pytest.approx([losses[0]] * (still + 1), rel=1e-6)
    assert losses[-1] < losses[0] * 0.99
    assert all(map(math.isfinite, losses))
    err = capsys.readouterr().err
    assert (
        f"cnnbench: {skipped} of 18 steps skipped for gradients that were not finite "
        "(2 of them in the warm-up); the loss scale went from 16777216 to "
    ) in err


def test_steps_that_go_well_raise_the_scale_silently_in_the_table_and_say_so_at_the_end() -> None:
    record, err = run(num_batches=6, fp16_inc_loss_scale_every_n=2, fp16_loss_scale=4.0)
    assert record.loss_scaling.skipped_steps == ()
    assert record.loss_scaling.end == 32.0
    assert "cnnbench: the loss scale went from 4 to 32\n" in err
    assert record.config["fp16_loss_scale"] == 4.0


def test_the_default_start_is_that_of_a_constant_scale() -> None:
    record, err = run(num_batches=2)
    assert (record.loss_scaling.start, record.loss_scaling.end) == (128.0, 128.0)
    assert "loss scale" not in err


@pytest.mark.parametrize("flags", [{"fp16_enable_auto_loss_scale": False}, {"precision": "bf16"}])
def test_a_constant_scale_or_none_is_not_recorded(flags: dict[str, object]) -> None:
    record, _ = run(num_batches=2, fp16_inc_loss_scale_every_n=1, **flags)
    assert record.loss_scaling is None


@pytest.mark.parametrize(
    "later",
    [{"variable_update": "replicated", "num_gpus": 2}, {"variable_update": "independent"}],
)
def test_scale_and_counter_go_on_after_a_resume(later: dict[str, object], tmp_path: Path) -> None:
    flags = {"fp16_inc_loss_scale_every_n": 5, "train_dir": str(tmp_path)}
    first, _ = run(num_batches=7, fp16_loss_scale=64.0, **flags)
    assert first.loss_scaling.end == 128.0  # and two of the next five good steps are done
    rest, err = run(num_batches=10, **flags, **later)
    assert len(rest.losses) == 3
    assert rest.loss_scaling.start == 128.0
    assert rest.loss_scaling.end == 256.0
    assert "has no loss scale" not in err


def test_a_checkpoint_without_a_scale_is_mentioned(tmp_path: Path) -> None:
    run(num_batches=2, train_dir=str(tmp_path), fp16_enable_auto_loss_scale=False)
    record, err = run(num_batches=4, train_dir=str(tmp_path), fp16_loss_scale=32.0)
    assert "has no loss scale; --fp16_loss_scale is its first value" in err
    assert record.loss_scaling.start == 32.0


def test_a_scale_in_a_checkpoint_is_no_hindrance_to_others(tmp_path: Path) -> None:
    run(num_batches=2, train_dir=str(tmp_path))
    record, err = run(num_batches=4, train_dir=str(tmp_path), precision="fp32")
    assert record.loss_scaling is None
    assert "loss scale" not in err


def test_a_loss_that_is_not_finite_still_ends_the_run() -> None:
    params = Params(**{**FLAGS, "num_batches": 50, "init_learning_rate": 1e9})
    benchmark = BenchmarkCNN(params)
    with pytest.raises(NonFiniteLossError):
        benchmark.run()
    record = benchmark.record
    assert record.status == "failed"
    assert not math.isfinite(record.losses[-1])
    assert all(map(math.isfinite, record.losses[:-1]))
    assert record.loss_scaling.start == 128.0
