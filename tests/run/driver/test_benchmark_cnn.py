"""The driver: what a run prints, records, saves and refuses.

Tests cnnbench/run/driver/preflight.py and cnnbench/run/driver/scenarios.py.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest
import tensorflow as tf
from covering import slow_if
from short_runs import NETWORKS, TINY, command, run

from cnnbench import BenchmarkCNN, Params, RunRecord
from cnnbench.base import locks
from cnnbench.base.locks import FolderLock
from cnnbench.base.terminal import MessageWriter
from cnnbench.data.imagenet import serialize
from cnnbench.errors import BenchmarkError, FlagError, NonFiniteLossError
from cnnbench.machine import cpu, watch
from cnnbench.models import LearningRateSpec, Model, register_model
from cnnbench.plan import check_flags
from cnnbench.records import measurements
from cnnbench.records.codec import encode
from cnnbench.records.load import load_run
from cnnbench.records.result_files import RUNS, ResultFiles
from cnnbench.records.subject import Subject
from cnnbench.run.driver import benchmark_cnn, preflight, scenarios, stored_checkpoint
from cnnbench.run.driver.checkpoints import Checkpoints
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.membership import JobMembership
from cnnbench.run.driver.step_loop import StepTime
from cnnbench.run.step.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("quick_start")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What a run with checkpoints leaves, by name."""
    folder = tmp_path_factory.mktemp("trained")
    run(train_dir=str(folder), peak_flops=0)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def trained(files, tmp_path):
    """The checkpoints of a run of 2 + 4 steps."""
    folder = tmp_path / "train"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder)


def test_a_record_holds_every_step_and_what_the_defaults_became():
    """Also on the device that "auto" is, and what is printed; test_console.py has the lines."""
    record, lines, err = run(num_gpus=2, device="auto", display_every=2)
    assert record.status == "ok"
    assert "no GPU visible" in err
    assert not re.search("cnnbench: (a long run|warm-up step)", err)
    assert record.placement.device == record.config["device"] == "cpu"
    assert len(record.warmup_step_seconds) == len(record.warmup_losses) == 2
    assert len(record.step_seconds) == len(record.losses) == 4
    assert record.batch.per_device == 2
    assert record.batch.global_ == 4
    assert record.placement.num_towers == 2
    assert record.placement.devices[1].endswith("CPU:1")
    assert record.config["data_format"] == "NHWC"
    here = cpu.processor_facts(cpu.Host())["cpu_conv_gradients"]
    assert record.config["conv_gradients"] == here.partition(" ")[0]
    assert record.measured.loop_images == 16
    assert record.measured.loop_seconds >= sum(record.step_seconds)
    spent = record.measured.loop_user_seconds + record.measured.loop_system_seconds
    assert len(record.step_cpu_seconds) == 4
    assert 0 < sum(record.step_cpu_seconds) <= spent + 0.001
    summary = record.summary()
    assert summary.images_per_sec == pytest.approx(4 * 4 / sum(record.step_seconds))
    assert summary.busy_cpus == pytest.approx(spent / record.measured.loop_seconds)
    assert summary.total_images_per_sec <= summary.images_per_sec
    assert record.startup_seconds.build > 0
    assert record.startup_seconds.first_step == record.warmup_step_seconds[0]
    assert lines[-2] == f"total images/sec: {summary.total_images_per_sec:.2f}"
    rows = [line.split("\t") for line in lines[-6:-3]]
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert [row[2] for row in rows] == [f"{record.losses[step]:.3f}" for step in (0, 1, 3)]


def test_the_record_names_the_revision_of_the_users_repository(tmp_path, git, monkeypatch):
    folder = tmp_path / "nets"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git(folder, "init", "--quiet")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "a commit")
    record = run(result_label="branch=main").record
    revision, labels = git(folder, "rev-parse", "HEAD"), {"branch": "main"}
    expected = Subject(repository="nets", revision=revision, dirty=False, labels=labels)
    assert record.subject == expected
    # The version of cnnbench is a separate fact.
    assert record.environment.get("git_commit") != revision


