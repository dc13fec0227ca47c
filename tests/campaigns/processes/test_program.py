"""Commands that start cnnbench again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cnnbench.campaigns.processes.child import program

ROOT = Path(__file__).resolve().parents[3]


def test_program_is_this_cnnbench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["pytest"])
    assert program()[1:] == ("-m", "cnnbench")
    script = tmp_path / "cnnbench"
    script.write_text("")
    monkeypatch.setattr("sys.argv", [str(script), "sweep"])
    assert program()[1:] == (str(script),)
    assert os.path.samefile(program()[0], sys.executable)


def test_a_side_starts_its_own_cnnbench_in_any_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cnnbench").mkdir()
    (tmp_path / "cnnbench" / "__init__.py").write_text("raise SystemExit('hostile')")
    monkeypatch.setattr("sys.argv", ["-c", "launch"])
    *words, folder = program()
    words[2] = words[2].partition("from cnnbench")[0] + "import cnnbench; print(cnnbench.__file__)"
    done = subprocess.run(
        [*words, folder], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(ROOT / "cnnbench" / "__init__.py"), done.stderr
