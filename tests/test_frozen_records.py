"""Baselines of earlier versions: records written at commit f9752dc still mean what they meant.

`frozen/` holds what that commit wrote (runs of every mode, all-reduces, an `ab` experiment, a
sweep) and, in expected.json, what its commands said of it. Never write the records anew.
`python tests/test_frozen_records.py` writes expected.json anew: only for a change of meaning
that a closing note explains.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cnnbench.cli import main

FROZEN = Path(__file__).parent / "frozen"
PROSE = ("reason", "reasons", "note", "notes")
"""Keys of sentences, which may be worded better."""

COMPARISONS = {
    "runs": (["runs/lenet-[1-4].json"], ["runs/lenet-new-*.json"]),
    "ab": (["ab/a"], ["ab/b"], "--paired"),
    "allreduce": (["allreduce.json"], ["allreduce.json"]),
    "sweep": (["sweep"], ["sweep"]),
    "modes": (["runs"], ["runs"]),
}


def _compare(capsys, name):
    base, new, *flags = COMPARISONS[name]
    places = [str(FROZEN / side[0]) for side in (base, new)]
    status = main(["compare", *places, *flags, "--format=json"])
    return {"status": status, "document": json.loads(capsys.readouterr().out)}


def _history(capsys, folder):
    status = main(["history", str(folder), "--by=run", "--format=json"])
    return {"status": status, "document": json.loads(capsys.readouterr().out)}


def _without_paths(value):
    """A document without its sentences and without where the checkout is."""
    if isinstance(value, dict):
        return {k: _without_paths(v) for k, v in value.items() if k not in PROSE}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if isinstance(value, str):
        return value.replace(str(FROZEN), "FROZEN")
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _everything(capsys, folder):
    for part in ("runs", "ab", "sweep", "allreduce.json"):
        source = FROZEN / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / part)
    found = {name: _compare(capsys, name) for name in COMPARISONS}
    found["history"] = _history(capsys, folder)
    text = json.dumps(_without_paths(found)).replace(str(folder), "FOLDER")
    return json.loads(text)


@pytest.fixture(scope="module")
def expected():
    return json.loads((FROZEN / "expected.json").read_text())


@pytest.mark.parametrize("name", COMPARISONS)
def test_compares_as_it_did(name, expected, capsys):
    assert json.loads(json.dumps(_without_paths(_compare(capsys, name)))) == expected[name]


def test_enters_history_as_it_did(expected, capsys, tmp_path):
    assert _everything(capsys, tmp_path)["history"] == expected["history"]


def test_is_reported(capsys, tmp_path):
    table = tmp_path / "table.csv"
    assert main(["report", str(FROZEN), "--format=csv", f"--output={table}"]) in (0, 3)
    assert len(table.read_text().splitlines()) > 8


if __name__ == "__main__":
    import contextlib
    import io
    import tempfile
    from types import SimpleNamespace

    class _Capture(io.StringIO):
        def readouterr(self):
            text = self.getvalue()
            self.truncate(self.seek(0))
            return SimpleNamespace(out=text)

    capture = _Capture()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(capture):
        found = _everything(capture, Path(folder))
    (FROZEN / "expected.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
