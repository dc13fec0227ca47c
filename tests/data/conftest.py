"""Photographs, and small data sets made once."""

from __future__ import annotations

import functools

import pytest
from data_sets import SMALL


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