@pytest.mark.parametrize("scaled", slow_if([True], [False, True]))
def test_a_non_finite_loss_ends_the_run_and_keeps_the_record(scaled, tmp_path, holds):
    path = tmp_path / "record.json"
    out = io.StringIO()
    flags = {**TINY, "num_batches": 50, "init_learning_rate": 1e9, "weight_decay": 1}
    if scaled:
        flags |= {"precision": "fp16", "fp16_enable_auto_loss_scale": True}
    with pytest.raises(NonFiniteLossError, match=r"at (warm-up )?step"):
        BenchmarkCNN(Params(**flags, result_json=str(path)), console=Console(out)).run()
    record = RunRecord.from_json(path.read_text())
    assert record.status == "failed"
    assert record.error.type == "NonFiniteLossError"
    assert "total images/sec" not in out.getvalue()
    *before, last = (*record.warmup_losses, *record.losses)
    assert [math.isfinite(loss) for loss in before] == [True] * len(before)
    assert not math.isfinite(last)
    holds("run", json.loads(path.read_text()))


def test_weights_that_are_not_finite_are_warned_of_once(trained, monkeypatch):
    read = stored_checkpoint.StoredCheckpoint.read_tensor

    def damaged(stored, key):
        found = read(stored, key)
        return found + math.nan if "bias" in key else found

    monkeypatch.setattr(stored_checkpoint.StoredCheckpoint, "read_tensor", damaged)
    err = run(train_dir=trained, eval=True, num_eval_batches=1).err
    (line,) = (one for one in err.splitlines() if "finite," in one)
    told = "model.ckpt-6 has values that are not finite, first in affine0/bias"
    silenced = "(--quiet_conditions=nonfinite silences this)"
    assert line == f"cnnbench: warning: {trained}/{told} {silenced}"


def number_of(text):
    with contextlib.suppress(ValueError):
        return float(text)
    return None


def test_record_and_csv_agree(tmp_path, holds):
    json_path, csv_path = tmp_path / "r.json", tmp_path / "r.csv"
    given = {"result_json": str(json_path), "result_csv": str(csv_path), "peak_flops": 1e12}
    start = StepTime.now()
    record = run(**given).record
    spent = StepTime.now().since(start)
    document = json.loads(json_path.read_text())
    holds("run", document)
    assert document["summary"]["achieved_flops_per_sec"] > 0
    (texts,) = csv.DictReader(csv_path.open())
    assert texts["run_id"] == record.run_id
    row = {name: number_of(text) for name, text in texts.items() if text}
    assert row["images_per_sec"] == pytest.approx(record.summary().images_per_sec)
    names = [name for name in row if name.endswith("_seconds") and "import" not in name]
    assert {"startup_build_seconds", "startup_first_step_seconds", "loop_user_seconds"} <= {*names}
    for name in names:  # in other units they would be longer than the whole run, or than no time
        of_cpus = name in ("loop_user_seconds", "loop_system_seconds")
        assert 0 <= row[name] <= (spent.cpu_seconds if of_cpus else spent.seconds), name
    assert row["startup_build_seconds"] > 1e-3 * spent.seconds
    steps, images = len(record.step_seconds), record.batch.global_
    # Rates are work by seconds, in units without a prefix.
    assert row["total_images_per_sec"] == pytest.approx(
        steps * images / record.measured.loop_seconds
    )
    assert row["achieved_flops_per_sec"] == pytest.approx(
        row["images_per_sec"] * row["training_flops_per_image"]
    )
    assert row["mfu"] == pytest.approx(row["achieved_flops_per_sec"] / row["peak_flops_per_sec"])
    assert 2**20 < row["peak_memory_bytes"] < 2**40


def test_the_record_is_written_before_a_wait_for_the_other_processes(tmp_path, monkeypatch):
    """An interrupt of the wait adds no second row."""

    def waits(membership, code, reason=""):
        raise KeyboardInterrupt

    monkeypatch.setattr(JobMembership, "report_run_end", waits)
    record, table = tmp_path / "record.json", tmp_path / "runs.csv"
    assert command(result_json=record, result_csv=table, peak_flops=0) == 130
    assert load_run(str(record)).status == "ok"
    assert [row["status"] for row in csv.DictReader(table.open())] == ["ok"]


