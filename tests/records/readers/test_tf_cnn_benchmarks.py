"""Standard output of tf_cnn_benchmarks, of all its versions, and of its forks."""

from __future__ import annotations

import json
import re

import pytest
from imports import GOLDEN, TRAINING, edited, read

from cnnbench.records.metrics.figures import throughput
from cnnbench.records.readers import read_results


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_every_line_is_understood(path):
    (record,), skipped = read_results(str(path))
    assert not skipped
    text = path.read_text()
    total = re.search(r"total images/sec: (.*)", text)
    if total:
        assert throughput(record) == record.summary().total_images_per_sec == float(total[1])
        assert record.status == "ok"
    rows = re.findall(r"^(\d+)\timages/sec: (\S+) \+/- (\S+) \(jitter = (\S+)\)\t(\S+)", text, re.M)
    assert [
        (one.step, one.images_per_sec, one.uncertainty, one.jitter, one.loss)
        for one in record.imported.printed
    ] == [(int(step), *map(float, values)) for step, *values in rows]
    devices = json.loads(re.search("Devices: +(.*)", text)[1].replace("'", '"'))
    assert record.placement.devices == tuple(devices)
    assert record.batch.per_device == record.config["batch_size"] == 8
    assert record.batch.global_ == 8 * len(devices)


def test_a_record_has_what_the_log_says_and_no_more(tmp_path):
    (record,), reasons = read(tmp_path, TRAINING, labels="commit=abc,host=one")
    assert reasons == []
    assert record.config == {
        **{"model": "trivial", "data_name": "imagenet", "batch_size": 8, "num_gpus": 1},
        **{"device": "cpu", "num_batches": 20, "variable_update": "parameter_server"},
        **{"optimizer": "sgd", "data_format": "NHWC", "eval": False, "forward_only": False},
        **{"cross_replica_sync": True, "precision": None, "imported_from": "tf_cnn_benchmarks"},
        "result_label": "commit=abc,host=one",
    }
    assert record.environment == {"tensorflow_version": "2.21"}
    assert record.subject.revision == "abc"
    assert record.step_seconds == ()
    summary = {name: value for name, value in record.summary().items() if value is not None}
    assert summary == {
        **{"images_per_sec": 781.5, "images_per_sec_uncertainty": 10.0},
        **{"images_per_sec_jitter": 53.0, "total_images_per_sec": 706.17},
    }
    assert record.imported.values["final_loss"] == 13.321
    unknown = {"commit", "step_seconds", "memory", "startup", "precision", "machine", "started_at"}
    assert {*record.imported.unknown} == unknown


def test_an_older_version_on_a_gpu(tmp_path):
    messages = """\
2019-03-01 10:00:00.123456: I tensorflow/core/gpu_device.cc:1115] Created TensorFlow device \
(/job:localhost/replica:0/task:0/device:GPU:0 with 14 MB memory) -> physical GPU (device: 0, \
name: Tesla V100-SXM2-16GB, pci bus id: 0000:00:1e.0, compute capability: 7.0)
"""
    edits = {  # as before TensorFlow 1.8
        "TensorFlow:  2.21": "TensorFlow:  1.4",
        "imagenet (synthetic)": "ImageNet",
        "8 per device": "8.0 per device",
        "NUMA bind:   False\n": "Layout optimizer: False\n",
        "/cpu:0": "/gpu:0",
        "total_loss": "loss",
    }
    (record,), _ = read(tmp_path, messages + edited(TRAINING, edits))
    assert record.environment == {
        "tensorflow_version": "1.4",
        "gpu_names": ["Tesla V100-SXM2-16GB"],
    }
    assert record.placement.device == record.config["device"] == "gpu"
    assert record.config["data_dir"]
    assert record.batch.per_device == 8
    assert "machine" not in record.imported.unknown


