"""Plug-ins that import TensorFlow at the top: quiet, on the devices of the run, and timed.

Tests cnnbench/run/runtime/loading.py.
"""

import json
import sys

import pytest
from forked import finished

OTHER = """\
from cnnbench.variable_mgr import Mode, register_mode
register_mode(Mode(name="other", manager=".per_tower:ReplicatedVariableMgr"))
"""
PLUGIN = """\
import gc, os, sys, time
start = time.perf_counter()
import tensorflow as tf
seconds = time.perf_counter() - start
tf.get_logger().warning("a line of the plug-in")
from absl import logging
logging.warning("a line of Keras")

import json
from pathlib import Path
from cnnbench.models import LearningRateSpec, Model, register_model

found = {
    "seconds": seconds,
    "loaded": [*{"keras", "sklearn", "matplotlib", "pandas"} & sys.modules.keys()],
    "level": os.environ["TF_CPP_MIN_LOG_LEVEL"],
    "loader": type(tf.__loader__).__name__,
    "collects": gc.isenabled(),
    "frozen": gc.get_freeze_count() > 100_000,
}
Path(__file__).with_suffix(".json").write_text(json.dumps(found))
FACTOR = tf.constant(0.5)  # which starts TensorFlow


class Early(Model):
    name, dataset, image_size, batch_size = "early", "imagenet", 8, 2
    learning_rate = LearningRateSpec(0.01)

    def build(self, net, images):
        x = net.apply(lambda x: FACTOR * x, images, shape=(8, 8, 3))
        return net.logits(net.global_avg_pool(x))


register_model("early", "imagenet", Early)
"""


@pytest.mark.slow
def test_a_plugin_that_imports_tensorflow_at_the_top(tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    flags = [f"--plugin={plugin}", "--model=early", "--device=cpu", "--num_gpus=2"]
    flags += ["--num_batches=1", "--num_warmup_batches=0", f"--result_json={tmp_path / 'r.json'}"]
    other = tmp_path / "other.py"  # which does not, and is loaded before
    other.write_text(OTHER)
    flags += [f"--plugin={other}"]
    flags += ["--peak_flops=1e12", "--quiet_conditions=all"]
    command = [sys.executable, "-m", "cnnbench", *flags]
    done = finished(command, seconds=180, environment={"TF_CPP_MIN_LOG_LEVEL": None})
    strange = [one for one in done.stderr.splitlines() if not one.startswith("cnnbench: ")]
    assert strange == []
    for line in ("tensorflow:a line of the plug-in", "absl:a line of Keras"):
        assert done.stderr.splitlines().count(f"cnnbench: WARNING:{line}") == 1
    record = json.loads((tmp_path / "r.json").read_text())
    found = json.loads((tmp_path / "plugin.json").read_text())
    assert 0.9 < record["startup_seconds"]["import"] / found.pop("seconds") < 1.9
    expected = {"loaded": [], "level": "2", "loader": "SourceFileLoader"}
    assert found == {**expected, "collects": True, "frozen": True}
    assert len(record["placement"]["devices"]) == 2


@pytest.mark.slow
def test_wrong_devices_are_refused_with_a_plugin_too(tmp_path):
    """The devices are configured when the plug-in imports TensorFlow."""
    (tmp_path / "plugin.py").write_text(f"import tensorflow\n{OTHER}")
    flags = ["--plugin=plugin.py", "--model=trivial", "--device=gpu"]
    command = [sys.executable, "-m", "cnnbench", *flags]
    done = finished(command, 2, cwd=tmp_path, environment={"CUDA_VISIBLE_DEVICES": ""})
    errors = [line for line in done.stderr.splitlines() if ": error: " in line]
    assert len(errors) == 1
    assert errors[0].startswith("cnnbench: error: --num_gpus=1: TensorFlow sees 0 GPU")
