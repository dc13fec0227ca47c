"""Suite files: what they mean, and that every mistake is told with its line."""

from __future__ import annotations

import pytest

from cnnbench.campaigns.sweep.document import load
from cnnbench.campaigns.sweep.planning import expand
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
          max_batch_search: true
        entries:
          - name: a
          - name: b
            flags: {num_gpus: 4}
            repeats: auto
            timeout: 1.5
            bounds: {throughput: {max: 9}}
            max_batch_search: false
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
    assert (a.repeats, a.timeout, a.search, a.command) == (3, 90, BatchSizeSearch(), "run")
    assert (b.repeats, b.timeout, b.search) == (None, 1.5, None)
    assert (c.repeats, c.timeout, c.search, c.bounds) == (3, 90, None, {})
    assert b.bounds == {"throughput": (None, 9), "mfu": (0.1, None)}


def test_a_suite_is_called_after_its_file_unless_it_says_otherwise(suite):
    checked = suite("entries: [{name: a}]")
    assert (checked.name, checked.entries[0].timeout) == ("suite", DEFAULT_TIMEOUT)


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


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"a: \xff\xfe\x00\x81", "not YAML"),
        *((opening * 1100, "nested too deeply") for opening in (b"[", b"{a: ", b"- ")),
        (None, "No such file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, data, words):
    path = tmp_path / "suite.yaml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UsageError, match=rf"suite\.yaml: .*{words}"):
        load(str(path))


def test_aliases_cost_nothing(write):
    # Ten levels of nine aliases each would be three thousand million nodes.
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 10)]
    assert len(load(write("\n".join(lines))).fields) == 10


OF_YAML = [
    ("a: 1\nb: [1, 2\nc: 3\n", 3, "not YAML"),
    ("a: 1\n\tb: 2\n", 2, "not YAML"),
    ("a: 1\nb: 2\na: 3\n", 3, 'the key "a" is there twice'),
    ("a: 1\n---\nb: 2\n", 2, "not YAML"),
    ("a: !!python/object/apply:os.system [ls]\nb: !mine 3\n", 2, "!mine"),
    ("? [a, b]\n: 1\n", 1, "a key must be a word"),
    ("a: &x [1, *x]\n", 1, "nested too deeply"),
    ("a: *nowhere\n", 1, "undefined alias"),
]

OF_SUITES = [
    ("entires: []", 1, 'unknown key "entires"; did you mean "entries"?'),
    ("name: x", 1, 'a suite needs the key "entries", a list'),
    ("[1]", 1, "a suite must be a mapping (key: value), not a list"),
    ("entries: 3", 1, "entries must be a list, not '3'"),
    ("entries: []", 1, "entries: at least one item is needed"),
    ("defaults:\n  repeat: 2\nentries: [{name: a}]", 2, 'did you mean "repeats"?'),
    ("entries:\n - flags: {}", 2, 'an entry needs the key "name"'),
    ("entries:\n - name: a\n - name: a", 3, 'a second entry "a"; the first is in line 2'),
    ("entries:\n - name: a b", 2, "name: 'a b' must be letters"),
    (
        "entries:\n - {name: a, flags: {model: trivial, batch_size: 32}}\n - {name: b}",
        3,
        '"b" runs the same as "a"',
    ),
]

OF_ENTRIES = [
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
    ("matrix: {x: [{a: 4}, {b: 5}], b: [8]}", "matrix.b: sets b, which matrix.x sets in line 3"),
    ("exclude: [{}]", "must name a flag"),
    ("bounds: {mfa: {min: 1}}", 'did you mean "mfu"?'),
    ("bounds: {mfu: {}}", "needs min, max or both"),
    ("bounds: {mfu: {mim: 1}}", 'did you mean "min"?'),
    ("bounds: {mfu: {min: 2, max: 1}}", "min 2 is above max 1"),
    ("max_batch_search: 7", "must be true or false, not '7'"),
    ("max_batch_search: {limit: 4, multiple_of: 8}", "limit 4 is below multiple_of 8"),
    ("launch: {workers: 0}", "workers: '0' must be from 1 to 256"),
    ("launch: {worker: 2}", 'unknown key "worker"; did you mean "workers"?'),
    ("launch: {workers: 200, ps: 200}", "launch: more than 256 processes"),
    ("launch: 2", "launch must be a mapping"),
    ("matrix: {x: [1]}\n   exclude: [{x: 1}, {x: 2}]", "excludes nothing"),
    ("matrix: {x: [1]}\n   exclude: [{y: 1}]", "excludes nothing"),
    ("matrix: {x: [1]}\n   exclude: [{x: 1, y: null}]", "excludes nothing"),
    # Of a whole entry.
    ("matrix: {x: [1]}\n   exclude: [{x: 1}]", "everything is excluded"),
    ("matrix: {x: [1, 1]}", "e x=1: is there twice"),
    ("matrix: {x: [1]}\n   include: [{x: 1}]", "e x=1: is there twice"),
    (
        "matrix: {" + ", ".join(f"x{i}: [1, 2, 3, 4]" for i in range(7)) + "}",
        "16384 configurations",
    ),
    ("max_batch_search: {limit: 16}", "ends at 16, below the batch"),
    *(
        (f"command: allreduce\n   {key}: {value}", f"e: {key} needs command: run")
        for key, value in (
            ("bounds", "{mfu: {min: 1}}"),
            ("max_batch_search", "true"),
            ("launch", "{workers: 2}"),
        )
    ),
]

OF_FLAGS = [
    ("modle: lenet", 'unknown key "modle"; did you mean "model"?'),
    ("model: lenett", "--model=lenett: "),
    ("num_gpus: 0", "--num_gpus=0: must be from 1 to 1024"),
    ("num_gpus: two", "--num_gpus=two: must be an integer"),
    ("xla: maybe", "--xla=maybe: must be true or false"),
    ("num_batches: 3\n     num_epochs: 2", "cannot go with --num_epochs"),
    ("result_json: x.json", "is set by the sweep"),
    ("result_csv: x.csv", "is set by the sweep"),
    ("train_dir: /nowhere", "training in a sweep"),
    ("data_dir: /nowhere/at/all", "/nowhere/at/all"),
    ("data_dir: ${CNNBENCH_NONE}", "${CNNBENCH_NONE}: the environment variable CNNBENCH_NONE is "),
    ("worker_hosts: a:1\n   launch: {workers: 2}", "--worker_hosts=a:1: is set by launch"),
    *(
        (f"{flag}\n   command: allreduce", message)
        for flag, message in (
            ("batch_size: 3", 'unknown key "batch_size"'),
            ("sizes: 4Q", "--sizes=4Q: "),
            ("model: nonesuch", "--model=nonesuch: "),
            ("all_reduce_spec: rxing", "--all_reduce_spec=rxing: "),
            ("result_json: x", "is set by the sweep"),
        )
    ),
]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        *OF_YAML,
        *OF_SUITES,
        *((f"entries:\n - name: e\n   {text}", None, message) for text, message in OF_ENTRIES),
        *(
            (f"entries:\n - name: good\n - name: e\n   flags:\n     {text}", 5, message)
            for text, message in OF_FLAGS
        ),
    ],
)
def test_mistakes(plan, tmp_path, monkeypatch, text, line, message):
    monkeypatch.delenv("CNNBENCH_NONE", raising=False)
    with pytest.raises(UsageError) as caught:
        plan(text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/suite.yaml:{line or ''}")
    assert message in said
    assert "\n" not in said