TABLES = {"total_loss": "loss"}
HEADS = {"TensorFlow:  2.21\n": "", "Dataset:     imagenet (synthetic)\n": ""}
LATER = {"SingleSess:  False\n": "", "Num batches: 20\nNum epochs:  0.00\n": ""}
LATER |= {"NUMA bind:   False\n": "", "Generating training model\nInitializing graph\n": ""}
FIRST = {**TABLES, **HEADS, **LATER, "8 per device": "8.0 per device"}
JOB = "'/job:worker/task:0/gpu:0', '/job:worker/task:0/gpu:1'"

# Golden log, changes, and what the record then has: by version of the ancestor, as the sources in
# its history print it, or by fork.
VERSIONS = {
    "first version, May 2017": (
        "training",
        {**FIRST, "parameter_server": "replicated\nUse NCCL:    True"},
        {"variable_update": "replicated", "precision": None, "tensorflow_version": None},
    ),
    "MKL version, August 2017": (
        "training",
        {**FIRST, "Data format: NHWC": "Data format: NHWC\nData type:   float16"},
        {"precision": "fp16", "data_name": None},
    ),
    "evaluation, August 2017": (
        "evaluation",
        {"Accuracy @ 1": "Precision @ 1", "Accuracy @ 5": "recall @ 5"},
        {"top_1": 0.0063, "top_5": 0.0562, "throughput": 1386.82},
    ),
    "TensorFlow 1.5, two GPUs": (
        "training",
        {
            **{"2.21": "1.5", "8 global": "64 global", "8 per device": "32.0 per device"},
            **{"'/cpu:0'": "'/gpu:0', '/gpu:1'", "NUMA bind:   False": "Layout optimizer: False"},
            **{"parameter_server": "replicated\nAllReduce:   nccl\nStaged vars: True"},
        },
        {"global_": 64, "num_gpus": 2, "all_reduce_spec": "nccl", "staged_vars": True},
    ),
    "TensorFlow 1.8, a graph and a trace are written": (
        "training",
        {
            "NUMA bind:   False": "RewriterConfig: disable_model_pruning: true",
            "Running warm up\n": "Writing GraphDef as text to /tmp/g\nRunning warm up\n",
            "Done warm up": "Dumping trace to /tmp/t\nDumping ProfileProto to /tmp/p\nDone warm up",
        },
        {"throughput": 706.17, "num_batches": 20},
    ),
    "asynchronous workers": (
        "training",
        {
            **{"8 global": "32 global", "'/cpu:0'": JOB},
            **{"parameter_server": "parameter_server\nSync:        False"},
            "Done warm up": "Done warm up\nWaiting for other replicas to finish warm up\n"
            "INFO:tensorflow:Starting real work at step 41 at time Thu Jun  7 10:00:00 2018",
        },
        {"cross_replica_sync": False, "num_workers": 2, "throughput": 706.17},
    ),
    "Horovod, and another image format": (
        "training",
        {
            **{"8 global": "16 global", "'/cpu:0'": "'horovod/gpu:0', 'horovod/gpu:1'"},
            "Data format: NHWC": "Data format: NCHW\nInput image: NCHW",
            "parameter_server": "horovod\nHorovod on:  gpu",
        },
        {"variable_update": "horovod", "horovod_device": "gpu", "device": "gpu", "global_": 16},
    ),
    "another target, and other metrics of an evaluation": (
        "evaluation",
        {
            "Accuracy @ 1 = ": "map = 0.2500 map_50 = ",
            " Accuracy @ 5": " map_75",
            "Generating": "Stopping, as eval loss at most 2.0 was reached\nGenerating",
        },
        {"top_1": None, "throughput": 1386.82},
    ),
    "copied from a terminal, on Windows": (
        "training",
        {"\t": "      ", "\n": "\r\n"},
        {"throughput": 706.17, "images_per_sec_jitter": 53.0},
    ),
    "with accuracies of training": (
        "replicated_accuracy",
        {"TensorFlow:  2.21": "TensorFlow:  1.13"},
        {"tensorflow_version": "1.13", "num_gpus": 2},
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_logs_of_other_versions(version, tmp_path):
    golden, edits, expected = VERSIONS[version]
    text = edited((GOLDEN / f"{golden}.txt").read_text(), edits)
    (tmp_path / "run.log").write_bytes(text.encode())
    (record,), skipped = read_results(str(tmp_path / "run.log"))
    assert not skipped
    assert record.status == "ok"
    has = {**record.config, **record.imported.values, **record.environment}
    has |= {"global_": record.batch.global_, "num_workers": record.placement.num_workers}
    assert {name: has.get(name) for name in expected} == expected
    assert ("precision" in record.imported.unknown) == (record.config["precision"] is None)
    assert [one.step for one in record.imported.printed][:2] in ([1, 10], [])


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("lenet5", "lenet"),
        ("official_ncf", "ncf"),
        ("official_resnet_50_v1", "official_resnet50"),
        ("official_resnet_50_v2", "official_resnet50_v2"),
        ("vgg11", "vgg11"),
    ],
)
def test_a_network_has_the_name_of_its_flag(tmp_path, name, flag):
    (record,), _ = read(tmp_path, TRAINING.replace("trivial", name))
    assert record.config["model"] == flag


