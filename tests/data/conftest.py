"""A small labelled set of real photographs, as files and as records."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf
from data_sets import SMALL

CLASSES = ("cat", "china", "coffee", "flower")
IMAGES_PER_CLASS = 6


def encode(image, **options):
    """JPEG bytes of a uint8 image."""
    return tf.io.encode_jpeg(image, **options).numpy()


@pytest.fixture(scope="session")
def photos():
    """uint8 photographs by class name, from scikit-learn and scikit-image."""
    import skimage.data
    from sklearn.datasets import load_sample_images

    china, flower = load_sample_images().images
    return {
        "cat": skimage.data.chelsea(),
        "china": china,
        "coffee": skimage.data.coffee(),
        "flower": flower,
    }


@pytest.fixture(scope="session")
def image_folder(photos, tmp_path_factory):
    """Class folders with six JPEGs each: windows of a photograph, no two of one size."""
    root = tmp_path_factory.mktemp("photos")
    for name, photo in photos.items():
        (root / name).mkdir()
        for i in range(IMAGES_PER_CLASS):
            window = photo[7 * i : 7 * i + 90 + 3 * i, 11 * i : 11 * i + 120 - 5 * i]
            (root / name / f"{name}{i}.jpg").write_bytes(encode(window, quality=90))
    return root


@pytest.fixture(scope="session")
def imagenet_dir(image_folder, tmp_path_factory):
    """The folder above as records: 16 for training in 3 files, 8 for validation in 2."""
    from cnnbench.data.image_folder import scan
    from cnnbench.data.make_imagenet import make_imagenet

    out = tmp_path_factory.mktemp("records")
    make_imagenet(scan(image_folder, None, 0.4, 1), out, {"train": 3, "validation": 2})
    return out


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """What users have before they make the small data set of a name; not to be changed."""

    @functools.cache
    def source(name):
        folder = tmp_path_factory.mktemp("source")
        SMALL[name].source(folder)
        return folder

    return source


@pytest.fixture(scope="session")
def small_set(sources, tmp_path_factory):
    """The small data set of a name; not to be changed."""

    @functools.cache
    def made(name):
        return SMALL[name].make(sources(name), tmp_path_factory.mktemp("made") / "set")

    return made
