"""Entries are expanded to sets of flags."""

from __future__ import annotations

import pytest

from cnnbench.campaigns.sweep.planning import expand
from cnnbench.errors import UsageError


@pytest.fixture
def configurations(suite, monkeypatch):
    def configurations(text, data=None):
        if data is not None:
            monkeypatch.setenv("DATA", data)
        (entry,) = suite("entries:\n - name: e\n   " + text.replace("\n", "\n   ")).entries
        return expand(entry)[0]

    return configurations


SETS = "matrix:\n  x: [{model: lenet, batch_size: 3}, {model: trivial}]\n"
GPUS = "matrix: {num_gpus: [1, 2, 4], xla: [true, false]}\n"
DATA = "matrix: {data_dir: ['${DATA}', /other], sizes: [[1, 2], [3]]}\n"
VARIABLES = "flags: {data_dir: '${DATA}/x', other: '${NONE:-o}', both: '${DATA}${DATA}'}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flags: {model: lenet}", {"": "model=lenet"}),
        # The product, in order.
        (
            "flags: {a: 1}\nmatrix: {b: [1, 2], xla: [true, no]}",
            {f"b={b} xla={x}": f"a=1 b={b} xla={x}" for b in "12" for x in ("true", "false")},
        ),
        # An axis of sets of flags.
        (SETS, {name: name for name in ("model=lenet batch_size=3", "model=trivial")}),
        # An exclusion matches all its flags, null those that are not given; values, not spellings.
        (
            GPUS + "flags: {model: lenet}\nexclude: [{num_gpus: [2, 4], xla: yes, model: lenet}]",
            {
                f"num_gpus={gpus} xla={xla}": f"model=lenet num_gpus={gpus} xla={xla}"
                for gpus, xla in (("1", "true"), ("1", "false"), ("2", "false"), ("4", "false"))
            },
        ),
        ("matrix: {a: [null, 4], b: [1]}\nexclude: [{a: 4}]", {"a= b=1": "b=1"}),
        ("matrix: {a: [null, 4], b: [1]}\nexclude: [{a: null}]", {"a=4 b=1": "a=4 b=1"}),
        (SETS + "exclude: [{batch_size: [~, 4]}]", {"model=lenet batch_size=3": None}),
        (
            DATA + "exclude: [{data_dir: '${DATA}'}, {sizes: [[1, 2]]}]",
            {"data_dir=other sizes=3": "data_dir=/other sizes=3"},
        ),
        ("matrix: {progress: [on, off]}\nexclude: [{progress: off}]", {"progress=on": None}),
        # Inclusions are beside the matrix, or alone.
        ("matrix: {a: [1]}\ninclude: [{a: 8, xla: true}]", {"a=1": "a=1", "a=8 xla=true": None}),
        ("include: [{a: 8}]", {"a=8": "a=8"}),
        # Of a path the last part is in a name.
        ("matrix: {data_dir: [/a/b/c/], x: [nccl/xring]}", {"data_dir=c x=nccl/xring": None}),
        # Words for true and false are values of other flags.
        ("flags: {progress: on, xla: on}", {"": "progress=on xla=true"}),
        # Null takes a flag away; lists become flags with commas.
        ("flags: {a: 5}\nmatrix: {a: [null, 3]}", {"a=": "", "a=3": "a=3"}),
        ("flags: {steps: [1, 2], one: [3]}", {"": "steps=1,2 one=3"}),
        (VARIABLES, {"": "data_dir=/d/x other=o both=/d/d"}),
    ],
)
def test_names_and_flags_of_configurations(configurations, text, expected):
    found = {
        one.name: " ".join(f"{name}={value}" for name, value in one.flags.items())
        for one in configurations(text, "/d")
    }
    assert list(found) == [f"e {name}".strip() for name in expected]
    for flags, wanted in zip(found.values(), expected.values(), strict=True):
        assert wanted is None or sorted(flags.split()) == sorted(wanted.split())


@pytest.mark.parametrize(("data", "lack"), [(None, "is not set"), ("", "is empty")])
def test_a_variable_that_is_not_set_is_an_error_with_its_line(configurations, data, lack):
    message = rf"yaml:4: \$\{{DATA\}}: the environment variable DATA {lack}"
    with pytest.raises(UsageError, match=message):
        configurations("flags:\n  data_dir: ${DATA}", data)
    (made,) = configurations("flags:\n  data_dir: x${DATA:-}", data)
    assert made.flags == {"data_dir": "x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matrix: {x: [1]}\nexclude: [{x: 2}]", "excludes nothing"),
        ("matrix: {x: [1]}\nexclude: [{y: 1}]", "excludes nothing"),
        ("matrix: {x: [1]}\nexclude: [{x: 1, y: null}]", "excludes nothing"),
        (
            "matrix:\n  x: [{a: 4}, {b: 5, c: 1}]\n  b: [8]",
            r"yaml:5: matrix\.b: sets b, which matrix\.x sets in line 4",
        ),
        ("matrix: {x: [1]}\nexclude: [{x: 1}]", "everything is excluded"),
        ("matrix: {x: [1, 1]}", "e x=1: is there twice"),
        ("matrix: {x: [1]}\ninclude: [{x: 1}]", "e x=1: is there twice"),
        (
            "matrix: {" + ", ".join(f"x{i}: [1, 2, 3, 4]" for i in range(7)) + "}",
            "16384 configurations",
        ),
    ],
)
def test_mistakes_in_a_matrix(configurations, text, message):
    with pytest.raises(UsageError, match=message):
        configurations(text)