def interleaved(text, head_once=False, block=1):
    """What two processes print into one terminal, in blocks of lines."""
    lines = text.splitlines(keepends=True)
    head = lines[: lines.index("==========\n")] if head_once else []
    rest = lines[len(head) :]
    blocks = [rest[at : at + block] for at in range(0, len(rest), block)]
    return "".join(head + [line for part in blocks for line in part * 2])


@pytest.mark.parametrize("of", [{}, {"head_once": True}, {"block": 3}, {"block": 15}])
def test_output_of_several_processes_without_tags_is_refused(tmp_path, of):
    records, (reason,) = read(tmp_path, interleaved(TRAINING, **of))
    assert records == ()
    assert "mpirun --tag-output" in reason


def test_runs_one_after_the_other_and_one_that_was_killed(tmp_path):
    killed = TRAINING.partition("20\timages")[0]
    records, _ = read(tmp_path, TRAINING + killed + TRAINING.replace("706.17", "707.17"))
    found = [(one.imported.part, one.status, throughput(one)) for one in records]
    assert found == [(1, "ok", 706.17), (2, "interrupted", None), (3, "ok", 707.17)]


@pytest.mark.parametrize(
    ("lines", "speed"),
    [
        ("20\timages/sec: 781.5 +/- 10.0 (jitter = 53.0)\t13.321\n", 781.5),
        ("19\timages/sec: 781.5 +/- 10.0 (jitter = 53.0)\t13.321\n", None),  # not the last step
    ],
)
def test_the_last_row_is_the_speed_of_a_single_worker_without_a_total(tmp_path, lines, speed):
    text = TRAINING.partition("20\timages")[0] + lines
    (record,), _ = read(tmp_path, text)
    assert throughput(record) == speed
    (record,), _ = read(tmp_path, edited(text, {"8 global": "16 global"}))
    assert throughput(record) is None  # it is the speed of one of two workers


def test_a_worker_of_a_job_has_the_total_of_the_job(tmp_path):
    text = edited((GOLDEN / "worker.txt").read_text(), {"8 global": "16 global"})
    (record,), _ = read(tmp_path, text)
    assert record.placement.num_workers == 2
    assert throughput(record) == 148.31


def test_the_workers_of_a_controller_and_passes_are_no_further_workers(tmp_path):
    tasks = [f"'job:worker/replica:0/task{task}/gpu:{card}'" for task in (0, 1) for card in (0, 1)]
    edits = {
        "'/cpu:0'": ", ".join(tasks),
        "8 global": "96 global",
        "8 per device": "8 per device and pass, 3 passes",
    }
    (record,), _ = read(tmp_path, edited(TRAINING, edits))
    assert (record.placement.num_workers, record.placement.num_towers) == (2, 4)
    assert (record.batch.per_device, record.batch.global_) == (8, 96)
    edits = {"8 global": "32 global", "8 per device": "8 per device and pass, 4 passes"}
    (record,), _ = read(tmp_path, edited(TRAINING, edits))
    assert (record.placement.num_workers, record.placement.num_towers) == (1, 1)


