"""scripts/gate_pull_request, with a stand-in for cnnbench."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forked import finished

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gate_pull_request"


@pytest.fixture
def gate(tmp_path):
    """Runs the script; its cnnbench writes down what it is given and ends with a status."""
    program = tmp_path / "cnnbench"
    lines = f'printf "%s\\n" "$GATE_OUTPUT" "$@" > {tmp_path}/given\nexit "$STATUS"\n'
    program.write_text(f"#!/bin/sh\n{lines}")
    program.chmod(0o755)

    def run(*arguments, status=0, script=SCRIPT, **variables):
        environment = {"CNNBENCH": str(program), "STATUS": str(status), **variables}
        done = finished([script, *arguments], None, cwd=tmp_path, environment=environment)
        return done, (tmp_path / "given").read_text().splitlines()

    return run


def test_it_is_cnnbench_gate(gate):
    words = ("main", "change", "--pairs=8", "--", "--model=le net")
    for status in (0, 1, 130):
        done, given = gate(*words, status=status)
        assert (done.returncode, given) == (status, ["gate", "gate", *words])
    assert gate("main", GATE_OUTPUT="other")[1] == ["other", "gate", "main"]


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
    assert (done.returncode, given[0]) == (3, "gate")


def test_flags_in_the_documents_exist():
    from cnnbench.cli.commands.ab import AbFlags
    from cnnbench.flags import FLAGS
    from cnnbench.flags.declare import specs_of

    known = {spec.name for spec in (*specs_of(AbFlags), *FLAGS)}
    known |= {"nosequential", "paired"}
    ab = (ROOT / "docs" / "ab.md").read_text(encoding="utf-8")
    found = set(re.findall(r"--([a-z_]+)", ab))
    assert found <= known
