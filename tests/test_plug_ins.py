"""Files of --plugin: the examples of all kinds, in the commands that have the flag."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from forked import Forked, execute
from short_runs import TINY

from cnnbench.base import plugins
from cnnbench.campaigns.processes.child import Command
from cnnbench.records.codec import encode

DOCS = Path(__file__).parents[1] / "docs"
PLUGINS = (DOCS / "plugins.md").read_text(encoding="utf-8")
EXAMPLES = DOCS / "examples"


def named(*names):
    return ",".join(str(EXAMPLES / f"{name}.py") for name in names)


def test_every_kind_is_documented_with_an_example():
    rows = re.findall(
        r"^\| \[([\w -]+)\]\(#[\w-]+\) \| `(cnnbench[\w.]+)`(?:, `\w+`)? "
        r"\| (.*?) \| (.*?) \| (.*) \|$",
        PLUGINS,
        re.MULTILINE,
    )
    plugins.load_plugin_file(named("chain"))
    kinds = {kind.call.partition("(")[0]: kind for kind in plugins._kinds.values()}
    assert {call for _, call, *_ in rows} == kinds.keys()
    for _, call, flag, group, cell in rows:
        kind = kinds[call]
        assert (flag, group) == (
            f"`--{kind.flag}`" if kind.flag else "-",
            f"`{kind.group}`" if kind.group else "-",
        )
        for example in re.findall(r"\(examples/(\w+)\.py\)", cell):
            path = str(EXAMPLES / f"{example}.py")
            assert plugins.load_plugin_file(path)[kind.kind], example


@pytest.mark.usefixtures("quick_start")
def test_a_run_takes_names_of_several_files(call, tmp_path):
    files = named("tiny_plugin", "local_sgd_plugin"), named("signum_plugin", "polynomial_plugin")
    words = [f"--plugin={file}" for file in files]
    flags = {
        **TINY,
        **{"data_name": "imagenet", "model": "tiny", "num_batches": 2, "num_warmup_batches": 0},
        **{"variable_update": "local_sgd", "optimizer": "signum", "init_learning_rate": 0.1},
        **{"learning_rate_schedule": "polynomial", "result_json": tmp_path / "r.json"},
    }
    err = call(*words, **flags).err
    assert "no effect" not in err
    config = json.loads((tmp_path / "r.json").read_text())["config"]
    assert config["plugin"] == [path for file in files for path in file.split(",")]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
def test_commands_take_names_of_plug_ins(call, tmp_path):
    reductions = ("--device=cpu", "--num_gpus=3", "--sizes=4K", "--num_batches=1", "--progress=off")
    chain = f"--plugin={named('chain')}"
    out = call("allreduce", *reductions, chain, "--all_reduce_spec=chain/copy").out
    assert re.search(r"float32 +3 +chain/copy +-", out)
    assert " tiny " in call("models", f"--plugin={named('tiny_plugin')}").out
    words = ("--plugin", named("local_sgd_plugin"), "--plugin", named("signum_plugin"))
    text = " ".join(call("run", "--help", *words).out.split())
    assert "signum" in text
    assert "local_sgd" in text


def test_comparisons_take_metrics_of_plug_ins(call, runs, tmp_path):
    for side in ("base", "new"):
        for number in range(4):
            record = runs(step_seconds=[0.1, 0.1 if side == "base" else 0.3, 0.1])
            (tmp_path / side).mkdir(exist_ok=True)
            (tmp_path / side / f"{number}.json").write_text(json.dumps(encode(record)))
    plugin, name = f"--plugin={named('metric_plugin')}", "longest_step_ratio"
    base, new = tmp_path / "base", tmp_path / "new"
    assert name in call("compare", base, new, plugin, f"--metrics={name}", code=None).out
    assert name in call("history", base, plugin, f"--metric={name}").out
    assert name in call("history", base, f"--metric=none_{name}", plugin, code=2).err


_READER = "from cnnbench.records.readers import register_reader as read\nread"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "registers nothing; call cnnbench.data.register_dataset"),
        (
            f"{_READER}('tf_cnn_benchmarks', b'x')(print)",
            "reader tf_cnn_benchmarks is registered already",
        ),
        (
            f"{_READER}('own', b'(')(print)",
            "reader 'own': b'(' is not a regular expression: missing )",
        ),
        (f"{_READER}('', b'x')(print)", "a reader needs a name of printable characters, not ''"),
    ],
)
def test_a_file_without_use_is_refused(text, reason, call, tmp_path):
    (tmp_path / "own.py").write_text(text)
    assert reason in call(f"--plugin={tmp_path}/own.py", code=2).err


def _power(call, *words, code=2, **flags):
    own = {"init_learning_rate": 0.1, "learning_rate_schedule": "polynomial"}
    return call(*words, **{**TINY, **own, **flags}, code=code)


@pytest.mark.usefixtures("quick_start")
def test_constants_of_plug_ins_are_flags(call, tmp_path):
    files = named("signum_plugin", "polynomial_plugin")
    text = " ".join(call("run", "--help", f"--plugin={files}").out.split())
    assert "--signum_beta=X Decay of the mean (--optimizer=signum). (number; default 0.9;" in text
    assert "--learning_rate_power=X" in text
    record = tmp_path / "r.json"
    words = ("--signum_beta", "0.5", "--plugin", files, "--optimizer=signum")
    _power(call, *words, learning_rate_power=3, result_json=record, code=0)
    config = json.loads(record.read_text())["config"]
    assert (config["signum_beta"], config["learning_rate_power"]) == (0.5, 3)
    assert "--signum_beta=0.5" in _power(call, *words, "--only_check_args", code=0).out
    for wrong, told in (
        ("--signum_beta=1", "--signum_beta=1: must be at least 0 and less than 1"),
        ("--signum_beta=x", "--signum_beta=x: must be a finite number"),
        ("--signum_bets=0", "unknown flag --signum_bets; did you mean --signum_beta?"),
        ("--signum_beta", "--signum_beta needs a value"),
    ):
        assert told in _power(call, f"--plugin={files}", wrong).err
    assert "unknown flag --signum_beta" in call("--signum_beta=0.5", code=2).err


def test_commands_take_constants_of_plug_ins(call, tmp_path):
    files, own = f"--plugin={named('signum_plugin')}", ("--optimizer=signum", "--signum_beta=2")
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "name: own\nentries:\n- name: a\n  flags:\n"
        f"    {{model: lenet, plugin: {named('signum_plugin')}, optimizer: signum, signum_beta: 2}}"
    )
    words = ("--model=lenet", files, *own)
    for command in (
        ("tune", *words),
        ("launch", "--workers=2", "--", *words),
        ("sweep", str(suite), f"--results={tmp_path / 'results'}"),
        ("ab", "--a=--signum_beta=2", f"--results={tmp_path / 'ab'}", "--", *words[:-1]),
    ):
        assert "signum_beta=2: must be at least 0 and less" in call(*command, code=2).err, command


@pytest.mark.usefixtures("quick_start")
def test_a_network_runs_on_a_data_set_of_a_plug_in(call, tmp_path):
    page = (DOCS / "own_data_set.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?register_model.*?)^```", page, re.M | re.S)
    (tmp_path / "lenet_plugin.py").write_text(code)
    for subset in ("train", "validation"):
        images, labels = np.zeros((4, 16, 16, 3), np.uint8), np.arange(4)
        np.savez(tmp_path / f"{subset}.npz", images=images, labels=labels)
    flags = {**TINY, "model": "lenet", "data_name": "npz", "data_dir": tmp_path}
    data = f"--plugin={named('npz_dataset_plugin')}"
    assert "--model=lenet: " in call(data, **flags, code=2).err
    assert "images/sec" in call(data, f"--plugin={tmp_path / 'lenet_plugin.py'}", **flags).out


KERAS = """
import keras