def test_a_loss_after_the_record_is_no_failed_run(tmp_path, monkeypatch):
    table = tmp_path / "runs.csv"
    bench = BenchmarkCNN(Params.from_dict({**TINY, "result_csv": str(table)}))
    end = JobMembership.report_run_end

    def loses(membership, code, reason=""):
        bench._write_failure("lost worker:1", print)
        end(membership, code, reason)

    monkeypatch.setattr(JobMembership, "report_run_end", loses)
    assert bench.run().status == "ok"
    assert [row["status"] for row in csv.DictReader(table.open())] == ["ok"]


def test_the_peak_of_memory_is_that_of_the_run_alone(tmp_path, monkeypatch):
    measured: list[str] = []
    monkeypatch.setattr(
        benchmark_cnn, "read_peak_memory", lambda kind: measured.append("memory") or 7
    )
    monkeypatch.setattr(scenarios, "peak_flops", lambda *of: measured.append("matrix product"))
    record = run(result_json=str(tmp_path / "r.json")).record
    assert measured == ["memory", "matrix product"]
    assert record.measured.peak_memory_bytes == 7


def test_memory_and_cpus_over_time_are_recorded(monkeypatch):
    monkeypatch.setattr(watch, "USE_PERIOD", 0.02)
    monkeypatch.setattr(measurements, "USE_PERIOD", 0.02)
    before = {*threading.enumerate()}
    record = run().record
    use = record.resources
    assert use.loop_start < use.loop_end <= use.seconds[-1]
    assert use.loop_end - use.loop_start >= record.measured.loop_seconds
    assert len(use.seconds) > 3
    assert 2**24 < max(use.memory_bytes) <= record.measured.peak_memory_bytes * 1.01
    assert use.device_memory_bytes == ()
    assert max(use.busy_cpus) > 0
    for thread in {*threading.enumerate()} - before:
        if thread.name == "use-sampler":
            thread.join(10)
            assert not thread.is_alive()


def test_more_gpus_than_there_are_is_refused():
    with pytest.raises(FlagError, match=r"--num_gpus=2: TensorFlow sees 0 GPU"):
        run(device="gpu", num_gpus=2)


