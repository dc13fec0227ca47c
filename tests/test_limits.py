"""Limits of memory and file size: one line and the exit code of a failure, never a traceback.

Tests cnnbench/run/driver/benchmark_cnn.py, cnnbench/cli/running.py and cnnbench/__main__.py.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import data_sets
import pytest
from covering import slow_if
from forked import Forked, finished

from cnnbench import cli
from cnnbench.errors import exhausted
from cnnbench.flags.identity import identity_flags
from cnnbench.records.load import record_from_json
from cnnbench.records.run import Batch

RECORDS = Path(__file__).parent / "frozen" / "runs"

pytestmark = pytest.mark.timeout(120)
linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


def limited(limit, *words, folder):
    """Exit code and standard error of cnnbench under a limit of the shell's ``ulimit``."""
    command = f'ulimit {limit} && exec "$@"'
    shell = ("sh", "-c", command, "sh", sys.executable, "-m", "cnnbench", *words)
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    done = finished(shell, None, cwd=folder, environment=environment)
    return done.returncode, done.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be cut off
    shutil.copy(RECORDS / "lenet-1.json", tmp_path)
    return tmp_path


def error_of(stderr):
    assert "Traceback" not in stderr
    (line,) = (x for x in stderr.splitlines() if x.startswith("cnnbench: error: "))
    return line


@linux
@pytest.mark.parametrize(
    ("kibibytes", "words"),
    slow_if(
        lambda case: case[0] > 32_000,
        [
            (30_000, ("compare", ".", ".")),
            (32_000, ("compare", ".", ".")),
            (100_000, ("compare", ".", ".")),
            (60_000, ("report", ".", "--output=r.html")),
            (60_000, ("sweep", "smoke")),
        ],
    ),
)
def test_little_memory_is_no_verdict(words, kibibytes, folder):
    """NumPy cannot be loaded; its OpenBLAS ends the process with 1, the code of a regression."""
    record = json.loads((folder / "lenet-1.json").read_text())
    for number in range(2, 7):  # With fewer records, there is no test, and NumPy is not used.
        text = json.dumps({**record, "run_id": f"run{number}"})
        (folder / f"lenet-{number}.json").write_text(text)
    status, stderr = limited(f"-v {kibibytes}", *words, folder=folder)
    assert (status, error_of(stderr) != "") == (4, True), stderr
    assert len(list(folder.iterdir())) == 6


@linux
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--model=trivial", "--result_json=r.json"), "--result_json=r.json: cannot be written"),
        (("report", ".", "--output=r.html"), "--output=r.html: cannot be written"),
        (("--model=trivial", "--train_dir=."), "--train_dir=.: must be a directory to write to"),
    ],
)
def test_files_that_can_be_made_and_not_be_written_are_refused(
    words, line, folder, capsys, little_disk
):
    with little_disk(0):
        assert cli.main(words) == 2
    assert error_of(capsys.readouterr().err) == f"cnnbench: error: {line}: File too large"
    assert [path.name for path in folder.iterdir()] == ["lenet-1.json"]


@linux
@pytest.mark.parametrize("words", [("--help",), ("compare", ".", ".")])
def test_output_into_a_file_that_cannot_be_written(words, folder, capsys, little_disk):
    with little_disk(0), open(folder / "out", "w") as out, contextlib.redirect_stdout(out):
        status = cli.main(words)
    assert status == (3 if "compare" in words else 4)  # a verdict stays
    message = "cnnbench: error: cannot write to standard output: File too large"
    assert error_of(capsys.readouterr().err) == message


