"""Suite files: what they mean; mistakes in them are in test_plans.py.

Tests cnnbench/campaigns/suite/*.py.
"""

from __future__ import annotations

import pytest

from cnnbench.campaigns.launch import JobLayout
from cnnbench.campaigns.suite.entries import LAUNCH, expand_entry


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
            repeats: auto
            timeout: 1.5
            bounds: {throughput: {max: 9}}
          - {name: c, command: allreduce, flags: {sizes: 4K}}
        """
    )
    assert (checked.name, checked.description) == ("mine", "two lines")
    a, b, c = checked.entries
    flags = [{name: node.text for name, node in one.flags.items()} for one in checked.entries]
    assert flags == [
        {"model": "lenet", "num_gpus": "2"},
        {"model": "lenet", "num_gpus": "4"},
        {"sizes": "4K"},  # what is said of one command means nothing to another
    ]
    assert (a.repeats, a.timeout, a.command) == (3, 90, "run")
    assert (b.repeats, b.timeout) == (None, 1.5)
    assert (c.repeats, c.timeout, c.bounds) == (3, 90, {})
    assert b.bounds == {"throughput": (None, 9), "mfu": (0.1, None)}


@pytest.fixture
def configurations(suite, monkeypatch):
    def configurations(text, data=None):
        if data is not None:
            monkeypatch.setenv("DATA", data)
        (entry,) = suite("entries:\n - name: e\n   " + text.replace("\n", "\n   ")).entries
        return expand_entry(entry)[0]

    return configurations


SETS = "matrix:\n  x: [{model: lenet, batch_size: 3}, {model: trivial}]\n"
GPUS = "matrix: {num_gpus: [1, 2, 4], xla: [true, false]}\n"
DATA = "matrix: {data_dir: ['${DATA}', /other], sizes: [[1, 2], [3]]}\n"
VARIABLES = "flags: {data_dir: '${DATA}/x', other: '${NONE:-o}', both: '${DATA}${DATA}'}"
TEXTS = "flags: {a: 1e-3, b: 012, c: 0x10, d: 1_000, e: 1:30, f: 2026-01-02, g: 'yes', h: 1.50}"


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
        # Words for true and false are values of other flags; numbers and dates keep their text.
        (
            "flags: {progress: on, xla: on, use_fp16: No}",
            {"": "progress=on xla=true use_fp16=false"},
        ),
        (
            "flags: {xla: ~, use_fp16: Off, forward_only: Yes}",
            {"": "use_fp16=false forward_only=true"},
        ),
        (TEXTS, {"": "a=1e-3 b=012 c=0x10 d=1_000 e=1:30 f=2026-01-02 g=yes h=1.50"}),
        # Null takes a flag away; lists become flags with commas.
        ("flags: {a: 5}\nmatrix: {a: [null, 3]}", {"a=": "", "a=3": "a=3"}),
        ("flags: {steps: [1, 2], one: [3]}", {"": "steps=1,2 one=3"}),
        (VARIABLES, {"": "data_dir=/d/x other=o both=/d/d"}),
        ("flags: {data_dir: 'x${NONE:-}'}", {"": "data_dir=x"}),
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


SERVERS = "launch: {ps: 2}\nmatrix: {workers: [1, 02], num_gpus: [1, 2]}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("matrix: {workers: [1, 4]}", {"workers=1": JobLayout(), "workers=4": JobLayout(4)}),
        # What varies replaces what the entry says, and keeps the rest.
        (
            "launch: {workers: 3, ps: 1}\nmatrix: {workers: [2]}\ninclude: [{ps: 5}]",
            {"workers=2": JobLayout(2, 1), "ps=5": JobLayout(3, 5)},
        ),
        # An axis of sets; a set without a key of launch is no job.
        (
            "matrix: {x: [{xla: true}, {workers: 2, ps: 1}, {controller: yes}]}",
            {
                "xla=true": None,
                "workers=2 ps=1": JobLayout(2, 1),
                "controller=true": JobLayout(controller=True),
            },
        ),
        # An exclusion matches what varies and what the entry says, by value.
        (
            SERVERS + "exclude: [{workers: 2, ps: 2, num_gpus: [2, 4]}]",
            {
                "workers=1 num_gpus=1": JobLayout(1, 2),
                "workers=1 num_gpus=2": JobLayout(1, 2),
                "workers=2 num_gpus=1": JobLayout(2, 2),
            },
        ),
        (
            "matrix: {x: [{workers: 2}, {ps: 1}, {num_gpus: 2}]}\nexclude: [{ps: ~, workers: 2}]",
            {"ps=1": JobLayout(1, 1), "num_gpus=2": None},
        ),
        (
            "matrix: {controller: [true, no]}\nexclude: [{controller: false}]",
            {"controller=true": JobLayout(controller=True)},
        ),
    ],
)
def test_the_processes_of_a_job_vary(configurations, text, expected):
    found = configurations(text)
    assert {one.name: one.launch for one in found} == {f"e {k}": v for k, v in expected.items()}
    assert not any(one.flags.keys() & LAUNCH.keys() for one in found)
