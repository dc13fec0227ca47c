import csv
import io
import json

import pytest

PLUGIN = """
from cnnbench.models import LearningRateSpec, Model, register_model


class Tiny(Model):
    name = "tiny"
    dataset = "cifar10"
    image_size = 8
    batch_size = 4
    learning_rate = LearningRateSpec(base=0.1)

    def build(self, net, images):
        return net.logits(net.flatten(images))


class Broken(Tiny):
    name = "broken"

    def build(self, net, images):
        raise RuntimeError("no body")


class Elsewhere(Tiny):
    name = "elsewhere"
    dataset = "nowhere"


register_model("tiny", "cifar10", Tiny)
register_model("broken", "cifar10", Broken)
register_model("elsewhere", "nowhere", Elsewhere)
"""


@pytest.fixture
def plugin(tmp_path, own_registry):
    """A plug-in file; what it registers is forgotten after the test."""
    file = tmp_path / "tiny.py"
    file.write_text(PLUGIN)
    return file


@pytest.mark.usefixtures("own_registry")
def test_formats_for_programs(call, holds):
    document = json.loads(call("models", "--data_name=cifar10", "--format=json").out)
    holds("models", document)
    models = document["models"]
    assert {one["dataset"] for one in models} == {"cifar10"}
    assert models[-1]["model"] == "trivial"  # the last in natural order
    listed = {one["model"]: one for one in models}
    macs = 3072 + 4096 + 4096 * 11
    assert listed["trivial"] == {
        **{"dataset": "cifar10", "model": "trivial", "input_shape": "32x32x3", "batch_size": 32},
        **{"parameters": 56_332, "trainable_parameters": 56_332, "statistics": 0},
        "forward_flops_per_image": 2 * macs,
        "training_flops_per_image": 2 * (3 * macs - 3072),
        # The image, a neuron, and of 4096 the sum, the sum with bias and the output.
        "memory_bytes_per_image": round(1.15 * 4 * (3072 + 1 + 3 * 4096)),
    }
    assert listed["resnet20"]["statistics"] == 1_376
    rows = list(
        csv.DictReader(io.StringIO(call("models", "--data_name=cifar10", "--format=csv").out))
    )
    assert rows == [{key: str(value) for key, value in one.items()} for one in models]


@pytest.mark.slow
def test_plugin(call, plugin):
    out, err = call("models", f"--plugin={plugin}", "--format=json")
    (tiny,) = (one for one in json.loads(out)["models"] if one["model"] == "tiny")
    weights = 8 * 8 * 3 * 11
    assert (tiny["model"], tiny["input_shape"], tiny["batch_size"]) == ("tiny", "8x8x3", 4)
    assert tiny["parameters"] == weights + 11
    assert tiny["forward_flops_per_image"] == 2 * weights
    end = " (--quiet_conditions=models silences this)"
    assert err.splitlines() == [
        f"cnnbench: warning: model broken is left out: {plugin}:20: Broken.build(): "
        f"RuntimeError: no body{end}",
        "cnnbench: warning: models for nowhere are left out: there is no data set of that name"
        f"{end}",
    ]
    quiet = call("models", f"--plugin={plugin}", "--data_name=cifar10", "--quiet_conditions=models")
    assert "tiny" in quiet.out
    assert quiet.err == ""
