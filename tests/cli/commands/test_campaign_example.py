"""The campaign of docs/extending.md, whose processes only write records; see fake_python.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from cnnbench.campaigns.ab import side
from cnnbench.errors import FlagError, UsageError

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"


@pytest.fixture
def spread(monkeypatch, fake_python, quick_processes, quick_answers, tmp_path, capsys):
    """spread(WORD...): what the example prints."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## A campaign\n")[2]
    block = re.search(r"^```diff\n\+\+\+ [^\n]*\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[1]
    example = ModuleType("spread_example")
    monkeypatch.setitem(sys.modules, example.__name__, example)  # for its dataclass
    exec("".join(line[1:] for line in block.splitlines(keepends=True)), vars(example))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(side, "sys", SimpleNamespace(executable=fake_python))

    def spread(*words, scatter=0.1):
        monkeypatch.setenv("FAKE", json.dumps({"speed": 100, "scatter": scatter, "salt": 1}))
        capsys.readouterr()
        assert example.main([*words, "--", "--model=lenet"]) == 0
        return capsys.readouterr().out

    return spread


RUNS = ("--run=--num_intra_threads=1", "--run=--num_intra_threads=2")


def test_each_run_is_repeated_and_a_resumed_campaign_repeats_none_again(spread, tmp_path):
    out = spread(*RUNS, "--repeats=3", "--results=r", "--seed=1")
    rows = [line.split() for line in out.splitlines() if "--model=lenet" in line]
    assert [row[1] for row in rows] == ["--num_intra_threads=1", "--num_intra_threads=2"]
    assert all(row[-1] == "%" and float(row[-2]) > 0 for row in rows)
    records = sorted(str(path.relative_to("r")) for path in Path("r").glob("*/*.json"))
    assert records == [f"run-{run}/{number}.json" for run in (1, 2) for number in (1, 2, 3)]
    assert spread(*RUNS, "--repeats=3", "--results=r", "--resume", scatter=9.0) == out
    spread(*RUNS, "--repeats=4", "--results=r", "--resume")
    assert len([*Path("r").glob("*/*.json")]) == 8
    with pytest.raises(FlagError, match="num_intra_threads of run-2"):
        spread(RUNS[0], "--run=--num_intra_threads=3", "--results=r", "--resume")


def test_wrong_use_is_refused(spread):
    for words in ((), ("run", *RUNS)):
        with pytest.raises(UsageError, match="takes --run"):
            spread(*words)
