"""Graphs for GPUs: kernels, crossings and variables, looked at without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_cases
import gpu_graphs
import pytest
import tensorflow as tf
from gpu_graphs import findings
from small_networks import cut

from cnnbench.models import get_model, registry
from cnnbench.models.deepspeech import DeepSpeech2
from cnnbench.run.step import update
from cnnbench.variable_mgr.kept import untraced

pytestmark = pytest.mark.skipif(
    not tf.test.is_built_with_cuda(), reason="this TensorFlow has no GPU kernels"
)

TINY = {
    "model": "tiny",
    "model_plugin": str(Path(__file__).parents[3] / "docs" / "examples" / "tiny_plugin.py"),
}
SHARED = {**TINY, "variable_update": "parameter_server", "num_gpus": 4}


def named(flags: dict[str, Any]) -> str:
    left_out = {**TINY, **gpu_cases.TRAINED}
    return " ".join(f"{k}={v}" for k, v in flags.items() if k not in left_out)


@pytest.mark.parametrize("flags", gpu_cases.some_modes(TINY), ids=named)
def test_modes(flags):
    assert not findings(flags)


@pytest.mark.parametrize("flags", gpu_cases.some_reductions(TINY), ids=named)
def test_reductions(flags):
    assert not findings(flags)


# The others send what one of these sends, and less.
JOBS = [gpu_cases.JOBS[number] for number in (0, 2, 3, 4, 6, 8)]


@pytest.mark.parametrize("flags", JOBS, ids=named)
def test_jobs(flags):
    assert not findings({**TINY, **flags})


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("ncf", "ratings"),
        ("swin_t", "imagenet"),
    ],
)
def test_kinds_of_operations(name, dataset, monkeypatch):
    model = cut(get_model(name, dataset))
    monkeypatch.setitem(registry._factories, (dataset, name), lambda: model)
    flags = {"model": name, "data_name": dataset, "variable_update": "replicated"}
    assert not findings({**flags, "num_gpus": 2, **gpu_cases.TRAINED})


def test_detections_are_suppressed_on_the_host():
    """CombinedNonMaxSuppression has no GPU kernel, which would be found."""
    flags = {"model": "ssd300", "data_name": "coco", "eval": True, "train_dir": "not read"}
    assert not findings({**flags, "num_gpus": 2, "num_eval_batches": 1})


@pytest.fixture
def short_utterances(monkeypatch):
    sizes = {"max_frames": 60, "min_frames": 50, "max_letters": 4, "units": 8}
    for name, size in {**sizes, "recurrent_layers": 1}.items():
        monkeypatch.setattr(DeepSpeech2, name, size)


@pytest.mark.usefixtures("short_utterances")
def test_loops_stay_on_their_tower():
    """The body of a loop names devices, which a copied tower would share with the first."""
    assert not findings(
        {"model": "deepspeech2", "data_name": "librispeech", "num_gpus": 2, **gpu_cases.TRAINED}
    )


def signals_of(flags: dict[str, Any]) -> int:
    """Signals between devices in a training step."""
    with gpu_graphs.pretending() as homes:
        built = gpu_graphs.build(flags)
        return gpu_graphs.signals(built.step.function, homes)


def test_a_device_sends_one_signal_for_all_its_updates():
    """161 variables of resnet50 on 8 GPUs sent 231, and 1,127 more from those that read them."""
    assert signals_of(SHARED) == 3


class TestWhatIsWrongIsFound:
    def found(self, monkeypatch: pytest.MonkeyPatch, change: Any, **flags: Any) -> list[str]:
        """The findings with something else done to each gradient before its update."""
        unscaled = update.unscaled
        monkeypatch.setattr(
            update, "unscaled", lambda gradient, inverse: change(unscaled(gradient, inverse))
        )
        return [one.what for one in findings({**TINY, "num_gpus": 2, **flags})]

    def test_an_operation_without_a_gpu_kernel(self, monkeypatch):
        def counted(gradient: tf.Tensor) -> tf.Tensor:
            with tf.device("CPU:0"):
                beside = tf.exp(gradient)
            return beside + tf.strings.to_number(tf.strings.as_string(gradient))

        found = self.found(monkeypatch, counted, variable_update="independent")
        assert any("no GPU kernel of AsString(T=float32)" in line for line in found)
        assert any(line.startswith("tensor GPU>CPU from ") for line in found)

    def test_a_variable_elsewhere(self, monkeypatch):
        def assigned(gradient: tf.Tensor) -> tf.Tensor:
            kept = untraced(lambda: tf.Variable(0.0))
            return gradient + tf.raw_ops.ReadVariableOp(resource=kept.handle, dtype=tf.float32)

        found = self.found(monkeypatch, assigned, variable_update="independent")
        assert any("its variable Variable on" in line for line in found)

    def test_towers_that_take_from_one_another(self, monkeypatch):
        first: list[tf.Tensor] = []

        def joined(gradient: tf.Tensor) -> tf.Tensor:
            first.append(gradient)
            with tf.control_dependencies(first[:1]):
                return gradient + tf.reduce_sum(first[0])

        flags = {"variable_update": "replicated", "all_reduce_spec": "nccl"}
        found = self.found(monkeypatch, joined, **flags)
        assert any(line.startswith("tensor GPU>GPU from ") for line in found)
        assert any(line.startswith("signal GPU>GPU from ") for line in found)
