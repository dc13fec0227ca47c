"""Matrix, exclusions, inclusions and what is put in from the environment."""

from __future__ import annotations

import pytest

from cnnbench.errors import UsageError
from cnnbench.sweep.planning import expand


@pytest.fixture
def configurations(suite):
    def configurations(text, environ=None):
        (entry,) = suite("entries:\n - name: e\n   " + text.replace("\n", "\n   ")).entries
        return expand(entry, environ or {})[0]

    return configurations


def names(configurations):
    return [configuration.name for configuration in configurations]


def test_without_a_matrix_there_is_one(configurations):
    (one,) = configurations("flags: {model: lenet}")
    assert (one.name, one.flags) == ("e", {"model": "lenet"})


def test_the_matrix_is_a_product_in_order(configurations):
    made = configurations("flags: {model: lenet}\nmatrix: {num_gpus: [1, 2], xla: [true, no]}")
    assert names(made) == [
        "e num_gpus=1 xla=true",
        "e num_gpus=1 xla=false",
        "e num_gpus=2 xla=true",
        "e num_gpus=2 xla=false",
    ]
    assert made[3].flags == {"model": "lenet", "num_gpus": "2", "xla": "false"}
    assert made[3].varied == ("num_gpus", "xla")


def test_an_axis_of_sets_of_flags(configurations):
    made = configurations(
        "matrix:\n  size: [{model: lenet, batch_size: 3}, {model: trivial}]\n  num_gpus: [2]"
    )
    assert names(made) == ["e model=lenet batch_size=3 num_gpus=2", "e model=trivial num_gpus=2"]
    assert "batch_size" not in made[1].flags
    assert "size" not in made[0].flags


SETS = "matrix:\n  x: [{model: lenet, batch_size: 3}, {model: trivial}]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # An exclusion matches all its flags, null those that are not given.
        (
            "flags: {model: lenet}\nmatrix: {num_gpus: [1, 2, 4], xla: [true, false]}\n"
            "exclude:\n  - {num_gpus: [2, 4], xla: yes, model: lenet}",
            [
                "num_gpus=1 xla=true",
                "num_gpus=1 xla=false",
                "num_gpus=2 xla=false",
                "num_gpus=4 xla=false",
            ],
        ),
        (
            "matrix: {batch_size: [null, 4], num_gpus: [1, 2]}\n"
            "exclude: [{batch_size: null, num_gpus: 2}]",
            ["batch_size= num_gpus=1", "batch_size=4 num_gpus=1", "batch_size=4 num_gpus=2"],
        ),
        (SETS + "exclude: [{batch_size: [~, 4]}]", ["model=lenet batch_size=3"]),
        # Inclusions are beside the matrix, or alone.
        (
            "matrix: {num_gpus: [1]}\ninclude: [{num_gpus: 8, xla: true}]",
            ["num_gpus=1", "num_gpus=8 xla=true"],
        ),
        ("include: [{num_gpus: 8}]", ["num_gpus=8"]),
        # Of a path the last part is in a name.
        (
            "matrix: {data_dir: [/a/b/c/], all_reduce_spec: [nccl/xring]}",
            ["data_dir=c all_reduce_spec=nccl/xring"],
        ),
    ],
)
def test_names(configurations, text, expected):
    assert names(configurations(text)) == [f"e {name}" for name in expected]


def test_exclusions_are_of_values_not_of_spellings(configurations):
    made = configurations(
        "matrix: {data_dir: ['${DATA}', /other], sizes: [[1, 2], [3]]}\n"
        "exclude: [{data_dir: '${DATA}'}, {sizes: [[1, 2]]}]",
        {"DATA": "/d"},
    )
    assert [c.flags for c in made] == [{"data_dir": "/other", "sizes": "3"}]


def test_words_for_true_and_false_are_values_of_other_flags(configurations):
    (made,) = configurations("flags: {progress: on, xla: on}")
    assert made.flags == {"progress": "on", "xla": "true"}
    made = configurations("matrix: {progress: [on, off], xla: [yes]}\nexclude: [{progress: off}]")
    assert names(made) == ["e progress=on xla=true"]


def test_null_takes_a_flag_away(configurations):
    made = configurations("flags: {num_batches: 5}\nmatrix: {num_batches: [null, 3]}")
    assert [c.flags for c in made] == [{}, {"num_batches": "3"}]
    assert names(made) == ["e num_batches=", "e num_batches=3"]


def test_lists_become_flags_with_commas(configurations):
    made = configurations("flags: {steps: [1, 2]}\nmatrix: {other: [[3, 4], [5]]}")
    assert [c.flags for c in made] == [
        {"steps": "1,2", "other": "3,4"},
        {"steps": "1,2", "other": "5"},
    ]


def test_variables_of_the_environment(configurations):
    text = "flags: {data_dir: '${DATA}/x', other: '${NONE:-o}', both: '${DATA}${DATA}'}"
    (made,) = configurations(text, {"DATA": "/d"})
    assert made.flags == {"data_dir": "/d/x", "other": "o", "both": "/d/d"}


@pytest.mark.parametrize(("environ", "lack"), [({}, "is not set"), ({"DATA": ""}, "is empty")])
def test_a_variable_that_is_not_set_is_an_error_with_its_line(configurations, environ, lack):
    message = rf"yaml:4: \$\{{DATA\}}: the environment variable DATA {lack}"
    with pytest.raises(UsageError, match=message):
        configurations("flags:\n  data_dir: ${DATA}", environ)
    (made,) = configurations("flags:\n  data_dir: x${DATA:-}", environ)
    assert made.flags == {"data_dir": "x"}


def test_unless_the_entry_is_optional(suite):
    (entry,) = suite("entries: [{name: e, optional: true, flags: {data_dir: '${DATA}'}}]").entries
    assert expand(entry, {}) == ((), "DATA is not set")
    assert expand(entry, {"DATA": ""}) == ((), "DATA is empty")
    assert len(expand(entry, {"DATA": "x"})[0]) == 1


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
def test_mistakes(configurations, text, message):
    with pytest.raises(UsageError, match=message):
        configurations(text)
