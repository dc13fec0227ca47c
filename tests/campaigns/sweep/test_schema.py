"""The check of a suite: every mistake with its line and the nearest word."""

from __future__ import annotations

import pytest

from cnnbench.campaigns.sweep.schema import DEFAULT_TIMEOUT, BatchSizeSearch
from cnnbench.errors import UsageError


def test_defaults_are_merged_into_entries(suite):
    checked = suite(
        """
        name: mine
        description: >
          two
          lines
        defaults:
          flags: {model: lenet, num_gpus: 2}
          repeats: 3
          timeout: 90
          bounds: {throughput: {min: 5}, mfu: {min: 0.1}}
        entries:
          - name: a
          - name: b
            flags: {num_gpus: 4}
            repeats: 1
            timeout: 1.5
            bounds: {throughput: {max: 9}}
            max_batch_search: true
        """
    )
    assert (checked.name, checked.description) == ("mine", "two lines")
    a, b = checked.entries
    assert {name: node.text for name, node in a.flags.items()} == {
        "model": "lenet",
        "num_gpus": "2",
    }
    assert (a.repeats, a.timeout, a.search, a.command) == (3, 90, None, "run")
    assert b.flags["num_gpus"].text == "4"
    assert b.flags["model"].text == "lenet"
    assert (b.repeats, b.timeout, b.search) == (1, 1.5, BatchSizeSearch())
    assert [(x.metric, x.minimum, x.maximum) for x in b.bounds.values()] == [
        ("throughput", None, 9),
        ("mfu", 0.1, None),
    ]


def test_what_is_said_of_one_command_means_nothing_to_another(suite):
    run, reduce = suite(
        """
        defaults:
          {flags: {model: lenet}, repeats: 3, bounds: {mfu: {min: 1}}, max_batch_search: true}
        entries:
          - {name: a}
          - {name: b, command: allreduce, flags: {sizes: 4K}}
        """
    ).entries
    assert (list(run.flags), len(run.bounds), run.search) == (["model"], 1, BatchSizeSearch())
    assert (list(reduce.flags), reduce.bounds, reduce.search) == (["sizes"], {}, None)
    assert reduce.repeats == 3


def test_a_suite_is_called_after_its_file_unless_it_says_otherwise(suite):
    checked = suite("{defaults: {repeats: 3}, entries: [{name: a, repeats: auto}, {name: b}]}")
    assert checked.name == "suite"
    assert checked.entries[0].timeout == DEFAULT_TIMEOUT
    assert [entry.repeats for entry in checked.entries] == [None, 3]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("entires: []", 1, 'unknown key "entires"; did you mean "entries"?'),
        ("name: x", 1, 'a suite needs the key "entries", a list'),
        ("[1]", 1, "a suite must be a mapping (key: value), not a list"),
        ("entries: 3", 1, "entries must be a list, not '3'"),
        ("entries: []", 1, "entries: at least one item is needed"),
        ("defaults:\n  repeat: 2\nentries: [{name: a}]", 2, 'did you mean "repeats"?'),
        ("entries:\n - flags: {}", 2, 'an entry needs the key "name"'),
        ("entries:\n - name: a\n - name: a", 3, 'a second entry "a"; the first is in line 2'),
        ("entries:\n - name: a b", 2, "name: 'a b' must be letters"),
        *(
            ("entries:\n - name: a\n   " + settings, 3, message)
            for settings, message in (
                ("flgas: {}", 'did you mean "flags"?'),
                ("zzz: {}", "there are command, flags, repeats"),
                ("repeats: 0", "repeats: '0' must be from 1 to 1000"),
                ("repeats: two", "repeats must be a whole number or auto, not 'two'"),
                ("repeats: yes", "repeats must be a whole number or auto, not true"),
                ("timeout: -1", "timeout: '-1' must be greater than 0"),
                ("timeout: 1_0", "timeout must be a finite number, not '1_0'"),
                ("repeats: 1_0", "repeats must be a whole number or auto, not '1_0'"),
                ("timeout: .inf", "timeout must be a finite number, not '.inf'"),
                ("command: rum", "must be one of run, allreduce"),
                ("optional: 1", "optional must be true or false, not '1'"),
                ("flags: [x]", "flags must be a mapping"),
                ("flags: {x: {y: 1}}", "x: must be one value, or a list"),
                ("flags: {x: [[1]]}", "must be single values"),
                ("matrix: {x: 3}", "matrix.x must be a list, not '3'"),
                ("matrix: {x: []}", "matrix.x: at least one item is needed"),
                ("matrix: {x: [1, {y: 2}]}", "cannot be mixed"),
                ("exclude: [{}]", "must name a flag"),
                ("bounds: {mfa: {min: 1}}", 'did you mean "mfu"?'),
                ("bounds: {mfu: {}}", "needs min, max or both"),
                ("bounds: {mfu: {mim: 1}}", 'did you mean "min"?'),
                ("bounds: {mfu: {min: 2, max: 1}}", "min 2 is above max 1"),
                ("max_batch_search: 7", "must be true or false, not '7'"),
                ("max_batch_search: {limit: 4, multiple_of: 8}", "limit 4 is below multiple_of 8"),
            )
        ),
    ],
)
def test_mistakes(suite, tmp_path, text, line, message):
    with pytest.raises(UsageError) as caught:
        suite(text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/suite.yaml:{line}: ")
    assert message in said
    assert "\n" not in said
