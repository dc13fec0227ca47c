"""Training that has to learn: ResNet-20 on real handwritten digits in CIFAR-10 form.

Also the proof that a checkpoint means the same in every mode: what one mode trains
on one tower, the others evaluate on several, and get the same accuracy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cifar10_writer import write_cifar10
from sklearn.datasets import load_digits

from cnnbench import BenchmarkCNN, Params
from cnnbench.flags.groups.optimizer import parse_piecewise

HELD_OUT = 360


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1437 digits to learn from and 360 to be asked about, 32 x 32 x 3."""
    digits = load_digits()
    grey = (digits.images * (255 / 16)).astype(np.uint8)
    large = grey.repeat(4, axis=1).repeat(4, axis=2)
    images = np.repeat(large[..., None], 3, axis=3)
    order = np.random.default_rng(7).permutation(len(images))
    images, labels = images[order], digits.target[order].astype(np.int64)
    folder = tmp_path_factory.mktemp("cifar10")
    write_cifar10(folder, images[HELD_OUT:], labels[HELD_OUT:], subset="train")
    write_cifar10(folder, images[:HELD_OUT], labels[:HELD_OUT], subset="validation")
    return folder


pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def trained(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    train_dir = tmp_path_factory.mktemp("train")
    params = Params(
        model="resnet20",
        data_name="cifar10",
        data_dir=str(digits),
        device="cpu",
        batch_size=32,
        num_epochs=3,
        num_warmup_batches=0,
        optimizer="momentum",
        piecewise_learning_rate_schedule=parse_piecewise("0.05;2;0.005"),
        weight_decay=1e-4,
        train_dir=str(train_dir),
    )
    record = BenchmarkCNN(params).run()
    assert np.mean(record.losses[-20:]) < np.mean(record.losses[:20]) / 4
    return train_dir


@pytest.mark.parametrize(
    ("mode", "towers", "batch"),
    [
        ("parameter_server", 1, 360),
        # 360 is no multiple of 3 * 50: the last batches are padded, which must not count.
        ("replicated", 3, 50),
        ("independent", 2, 100),
        ("parameter_server", 4, 25),
    ],
)
def test_held_out_digits_are_recognised_in_every_mode(
    trained: Path, digits: Path, mode: str, towers: int, batch: int
) -> None:
    params = Params(
        model="resnet20",
        data_name="cifar10",
        data_dir=str(digits),
        device="cpu",
        eval=True,
        train_dir=str(trained),
        batch_size=batch,
        num_gpus=towers,
        variable_update=mode,
        num_eval_epochs=1,
    )
    (evaluation,) = BenchmarkCNN(params).run().evaluations
    assert evaluation.examples == HELD_OUT
    assert evaluation.top_1 > 0.95
    assert evaluation.top_5 > 0.99
    assert evaluation.global_step == 3 * 1437 // 32 + 1
