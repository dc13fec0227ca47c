"""Baselines of earlier versions: records written at commit f9752dc still mean what they meant.

`frozen/` holds what that commit wrote (runs of every mode, all-reduces, an `ab` experiment, a
sweep) and, in expected.json, what its commands said of it. Never write the records anew.
UPDATE_GOLDEN=1 writes expected.json anew: only for a change of meaning that a closing note
explains.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from golden import golden

from cnnbench.cli import main

FROZEN = Path(__file__).parent / "frozen"
PROSE = ("reason", "reasons", "note", "notes")
"""Keys of sentences, which may be worded better."""

COMPARISONS = {
    "runs": ("runs/lenet-[1-4].json", "runs/lenet-new-*.json"),
    "ab": ("ab/a", "ab/b", "--paired"),
    "allreduce": ("allreduce.json", "allreduce.json"),
    "sweep": ("sweep", "sweep"),
    "modes": ("runs", "runs"),
}


def _without_paths(value):
    """A document without its sentences and without where the checkout is."""
    if isinstance(value, dict):
        return {k: _without_paths(v) for k, v in value.items() if k not in PROSE}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if isinstance(value, str):
        return value.replace(str(FROZEN), "FROZEN")
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_means_what_it_meant(capsys, holds, tmp_path):
    for part in ("runs", "ab", "sweep", "allreduce.json"):
        source = FROZEN / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / part)
    lines = {"history": ["history", str(tmp_path), "--by=run"]}
    for name, (base, new, *flags) in COMPARISONS.items():
        lines[name] = ["compare", str(FROZEN / base), str(FROZEN / new), *flags]
    found = {}
    for name, words in lines.items():
        status = main([*words, "--format=json"])
        document = json.loads(capsys.readouterr().out)
        holds("history" if name == "history" else "comparison", document)
        found[name] = {"status": status, "document": document}
    text = json.dumps(_without_paths(found), indent=1, sort_keys=True)
    text = text.replace(str(tmp_path), "FOLDER") + "\n"
    assert json.loads(text) == json.loads(golden(FROZEN / "expected.json", text))


def test_is_reported(capsys, tmp_path):
    table = tmp_path / "table.csv"
    assert main(["report", str(FROZEN), "--format=csv", f"--output={table}"]) in (0, 3)
    assert len(table.read_text().splitlines()) > 8


def test_a_removed_flag_that_was_not_given_distinguishes_no_records(capsys, tmp_path):
    for path in FROZEN.glob("runs/lenet-new-*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert record["config"].pop("model_plugin") is None
        (tmp_path / path.name).write_text(json.dumps(record), encoding="utf-8")
    main(["compare", str(FROZEN / "runs/lenet-[1-4].json"), str(tmp_path), "--format=json"])
    (configuration,) = json.loads(capsys.readouterr().out)["configurations"]
    assert (configuration["differences"], "model_plugin" in configuration["flags"]) == ([], False)
