"""Training that has to learn: ResNet-20 on real digits, by the commands of docs/data.md.

What one mode trains on one tower, another evaluates on three.
"""

from __future__ import annotations

import json
import math
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_start")]

ROOT = Path(__file__).parents[3]
EPOCHS = 1.25
"""In place of the two that the page has."""
STEPS = math.ceil(EPOCHS * 1437 / 32)


def documented():
    """The commands under "Digits", without the name of the program."""
    section = (ROOT / "docs" / "data.md").read_text().split("### Digits\n")[1]
    lines = section.split("```\n")[1].replace("\\\n", "").splitlines()
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.timeout(900)
def test_digits_are_recognised_after_training(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (script, out), train, evaluate = documented()
    train[train.index("--num_epochs=2")] = f"--num_epochs={EPOCHS}"
    monkeypatch.setattr(sys, "argv", [script, out])
    runpy.run_path(str(ROOT / script), run_name="__main__")

    call(*train, "--result_json=trained.json", "--peak_flops=1e12")
    losses = json.loads(Path("trained.json").read_text())["losses"]
    assert len(losses) == STEPS
    assert np.mean(losses[-20:]) < losses[0] / 8

    # 360 is no multiple of 3 * 50: the last batches are padded, which must not count.
    report = call(*evaluate).out
    assert f"Successfully loaded model from ckpt/model.ckpt-{STEPS}." in report
    found = re.search(r"Accuracy @ 1 = (.+) Accuracy @ 5 = (.+) \[360 examples\]", report)
    top_1, top_5 = map(float, found.groups())
    assert top_1 > 0.95
    assert top_5 > 0.99
