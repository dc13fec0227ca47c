"""--summary_verbosity: event files, read with TensorFlow's own classes.

Tests cnnbench/run/driver/observers/summaries.py and cnnbench/run/observe/event_file.py.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from short_runs import RATE, build
from tensorflow.core.util import event_pb2

from cnnbench.flags import Params
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.observers.observer import TrainingState
from cnnbench.run.driver.observers.summaries import EvaluationSummaries, TrainingSummaries
from cnnbench.run.observe.event_file import EventFile, histogram_buckets


def _values(folder):
    """What the event files of a folder hold: {tag: {step: (dashboard, tensor)}}."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                shown = value.metadata.plugin_data.plugin_name, tf.make_ndarray(value.tensor)
                found.setdefault(value.tag, {})[event.step] = shown
    return found


def _layers(kind):
    return {f"{kind}/affine{n}/{part}" for n in range(3) for part in ("kernel", "bias")}


def test_a_run_writes_scalars_histograms_and_images_every_other_step(run, tmp_path):
    run(
        *(f"--train_dir={tmp_path}", "--summary_verbosity=3", "--save_summaries_steps=2"),
        *("--num_batches=4", "--init_learning_rate=0.25", "--print_training_accuracy"),
        *("--num_gpus=2", "--variable_update=replicated"),
        *("--use_fp16", "--fp16_enable_auto_loss_scale"),
    )
    values = _values(tmp_path)
    scalars = {"learning_rate", "total_loss", "images_per_sec", "loss_scale"}
    scalars |= {"metrics/top_1", "metrics/top_5"}
    assert set(values) == {*scalars, "images"} | _layers("gradients") | _layers("variables")
    for tag, steps in values.items():
        # Two steps of warm-up come first.
        assert list(steps) == ([4, 6] if tag == "images_per_sec" else [2, 4, 6])
        dashboard = "images" if tag == "images" else "histograms"
        expected = "scalars" if tag in scalars else dashboard
        assert {dashboard for dashboard, _ in steps.values()} == {expected}
    assert [rate for _, rate in values["learning_rate"].values()] == [0.25, 0.25, 0.25]
    assert all(speed > 0 for _, speed in values["images_per_sec"].values())
    _, rows = values["gradients/affine2/bias"][4]
    assert rows.shape == (30, 3)
    assert rows[:, 2].sum() == 11  # ten classes and the background
    width, height, *pictures = values["images"][6][1].tolist()
    assert (int(width), int(height)) == (32, 32)
    decoded = [tf.io.decode_png(picture).numpy() for picture in pictures]
    assert [picture.shape for picture in decoded] == [(32, 32, 3)] * 2
    assert all((picture.min(), picture.max()) == (0, 255) for picture in decoded)


def _written(folder, verbosity, begin, *steps):
    """Has an observer of a training that begins after a global step write summaries of steps."""
    batch = [tf.ones([2, 4, 4, 3]), tf.constant([1, 2]), tf.ones([2, 4, 4, 2])]
    step = SimpleNamespace(
        loss_scale=SimpleNamespace(value=None),
        trace_last_gradients=lambda: lambda: ({"w": tf.constant([0.5])}, batch),
    )
    weights = {"w": SimpleNamespace(primary=tf.constant([1.0]))}
    plan = SimpleNamespace(params=Params(summary_verbosity=verbosity, save_summaries_steps=2))
    manager = SimpleNamespace(savable_variables=lambda: weights)
    summaries = TrainingSummaries(str(folder), plan, step, manager)
    summaries.training_begins(begin, 9)
    for number in steps:
        summaries.training_paused(TrainingState(number, 0.1, 0.5, {}, 7.0))
    summaries.close()
    return [summaries.needs_pause_after(number) for number in range(1, 5)]


@pytest.mark.parametrize(
    ("verbosity", "more"),
    [(1, set()), (2, {"gradients/w"}), (3, {"gradients/w", "variables/w", "images"})],
)
def test_the_verbosity_decides_what_is_written(verbosity, more, tmp_path):
    assert _written(tmp_path, verbosity, 0, 2) == [False, True, False, True]
    assert set(_values(tmp_path)) == {"learning_rate", "total_loss", "images_per_sec"} | more


