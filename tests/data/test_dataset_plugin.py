"""Data sets of a plug-in file: trained on, evaluated, checked, and refused in one line.

Tests cnnbench/data/pipeline.py and cnnbench/data/dataset.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from cnnbench.data import dataset_names, load_plugin
from cnnbench.errors import UsageError
from cnnbench.flags import Params
from cnnbench.models import model_names
from cnnbench.plan import make_plan

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "npz_dataset_plugin.py"

HEAD = """
from cnnbench.data import Dataset, register_dataset
from cnnbench.data.folder import Findings

def make(**parts):
    values = dict(
        name="own", num_classes=3, examples={"train": 4, "validation": 4}, files="*.own",
        find=lambda folder, subset: [folder], count=lambda files, subset: 4,
        open=lambda spec: None, check=lambda files, num_classes: Findings(4),
    )
    register_dataset(Dataset(**{**values, **parts}))
"""


@pytest.fixture
def npz(tmp_path):
    """Images whose brightness tells the label: 40 for training, 11 for validation."""
    rng = np.random.default_rng(0)
    for subset, count in (("train", 40), ("validation", 11)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 20, (count, 16, 16, 3)) + 25 * labels[:, None, None, None]
        np.savez(tmp_path / f"{subset}.npz", images=images.astype(np.uint8), labels=labels)
    return tmp_path


@pytest.fixture
def own(tmp_path):
    """Writes a plug-in file that ends with `text`; returns its path."""

    def write(text):
        path = tmp_path / "own.py"
        path.write_text(HEAD + text)
        return str(path)

    return write


def test_an_evaluation_counts_its_examples_once(npz):
    plugin = npz / "counting.py"
    counting = "count=lambda files, subset: counted.append(subset) or 11"
    text = EXAMPLE.read_text().replace("count=count", counting).replace('"npz"', '"counting"')
    plugin.write_text(f"{text}\ncounted = []\n")
    where = {"plugin": str(plugin), "data_dir": str(npz), "model": "small"}
    assert make_plan(Params(**where, eval=True, train_dir="d")).length.eval_examples
    assert sys.modules["cnnbench_plugin_counting"].counted == ["validation"]


@pytest.mark.slow
def test_the_example_trains_and_evaluates(npz, quick_start, call):
    where = [f"--plugin={EXAMPLE}", f"--data_dir={npz}", "--model=small", "--device=cpu"]
    record, train_dir = npz / "record.json", npz / "train"
    flags = ["--variable_update=replicated", "--num_gpus=2", "--batch_size=10", "--num_batches=20"]
    files = [f"--result_json={record}", f"--train_dir={train_dir}", "--peak_flops=1e12"]
    assert "Dataset:     npz\n" in call(*where, *flags, *files, "--num_warmup_batches=0").out
    losses = json.loads(record.read_text())["losses"]
    assert losses[-1] < losses[0]
    flags = ["--eval", "--num_eval_epochs=1", "--batch_size=4", f"--train_dir={train_dir}"]
    assert "[11 examples]" in call(*where, *flags).out


def test_the_example_is_checked(npz, call):
    check = ("data", "check", npz, f"--plugin={EXAMPLE}")
    out = call(*check).out
    assert out.startswith(f"{npz}: npz\ntrain: 40 valid records in 1 file, ")
    assert "labels: 10 different from 0 to 9, 4 to 4 records each" in out
    with np.load(npz / "train.npz") as arrays:
        images, labels = arrays["images"], arrays["labels"]
    labels[7] = 10
    np.savez(npz / "train.npz", images=images, labels=labels)
    (npz / "validation.npz").write_bytes(b"no zip")
    streams = call(*check, code=4)
    assert f"defect: {npz}/train.npz: record 7: label 10 is not in [0, 10)\n" in streams.out
    assert f"defect: {npz}/validation.npz: cannot be read: " in streams.out
    assert streams.err.startswith("cnnbench: error: 2 defects, the first: ")


def test_models_of_the_file_are_listed(call):
    kernels = 9 * 3 * 16 + 9 * 16 * 16
    parameters = kernels + 32 + 4 * 4 * 16 * 10 + 10
    listed = call("models", f"--plugin={EXAMPLE}", "--data_name=npz").out
    assert f"{parameters:,}" in listed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "registers nothing; call cnnbench.data.register_dataset(Dataset(...))"),
        ("make(name='imagenet')", "11: make(): data set imagenet is registered already"),
        ("make(name='')", "11: make(): a data set needs a name of printable characters, not ''"),
        ("make(num_classes=0)", "11: make(): data set own: num_classes=0 must be at least 1"),
        ("make(num_classes='3')", "11: make(): data set own: num_classes must be an int, not '3'"),
        ("make(files=3, find=4)", "11: make(): data set own: files must be a str, not 3"),
        ("make(size=3)", "11: make(): TypeError: "),
    ],
)
def test_a_file_that_is_of_no_use_ends_with_2_and_one_line(own, text, message):
    path, before = own(text), dataset_names()
    with pytest.raises(UsageError) as caught:
        load_plugin(path)
    assert f"{path}: {message}" in str(caught.value) or f"{path}:{message}" in str(caught.value)
    assert dataset_names() == before


def test_refusals_do_without_tensorflow(own, alone):
    done = alone(f"--plugin={own('make(); 1 / 0')}")
    assert done.status == 2
    line, frame = done.err.splitlines()
    assert line.endswith("own.py:12: <module>: ZeroDivisionError: division by zero")
    assert frame.endswith("own.py:12: <module>: make(); 1 / 0")
    assert "tensorflow" not in done.loaded


@pytest.mark.parametrize(
    ("parts", "status", "message"),
    [
        ("find=lambda folder, subset: 1 / 0", 2, "own.py:12: <lambda>: ZeroDivisionError"),
        ("count=lambda files, subset: files.n", 2, "own.py:12: <lambda>: AttributeError"),
        ("open=lambda spec: 1 / 0", 2, "own.py:12: <lambda>: ZeroDivisionError"),
        ("open=lambda spec: None", 2, "must return a cnnbench.data.pipeline.Pipeline"),
        ("find=lambda folder, subset: folder", 2, "own.py:12: <lambda> must return a Sequence"),
        ("count=lambda files, subset: '4'", 2, "own.py:12: <lambda> must return an int, not '4'"),
        ("count=lambda files, subset: 0", 4, "the train files contain no records"),
    ],
)
def test_defects_of_its_code_are_one_line_each(own, tmp_path, parts, status, message, call):
    path = own(
        f"make({parts})\n"
        "from cnnbench.models import get_model, register_model\n"
        "register_model('trivial', 'own', lambda: get_model('trivial', 'imagenet'))\n"
    )
    flags = ["--data_name=own", f"--data_dir={tmp_path}", "--device=cpu", "--batch_size=2"]
    err = call(f"--plugin={path}", *flags, code=status).err
    assert message in err
    assert sum("error" in line for line in err.splitlines()) == 1


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("check=lambda files, num_classes: 1 / 0", "{0}:12: <lambda>: ZeroDivisionError"),
        (
            "find=lambda folder, subset: [folder + '/gone']",
            "--plugin={0}: find() returned {1}/gone, which does not",
        ),
    ],
)
def test_defects_of_its_checker_are_one_line_each(own, tmp_path, call, parts, message):
    path = own(f"make({parts})")
    err = call("data", "check", tmp_path, f"--plugin={path}", code=2).err
    assert err.startswith(f"cnnbench: error: {message.format(path, tmp_path)}")


def test_one_file_may_register_a_data_set_and_a_network(own):
    path = own(
        "make()\nfrom cnnbench.models import get_model, register_model\n"
        "register_model('mine', 'own', lambda: get_model('trivial', 'imagenet'))\n"
    )
    from cnnbench import models

    assert load_plugin(path) == ("own",)
    assert models.load_plugin(path) == ("mine",)
    assert model_names("own") == ("mine",)
    own("make(name='other')")
    assert load_plugin(path) == ("other",)
    assert dataset_names()[-1] == "other"
    assert model_names("own") == ()
