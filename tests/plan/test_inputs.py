"""Outputs that would replace what a run reads.

Tests cnnbench/plan/inputs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cnnbench.errors import FlagError
from cnnbench.plan import refuse_files_of_run
from cnnbench.records.files import OutputFile

READ = (
    *("net.py", "other.py", "backbone.h5", "model.keras"),
    *("cifar10/data_batch_1.bin", "train/model.ckpt-3.index", "train/checkpoint"),
    "train/model.ckpt-3.data-00000-of-00001",
)
"""Files that the run reads."""
WRITTEN = (
    *("new.json", "cifar10/new.json", "train/new.json"),
    *("cifar10/notes", "train/result.json", "data_batch_1.bin"),
)
"""Files that an output may replace; the last three exist."""


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The flags of a run in a folder with the files that the run reads and with others."""
    monkeypatch.chdir(tmp_path)
    for name in ("cifar10", "train"):
        (tmp_path / name).mkdir()
    for name in (*READ, *WRITTEN[3:]):
        (tmp_path / name).write_bytes(bytes(3073))
    return {
        "plugin": ("net.py", "other.py"),
        "backbone_model_path": "backbone.h5",
        "model": "keras:model.keras",
        "data_dir": "cifar10",
        "train_dir": f"{tmp_path}/train",
    }


@pytest.mark.parametrize("way", ["path", "link"])
@pytest.mark.parametrize("name", READ)
def test_what_a_run_reads_is_not_replaced(
    flags: dict[str, Any], tmp_path: Path, name: str, way: str
) -> None:
    path = tmp_path / name
    if way == "link":
        path = tmp_path / "link"
        path.symlink_to(name)
    outputs = [OutputFile("plot", None), OutputFile("output", str(path))]
    with pytest.raises(FlagError, match=r"^--output=.*: is an input file of this command"):
        refuse_files_of_run(outputs, flags)
    texts = {**flags, "plugin": "net.py,other.py"}
    with pytest.raises(FlagError, match=r"^--output="):
        refuse_files_of_run(outputs, texts)


@pytest.mark.parametrize("name", WRITTEN)
def test_other_files_are_replaced(flags: dict[str, Any], name: str) -> None:
    refuse_files_of_run([OutputFile("output", name), OutputFile("json", "")], flags)
    refuse_files_of_run([OutputFile("output", name)], {})


def test_a_model_of_the_same_name_is_no_file(flags: dict[str, Any]) -> None:
    refuse_files_of_run([OutputFile("output", "lenet")], {**flags, "model": "lenet"})


def test_what_a_run_writes_is_not_written_by_its_command(flags: dict[str, Any]) -> None:
    given = {**flags, "graph_file": "graph", "result_json": "r.json"}
    refuse_files_of_run([OutputFile("graph_file", "graph"), OutputFile("csv", "a")], given)
    with pytest.raises(FlagError, match=r"^--csv=graph: is also the path of --graph_file"):
        refuse_files_of_run([OutputFile("csv", "graph")], given)


def test_a_folder_that_is_no_data_set_contains_no_input(flags: dict[str, Any]) -> None:
    unlike = {**flags, "data_dir": "train", "train_dir": None}
    refuse_files_of_run([OutputFile("output", "train/result.json")], unlike)