@pytest.mark.slow
def test_the_steps_are_those_of_a_run_without(run, tmp_path):
    flags = ["--num_batches=4", "--model=lenet", "--data_name=imagenet", "--num_warmup_batches=1"]
    losses = []
    for number, more in enumerate(
        ([], [f"--train_dir={tmp_path}", "--summary_verbosity=3", "--save_summaries_steps=1"])
    ):
        path = tmp_path / f"{number}.json"
        run(*flags, *more, f"--result_json={path}")
        losses.append(json.loads(path.read_text())["losses"])
    assert losses[0] == losses[1]


def test_the_gradients_are_those_of_the_loss(tmp_path):
    """Of a linear model, against its derivative worked out by hand."""
    built = build("oracle", batch_size=2, num_gpus=1, weight_decay=0.5)
    last_gradients = built.step.trace_last_gradients()
    before = {n: v.primary.numpy() for n, v in built.manager.savable_variables().items()}
    built.step(RATE)
    after = {n: v.primary.numpy() for n, v in built.manager.savable_variables().items()}
    gradients, (images, _) = last_gradients()
    again = {n: v.primary.numpy() for n, v in built.manager.savable_variables().items()}
    assert again == after != before
    slope = 4 * np.mean(images.numpy()) + 1
    assert gradients["A"].numpy() == pytest.approx(slope * after["B"])
    assert gradients["B"].numpy() == pytest.approx(slope * after["A"])


def test_evaluations_go_to_their_own_folder(run, tmp_path):
    folder, shared = tmp_path / "found", [f"--train_dir={tmp_path}", "--summary_verbosity=1"]
    during = ["--eval_during_training_every_n_steps=1", "--num_eval_batches=2"]
    run(*shared, *during, f"--eval_dir={folder}")
    values = _values(folder)
    assert set(values) == {
        *("eval/Accuracy@1", "eval/Accuracy@5", "eval/loss", "eval/examples_per_sec"),
    }
    assert [list(steps) for steps in values.values()] == [[1, 4]] * 4