def test_the_job_of_an_environment_is_found_by_a_program_too(monkeypatch):
    cluster = {"worker": ["localhost:1"], "ps": ["localhost:2"]}
    task = {"type": "ps", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(FlagError, match="ps:0 is a server; start it with cnnbench run"):
        BenchmarkCNN(Params(**TINY, cluster="tf_config"))


class Elsewhere(Model):
    """A model with an operation on a GPU."""

    name, dataset, image_size, batch_size = "elsewhere", "cifar10", 4, 2
    learning_rate = LearningRateSpec(0.01)

    def build(self, net, images):
        def on_gpu(x):
            with tf.device("/GPU:0"):
                return tf.negative(x)

        return net.apply(on_gpu, net.logits(net.flatten(images)), shape=(net.num_classes,))


@pytest.mark.usefixtures("own_registry")
def test_an_operation_without_its_device_is_not_placed_elsewhere():
    register_model("elsewhere", "cifar10", Elsewhere)
    with pytest.raises(BenchmarkError, match=r"explicitly assigned to .*GPU:0 but available"):
        run(model="elsewhere")


@pytest.mark.slow
def test_an_old_line_for_one_dnn_trains_in_nchw():
    flags = {**TINY, "model": "lenet", "data_name": "imagenet"}
    plain = BenchmarkCNN(Params(**flags)).run()
    with pytest.warns(UserWarning, match="oneDNN is built in"):
        old = Params.from_dict({**flags, "mkl": True, "data_format": "NCHW"})
    record = BenchmarkCNN(old).run()
    assert record.config["data_format"] == "NCHW"
    assert record.losses == pytest.approx(plain.losses, rel=1e-4)


def test_a_record_names_the_flags_whose_values_were_computed():
    params = Params.from_dict({**TINY, "batch_size": 0, "global_batch_size": 4})
    record, given = BenchmarkCNN(params).run(), encode(params.as_dict())
    assert record.config["batch_size"] == 4
    computed = {name for name, value in record.config.items() if value != given[name]}
    assert {*record.resolved} == computed
    assert {"batch_size", "global_batch_size", "num_epochs", "num_intra_threads"} <= computed
    assert not {*TINY, "learning_rate_schedule"} - {"batch_size"} & computed


def test_nchw_on_a_cpu_without_such_a_convolution_is_refused():
    """oneDNN has NCHW convolutions of float16 on CPUs with instructions for it only."""
    image, kernel = tf.zeros([1, 3, 8, 8], tf.float16), tf.zeros([3, 3, 3, 4], tf.float16)
    refused = pytest.raises(FlagError, match="Conv2D of float16 supports only NHWC")
    try:
        tf.nn.conv2d(image, kernel, 1, "SAME", "NCHW")
    except tf.errors.OpError:
        pass
    else:
        refused = contextlib.nullcontext()
    with refused:
        run(device="auto", data_format="NCHW", precision="fp16")


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path):
    optimizer = "adam"
    whole = run(num_batches=14, optimizer=optimizer).record
    run(num_batches=4, optimizer=optimizer, train_dir=str(tmp_path))
    assert {p.name for p in tmp_path.glob("*.index")} == {"model.ckpt-6.index"}
    towers = {"num_gpus": 2, "batch_size": 1, "variable_update": "replicated"}
    rest, _, err = run(num_batches=14, optimizer=optimizer, train_dir=str(tmp_path), **towers)
    assert "resuming from" in err
    # 6 steps are done, 2 warm up again, 8 are left of 14: 16 steps, as in one go.
    assert len(rest.losses) == 8
    assert rest.losses == pytest.approx(whole.losses[-8:], rel=1e-3)


@pytest.mark.slow
def test_a_resumed_run_that_skips_records_trains_on_the_others(tmp_path):
    """Each of ten images once an epoch, though every epoch skips two records."""
    noise = tf.random.stateless_uniform([10, 8, 8, 3], (1, 2), maxval=256, dtype=tf.int32)
    images = [tf.io.encode_jpeg(tf.cast(image, tf.uint8)).numpy() for image in noise]
    records = [serialize(image, 8, 8, 1, "", "", "") for image in images]
    with tf.io.TFRecordWriter(str(tmp_path / "train-00000-of-00001")) as writer:
        for record in (b"no", *records[:6], b"no", *records[6:]):
            writer.write(record)
    model = {"model": "rows", "plugin": NETWORKS}
    model |= {"device": "cpu", "num_gpus": 2, "batch_size": 1}
    reading = {"data_name": "imagenet", "data_dir": str(tmp_path), "on_bad_record": "skip"}
    flags = {**model, **reading, "num_warmup_batches": 0, "train_dir": str(tmp_path / "ckpt")}
    whole = BenchmarkCNN(Params(**{**flags, "train_dir": None}, num_batches=20)).run()
    losses = []
    for batches in (8, 20):
        losses += BenchmarkCNN(Params(**flags, num_batches=batches)).run().losses
    assert losses == list(whole.losses)
    assert len(set(losses)) == 20


