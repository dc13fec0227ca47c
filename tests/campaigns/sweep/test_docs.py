"""docs/sweep.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cnnbench.base.document.console import sections_to_text
from cnnbench.campaigns.suite import entries as keys
from cnnbench.campaigns.suite.nodes import load_yaml_file, shipped_suites
from cnnbench.campaigns.sweep.plan import ordered_items, plan_sweep
from cnnbench.campaigns.sweep.summary import configurations_table
from cnnbench.errors import UsageError

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "sweep.md").read_text(encoding="utf-8")


def test_the_suites_shown_are_what_the_lists_shown_say(write):
    suites = re.findall(r"```yaml\n(name: (\w+)\n.*?)```", TEXT, re.DOTALL)
    assert len(suites) == 2
    for text, name in suites:
        plan = plan_sweep(keys.parse_suite(load_yaml_file(write(text))), {})
        (listed,) = re.findall(rf"sweep {name}\.yaml --list\n(.*?)(?:\$|```)", TEXT, re.DOTALL)
        assert sections_to_text([[configurations_table(plan.cases)]]) == listed
    # The order that seed 7 gives to the last suite.
    labels = [item.label for item in ordered_items(plan.cases, 7)]
    assert re.findall(r"^cnnbench: \[\d/3\] (.*?): ok", TEXT, re.MULTILINE) == labels


def test_every_key_and_metric_is_there():
    for name in (*keys.declared_keys(keys.Suite), *keys.declared_keys(keys.SuiteEntry)):
        assert f"| `{name}`" in TEXT
    for name in shipped_suites():
        assert f"| `{name}` |" in TEXT


def test_defaults_are_those_of_the_schema():
    starred = re.findall(r"^\| `(\w+)` \*", TEXT, re.MULTILINE)
    assert sorted(starred) == sorted(keys.declared_keys(keys.EntrySettings))
    assert f"one process in seconds ({keys.DEFAULT_TIMEOUT:g})" in TEXT


def test_the_error_shown_is_the_one_that_comes(write):
    path = write("\n" * 8 + "entries:\n  - name: a\n    flags:\n      modle: lenet\n", "typo.yaml")
    with pytest.raises(UsageError) as caught:
        plan_sweep(keys.parse_suite(load_yaml_file(path)), {})
    assert f"error: {str(caught.value).replace(path, 'typo.yaml')}\n" in TEXT