def _shown(folder):
    """Steps of each tag as TensorBoard shows them: a session's start hides what is there after."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            if event.session_log.status == event_pb2.SessionLog.START:
                found = {tag: [s for s in steps if s < event.step] for tag, steps in found.items()}
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


def test_a_resumed_training_hides_later_steps_of_earlier_ones(tmp_path):
    _written(tmp_path, 1, 0, 2, 4, 6)
    _written(tmp_path, 1, 4, 6, 8)
    assert _shown(tmp_path)["total_loss"] == [2, 4, 6, 8]


@pytest.mark.parametrize(("newest", "shown"), [(True, [2, 4]), (False, [2, 6, 4, 4])])
def test_an_evaluation_of_the_newest_checkpoint_hides_those_of_later_ones(newest, shown, tmp_path):
    for steps in ((2, 6), (4, 4)):
        summaries = EvaluationSummaries(str(tmp_path), newest)
        for step in steps:
            evaluation = Evaluation(global_step=step, examples=1, images_per_sec=1.0, loss=0.5)
            summaries.evaluation_completed(evaluation)
        summaries.close()
    assert _shown(tmp_path)["eval/loss"] == shown


@pytest.mark.slow
@pytest.mark.parametrize("lost", [True, False])
def test_no_step_of_a_resumed_training_is_shown_twice(run, tmp_path, lost):
    train, evaluations = tmp_path / "train", tmp_path / "evaluations"
    flags = (
        *(f"--train_dir={train}", f"--eval_dir={evaluations}", "--summary_verbosity=1"),
        *("--save_summaries_steps=1", "--num_eval_batches=1", "--num_warmup_batches=0"),
        "--eval_during_training_every_n_steps=2",
    )
    run(*flags, "--num_batches=4")
    run(*flags, "--num_batches=7")
    if lost:  # as if the second run had been killed before it saved
        for path in train.glob("*ckpt-7*"):
            path.unlink()
    run(*flags, "--num_batches=9")
    assert _shown(train)["total_loss"] == list(range(1, 10))
    expected = [2, 4, 6, 8, 9] if lost else [2, 4, 6, 7, 8, 9]
    assert _shown(evaluations)["eval/loss"] == expected


@pytest.mark.slow
def test_evaluations_of_the_newest_checkpoint_hide_later_ones(run, tmp_path):
    train, found = tmp_path / "train", tmp_path / "found"
    flags = [f"--train_dir={train}", "--summary_verbosity=1", "--num_warmup_batches=0"]
    run(*flags, "--num_batches=2", "--save_model_steps=1", "--num_eval_batches=1")
    evaluation = ["--summary_verbosity=1", "--eval", f"--eval_dir={found}", "--num_eval_batches=1"]
    run(f"--train_dir={train}", *evaluation)
    # One checkpoint of several: the others are not obsolete.
    run(f"--train_dir={train}/model.ckpt-1", *evaluation)
    assert _shown(found)["eval/loss"] == [2, 1]
    for path in train.glob("*ckpt-2*"):
        path.unlink()
    run(f"--train_dir={train}", *evaluation)
    assert _shown(found)["eval/loss"] == [1]


def test_buckets_against_numbers():
    values = np.arange(61.0)
    rows = histogram_buckets(values)
    assert rows.shape == (30, 3)
    assert (rows[0, 0], rows[-1, 1]) == (0, 60)
    assert rows[:, 2].tolist() == [2] * 29 + [3]
    assert histogram_buckets([2.0, 2.0, np.nan, np.inf]).tolist() == [[1.5, 2.5, 2.0]]
    assert histogram_buckets([np.nan]).shape == (0, 3)


def test_no_file_without_values(tmp_path):
    EventFile("eval_dir", str(tmp_path / "none")).close()
    assert list(tmp_path.iterdir()) == []


def test_an_event_file_holds_what_was_written_until_it_was_closed(tmp_path):
    events = EventFile("train_dir", str(tmp_path / "made"))
    events.hide_events_from(7)
    events.hide_events_from(5)
    events.hide_events_from(6)
    events.scalar("none", None, 1)
    events.scalar("loss", 0.5, 6)
    events.histogram("values", [1.0, 3.0, np.nan], 7)
    ramp = np.array([[[-1.0, 0.0, 0.5, 1.0]]] * 4)[..., None]
    events.images("images", ramp, 8)
    events.close()
    (path,) = (tmp_path / "made").glob("events.out.tfevents.*")
    found = [event_pb2.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(path))]
    assert found[0].file_version == "brain.Event:2"
    assert (found[1].step, found[1].session_log.status) == (5, event_pb2.SessionLog.START)
    kinds = [
        (event.step, value.tag, value.metadata.plugin_data.plugin_name, value.metadata.data_class)
        for event in found[2:]
        for value in event.summary.value
    ]
    assert kinds == [
        (6, "loss", "scalars", 1),
        (7, "values", "histograms", 2),
        (8, "images", "images", 3),
    ]
    loss, histogram, images = (tf.make_ndarray(one.summary.value[0].tensor) for one in found[2:])
    assert (loss.dtype, loss.tolist()) == (np.float32, 0.5)
    np.testing.assert_array_equal(histogram, histogram_buckets([1.0, 3.0]))
    width, height, *pixels = images.tolist()
    assert (width, height, len(pixels)) == (b"4", b"1", 3)
    shown = tf.io.decode_png(pixels[0]).numpy()
    assert shown.ravel().tolist() == [0, 128, 191, 255]


def test_an_image_of_one_value_is_black_and_a_step_before_the_hidden_ones_hides_too(tmp_path):
    events = EventFile("train_dir", str(tmp_path))
    events.hide_events_from(9)
    events.images("images", np.full([1, 1, 2, 3], 4.0), 3)
    events.flush()
    (path,) = tmp_path.iterdir()
    found = [event_pb2.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(path))]
    assert [event.step for event in found] == [0, 3, 3]
    (image,) = found[2].summary.value
    shown = tf.io.decode_png(tf.make_ndarray(image.tensor)[2]).numpy()
    assert shown.tolist() == [[[0, 0, 0]] * 2]
    events.close()