def test_evaluation_and_inference_and_how_they_leave_a_training_alone(trained):
    def state():
        return {path.name: path.stat().st_mtime_ns for path in Path(trained).iterdir()}

    with FolderLock(Path(trained)):
        before = state()
        evaluated, lines, _ = run(eval=True, train_dir=trained, num_eval_batches=4)
        labels = {"label_smoothing": 0.5, "num_eval_batches": 4}  # which are those of a training
        smoothed = run(eval=True, train_dir=trained, **labels).record
        record = run(forward_only=True, train_dir=trained, num_batches=3, num_gpus=2).record
        assert state() == before
    (one,) = evaluated.evaluations
    assert smoothed.evaluations[0].loss == one.loss
    assert evaluated.summary().total_images_per_sec > 0
    accuracies = f"Accuracy @ 1 = {one.top_1:.4f} Accuracy @ 5 = {one.top_5:.4f}"
    assert f"{accuracies} [{one.examples} examples]" in lines
    assert len(record.step_seconds) == 3
    assert record.losses == (0.0,) * 3
    summary, flops = record.summary(), record.model.forward_flops_per_image
    assert summary.achieved_flops_per_sec == pytest.approx(flops * summary.images_per_sec)


def test_a_second_training_in_the_same_directory_is_refused_and_harms_nothing(
    tmp_path, limits, monkeypatch
):
    """It removed what the first one was saving, even if it was refused for other reasons."""
    limits(preflight, _RESTART_SECONDS=0.0)
    write, refusals = Checkpoints._write_checkpoint, []

    def saving(self, prefix, directory, global_step):
        part = Path(f"{prefix}_temp") / "part-00000-of-00001"
        part.parent.mkdir()
        part.touch()
        for more in ({}, {"num_batches": 1}):
            with pytest.raises(FlagError) as caught:
                run(train_dir=str(tmp_path), **more)
            refusals.append(str(caught.value))
        assert part.exists()
        write(self, prefix, directory, global_step)

    monkeypatch.setattr(Checkpoints, "_write_checkpoint", saving)
    record = run(train_dir=str(tmp_path)).record
    assert record.status == "ok"
    holder = f"another process is writing there: pid {os.getpid()} on {socket.gethostname()} since"
    assert len(refusals) == 2
    assert all(one.startswith(f"--train_dir={tmp_path}: {holder} ") for one in refusals)
    assert not list(tmp_path.glob(".*"))


def test_file_systems_without_locks_and_holders_elsewhere_are_warned_of(tmp_path, monkeypatch):
    said = io.StringIO()
    held = (
        check_flags(Params(train_dir=str(tmp_path))),
        ResultFiles(None, None, RUNS),
        MessageWriter(said),
    )
    about = {"pid": 7, "host": "elsewhere", "since": "2026-01-01 00:00:00 UTC"}
    (tmp_path / locks.FILE).write_text(json.dumps(about))
    with preflight.locked_outputs(*held):
        pass

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with preflight.locked_outputs(*held):
        pass
    start, end = (
        f"cnnbench: warning: --train_dir={tmp_path}:",
        "(--quiet_conditions=lock silences this)",
    )
    assert said.getvalue().splitlines() == [
        f"{start} was not released by pid 7 on elsewhere since 2026-01-01 00:00:00 UTC; if that "
        f"still runs, end one of the two processes {end}",
        f"{start} cannot be locked (No locks available); let no other process write there {end}",
    ]


@pytest.mark.parametrize(
    "isa", slow_if([["avx2", "avx512_fp16"]], [["avx2"], ["avx2", "avx512_fp16"]])
)
def test_fp16_is_warned_about_on_cpus_without_it(isa, monkeypatch):
    facts = {**benchmark_cnn.environment.collect(), "cpu_isa": isa}
    monkeypatch.setattr(benchmark_cnn.environment, "collect", lambda: facts)
    warned = "warning: --precision=fp16 runs on a CPU" in run(num_batches=1, precision="fp16").err
    assert warned == ("avx512_fp16" not in isa)


def test_a_run_killed_after_its_last_step_is_ended(tmp_path):
    """Killed with the checkpoint of two warm-up steps beyond the last one."""
    flags = {"train_dir": str(tmp_path)}
    run(**flags)
    before = {file.name for file in tmp_path.iterdir()}
    at_the_end = {"eval_during_training_every_n_steps": 3, "num_eval_batches": 2}
    export = tmp_path / "export"
    record, lines, _ = run(**flags, **at_the_end, export_dir=str(export))
    assert record.status == "ok"
    assert record.step_seconds == record.warmup_step_seconds == ()
    (evaluation,) = record.evaluations
    assert evaluation.global_step == 6
    assert "Done with training" in lines
    assert (export / "saved_model.pb").is_file()
    assert {file.name for file in tmp_path.iterdir()} - {"export"} == before
    assert RunRecord.from_json(record.to_json()) == record


