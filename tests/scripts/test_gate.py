""".ci/gate, with a stand-in for cnnbench."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import finished

from cnnbench.cli.commands.gate import GateFlags
from cnnbench.plan import parse_run

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "gate"


@pytest.fixture
def gate(tmp_path):
    """Runs the script; its cnnbench writes down what it is given, and ends as STATUSES says."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    lines = f'printf "%s " "$@" >> {tmp_path}/given\necho >> {tmp_path}/given\n'
    lines += 'case "$*" in *resnet20*) exit "${STATUSES#* }" ;; *) exit "${STATUSES% *}" ;; esac\n'
    for name, text in (("cnnbench", lines), ("python", "")):
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)

    def run(*arguments, statuses="0 0", **variables):
        environment = {"CNNBENCH_VENV": str(folder.parent), "STATUSES": statuses, **variables}
        (tmp_path / "given").write_text("")
        done = finished([SCRIPT, *arguments], None, cwd=tmp_path, environment=environment)
        return done, [line.split() for line in (tmp_path / "given").read_text().splitlines()]

    return run


def test_both_models_are_measured_with_flags_that_cnnbench_accepts(gate):
    done, given = gate("main", "change", "--pairs=8", GATE_OUTPUT="out")
    assert done.returncode == 0, done.stderr
    models = []
    for words in given:
        assert words[:4] == ["gate", "main", "change", "--pairs=8"]
        own, flags = words[4 : words.index("--")], words[words.index("--") + 1 :]
        names = {word.lstrip("-").partition("=")[0] for word in own}
        assert names <= {*GateFlags.__dataclass_fields__}
        assert "--alpha=0.02" in own  # the error rates of both gates add up to the default
        models.append(parse_run(flags).params.model)
        assert f"--results=out/{models[-1]}" in own
    assert models == ["lenet", "resnet20"]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ("0 0", 0),
        ("1 0", 1),
        ("0 1", 1),
        ("3 0", 3),
        ("3 1", 1),
        ("1 4", 4),
        ("2 1", 2),
        ("0 7", 7),
    ],
)
def test_the_worse_status_counts(statuses, expected, gate):
    done, given = gate("main", statuses=statuses)
    assert done.returncode == expected
    assert len(given) == 2


def test_the_base_is_needed(gate):
    done, given = gate()
    assert (done.returncode, given) == (2, [])
    assert "BASE" in done.stderr
