"""Short runs from the command line."""

import functools

import pytest
from short_runs import TINY

from cnnbench.models.networks.resnet import ResNetCifar10
from cnnbench.models.registry import register_model


@pytest.fixture
def run(quick_start, call):
    """run("--flag=value", ..., code=0): a short run; its standard output and error."""
    return functools.partial(call, **{**TINY, "num_batches": 2})


@pytest.fixture
def resnet8(own_registry):
    """A network of eight layers with weights, in three stages of one block."""
    register_model("resnet8", "cifar10", lambda: ResNetCifar10(8, "v1"))
