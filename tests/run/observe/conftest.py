"""Short runs from the command line."""

import pytest

from cnnbench.cli import main
from cnnbench.models.registry import register_model
from cnnbench.models.resnet_cifar import ResNetCifar10

RUN = (
    *("--device=cpu", "--model=trivial", "--data_name=cifar10", "--batch_size=2"),
    *("--num_batches=2", "--num_warmup_batches=2", "--quiet_conditions=all"),
    "--peak_flops=1e12",  # or records would have a measured one, which takes a second
)


@pytest.fixture
def run(quick_start, capsys):
    """run("--flag=value", ..., code=0): a short run; its standard output and error."""

    def go(*flags, code=0):
        found = main([*RUN, *map(str, flags)])
        out, err = capsys.readouterr()
        assert found == code, err
        return out, err

    return go


@pytest.fixture
def resnet8(own_registry):
    """A network of eight layers with weights, in three stages of one block."""
    register_model("resnet8", "cifar10", lambda: ResNetCifar10(8, "v1"))
