"""--profile_json: the time of steps by layer, kind and direction.

Tests cnnbench/run/driver/step_profile.py.
"""

import json
from collections import Counter

import pytest

from cnnbench.models import get_model
from cnnbench.models.declaration import declare
from cnnbench.records.profiles import (
    FORWARD,
    GAPS,
    INPUT_OPERATIONS,
    INPUT_WAIT,
    PROGRAM,
    REST,
    TO_INPUT,
    TO_KERNEL,
    StepPartKey,
    StepProfile,
)
from cnnbench.run.driver.step_profile import profile_rows, timeline_spans
from cnnbench.run.observe.operations import (
    WallTimes,
    XEvent,
    XPlane,
    sorted_operations,
)
from cnnbench.run.observe.work import OperationWork

SECOND = 10**12


def plane(*lines):
    def event(name, start, end):
        return XEvent(name, start * SECOND, (end - start) * SECOND)

    return XPlane("/host:CPU", tuple(("t", tuple(event(*e) for e in line)) for line in lines))


def test_every_moment_of_a_step_belongs_to_a_row():
    class Types:
        def result_dtype(self, name):
            return "float32" if name == "a" else ""

    conv, update = ("a", "Conv2D"), ("u", "ResourceApplyMomentum")
    steps = [
        WallTimes({conv: 3.0, update: 1.0}, 0.5, 0.25, Counter({conv: 2, update: 1})),
        WallTimes({conv: 2.0}, 0.0, 0.0, Counter({conv: 2})),
    ]
    forward, outside = (
        StepPartKey("conv0", "convolution 3x3", FORWARD),
        StepPartKey(REST, "update", "step"),
    )
    works = {conv: OperationWork(forward, True, 10), update: OperationWork(outside, False, 4)}
    rows = {
        row.part: row for row in profile_rows(steps, [6.0, 4.0], [0.75, 9.0], works, {}, Types())
    }
    assert [sum(row.seconds[step] for row in rows.values()) for step in range(2)] == [6.0, 4.0]
    assert rows[forward].operations == {"Conv2D float32": 2}
    assert rows[outside].seconds == (1.0, 0.0)
    assert rows[INPUT_OPERATIONS].seconds == (0.5, 0.0)
    assert rows[GAPS].seconds == (0.25, 0.0)
    # No more than what is left of a step can have been waited for.
    assert rows[INPUT_WAIT].seconds == (0.75, 2.0)
    assert rows[PROGRAM].seconds == (0.5, 0.0)


class OneLayer:
    """Works of operations that belong to the layer of their name's beginning."""

    def __call__(self, name, type):
        return OperationWork(StepPartKey(name[0], type, FORWARD), False, 0)

    def device_of_operation(self, name):
        return f"cpu:{name[1]}" if name[1:].isdecimal() else ""


def test_the_timeline_joins_what_follows_and_leaves_out_what_is_too_short():
    planes = [
        plane(
            [("a0:Relu", 10, 2010), ("a0:Relu", 2010, 4000), ("a0:Relu", 8000, 10010)],
            [("b1:MatMul", 20, 5000), ("a1:Relu", 5000, 5001), ("x:Decode", 10, 3010)],
        )
    ]
    found = timeline_spans(sorted_operations(planes, lambda name: name != "x"), OneLayer())
    assert [(one.device, one.layer, one.start, one.end) for one in found] == [
        ("cpu:0", "a", 0.0, 3990.0),
        ("", "input pipeline", 0.0, 3000.0),
        ("cpu:1", "b", 10.0, 4990.0),
        ("cpu:0", "a", 7990.0, 10000.0),
    ]
    assert timeline_spans([], OneLayer()) == []


def test_operations_without_a_node_are_on_the_device_of_their_plane():
    launched = {"tf_op": "b:MatMul"}
    kernel = XEvent("kernel", 0, SECOND, launched)
    planes = [XPlane("/device:GPU:1", (("stream", (kernel,)),))]
    (span,) = timeline_spans(sorted_operations(planes, lambda name: True), OneLayer())
    assert span.device == "gpu:1"


