"""The Python code of the pages about results runs, on records in the folders that it names."""

import json
import re
from pathlib import Path

import pytest

from cnnbench.records.codec import encode

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def results(make_full_runs, tmp_path):
    """A working folder with three records each in base, results/base and results/new."""
    full_runs = make_full_runs()
    for folder, speed in (("base", 100.0), ("results/base", 100.0), ("results/new", 80.0)):
        (tmp_path / folder).mkdir(parents=True)
        for number, run in enumerate(full_runs.of(*(speed + n for n in range(5)))):
            (tmp_path / folder / f"{number}.json").write_text(json.dumps(encode(run)))
    return tmp_path


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("compare_reference.md", "slower"),
        ("history_reference.md", ""),
        ("python.md", "slower"),
        ("report.md", ""),
    ],
)
def test_the_code_of_a_page(page, printed, results, monkeypatch, capsys):
    monkeypatch.chdir(results)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S))
    exec(code, {"__name__": "__main__"})
    out, err = capsys.readouterr()
    assert err == ""
    assert printed in out
    assert (results / "report.html").exists() == (page == "report.md")
