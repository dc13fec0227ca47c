"""docs/cost_model.md says what the code does.

Tests cnnbench/lab/predict/predict.py.
"""

import re
import shlex
from pathlib import Path

from cnnbench.lab.predict.predict import PRESETS
from cnnbench.variable_mgr.all_reduce.registry import cost_formulas

TEXT = (Path(__file__).parents[3] / "docs" / "cost_model.md").read_text(encoding="utf-8")


def test_every_formula():
    missing = [name for name in cost_formulas() if f"\n| `{name}` | " not in TEXT]
    assert not missing, f"add rows to docs/cost_model.md: {missing}"


def test_every_preset_with_its_figures():
    for name, link in PRESETS.items():
        row = (
            f"| `{name}` | {link.alpha * 1e6:.3g} | {link.bandwidth / 1e9:.4g} | "
            f"{link.gamma * 1e9:.3g} |"
        )
        assert row in TEXT


def test_the_example_prints_what_is_shown(call):
    shown = re.search(r"^\$ (cnnbench .*)\n((?:.|\n)*?)^```", TEXT, re.MULTILINE)
    assert call(*shlex.split(shown.group(1))[1:]).out == shown.group(2)
