"""Commands that start cnnbench again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from forked import finished

ROOT = Path(__file__).resolve().parents[3]


def words_in(folder: Path, *start: str) -> list[str]:
    """What `own_command_prefix` returns in a Python that is started so."""
    environment = {"PYTHONPATH": str(ROOT)}
    done = finished([sys.executable, *start], cwd=folder, environment=environment)
    found: list[str] = json.loads(done.stdout)
    return found


TELL = "import json; from cnnbench.campaigns.processes.program import own_command_prefix; "
TELL += "print(json.dumps(own_command_prefix()))"


def test_program_is_this_cnnbench(tmp_path: Path) -> None:
    for name, expected in (("other.py", ["-m", "cnnbench"]), ("cnnbench", None)):
        script = tmp_path / name
        script.write_text(TELL)
        python, *words = words_in(tmp_path, str(script), "sweep")
        assert words == (expected or [str(script)])
        assert os.path.samefile(python, sys.executable)


def test_a_side_starts_its_own_cnnbench_in_any_folder(tmp_path: Path) -> None:
    *words, folder = words_in(ROOT, "-c", TELL, "launch")
    (tmp_path / "cnnbench").mkdir()
    (tmp_path / "cnnbench" / "__init__.py").write_text("raise SystemExit('hostile')")
    words[2] = words[2].partition("from cnnbench")[0] + "import cnnbench; print(cnnbench.__file__)"
    done = finished([*words, folder], None, cwd=tmp_path)
    assert done.stdout.strip() == str(ROOT / "cnnbench" / "__init__.py"), done.stderr