@linux
def test_a_run_without_memory_leaves_its_record_as_soon_as_it_is_planned(tmp_path):
    """How much memory suffices for the plan, a thread and TensorFlow depends on the versions."""
    flags = ("--model=trivial", "--device=cpu", "--result_json=r.json")
    path, with_record, lines = tmp_path / "r.json", [], []
    for kibibytes in (90_000, 75_000, 60_000, 50_000, 45_000, 40_000, 32_000):
        path.unlink(missing_ok=True)
        status, stderr = limited(f"-v {kibibytes}", *flags, folder=tmp_path)
        lines.append(error_of(stderr))
        assert (status, "out of memory" in lines[-1]) == (4, True), (kibibytes, stderr)
        with_record.append(path.exists())
        if path.exists():
            record = json.loads(path.read_text())
            assert record["status"] == "failed"
            assert lines[-1] == f"cnnbench: error: {record['error']['message']}"
        else:
            assert "a thread" not in lines[-1]  # The run is planned before it needs one.
    assert with_record[0]
    assert with_record == sorted(with_record, reverse=True)
    assert any("TensorFlow cannot be imported" in line for line in lines)


LIMITED = """
import resource
import tensorflow as tf
from forked import cnnbench
from cnnbench.run.driver import scenarios

GIB = 2**30
ran = scenarios.train

def train(run, built):
    tf.raw_ops.Empty(shape=[run.plan.length.batch_per_device, GIB // 2], dtype=tf.float32)
    return ran(run, built)

scenarios.train = train
pages = int(open("/proc/self/statm").read().split()[0])
size = pages * resource.getpagesize() + 3 * GIB
resource.setrlimit(resource.RLIMIT_AS, (size, size))
cnnbench()
"""
"""Each image of the batch needs 2 GiB of address space, and there are 3; none is touched."""

FULL = """
from forked import cnnbench
from cnnbench.run.driver import scenarios

def train(run, built):
    raise MemoryError

scenarios.train = train
cnnbench()
"""


@linux
@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_halved_until_it_fits(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    flags = ("--model=trivial", "--data_name=cifar10", "--device=cpu", "--num_batches=2")
    flags += ("--num_warmup_batches=1", "--quiet_conditions=all", "--batch_size=3")
    flags += ("--find_batch_size", "--result_json=r.json", "--result_csv=r.csv", "--sync_on_finish")
    code, told = Forked(LIMITED, flags, out, err, tmp_path).wait(100), err.read_text()
    assert code == 0, told
    assert "Traceback" not in told
    assert told.count("--sync_on_finish=true has no") == 1
    lines = [line for line in told.splitlines() if "memory" in line and "peak" not in line]
    assert [line.partition(";")[0] for line in lines] == [
        "cnnbench: out of memory: lower --batch_size (counted per device)",
        "cnnbench: --batch_size=3 does not fit into memory: trying 1",
        "cnnbench: --find_batch_size: 1 image per device fits into memory, 3 were requested",
    ]
    record = record_from_json(json.loads((tmp_path / "r.json").read_text()))
    assert record.batch == Batch(per_device=1, global_=1, requested_per_device=3)
    assert len(record.step_seconds) == 2
    # Only the last attempt leaves a row.
    (row,) = csv.DictReader((tmp_path / "r.csv").open())
    assert (row["batch_per_device"], row["batch_requested_per_device"]) == ("1", "3")
    # Equal to a run of the used size, different from one of the requested size.
    assert identity_flags({**record.config, "find_batch_size": True}) == identity_flags(
        record.config
    )
    assert identity_flags({**record.config, "batch_size": 3}) != identity_flags(record.config)
    assert cli.main(["report", str(tmp_path / "r.json"), f"--output={tmp_path / 'r.md'}"]) == 0
    assert "images per step asked for" in (tmp_path / "r.md").read_text()


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "batches"),
    [
        (("--global_batch_size=5",), [5, 2, 1]),
        (("--batch_size=6", "--data_dir=images", "--cutmix_alpha=1"), [6, 2]),  # pairs of images
    ],
)
def test_a_smallest_batch_that_does_not_fit_is_an_error(tmp_path, flags, batches):
    data_sets.write_random_cifar10(tmp_path / "images", train=12)
    out, err = tmp_path / "out", tmp_path / "err"
    flags += ("--model=trivial", "--data_name=cifar10", "--device=cpu", "--num_warmup_batches=1")
    flags += ("--find_batch_size", "--result_json=r.json")
    assert Forked(FULL, flags, out, err, tmp_path).wait(100) == 4
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["status"], record["error"]["type"]) == ("failed", "OutOfMemoryError")
    first, *smaller = batches
    used = {"per_device": smaller[-1], "global": smaller[-1], "requested_per_device": first}
    assert record["batch"] == used
    told = err.read_text()
    tried = [int(line.split()[-1]) for line in told.splitlines() if "trying" in line]
    assert tried == smaller
    assert error_of(told) == "cnnbench: error: out of memory"


