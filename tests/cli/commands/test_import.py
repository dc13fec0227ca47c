"""`cnnbench import`: logs of other programs become records that history and compare show."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from cnnbench.records.files import check_folder_writable
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.readers import read_results
from cnnbench.records.result_files import load_records

# Standard output of the ancestor itself; see the README there.
GOLDEN = Path(__file__).parents[2] / "golden"
TRAINING = (GOLDEN / "training.txt").read_text()
NOISE = """\
2019-03-01 10:00:00.123456: I tensorflow/core/gpu_device.cc:1115] Created TensorFlow device \
(/job:localhost/replica:0/task:0/device:GPU:0 with 14 MB memory) -> physical GPU (device: 0, \
name: Tesla V100-SXM2-16GB, pci bus id: 0000:00:1e.0, compute capability: 7.0)
WARNING:tensorflow:From /usr/lib/python3/x.py:12: Supervisor is deprecated.
Instructions for updating:
  Please switch to tf.train.MonitoredTrainingSession
I0301 10:00:01.123456 139 tf_logging.py:115] Running local_init_op.
cnnbench: the machine is busy
[worker:0] cnnbench: warning: the machine is busy
"""
EXPORTED = '{"results": [{"command": "sleep", "times": [0.5, 0.6], "exit_codes": [0, 0]}]}'
"""As hyperfine exports it."""
OLD = {  # as before TensorFlow 1.8, with GPUs
    "TensorFlow:  2.21": "TensorFlow:  1.4",
    "imagenet (synthetic)": "ImageNet",
    "8 per device": "8.0 per device",
    "NUMA bind:   False\n": "Layout optimizer: False\n",
    "/cpu:0": "/gpu:0",
    "total_loss": "loss",
}


def into(folder):
    return f"--results={folder}"


def edited(text, edits):
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture
def imported(call, tmp_path):
    """imported(text, code=0): records of one log, and what import said on stderr."""

    def imported(text, *words, code=0):
        (tmp_path / "run.log").write_text(text)
        results = tmp_path / "results"
        err = call("import", tmp_path / "run.log", *words, into(results), code=code).err
        return load_records([results]).records, err

    return imported


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_every_line_of_the_ancestor_is_understood(path):
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


def test_a_record_has_what_the_log_says_and_no_more(imported):
    (record,), err = imported(TRAINING, "--label=commit=abc,host=one")
    notice = "cnnbench: run.log: no time of the run; the time of the file's last change is used\n"
    assert err == f"{notice}cnnbench: 1 record written to {err.split()[-1]}\n"
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
    assert {"machine", "commit", "precision", "step_seconds"} <= {*record.imported.unknown}


def test_older_versions_with_messages_of_tensorflow(imported):
    (record,), _ = imported(NOISE + edited(TRAINING, OLD))
    assert record.environment == {
        "tensorflow_version": "1.4",
        "gpu_names": ["Tesla V100-SXM2-16GB"],
    }
    assert record.placement.device == record.config["device"] == "gpu"
    assert record.config["data_dir"]
    assert record.batch.per_device == 8


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


def interleaved(text, head_once=False, block=1):
    """What two processes print into one terminal, in blocks of lines."""
    lines = text.splitlines(keepends=True)
    head = lines[: lines.index("==========\n")] if head_once else []
    rest = lines[len(head) :]
    blocks = [rest[at : at + block] for at in range(0, len(rest), block)]
    return "".join(head + [line for part in blocks for line in part * 2])


@pytest.mark.parametrize(
    ("text", "of"),
    [
        *[("TRAINING", of) for of in ({}, {"head_once": True}, {"block": 3}, {"block": 15})],
        *[("HOROVOD", of) for of in ({}, {"block": 3})],
    ],
)
def test_output_of_several_processes_without_tags_is_refused(imported, text, of):
    records, err = imported(interleaved(globals()[text], **of), code=3)
    assert records == ()
    assert "lines of several processes are mixed" in err
    assert err.count("line ") == 1


LAUNCHERS = {
    "mpirun --tag-output": "[1,{rank}]<stdout>:",
    "Open MPI 5": "[prterun-host-4711@1,{rank}]<stdout>: ",
    "Open MPI 5 with times": "Thu May  7 10:00:{s:02} 2026 [host:1,{rank}]<stdout>: ",
    "horovodrun": "[{rank}]<stdout>:",
    "horovodrun with times": "Thu May  7 10:00:{s:02} 2026[{rank}]<stdout>:",
    "srun --label": "{rank:>2}: ",
    "torchrun": "[default{rank}]:",
    "kubectl": "2026-05-07T10:00:{s:02}.{s:09}Z ",
    "kubectl, another zone": "2026-05-07T10:00:{s:02}.5+05:30 ",
    "kubectl --prefix": "[pod/job-worker-{rank}/main] ",
    "kubectl --prefix --timestamps": "[pod/job-{rank}/main] 2026-05-07T10:00:{s:02}.5-07:00 ",
    "launcher of an operator": "[pod/job-launcher-x7k/m] 2026-05-07T10:00:01Z [1,{rank}]<stdout>:",
    "docker compose": "train-{rank}  | ",
    "docker compose, colours": "\x1b[36mtrain-{rank}   |\x1b[0m ",
    "ts": "May 07 10:00:{s:02} ",
    "ts %.s": "1778140800.{s:06} ",
    "ts with a date": "[2026-05-07 10:00:{s:02}] ",
}


@pytest.mark.parametrize("text", ["TRAINING", "HOROVOD"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_prefixes_of_launchers(imported, launcher, text):
    prefix = LAUNCHERS[launcher]
    ranks = range(8, 11) if "{rank" in prefix else (0,)
    lines = [
        prefix.format(rank=rank, s=second) + line + "\n"
        for second, line in enumerate((NOISE + globals()[text]).splitlines())
        for rank in ranks
    ]
    records, err = imported("".join(lines))
    assert "left out" not in err
    assert [one.status for one in records] == ["ok"] * len(ranks)
    total, batch = (706.17, 8) if text == "TRAINING" else (882.8, 128)
    assert {throughput(one) for one in records} == {total}
    assert {one.batch.global_ for one in records} == {batch}
    times = {one.started_at for one in records}
    zones = ("Z ", "+05:30 ", "-07:00 ")
    if prefix.endswith(zones):
        assert {time[:16] for time in times} == {"2026-05-07T10:00"}


def test_tagged_output_of_two_processes_and_times_of_a_cluster(imported):
    tagged = "".join(
        f"[1,{rank}]<stdout>:{line}\n" for line in TRAINING.splitlines() for rank in (0, 1)
    )
    assert len(imported(tagged)[0]) == 2
    timed = "".join(f"2020-05-01T10:00:00.5Z {line}\n" for line in TRAINING.splitlines())
    records, _ = imported(timed)
    assert "2020-05-01T10:00:00.500000+00:00" in {one.started_at for one in records}


def test_the_files_of_benchmark_log_dir_are_one_run(call, tmp_path):
    # Written from the logger's source (tensorflow/models, official/utils/logs/logger.py).
    def line(name, value, step):
        time = f"2018-06-01T10:00:{step:02}.5Z"
        of = {"name": name, "value": value, "unit": None, "global_step": step}
        return json.dumps({**of, "timestamp": time, "extras": []}) + "\n"

    parameters = {
        **{"batch_size": {"long_value": 16}, "batch_size_per_device": {"float_value": 8.0}},
        **{"dataset": {"string_value": "imagenet (synthetic)"}, "model": {"string_value": "vgg11"}},
        "devices": {"string_value": "['/gpu:0', '/gpu:1']"},
    }
    machine = {"gpu_info": {"count": 2, "model": "Tesla P100"}, "memory_total": 2**34}
    about = {
        **{"model_name": "vgg11", "machine_config": machine},
        "tensorflow_version": {"version": "1.9.0", "git_hash": "b'v1.9'"},
        "run_parameters": [{"name": name, **one} for name, one in parameters.items()],
    }
    speeds = [("current_examples_per_sec", 90.0, 1), ("current_examples_per_sec", 95.0, 10)]
    # The first run was killed. The file is appended to, the other one is replaced.
    lines = [*speeds, *speeds, ("average_examples_per_sec", 94.5, 10), ("loss", 1.0, 10)]
    (tmp_path / "metric.log").write_text("".join(line(*one) for one in lines))
    (tmp_path / "benchmark_run.log").write_text(json.dumps(about) + "\n")
    for path in (tmp_path, tmp_path / "metric.log", tmp_path / "benchmark_run.log"):
        call("import", path, into(tmp_path / "results"))
    killed, record = load_records([tmp_path / "results"]).records
    assert (killed.status, killed.config["model"], killed.environment) == ("interrupted", None, {})
    assert record.status == "ok"
    assert record.started_at == "2018-06-01T10:00:01.500000+00:00"
    assert (record.config["model"], record.batch.global_, throughput(record)) == ("vgg11", 16, 94.5)
    assert [one.images_per_sec for one in record.imported.printed] == [90.0, 95.0]
    assert record.environment == {
        **{"tensorflow_version": "1.9.0", "gpu_names": ["Tesla P100"] * 2},
        "memory_bytes": 2**34,
    }


def test_the_log_of_an_official_model_is_one_run(call, tmp_path):
    # Its hook logs both speeds at each of its steps, and other values between them.
    lines = [
        {"name": name, "value": value, "unit": None, "global_step": step, "extras": []}
        for step in range(100, 1100, 100)
        for name, value in (
            ("average_examples_per_sec", 90.0 + step / 100),
            ("current_examples_per_sec", 91.0),
            ("train_accuracy", 0.5),
        )
    ]
    (tmp_path / "metric.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    call("import", tmp_path, into(tmp_path / "results"))
    (record,) = load_records([tmp_path / "results"]).records
    assert (record.status, throughput(record), record.config["model"]) == ("ok", 100.0, None)
    assert len(record.imported.printed) == 10


def test_runs_of_unknown_networks_are_not_comparable(call, tmp_path):
    for side, speed in (("base", 100.0), ("new", 50.0)):
        (tmp_path / side).mkdir()
        names = ("current_examples_per_sec", "average_examples_per_sec")
        lines = [{"name": name, "value": speed, "global_step": 9} for name in names]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / side / "metric.log").write_text(text)
        call("import", tmp_path / side, into(tmp_path / f"{side}-records"))
    folders = tmp_path / "base-records", tmp_path / "new-records"
    out = " ".join(call("compare", *folders, code=3).out.split())
    assert "; model is unknown in BASE and in NEW; precision is unknown" in out
    (configuration,) = json.loads(call("compare", *folders, "--format=json", code=3).out)[
        "configurations"
    ]
    blocking = [one["fact"] for one in configuration["differences"] if one["blocks"]]
    assert blocking[:4] == ["batch_size", "model", "precision", "num_workers"]
    allowed = "--allow_different=model,precision,batch_size,num_workers"
    assert "Not comparable" not in call("compare", *folders, allowed, code=3).out
    # Neither are they one series of a history.
    (tmp_path / "both").mkdir()
    for folder in folders:
        folder.rename(tmp_path / "both" / folder.name)
    out = call("history", tmp_path / "both").out
    assert "n=2" not in out
    assert out.count("n=1") in (0, 2)


# Written from the source of Horovod's examples (pytorch_synthetic_benchmark.py).
HOROVOD = """\
Model: resnet50
Batch size: 32
Number of GPUs: 4
Running warmup...
Running benchmark...
Iter #0: 220.1 img/sec per GPU
Iter #1: 221.3 img/sec per GPU
Img/sec per GPU: 220.7 +-1.2
Total img/sec on 4 GPU(s): 882.8 +-4.7
"""


def test_horovod(imported):
    (record,), _ = imported(NOISE + HOROVOD)
    known = {name: value for name, value in record.config.items() if value is not None}
    assert known == {
        **{"model": "resnet50", "batch_size": 32, "num_gpus": 4, "device": "gpu"},
        **{"variable_update": "horovod", "imported_from": "horovod"},
    }
    assert (record.status, record.batch.global_, throughput(record)) == ("ok", 128, 882.8)
    printed = [(one.step, one.images_per_sec) for one in record.imported.printed]
    assert printed == [(0, 220.1), (1, 221.3)]


def test_horovod_by_mpirun_twice_and_killed(imported):
    text = HOROVOD + HOROVOD.partition("Img/sec per")[0] + "ORTE has lost communication\n"
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines())
    records, err = imported(tagged + "[1,3]<stderr>:WARNING: OMP\n", code=3)
    assert [(one.status, throughput(one)) for one in records] == [
        ("ok", 882.8),
        ("interrupted", None),
    ]
    assert "line 17: 'ORTE has lost communication' is not understood; left out" in err


def test_runs_one_after_the_other_and_one_that_was_killed(imported):
    killed = TRAINING.partition("20\timages")[0]
    records, _ = imported(TRAINING + killed + TRAINING.replace("706.17", "707.17"))
    found = sorted((one.imported.part, one.status, throughput(one)) for one in records)
    assert found == [(1, "ok", 706.17), (2, "interrupted", None), (3, "ok", 707.17)]


def test_a_worker_of_a_job_has_the_total_of_the_job(imported):
    text = (GOLDEN / "worker.txt").read_text().replace("8 global", "16 global")
    (record,), _ = imported(text)
    assert record.placement.num_workers == 2
    assert throughput(record) == 148.31


def test_the_workers_of_a_controller_and_passes_are_no_further_workers(imported):
    tasks = [f"'job:worker/replica:0/task{task}/gpu:{card}'" for task in (0, 1) for card in (0, 1)]
    edits = {
        "'/cpu:0'": ", ".join(tasks),
        "8 global": "96 global",
        "8 per device": "8 per device and pass, 3 passes",
    }
    (record,), _ = imported(edited(TRAINING, edits))
    assert (record.placement.num_workers, record.placement.num_towers) == (2, 4)
    assert (record.batch.per_device, record.batch.global_) == (8, 96)
    edits = {"8 global": "32 global", "8 per device": "8 per device and pass, 4 passes"}
    (record,) = (one for one in imported(edited(TRAINING, edits))[0] if one.batch.global_ == 32)
    assert (record.placement.num_workers, record.placement.num_towers) == (1, 1)


def test_lines_that_do_not_fit_are_named_and_refused(imported, call, tmp_path):
    # A fork's own line, and what the ancestor prints of a job that was finished before.
    text = edited(
        TRAINING, {"706.17": "-734214.37", "Done warm up\n": "Done warm up\nGPU at 80 C\n"}
    )
    (record,), err = imported(text, code=3)
    assert "run.log: line 20: 'GPU at 80 C' is not understood; line 26: 'total images/s" in err
    assert record.imported.skipped_lines == (20, 26)
    assert record.status == "interrupted"
    err = call("import", tmp_path / "run.log", "--strict", into(tmp_path / "none"), code=2).err
    assert "run.log: line 20: 'GPU at 80 C' is not understood and 1 more (--strict)" in err
    assert not (tmp_path / "none").exists()


LIBRARIES = """\
2026-11-29 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:182] optimized
To enable the following instructions: AVX2 FMA, rebuild TensorFlow.
WARNING:tensorflow:
The TensorFlow contrib module will not be included in TensorFlow 2.0.
For more information, please see:
"""


def test_lines_of_libraries_are_ignored_if_the_run_is_complete(imported, call, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.log").write_text(LIBRARIES + HOROVOD)
    records, err = imported(LIBRARIES + TRAINING, tmp_path / "more")
    assert [one.imported.skipped_lines for one in records] == [(), ()]
    # One notice for all files.
    assert err.count("To enable") == 1
    assert "6 lines of other programs ignored" in err
    # They may say why a run has no end.
    (tmp_path / "killed.log").write_text(LIBRARIES + TRAINING.partition("20\timages")[0])
    err = call("import", tmp_path / "killed.log", into(tmp_path / "killed"), code=3).err
    assert "killed.log: line 2: 'To enable" in err
    text = edited(TRAINING, {"Done warm up": "GPU at 80 C\nDone warm up"})
    (tmp_path / "run.log").write_text(text)
    err = call("import", tmp_path / "run.log", "--strict", into(tmp_path / "none"), code=2).err
    assert "run.log: line 19: 'GPU at 80 C' is not understood (--strict)" in err


def test_a_report_of_imported_runs_has_only_tables_with_content(imported, call, tmp_path):
    imported(edited(TRAINING, {"trivial": "lenet5"}))
    call("report", tmp_path / "results", f"--output={tmp_path}/r.md", "--format=markdown")
    text = (tmp_path / "r.md").read_text()
    assert "# Speed of lenet\n" in text
    assert "None" not in text
    assert "| lenet, batch 8, 1 cpu, from tf_cnn_benchmarks | unknown | 706.2 | 1 |" in text
    assert "How to reproduce it" not in text
    assert "| configuration |\n" not in text
    assert "| run.log |" in text


def test_importing_twice_changes_nothing(imported, call, tmp_path):
    imported(TRAINING)
    (file,) = (tmp_path / "results").rglob("*.json")
    before = file.read_bytes(), os.stat(file)
    os.utime(tmp_path / "run.log", (1, 1))
    err = call("import", tmp_path / "run.log", into(tmp_path / "results")).err
    assert "0 records written" in err
    assert "1 were there already" in err
    assert (file.read_bytes(), os.stat(file)) == before


def test_copies_are_counted(call, tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.log").write_text(TRAINING)
    err = call("import", tmp_path, into(tmp_path / "r")).err
    assert "cnnbench: 1 record written to " in err
    assert err.endswith("; 2 copies with the same content left out\n")


def test_a_history_over_five_years_of_logs(call, tmp_path, runs):
    begin = datetime(2021, 11, 1, 3, tzinfo=timezone.utc)
    for month in range(60):
        for run in range(2):
            speed = (600 if 20 <= month < 40 else 700) + run + month / 100
            path = tmp_path / "logs" / str(month // 12) / f"{month}-{run}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(TRAINING.replace("706.17", f"{speed:.2f}"))
            time = (begin + timedelta(days=30 * month)).timestamp()
            os.utime(path, (time, time))
    results = tmp_path / "results"
    call("import", tmp_path / "logs", into(results))
    (results / "new.json").write_text(runs(flags={"model": "trivial"}).to_json())
    document = json.loads(call("history", results, "--format=json").out)
    old, new = sorted(document["series"], key=lambda one: -len(one["points"]))
    assert (len(old["points"]), len(new["points"])) == (60, 1)
    out = call("history", results).out
    assert "... 40 earlier points; --last=0 lists all" in out
    days = [f"{begin + timedelta(days=30 * month):%Y-%m-%d}" for month in (19, 20, 40)]
    undone = f"last good {days[0]}, first bad {days[1]}; undone at {days[2]}"
    assert undone in " ".join(out.split())


def test_a_dry_run_lists(call, tmp_path):
    out = call("import", GOLDEN / "training.txt", "--dry_run", into(tmp_path / "none")).out
    assert re.search(r"training.txt +trivial, batch 8, .* +ok +706.2 images/sec", out)
    assert not (tmp_path / "none").exists()


def test_other_files_are_named(call, tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    os.symlink("nowhere", tmp_path / "b.txt")
    err = call("import", tmp_path, into(tmp_path / "results"), code=3).err
    assert "a.txt: no reader knows this kind of file; left out" in err
    assert "b.txt: cannot be read: No such file or directory; left out" in err


def test_benchmarks_are_followed_compared_and_reported(call, tmp_path):
    times = [0.0200, 0.0201, 0.0202, 0.0203, 0.0204]
    for side, factor in (("base", 1), ("new", 2)):
        result = {"command": "prog", "times": [factor * one for one in times]}
        (tmp_path / f"{side}.json").write_text(json.dumps({"results": [result]}, indent=1))
        call("import", tmp_path / f"{side}.json", f"--label=commit={side}", into(tmp_path / side))
    out = call("compare", tmp_path / "base", tmp_path / "new", code=1).out
    assert "NEW: benchmark_seconds 100.0 % longer" in out
    assert "Imported: 10 from hyperfine" in out
    out = call("history", tmp_path / "base", "--metric=benchmark_seconds").out
    assert "prog, from hyperfine on unknown machine" in out
    err = call("history", tmp_path / "base", code=2).err
    assert "--metric=benchmark_seconds follows the benchmarks of other programs" in err
    call("report", tmp_path / "base", "--format=markdown", f"--output={tmp_path}/r.md")
    text = (tmp_path / "r.md").read_text()
    assert "# Speed of prog\n" in text
    assert "| prog, from hyperfine | 0.02020 s | 0.02000 s | 0.02040 s | 5 |" in text


@pytest.fixture
def sides(call, tmp_path):
    """Folders of imported records: 5 runs each, those of b slower."""
    for side, total in (("a", 700), ("b", 600)):
        (tmp_path / side).mkdir()
        for number in range(5):
            text = TRAINING.replace("706.17", f"{total + number}.17")
            (tmp_path / side / f"{number}.log").write_text(text)
        call("import", tmp_path / side, f"--label=commit={side}", into(tmp_path / "r" / side))
    return tmp_path / "r" / "a", tmp_path / "r" / "b"


def test_imported_records_are_compared_with_what_cannot_be_judged(sides, call, runs, tmp_path):
    out = " ".join(call("compare", *sides, code=3).out.split())
    assert "Not comparable: precision is unknown in BASE and in NEW" in out
    out = " ".join(call("compare", *sides, "--allow_different=precision", code=1).out.split())
    assert "NEW is 14.2 % slower" in out
    assert "Imported: 10 from tf_cnn_benchmarks. Each has one value and no step times" in out
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "0.json").write_text(runs(flags={"model": "trivial"}).to_json())
    out = call("compare", sides[0], tmp_path / "own", code=3).out
    assert "Not comparable: imported_from is tf_cnn_benchmarks in BASE and none in NEW" in out
    assert "num_warmup_batches" not in out


def test_a_history_and_a_report_show_imported_and_new_records(sides, call, runs):
    folder = sides[0].parent
    (folder / "0.json").write_text(runs(flags={"model": "trivial"}).to_json())
    out = call("history", folder).out
    assert "trivial, batch 8, 1 cpu, from tf_cnn_benchmarks on unknown machine" in out
    assert "Imported: 10 from tf_cnn_benchmarks" in out
    assert re.search(r"  a +702.2 +700.2 to 704.2 +n=5", out)
    call("report", folder, f"--output={folder}/r.md")
    text = (folder / "r.md").read_text()
    assert "Imported: 10 from tf_cnn_benchmarks" in text
    assert "from tf_cnn_benchmarks" in text


BROKEN = {
    "nested.json": ('{"results": ' + "[" * 100_000 + "}", "not JSON: nested too deeply"),
    "cut.json": ('{"results": [', "cut off after 13 characters"),
    "twice.json": (EXPORTED.replace('"command"', '"command": 1, "command"', 1), "duplicate key"),
    "digits.json": (EXPORTED.replace("0.5", "1" + 400 * "0"), "'sleep' has no value: inf"),
    "large.json": (EXPORTED.replace("0.5", "1e308"), "'sleep' has no value: 1e+308"),
    "batch.txt": (TRAINING.replace("8 per device", f"{'9' * 25} per device"), "makes no valid"),
    "steps.log": (
        '{"name": "current_examples_per_sec", "value": 5.0, "global_step": true}\n',
        "is not understood",
    ),
    "date.log": (
        '{"name": "current_examples_per_sec", "value": 5.0, "global_step": 1, '
        '"timestamp": "yesterday"}\n',
        "'yesterday' is not a time, and is ignored",
    ),
}


def test_no_file_of_a_folder_ends_the_import_of_the_others(call, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, (text, _) in BROKEN.items():
        (folder / name).write_text(text)
    (folder / "sound.txt").write_text(TRAINING)
    done = call("import", folder, into(tmp_path / "results"), code=3)
    for name, (_, reason) in BROKEN.items():
        (line,) = (line for line in done.err.splitlines() if f"/{name}: " in line)
        assert reason in line
    found = load_records([tmp_path / "results"])
    assert not found.skipped
    assert {record.imported.file for record in found.records} >= {"sound.txt", "date.log"}


def test_folders_that_are_not_read_are_named(call, tmp_path, monkeypatch):
    folder, shut = tmp_path / "logs", tmp_path / "logs" / "shut"
    shut.mkdir(parents=True)
    (folder / "sound.txt").write_text(TRAINING)
    (folder / "link").symlink_to(tmp_path)
    scan = os.scandir

    def scandir(path):
        if os.fspath(path) == str(shut):
            raise PermissionError(13, "Permission denied", str(shut))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    err = call("import", folder, into(tmp_path / "results"), code=3).err
    assert f"{shut}: cannot be read: Permission denied; left out" in err
    assert f"{folder}/link: is a link to a folder; name the folder to import its files" in err
    assert "1 record written" in err
    err = call("import", folder, into(tmp_path / "none"), "--strict", code=2).err
    assert f"{folder}/link: is a link to a folder" in err
    assert "and 1 more (--strict)" in err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (shutil.rmtree, "No such file or directory"),
        (lambda folder: os.rename(folder, f"{folder}-2"), "No such file or directory"),
        (lambda folder: (shutil.rmtree(folder), folder.touch()), "Not a directory"),
    ],
)
def test_a_folder_that_vanishes_is_one_line(call, tmp_path, monkeypatch, change, reason):
    results = tmp_path / "results"
    command = importlib.import_module("cnnbench.cli.commands.import")

    def check_and_change(flag, path):
        check_folder_writable(flag, path)
        change(results)

    monkeypatch.setattr(command, "check_folder_writable", check_and_change)
    err = call("import", GOLDEN / "training.txt", into(results), code=4).err
    *_, line = err.splitlines()
    words = f"--results={results}: cannot be written: {reason}; 0 of 1 record written"
    assert line == f"cnnbench: error: {words}"


@pytest.mark.parametrize("run_id", ["../../outside", "a\0b", "x" * 300])
def test_a_run_id_of_a_file_is_no_path(call, tmp_path, run_id):
    header = "run_id,started_at,status,model,throughput,flags"
    row = f"{run_id},2024-01-01T00:00:00+00:00,ok,lenet,100.0,{{}}"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "runs.csv").write_text(f"{header}\n{row}\n")
    call("import", tmp_path / "logs", into(tmp_path / "results"))
    (file,) = tmp_path.rglob("*.json")
    assert file.is_relative_to(tmp_path / "results")
    (record,) = load_records([file]).records
    assert record.run_id == run_id
