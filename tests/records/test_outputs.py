"""Output files that are refused before the work: inputs of the command, and files of other flags.

Tests cnnbench/records/files.py.
"""

from __future__ import annotations

import pytest

from cnnbench.errors import FlagError
from cnnbench.records.files import OutputFile, check_outputs
from cnnbench.records.measurements import Measurements


@pytest.mark.parametrize("way", ["plain", "symbolic", "hard"])
def test_what_is_read_and_what_another_flag_writes_is_not_written(way, tmp_path):
    path, link = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("import this\n")
    if way == "plain":
        link = path
    else:
        (link.symlink_to if way == "symbolic" else link.hardlink_to)(path)
    output = OutputFile("output", str(link))
    with pytest.raises(FlagError, match=r"^--output=.*: is an input file of this command"):
        check_outputs([output], [None, "", str(path)])
    with pytest.raises(FlagError, match=r"^--output=.*: is also the path of --csv"):
        check_outputs([OutputFile("csv", str(path)), output])
    check_outputs([output, output])  # a flag may be given twice
    check_outputs(
        [output, OutputFile("plot", None), OutputFile("plot", "")], ["*.json", str(tmp_path)]
    )


@pytest.fixture
def folder(tmp_path):
    """A folder with a record, a document of a command, a torn record and a page."""
    folder = tmp_path / "results"
    (folder / "sub").mkdir(parents=True)
    record = Measurements(command=["cnnbench"], config={}).make_record().to_json()
    (folder / "sub" / "0.json").write_text(record)
    (folder / "record").write_text(record)
    (folder / "torn.json").write_text(record[:-20])
    (folder / "history.json").write_text('{"schema": 1, "kind": "history"}')
    (folder / "page.html").write_text("<!DOCTYPE html>")
    return folder


@pytest.mark.parametrize(
    ("file", "pattern", "refused"),
    [
        ("sub/0.json", "", True),
        ("sub/0.json", "*/*.json", True),
        ("record", "rec*", True),
        ("record", "", False),  # of a folder, only *.json is read
        ("record", "*.json", False),
        ("torn.json", "", True),
        ("history.json", "", False),
        ("page.html", "", False),
        ("new.json", "", False),
        ("new.json", "none*", False),
    ],
)
def test_results_in_a_folder_or_pattern_are_not_written(file, pattern, refused, folder):
    outputs, inputs = [OutputFile("output", str(folder / file))], [str(folder / pattern)]
    if not refused:
        check_outputs(outputs, inputs)
        return
    with pytest.raises(FlagError, match=r"^--output=.*: is an input file of this command"):
        check_outputs(outputs, inputs)


def test_a_link_to_a_result_in_a_folder_is_not_written(folder, tmp_path):
    (tmp_path / "page.html").symlink_to(folder / "sub" / "0.json")
    with pytest.raises(FlagError, match="is an input file of this command"):
        check_outputs([OutputFile("output", str(tmp_path / "page.html"))], [str(folder)])
