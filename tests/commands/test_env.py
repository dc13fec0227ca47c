import sys
import types

import cnnbench
from cnnbench.cli import main


def test_facts_are_one_per_line(monkeypatch, capsys):
    facts = types.ModuleType("cnnbench.environment")
    facts.collect = lambda: {"python_version": "3.11.9", "cpu_count": 2, "gpus": ["a", "b"]}
    monkeypatch.setitem(sys.modules, "cnnbench.environment", facts)
    monkeypatch.setattr(cnnbench, "environment", facts, raising=False)
    assert main(["env"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "cpu_count       2",
        'gpus            ["a", "b"]',
        "python_version  3.11.9",
    ]


def test_takes_no_arguments(capsys):
    assert main(["env", "--json"]) == 2
    assert capsys.readouterr().err.startswith("cnnbench: error: unknown flag --json")
