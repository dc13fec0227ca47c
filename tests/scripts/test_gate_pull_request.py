"""scripts/gate_pull_request, with a stand-in for cnnbench, and the workflows of docs/examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from forked import finished

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gate_pull_request"


@pytest.fixture
def repository(tmp_path, git):
    """main has gone on since change left it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "start")
    git(folder, "branch", "change")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "others went on")
    git(folder, "switch", "--quiet", "change")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "the change")
    return folder


@pytest.fixture
def gate(repository, tmp_path):
    """Runs the script; its cnnbench writes down what it is given and ends with a status."""
    program = tmp_path / "cnnbench"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/given\nexit "$STATUS"\n')
    program.chmod(0o755)

    def run(*arguments, status=0, script=SCRIPT, **variables):
        environment = {"CNNBENCH": str(program), "STATUS": str(status), **variables}
        done = finished([script, *arguments], None, cwd=repository, environment=environment)
        given = tmp_path / "given"
        return done, given.read_text().splitlines() if given.exists() else []

    return run


def test_the_change_is_held_against_what_it_started_from(gate, repository, git):
    done, given = gate("main", "change", "--pairs=8", "--", "--model=lenet")
    assert done.returncode == 0
    start = git(repository, "rev-parse", "--short=12", "main~1")
    assert given == [
        "ab",
        f"--a_checkout={start}",
        "--b_checkout=change",
        "--results=gate/runs",
        "--format=markdown",
        "--output=gate/comment.md",
        "--pairs=8",
        "--",
        "--model=lenet",
    ]
    assert (repository / "gate").is_dir()


@pytest.mark.parametrize("status", [0, 1, 130])
def test_the_status_is_that_of_ab(gate, status):
    assert gate("main", "change", status=status)[0].returncode == status


def test_results_of_before_are_not_mixed_in(gate, repository):
    (repository / "old" / "runs").mkdir(parents=True)
    done, given = gate("main", "change", GATE_OUTPUT="old")
    assert (done.returncode, given) == (2, [])
    assert done.stderr.startswith("gate_pull_request: old is not empty")
    assert gate("main", "change", GATE_OUTPUT="new")[1][3] == "--results=new/runs"


def test_flags_that_were_refused_do_not_stop_the_next_attempt(gate, repository):
    assert gate("main", "change", status=2)[0].returncode == 2
    assert list((repository / "gate").iterdir()) == []
    assert gate("main", "change")[0].returncode == 0


def test_spaces_in_the_way_to_what_is_started(gate, tmp_path):
    folder = tmp_path / "sp ace" / "scripts"
    folder.mkdir(parents=True)
    script = folder / "gate_pull_request"
    script.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "run").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/given\nexit 3\n')
    for file in folder.iterdir():
        file.chmod(0o755)
    # No cnnbench on this path.
    done, given = gate("main", "change", script=script, CNNBENCH="", PATH="/usr/bin:/bin")
    assert (done.returncode, given[0]) == (3, "ab")


@pytest.mark.parametrize("arguments", [[], ["main"], ["main", "nothing"]])
def test_wrong_use_is_status_2(gate, arguments):
    done, given = gate(*arguments)
    assert (done.returncode, given) == (2, [])
    assert "gate_pull_request: " in done.stderr


def workflows():
    names = ("benchmark.yml", "benchmark-comment.yml")
    examples = ROOT / "docs" / "examples"
    return [yaml.safe_load((examples / name).read_text(encoding="utf-8")) for name in names]


def test_code_of_strangers_meets_no_secret_and_no_token_that_can_write():
    measuring, commenting = workflows()
    assert True in measuring  # "on", as YAML 1.1 reads it
    assert measuring[True] == "pull_request"
    assert measuring["permissions"] == {"contents": "read"}
    checkout = measuring["jobs"]["gate"]["steps"][0]
    assert checkout["with"]["persist-credentials"] is False
    assert "secrets." not in str(workflows())
    assert set(commenting[True]) == {"workflow_run"}
    assert commenting["permissions"] == {"actions": "read", "pull-requests": "write"}
    used = [step.get("uses", "") for step in commenting["jobs"]["comment"]["steps"]]
    assert not any("checkout" in one for one in used)


def test_no_expression_is_written_into_a_script():
    for workflow in workflows():
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                assert "${{" not in step.get("run", "")


def test_flags_in_the_documents_exist():
    from cnnbench.cli.commands.ab import AbFlags
    from cnnbench.flags import FLAGS
    from cnnbench.flags.declare import specs_of

    known = {spec.name for spec in (*specs_of(AbFlags), *FLAGS)}
    known |= {"nosequential", "paired"}
    ab = (ROOT / "docs" / "ab.md").read_text(encoding="utf-8")
    found = set(re.findall(r"--([a-z_]+)", ab))
    assert found <= known