def test_a_run_writes_the_profile_of_its_last_warm_up_steps(run, resnet8, tmp_path, holds):
    path = tmp_path / "profile.json"
    run(
        *("--model=resnet8", "--num_gpus=2", "--variable_update=replicated"),
        *(f"--profile_json={path}", "--profile_steps=2", "--num_warmup_batches=4"),
    )
    holds("step_profile", json.loads(path.read_text()))
    profile = StepProfile.from_json(path.read_text())
    assert len(profile.step_seconds) == 2
    assert profile.step_seconds == profile.record.warmup_step_seconds[-2:]
    assert len(profile.record.step_seconds) == 2
    for step, seconds in enumerate(profile.step_seconds):
        assert sum(row.seconds[step] for row in profile.rows) == pytest.approx(seconds)
    rows = {row.part: row for row in profile.rows}
    for direction in (FORWARD, TO_INPUT, TO_KERNEL):
        assert (
            min(rows[StepPartKey("stage0/block0/conv1", "convolution 3x3", direction)].seconds) > 0
        )
    spec = declare(get_model("resnet8", "cifar10"), 11)
    layers = {one.name: one for one in profile.layers}
    assert sum(one.parameters for one in profile.layers) == spec.trainable_parameters
    assert layers["stage1/block0/conv0"].kind == "convolution 3x3"
    assert layers["stage1/block0/conv0"].shapes == ((3, 3, 16, 32),)
    assert [name for name in layers if "conv" in name][1] == "stage0/block0/conv0"
    total = sum(row.flops for row in profile.rows)
    assert total == 2 * 2 * spec.training_flops_per_image
    assert {row.kind for row in profile.rows if row.layer == REST} >= {"update", "reduction"}
    assert any("FusedBatchNormGrad" in name for name in profile.graph)
    assert rows[PROGRAM].seconds[0] > 0
    spans = profile.timeline
    assert {one.device for one in spans} >= {"cpu:0", "cpu:1"}
    assert {one.direction for one in spans} >= {FORWARD, TO_INPUT, TO_KERNEL}
    assert [one.start for one in spans] == sorted(one.start for one in spans)
    assert all(0 <= one.start < one.end <= profile.step_seconds[-1] for one in spans)


def test_inference_has_no_backward_pass(run, tmp_path):
    path = tmp_path / "profile.json"
    run("--forward_only", f"--profile_json={path}", "--profile_steps=1")
    rows = StepProfile.from_json(path.read_text()).rows
    assert not {TO_INPUT, TO_KERNEL} & {row.direction for row in rows}
    # Two images of 32 x 32 x 3 values to a single unit: 2 FLOPs per weight.
    assert sum(row.flops for row in rows if row.layer == "affine0") == 2 * 2 * (32 * 32 * 3)


DEPTHWISE = """
from cnnbench.models import Model, register_model
from cnnbench.models.learning_rate import LearningRateSpec

class Depthwise(Model):
    name, dataset, image_size, batch_size = "depthwise", "cifar10", 32, 2
    learning_rate = LearningRateSpec(0.1)

    def build(self, net, images):
        return net.logits(net.global_avg_pool(net.depthwise_conv(net.conv(images, 8, 3), 5)))

register_model("depthwise", "cifar10", Depthwise)
"""


def test_depthwise_convolutions_have_flops_and_the_first_step_is_not_profiled(run, tmp_path):
    path, plugin = tmp_path / "profile.json", tmp_path / "depthwise.py"
    plugin.write_text(DEPTHWISE)
    run(
        *(f"--plugin={plugin}", "--model=depthwise", "--data_name=cifar10"),
        *(f"--profile_json={path}", "--num_warmup_batches=3", "--batch_size=2"),
    )
    profile = StepProfile.from_json(path.read_text())
    assert len(profile.step_seconds) == 2
    rows = {row.part: row for row in profile.rows}
    found = rows[StepPartKey("depthwise0", "depthwise convolution 5x5", FORWARD)]
    assert found.flops == 2 * 2 * 32 * 32 * 5 * 5 * 8