PLUGIN = """
import tensorflow
from cnnbench.models import LearningRateSpec, Model, register_model
from cnnbench.run.driver import scenarios


class Tiny(Model):
    name, dataset, image_size, batch_size = "tiny", "imagenet", 8, 8
    learning_rate = LearningRateSpec(0.01)

    def build(self, net, images):
        return net.logits(net.global_avg_pool(images))


register_model("tiny", "imagenet", Tiny)
ran = scenarios.train


def train(run, built):
    if run.plan.length.batch_per_device > 2:
        raise MemoryError
    return ran(run, built)


scenarios.train = train
"""


@linux
@pytest.mark.slow
def test_a_batch_of_a_plugin_is_halved_and_each_notice_is_printed_once(tmp_path):
    (tmp_path / "tiny.py").write_text(PLUGIN)
    flags = ("--plugin=tiny.py", "--model=tiny", "--device=cpu", "--num_batches=2")
    flags += ("--batch_size=4", "--find_batch_size", "--sync_on_finish")
    flags += ("--result_json=r.json", "--peak_flops=1e12")
    command = (sys.executable, "-m", "cnnbench", *flags)
    done = finished(command, None, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = record_from_json(json.loads((tmp_path / "r.json").read_text()))
    assert record.batch == Batch(per_device=2, global_=2, requested_per_device=4)
    assert "cuInit" not in done.stderr
    for words in ("--sync_on_finish=true has no", "out of memory", "trying 2"):
        assert done.stderr.count(words) == 1, done.stderr


def _unmapped():
    error = ImportError("IMPORTANT: PLEASE READ THIS\nfor advice")
    error.__cause__ = ImportError("libblas.so: failed to map segment from shared object")
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (OSError(errno.EFBIG, "File too large", "f"), "File too large: f"),
        (RuntimeError("can't start new thread"), "out of memory or processes: a thread cannot"),
        (_unmapped(), "out of memory: libblas.so: failed to map segment"),
    ],
)
def test_what_the_system_has_no_more_of(error, words, monkeypatch, capsys):
    def fail(*_):
        raise error

    stand_in = SimpleNamespace(main=fail)
    monkeypatch.setitem(sys.modules, "cnnbench.cli.commands.models", stand_in)
    assert cli.main(["models"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cnnbench: error: {words}")


def test_defects_are_none_of_that():
    for error in (ImportError("no name x"), OSError(errno.ENOENT, "none", "f"), ValueError("x")):
        assert exhausted(error) == ""


@pytest.mark.usefixtures("quick_start")
def test_a_run_out_of_memory_keeps_what_it_measured(capsys, tmp_path):
    class Out(io.StringIO):
        def write(self, text):
            if text.startswith("3\t"):
                raise MemoryError
            return super().write(text)

    path = tmp_path / "r.json"
    flags = ("--model=trivial", "--data_name=cifar10", "--device=cpu", "--num_warmup_batches=1")
    flags += ("--display_every=1", f"--result_json={path}", "--quiet_conditions=all")
    with contextlib.redirect_stdout(Out()):
        assert cli.main([*flags]) == 4
    assert error_of(capsys.readouterr().err) == "cnnbench: error: out of memory"
    record = json.loads(path.read_text())
    assert (record["status"], record["error"]["type"]) == ("failed", "OutOfMemoryError")
    assert record["step_seconds"]
