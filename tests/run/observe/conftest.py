"""Short runs from the command line."""

import pytest
from short_runs import command

from cnnbench.models.registry import register_model
from cnnbench.models.resnet_cifar import ResNetCifar10


@pytest.fixture
def run(quick_start, capsys):
    """run("--flag=value", ..., code=0): a short run; its standard output and error."""

    def go(*flags, code=0):
        found = command(*map(str, flags), num_batches=2)
        out, err = capsys.readouterr()
        assert found == code, err
        return out, err

    return go


@pytest.fixture
def resnet8(own_registry):
    """A network of eight layers with weights, in three stages of one block."""
    register_model("resnet8", "cifar10", lambda: ResNetCifar10(8, "v1"))
