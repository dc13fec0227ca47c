"""Records of strangers: commands for CI services, and revisions that are no names."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from cnnbench.cli.commands.compare import CompareFlags
from cnnbench.cli.commands.history import HistoryFlags
from cnnbench.flags import specs_of
from cnnbench.records.exports import EXPORTS
from cnnbench.records.subject import Subject

AZURE = "##vso[task.setvariable variable=x]y"
TEAMCITY = "##teamcity[buildStatus]"
COMMAND = re.compile(r"##[\w.-]*\[|^\s*::[\w-]+(?: .*)?::", re.MULTILINE)
# The last is half of a character in UTF-16, which has no bytes in UTF-8.
REVISIONS = ("a" * 12 + "\0", "\0", "-n", "x\ny", "", "\udcff", "\ud800")


def formats(flags):
    """The formats of a command, also those of exports."""
    EXPORTS.load_own()
    (spec,) = (spec for spec in specs_of(flags) if spec.name == "format")
    return sorted(spec.choices)


@pytest.fixture
def hostile(save, tmp_path):
    """Two folders of records whose texts contain commands for CI services."""
    more = {
        "flags": {"model": AZURE, "result_label": f"x={TEAMCITY}"},
        "environment": {"hostname": AZURE, "cpu_model": TEAMCITY},
        "subject": Subject(repository=AZURE, revision=TEAMCITY, dirty=False),
        "command": ("cnnbench", AZURE),
    }
    return [
        save(tmp_path / "runs" / name, factor, **more) for name, factor in (("a", 1.0), ("b", 0.8))
    ]


@pytest.mark.parametrize("format", formats(CompareFlags))
def test_comparisons_print_no_command_of_a_ci_service(call, hostile, format):
    out = call("compare", *hostile, f"--format={format}", code=1).out
    commands = COMMAND.findall(out)
    if format == "github":  # Its own commands.
        assert all(re.match("::(error|notice) title=[^#]*(# #|:)", one) for one in commands)
    else:
        assert commands == []


@pytest.mark.parametrize("format", formats(HistoryFlags))
def test_histories_print_no_command_of_a_ci_service(call, hostile, format):
    assert (
        COMMAND.findall(call("history", hostile[0][:-2], f"--format={format}", code=None).out) == []
    )


def test_reports_print_no_command_of_a_ci_service(call, hostile):
    for format in ("html", "markdown", "csv", "json"):
        out = call("report", *hostile, f"--format={format}", "--output=-", code=None).out
        assert COMMAND.findall(out) == [], format


def test_a_parser_reads_the_texts_of_json_as_they_are(call, hostile):
    document = json.loads(call("compare", *hostile, "--format=json", code=1).out)
    assert AZURE in json.dumps(document)
    (entry,) = document["configurations"]
    assert entry["name"].startswith(AZURE)


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_revision_may_be_any_text(call, lenet_runs, saved, tmp_path, git, monkeypatch, revision):
    """In a repository whose rules accept regressions by messages of commits."""
    git(tmp_path, "init", "--quiet")
    accepted = "[[accept]]\ncommit = '1234567'\nreason = 'r'\nuntil = '2099-01-01'"
    rules = f"accept_by_message = true\n{accepted}\n"
    (tmp_path / "cnnbench.toml").write_text(rules)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "rules")
    monkeypatch.chdir(tmp_path)
    head = git(tmp_path, "rev-parse", "HEAD")
    for folder, speed, name in (("a", 100.0, head), ("b", 80.0, revision)):
        runs = lenet_runs().of(*(speed + step / 10 for step in range(5)))
        subject = Subject(repository="r", revision=name, dirty=False)
        records = [
            dataclasses.replace(run, run_id=f"{folder}{number}", subject=subject)
            for number, run in enumerate(runs)
        ]
        saved(tmp_path / "runs" / folder, records)
    assert "slower" in call("compare", "runs/a", "runs/b", code=1).out
    for format in ("json", "markdown", "junit", "github"):
        call("compare", "runs/a", "runs/b", f"--format={format}", code=1)
    call("history", "runs", "--git=.")
    call("report", "runs/a", "runs/b", "-o", "r.md")
    call("report", "runs/a", "runs/b", "-o", "r.html")