from cnnbench.models import register_keras_model


@register_keras_model("small", dataset="cifar10")
def build():
    images = keras.Input((32, 32, 3))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(2, 3)(images))
    return keras.Model(images, keras.layers.Dense(11)(x))
"""

DECLARE = """
from cnnbench.base import plugins
from cnnbench.models import get_model

plugins.load_plugin_file("small.py")
print(get_model("small", "cifar10").classes)
import tensorflow as tf

# TensorFlow refuses this after it has started.
tf.config.threading.set_inter_op_parallelism_threads(3)
"""


@pytest.mark.slow
def test_a_keras_model_of_a_plug_in_is_declared_before_tensorflow_starts(tmp_path):
    # The workers of a job must connect before TensorFlow starts.
    (tmp_path / "small.py").write_text(KERAS)
    out, err = tmp_path / "out", tmp_path / "err"
    assert Forked(DECLARE, (), out, err, tmp_path).wait(300) == 0, err.read_text()
    assert out.read_text() == "11\n"
    assert "cuInit" not in err.read_text()


@pytest.mark.slow
def test_workers_train_a_keras_model_and_take_an_optimizer_of_plug_ins(tmp_path):
    (tmp_path / "small.py").write_text(KERAS)
    flags = [f"--plugin=small.py,{named('signum_plugin')}", "--model=small", "--optimizer=signum"]
    flags += ["--device=cpu", "--batch_size=2"]
    words = [*flags, "--num_batches=2", "--num_warmup_batches=1", "--result_json=r.json"]
    launch = [sys.executable, "-m", "cnnbench", "launch", "--workers=2", "--", *words]
    log = tmp_path / "log"
    ended = execute(Command(words=launch, log=log, folder=tmp_path), 300)
    assert ended.code == 0, log.read_text()
    assert "cuInit" not in log.read_text()
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["config"]["variable_update"] == "collective_all_reduce"
    assert (record["config"]["optimizer"], record["model"]["name"]) == ("signum", "small")
    assert len(record["step_seconds"]) == 2
