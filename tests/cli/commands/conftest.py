"""Folders of records, interrupted commands, and small real data sets for whole runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from data_sets import write_cifar10
from forked import Forked, cnnbench, until

from cnnbench.cli import main

SPEEDS = (100.0, 100.2, 99.8, 100.1, 99.9)
PATIENCE = 240.0


@pytest.fixture
def save(lenet_runs, saved):
    """Writes five records of one configuration to a folder, and returns its name."""

    def save(folder, factor=1.0, **parts):
        records = lenet_runs().of(*(speed * factor for speed in SPEEDS), **parts)
        unique = (
            dataclasses.replace(record, run_id=f"{folder.name}{number}")
            for number, record in enumerate(records)
        )
        return str(saved(folder, unique))

    return save


@pytest.fixture
def interrupt(tmp_path):
    """Sends a signal to a process of cnnbench when it has printed a line; all of its output."""

    def run(words, number, once):
        out, err = tmp_path / "out", tmp_path / "err"
        with Forked(cnnbench, words, out, err) as process:
            until(lambda: any(map(once, out.read_text().splitlines())), PATIENCE, process, err)
            process.send_signal(number)
            assert process.wait(PATIENCE) == 130
        assert err.read_text().splitlines()[-1] == "cnnbench: error: interrupted"
        return out.read_text()

    return run


@pytest.fixture(scope="session")
def photo_records(photos, tmp_path_factory):
    """Crops of photographs in four classes, made into records by the command itself."""
    import tensorflow as tf

    root = tmp_path_factory.mktemp("photos")
    for name, photo in photos.items():
        (root / name).mkdir()
        for i in range(8):
            window = photo[9 * i : 9 * i + 120, 13 * i : 13 * i + 140 - 4 * i]
            kind = ".png" if i % 4 == 3 else ".jpg"
            encode = tf.io.encode_png if kind == ".png" else tf.io.encode_jpeg
            (root / name / f"{i}{kind}").write_bytes(encode(window).numpy())
    out = tmp_path_factory.mktemp("imagenet-photos")
    arguments = ["--train_shards=3", "--validation_shards=2", "--validation_fraction=0.25"]
    assert main(["data", "make-imagenet", str(root), str(out), *arguments]) == 0
    return out


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory):
    """Random images in CIFAR-10's binary form."""
    out = tmp_path_factory.mktemp("cifar10-random")
    rng = np.random.default_rng(0)
    for subset, count in (("train", 240), ("validation", 60)):
        images = rng.integers(0, 255, (count, 32, 32, 3), np.uint8)
        write_cifar10(out, images, rng.integers(0, 10, count), subset=subset, form="binary")
    return out