def test_lines_that_do_not_fit_are_named(tmp_path):
    # A fork's own line, and what the ancestor prints of a job that was finished before.
    text = edited(
        TRAINING, {"706.17": "-734214.37", "Done warm up\n": "Done warm up\nGPU at 80 C\n"}
    )
    (record,), reasons = read(tmp_path, text)
    assert [reason[:14] for reason in reasons] == ["'GPU at 80 C' ", "'total images/"]
    assert record.imported.skipped_lines == (20, 26)
    assert record.status == "interrupted"


@pytest.mark.parametrize(
    "line",
    [
        "20\timages/sec: inf +/- 10.0 (jitter = 53.0)\t13.321",
        "total images/sec: inf",
        "20 images/sec of another form",
        "Accuracy @ 1 = none",
    ],
)
def test_a_line_of_results_that_has_no_value_is_never_foreign(tmp_path, line):
    (tmp_path / "run.log").write_text(TRAINING + line + "\n")
    _, (skipped,) = read_results(str(tmp_path / "run.log"))
    assert (skipped.line, skipped.is_foreign) == (len(TRAINING.splitlines()) + 1, False)


def test_lines_of_libraries_are_foreign_only_if_the_run_is_complete(tmp_path):
    libraries = """\
2026-11-29 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:182] optimized
To enable the following instructions: AVX2 FMA, rebuild TensorFlow.
WARNING:tensorflow:
The TensorFlow contrib module will not be included in TensorFlow 2.0.
"""
    for text, is_complete in ((TRAINING, True), (TRAINING.partition("20\timages")[0], False)):
        (tmp_path / "run.log").write_text(libraries + text)
        (record,), skipped = read_results(str(tmp_path / "run.log"))
        assert [(one.line, one.is_foreign) for one in skipped] == [
            (2, is_complete),
            (4, is_complete),
        ]
        assert record.imported.skipped_lines == (() if is_complete else (2, 4))


OWN_FLAGS = '{"model": "trivial", "batch_size": 8, "device": "cpu", "num_batches": 20%s}'


def own(more="", edits=None):
    """The output of cnnbench, whose header has the flags that differ from their defaults."""
    flags = f"Flags:       {OWN_FLAGS % more}\n=========="
    return edited(TRAINING, {"==========": flags, **(edits or {})})


def test_a_run_of_cnnbench_has_its_own_flags(tmp_path):
    (record,), reasons = read(tmp_path, own(', "weight_decay": 0.5'))
    assert reasons == []
    assert record.config == json.loads(OWN_FLAGS % ', "weight_decay": 0.5')
    assert record.imported.program == "cnnbench"
    # The speed at the mean step, and not the total, is what cnnbench compares.
    assert throughput(record) == 781.5
    assert record.imported.values["total_images_per_sec"] == 706.17
    assert record.imported.unknown == ("step_seconds", "memory", "startup", "started_at")


def test_a_batch_has_its_size_on_a_device_and_of_all(tmp_path):
    text, count = re.subn(r"\n +8 per device", "", TRAINING)
    (record,), _ = read(tmp_path, text)
    assert (count, record.batch, record.placement) == (1, None, None)


def test_labels_of_the_user_are_added_to_a_run_of_cnnbench(tmp_path):
    plain, _ = read(tmp_path, own())
    (record,), _ = read(tmp_path, own(), labels="commit=abc")
    assert record.config == {**plain[0].config, "result_label": "commit=abc"}
    assert record.subject.revision == "abc"
    assert plain[0].subject is None


def test_a_run_of_cnnbench_without_its_last_row_has_no_throughput(tmp_path):
    (record,), _ = read(tmp_path, own(edits={"20\timages": "19\timages"}))
    assert throughput(record) is None
    assert "throughput" in record.imported.unknown
    assert record.imported.values["total_images_per_sec"] == 706.17


def test_the_total_of_an_evaluation_of_cnnbench_is_not_that_of_its_loop(tmp_path):
    (record,), _ = read(tmp_path, own(', "eval": true'))
    assert "total_images_per_sec" not in record.imported.values
