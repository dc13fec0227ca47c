"""Epochs count examples, also if a training continues with other devices or another batch size."""

from __future__ import annotations

import pytest
from data_sets import write_random_cifar10
from short_runs import run

from cnnbench import Params
from cnnbench.data.in_memory import ArrayPipeline
from cnnbench.errors import FlagError
from cnnbench.plan import make_plan
from cnnbench.run.driver.checkpoints import Checkpoints

REPLICATED = {"variable_update": "replicated", "batch_size": 4, "num_warmup_batches": 0}

GIVEN = {"model": "resnet20", "device": "cpu", "batch_size": 100, "num_warmup_batches": 0}
"""A training of CIFAR-10's 50,000 images in batches of 100."""


@pytest.fixture
def images(tmp_path):
    """A folder with 17 images."""
    write_random_cifar10(tmp_path / "images", train=17, validation=4)
    return str(tmp_path / "images")


@pytest.mark.usefixtures("quick_start")
def test_epochs_of_a_training_on_two_then_one_then_four_devices(images, tmp_path, monkeypatch):
    read = []  # where in the stream of examples the run begins to read
    plain = ArrayPipeline._load_batch

    def starts(self, numbers, indices):
        read.append(self.start)
        return plain(self, numbers, indices)

    monkeypatch.setattr(ArrayPipeline, "_load_batch", starts)
    trained = 0
    for devices, epochs, examples in ((2, 2, 40), (1, 3, 52), (4, 4, 68)):
        read.clear()
        flags = {**REPLICATED, "num_gpus": devices, "num_epochs": epochs, "num_batches": None}
        result = run(**flags, data_dir=images, train_dir=str(tmp_path / "ckpt"))
        steps = len(result.record.losses)
        assert {*read} == {trained}
        trained += steps * devices * 4
        assert trained == examples
    # Nothing remains: the notice names the flag that was given.
    err = run(**flags, data_dir=images, train_dir=str(tmp_path / "ckpt")).err
    assert "increase --num_epochs" in err
    with pytest.raises(FlagError, match=r"^--num_epochs=2.*: the checkpoint .* is at epoch 4.000 "):
        run(**{**flags, "num_epochs": 2}, data_dir=images, train_dir=str(tmp_path / "ckpt"))


@pytest.mark.parametrize("batch", [50, 100, 200])
def test_evaluations_at_epochs_count_examples(batch):
    """Two epochs were trained in steps of `batch` images; epochs 3 and 4 have 500 steps each."""
    done = 100_000 // batch
    for flags in (
        {"eval_during_training_every_n_epochs": 1},
        {"eval_during_training_at_specified_epochs": "1,2,3,4"},
    ):
        plan = make_plan(Params.from_dict({**GIVEN, "num_epochs": 5, **flags}))
        length = plan.resumed(done, 100_000).length
        assert {s for s in length.eval_steps if s > done} == {done + 500, done + 1000}
        assert length.batches == done + 1500


@pytest.mark.parametrize("batch", [50, 100, 200])
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"init_learning_rate": 0.1, "num_epochs_per_decay": 1, "learning_rate_decay_factor": 0.5},
        {"piecewise_learning_rate_schedule": "0.3;1;0.2;3;0.1"},
        {"init_learning_rate": 0.1, "learning_rate_schedule": "cosine"},
        {"init_learning_rate": 0.1, "num_learning_rate_warmup_epochs": 4},
    ],
    ids=str,
)
def test_learning_rates_per_epoch_count_examples(batch, flags):
    whole = make_plan(Params.from_dict({**GIVEN, **flags, "num_epochs": 5}))
    done = 100_000 // batch
    rates = whole.resumed(done, 100_000).rates.schedule
    assert [rates(done + n) for n in range(0, 1500, 50)] == [
        whole.rates.schedule(1000 + n) for n in range(0, 1500, 50)
    ]


def test_batches_count_steps():
    flags = {"num_batches": 2000, "init_learning_rate": 0.1, "learning_rate_schedule": "cosine"}
    plan = make_plan(Params.from_dict({**GIVEN, **flags}))
    resumed = plan.resumed(500, 100_000)
    assert resumed.length.batches == 2000
    last = resumed.length.training_steps
    assert resumed.rates.schedule(last) == pytest.approx(0.0)
    assert resumed.rates.schedule(last - 1) > 0


@pytest.mark.usefixtures("quick_start")
def test_a_checkpoint_without_a_number_of_examples_has_no_epochs(tmp_path, monkeypatch):
    run(train_dir=str(tmp_path))
    restore = Checkpoints.restore
    monkeypatch.setattr(
        Checkpoints,
        "restore",
        lambda self, path: restore(self, path)._replace(counts_examples=False),
    )
    epochs = {"num_batches": None, "num_epochs": 1, "train_dir": str(tmp_path)}
    with pytest.raises(FlagError, match=r"^--num_epochs=1.*; use --num_batches, which counts"):
        run(**epochs)
    assert len(run(train_dir=str(tmp_path), num_batches=8).record.losses) == 2