def test_an_interrupt_comes_after_the_checkpoint(tmp_path, monkeypatch):
    write, numbers = Checkpoints._write_checkpoint, iter(range(9))

    def interrupted(*arguments):
        if next(numbers) == 1:
            signal.raise_signal(signal.SIGINT)
        write(*arguments)

    monkeypatch.setattr(Checkpoints, "_write_checkpoint", interrupted)
    record = tmp_path / "record.json"
    with pytest.raises(KeyboardInterrupt):
        run(train_dir=str(tmp_path), save_model_steps=1, result_json=str(record))
    assert {f"model.ckpt-{step}.index" for step in (1, 2)} <= {
        one.name for one in tmp_path.iterdir()
    }
    document = json.loads(record.read_text())
    assert (document["status"], len(document["step_seconds"])) == ("interrupted", 0)


def test_a_job_that_went_further_is_refused(trained):
    with pytest.raises(FlagError, match=r"num_batches=3: the checkpoint .* is at step 6"):
        run(train_dir=trained, num_batches=3)


def test_the_seed_decides_the_losses():
    first, other = (run(tf_random_seed=seed).record for seed in (1, 99))
    assert first.losses != pytest.approx(other.losses, rel=1e-4)


PS = {"variable_update": "parameter_server", "num_gpus": 3}
HYBRID = {"variable_update": "distributed_all_reduce", "all_reduce_spec": "copy:2048:xring/tree"}


@pytest.mark.parametrize(
    ("flags", "reduced", "copies", "reduces"),
    slow_if(
        lambda case: case[0] not in ({}, {"all_reduce_spec": "collective"}, HYBRID),
        [
            ({}, ("copy",), 2, True),
            ({"all_reduce_spec": "pscpu/xring"}, ("pscpu",), 2, True),
            ({"all_reduce_spec": "pscpu/xring", "all_reduce_group_size": 1}, ("xring",), 2, True),
            ({"all_reduce_spec": "nccl", "forward_only": True}, (), 2, None),
            ({"all_reduce_spec": "collective"}, ("collective",), 2, True),
            ({"variable_update": "independent"}, (), 2, False),
            (PS, (), 1, True),
            (HYBRID, ("copy:2K", "xring"), 2, True),
            ({**HYBRID, "all_reduce_spec": "copy#3", "eval": True}, (), 2, None),
        ],
    ),
)
def test_the_record_has_the_copies_of_variables_and_the_all_reduce_that_runs(
    flags, reduced, copies, reduces, trained
):
    given = {"variable_update": "replicated", "num_gpus": 2, "num_batches": 1, **flags}
    if "eval" in flags:
        given["train_dir"] = trained
    record = run(**given).record
    placement = record.placement
    assert placement.all_reduce == reduced
    assert placement.communication == (("ring",) if "collective" in reduced else None)
    assert ("communication" in json.loads(record.to_json())["placement"]) == (
        "collective" in reduced
    )
    assert record.config["all_reduce_spec"] == flags.get("all_reduce_spec")
    assert placement.variables == 6  # weights and biases of three layers
    assert placement.variable_copies == 6 * copies
    if reduces is None:
        assert placement.reduction_operations is None
    else:
        assert (placement.reduction_operations >= 6) == reduces


def test_a_cpu_without_gradients_of_grouped_convolutions_is_told_where_they_are(monkeypatch):
    text = "Gradients for grouped convolutions are not supported on CPU."

    def fails(step, rate):
        raise tf.errors.InvalidArgumentError(None, None, text)

    monkeypatch.setattr(TrainStep, "__call__", fails)
    with pytest.raises(BenchmarkError, match="oneDNN supports grouped convolutions: set TF"):
        run()
