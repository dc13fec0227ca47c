"""Plug-ins that import TensorFlow at the top: quiet, and the import counts as start-up."""

import json
import os
import subprocess
import sys

import pytest

from cnnbench.run.runtime import loading

PLUGIN = """\
import time
start = time.perf_counter()
import tensorflow as tf
seconds = time.perf_counter() - start

from pathlib import Path
from cnnbench.models import LearningRateSpec, Model, register_model

Path(__file__).with_suffix(".seconds").write_text(str(seconds))


class Early(Model):
    name, dataset, image_size, batch_size = "early", "imagenet", 8, 2
    learning_rate = LearningRateSpec(0.01)

    def build(self, net, images):
        return net.logits(net.global_avg_pool(images))


register_model("early", "imagenet", Early)
"""


def test_a_plugin_that_imports_tensorflow_at_the_top(tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    flags = [f"--model_plugin={plugin}", "--model=early", "--device=cpu", "--num_batches=1"]
    flags += ["--num_warmup_batches=0", f"--result_json={tmp_path / 'r.json'}"]
    unset = ("TF_CPP_MIN_LOG_LEVEL",)
    done = subprocess.run(
        [sys.executable, "-m", "cnnbench", *flags, "--peak_flops=1e12", "--quiet_conditions=all"],
        env={name: value for name, value in os.environ.items() if name not in unset},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    strange = [one for one in done.stderr.splitlines() if not one.startswith("cnnbench: ")]
    assert strange == []
    record = json.loads((tmp_path / "r.json").read_text())
    took = float((tmp_path / "plugin.seconds").read_text())
    assert record["startup_seconds"]["import"] >= 0.9 * took


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that is watched for in place of TensorFlow, and writes to standard error."""
    (tmp_path / "watched_for").mkdir()
    (tmp_path / "watched_for" / "__init__.py").write_text(
        "import os, time\ntime.sleep(0.01)\nos.write(2, b'I0000 information\\nW0000 trouble\\n')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(loading, "_PACKAGE", "watched_for")
    monkeypatch.setattr(loading, "_early_seconds", [])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    yield "watched_for"
    sys.modules.pop("watched_for", None)


def test_the_import_is_quiet_timed_and_the_usual_one(package, capfd):
    before = list(sys.meta_path)
    loading.watch_early_import()
    loading.watch_early_import()
    assert len(sys.meta_path) == len(before) + 1
    assert loading.early_import_seconds() == 0.0
    module = __import__(package)
    assert sys.meta_path == before
    assert loading.early_import_seconds() >= 0.01
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert capfd.readouterr().err == "W0000 trouble\n"
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__.loader is module.__loader__
    loading.watch_early_import()  # for what is imported already
    assert sys.meta_path == before
