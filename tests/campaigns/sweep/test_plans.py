"""``cnnbench sweep --list`` and ``--dry_run``: what a suite is expanded to before anything runs."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import numpy as np
import pytest
from covering import slow_if
from data_sets import write_cifar10
from golden import sentences

from cnnbench.run.driver import estimates
from cnnbench.variable_mgr.modes import BUILT_IN

pytestmark = pytest.mark.usefixtures("quick_processes")

SUITES = [path.stem for path in (Path(__file__).parents[3] / "configs").glob("*.yaml")]


@pytest.fixture
def sweep(call, tmp_path, monkeypatch):
    """sweep(TEXT, FLAG..., code=0): what the command prints about a suite."""
    monkeypatch.chdir(tmp_path)
    # pytest-xdist begins as python -c, as sides of ab do, and child processes would, too.
    monkeypatch.setattr("sys.argv", ["cnnbench"])

    def sweep(text, *flags, code=0):
        Path("suite.yaml").write_text(text)
        return call("sweep", "suite.yaml", *flags, code=code)

    return sweep


@pytest.fixture
def repeats(sweep):
    """repeats(TEXT, FLAG...): the number of processes of each configuration."""

    def repeats(text, *flags):
        _, *lines = sweep(text, "--list", *flags).out.splitlines()
        return {name.rstrip(): int(many) for name, many in (line.rsplit(" ", 1) for line in lines)}

    return repeats


@pytest.fixture
def runs(sweep):
    """runs(TEXT, FLAG...): labels of the processes, and their words after the program."""

    def runs(text, *flags):
        out = sweep(text, "--dry_run", *flags).out
        found = re.findall(r"^# \d+ (.*), at most (\S+) s\n(.*)$", out, re.MULTILINE)
        return [(label, words.partition(" cnnbench ")[2].split()) for label, _, words in found]

    return runs


def test_a_case(runs, sweep):
    flags = ("--model=lenet", "--num_batches=5", "--use_fp16=true")
    text = """
defaults: {repeats: 2, timeout: 7}
entries:
  - {name: a, flags: {model: lenet, num_batches: 5, use_fp16: true}}
"""
    assert runs(text) == [(f"a #{repeat}", ["run", *flags]) for repeat in (1, 2)]
    assert sweep(text, "--dry_run").out.count(", at most 7 s\n") == 2
    assert ", at most 3600 s\n" in sweep("entries: [{name: a}]", "--dry_run").out


def test_a_folder_without_data_is_refused(sweep, tmp_path):
    (tmp_path / "train-00000-of-00001").write_bytes(b"")
    text = "entries: [{name: a, flags: {data_name: imagenet, data_dir: .}}]"
    assert re.search(r"suite\.yaml:1: .*contain no records", sweep(text, code=2).err)


@pytest.mark.parametrize(("value", "lack"), [(None, "is not set"), ("", "is empty")])
def test_optional_entries_are_left_out_aloud(sweep, repeats, monkeypatch, value, lack):
    if value is not None:
        monkeypatch.setenv("CNNBENCH_NONE", value)
    optional = "{name: b, optional: true, flags: {data_dir: '${CNNBENCH_NONE}'}}"
    text = f"entries: [{{name: a}}, {optional}]"
    notice = f"b: left out, because CNNBENCH_NONE {lack}"
    assert [*repeats(text)] == ["a"]
    assert f"cnnbench: {notice}\n" in sweep(text, "--list").err
    err = sweep(f"entries: [{optional}]", code=2).err
    assert f"no entry is left to run; {notice}\n" in err


ON_GPUS = "{name: g, flags: {num_gpus: 2, variable_update: replicated, all_reduce_spec: nccl}}"


def test_flags_for_all_need_not_suit_what_a_filter_leaves_out(repeats):
    text = f"entries: [{ON_GPUS}, {{name: b}}]"
    assert [*repeats(text, "--filter=b", "--", "--device=cpu")] == ["b"]


def test_notices_name_the_configuration(sweep):
    err = sweep("entries: [{name: a, flags: {single_l2_loss_op: true}}]", "--list").err
    assert "cnnbench: a: --single_l2_loss_op" in err
    # A run of a sweep has a record, so that this has an effect.
    text = "entries: [{name: a, flags: {peak_flops: 1e12}}]"
    assert "peak_flops" not in sweep(text, "--list").err


def test_all_reduces(runs):
    text = """
entries:
  - {name: a, command: allreduce, flags: {sizes: [4K, 1M], num_gpus: [2, 4]}}
  - {name: b, flags: {num_epochs: 2}}
"""
    for_all = ["--device=cpu", "--batch_size=3", "--find_batch_size=true"]
    found = dict(runs(text, "--repeats=1", "--", *for_all))
    # A flag for all goes to those that know it, and only runs have a batch.
    assert found == {
        "a": ["allreduce", "--sizes=4K,1M", "--num_gpus=2,4", "--device=cpu"],
        "b": ["run", "--num_epochs=2", *for_all],
    }


LAUNCH = """
defaults: {flags: {model: lenet, num_batches: 1}, launch: {workers: 2, ps: 1}, repeats: 1}
entries:
  - {name: job, flags: {num_gpus: 2}}
  - name: other
    launch: {workers: 3, controller: true}
    flags: {variable_update: distributed_all_reduce, all_reduce_spec: xring}
"""


def test_jobs(runs):
    found = dict(runs(LAUNCH))
    assert found["job"] == [
        *("launch", "--workers=2", "--ps=1", "--"),
        *("--model=lenet", "--num_batches=1", "--num_gpus=2"),
    ]
    assert found["other"][:4] == ["launch", "--workers=3", "--controller", "--"]


OVER_WORKERS = """
defaults: {flags: {model: trivial, device: cpu}, repeats: 1}
entries:
  - name: job
    matrix:
      workers: [1, 2, 3]
      mode: [{variable_update: collective_all_reduce}, {variable_update: parameter_server, ps: 1}]
    exclude: [{workers: [1, 3], variable_update: parameter_server}]
"""


def test_jobs_over_the_number_of_workers(runs, sweep):
    found = dict(runs(OVER_WORKERS))
    assert {name: words[: words.index("--")] for name, words in found.items()} == {
        **{
            f"job workers={n} variable_update=collective_all_reduce": ["launch", f"--workers={n}"]
            for n in (1, 2, 3)
        },
        "job workers=2 variable_update=parameter_server ps=1": ["launch", "--workers=2", "--ps=1"],
    }
    (words,) = (words for name, words in found.items() if "ps=1" in name)
    flags = ["--model=trivial", "--device=cpu", "--variable_update=parameter_server"]
    assert words[words.index("--") + 1 :] == flags
    filtered = dict(runs(OVER_WORKERS, "--filter=workers=2 .*ps=1"))
    assert [*filtered] == ["job workers=2 variable_update=parameter_server ps=1"]
    # The processes of a job are part of what is measured, so none is another's repetition.
    again = OVER_WORKERS + "  - {name: b, launch: {workers: 2}}"
    assert '"b" is the same run as "job workers=2 ' in sweep(again, code=2).err


MODES = """
defaults: {flags: {model: trivial, num_gpus: 2, device: cpu}, repeats: 1}
entries:
  - name: a
    alternatives: true
    matrix: {variable_update: [replicated, one_device_strategy]}
    include: [{num_gpus: 1}, {variable_update: independent, num_gpus: 2}]
"""
REFUSED = (
    "a variable_update=one_device_strategy: left out: --num_gpus=2: "
    "--variable_update=one_device_strategy keeps everything on one device; it needs --num_gpus=1"
)


def test_alternatives_that_are_refused_are_left_out_aloud(repeats, sweep):
    names = ["a variable_update=replicated", "a num_gpus=1"]
    names.append("a variable_update=independent num_gpus=2")
    assert [*repeats(MODES)] == names
    assert f"cnnbench: {REFUSED}\n" in sweep(MODES, "--list").err
    assert (
        REFUSED.partition(" left out: ")[2]
        in sweep(MODES.replace("alternatives: true", "optional: true"), "--list", code=2).err
    )


def test_flags_for_all_do_not_replace_those_of_included_configurations(runs):
    found = dict(runs(MODES, "--", "--num_gpus=3"))
    devices = {
        name: [word for word in words if "num_gpus" in word] for name, words in found.items()
    }
    assert devices == {
        "a variable_update=replicated": ["--num_gpus=3"],
        "a num_gpus=1": ["--num_gpus=1"],
        "a variable_update=independent num_gpus=2": ["--num_gpus=2"],
    }


def test_an_alternative_that_is_the_same_run_as_another_is_left_out(repeats, sweep):
    one = ("--list", "--filter=one_device|num_gpus=1$", "--", "--num_gpus=1")
    text = MODES.replace("{num_gpus: 1}", "{variable_update: one_device_strategy, num_gpus: 1}")
    assert [*repeats(text, *one[1:])] == ["a variable_update=one_device_strategy"]
    same = 'left out: the same run as "a variable_update=one_device_strategy"\n'
    assert f"a variable_update=one_device_strategy num_gpus=1: {same}" in sweep(text, *one).err


def test_alternatives_with_a_wrong_value_and_those_that_are_all_refused_are_errors(sweep):
    err = sweep(MODES.replace("[replicated", "[replicatd"), code=2).err
    assert err.startswith("cnnbench: error: suite.yaml:6: a variable_update=replicatd: ")
    err = sweep(MODES, "--", "--data_dir=/nowhere", code=2).err
    assert err.startswith("cnnbench: error: suite.yaml:4: a variable_update=replicated: --data_dir")


def test_the_suite_modes_has_all_modes_with_what_they_need(call):
    flags = ("--model=trivial", "--device=cpu", "--num_gpus=2", "--batch_size=4")
    out, err = call("sweep", "modes", "--dry_run", "--repeats=1", "--", *flags)
    found = {
        label: shlex.split(words)
        for label, words in re.findall(r"^# \d+ modes (.*), at most .*\n(.*)$", out, re.MULTILINE)
    }
    left_out = re.findall(r"^cnnbench: modes (.*?): left out: (.*)$", err, re.MULTILINE)
    modes = [re.search(r"variable_update=(\w+)", label) for label in (*found, *dict(left_out))]
    assert sorted(mode[1] for mode in modes if mode) == sorted(mode.name for mode in BUILT_IN)
    for mode in BUILT_IN:
        for label, words in found.items():
            if f"variable_update={mode.name}" in label.split():
                assert {f"--{name}={value}" for name, value in mode.needs.items()} <= {*words}
    # One device alone has the flags of all but for its number of devices.
    assert [label for label in found if "variable_update" not in label] == ["num_gpus=1"]
    assert {"--num_gpus=1", "--model=trivial", "--batch_size=4"} <= {*found["num_gpus=1"]}
    # Those that need several processes, or one device.
    names = {name.partition("=")[2] for name, _ in left_out}
    assert names == {
        "multi_worker_mirrored_strategy",
        "one_device_strategy",
        "parameter_server_strategy",
    }
    assert all(reason.startswith("--") for _, reason in left_out)


@pytest.fixture(scope="module")
def data_folders(tmp_path_factory):
    """Folders that look like data sets to whoever only plans."""
    import tensorflow as tf

    cifar = tmp_path_factory.mktemp("cifar10")
    images = np.zeros((10, 32, 32, 3), np.uint8)
    for subset in ("train", "validation"):
        write_cifar10(cifar, images, np.arange(10), subset=subset, form="binary")
    imagenet = tmp_path_factory.mktemp("imagenet")
    for name in ("train-00000-of-00001", "validation-00000-of-00001"):
        with tf.io.TFRecordWriter(str(imagenet / name)) as records:
            records.write(b"not looked into")
    return {"CNNBENCH_CIFAR10": str(cifar), "CNNBENCH_IMAGENET": str(imagenet)}


@pytest.mark.parametrize("name", slow_if(lambda name: name != "smoke", SUITES))
def test_every_shipped_suite_plans(name, call, data_folders, monkeypatch):
    for variable, folder in data_folders.items():
        monkeypatch.setenv(variable, folder)
    out, err = call("sweep", name, "--list")
    assert out.count("\n") >= 8
    assert "no effect" not in err
    found = re.findall(r"to run it on CPUs: cnnbench (.*)", err)
    assert len(found) == (name != "smoke")
    for scaled in found:
        out, err = call(*shlex.split(scaled))
        assert out
        assert "about" in err  # which is known of CPUs


def test_a_file_comes_before_a_shipped_suite_of_its_name(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("smoke").write_text("entries: [{name: mine, repeats: 1}]")
    assert call("sweep", "smoke", "--list").out.splitlines()[1:] == ["mine                   1"]


@pytest.mark.slow
def test_repeats_follow_from_what_is_judged_together(repeats):
    sizes = ", ".join(map(str, range(101, 170)))
    text = f"entries: [{{name: a, matrix: {{batch_size: [{sizes}]}}}}, {{name: b, repeats: 2}}]"
    *many, last = repeats(text).values()
    assert (set(many), last) == ({8}, 2)
    # Fewer configurations need fewer processes.
    assert {*repeats(text, "--filter=^a batch_size=11").values()} == {7}
    assert {*repeats(text, "--repeats=3").values()} == {3}
    few = repeats("entries: [{name: a, repeats: auto}, {name: b, matrix: {num_gpus: [2, 4]}}]")
    assert {*few.values()} == {7}


def test_every_reduction_of_a_process_is_judged(repeats):
    sizes = ",".join(f"{size}K" for size in range(1, 36))
    flags = f'{{sizes: "{sizes}", all_reduce_spec: "xring,pscpu", num_gpus: 2, device: cpu}}'
    text = f"entries: [{{name: r, command: allreduce, flags: {flags}}}, {{name: a}}]"
    assert repeats(text) == {"r": 8, "a": 7}


def test_how_long_it_takes_is_told(sweep, limits):
    limits(estimates, measure_cpu_flops=lambda: 1e11)
    text = "entries: [{name: a, flags: {device: cpu, model: lenet, num_batches: 5}}]"
    guess = (
        r"7 processes of 1 configuration, 7 of each \(repeats: auto\): about 55 s, a first guess"
    )
    assert re.fullmatch(f"cnnbench: {guess}\n", sweep(text, "--list").err)
    on_gpu = sweep(text.replace("cpu", "gpu"), "--list").err
    assert on_gpu.endswith("; their duration is known after the first\n")


MANY = """
entries:
  - {name: a, repeats: 3, matrix: {num_gpus: [1, 2, 3, 4, 5, 6]}}
  - {name: b, repeats: 1, flags: {model: lenet}}
"""


def test_rounds_are_not_mixed_and_the_seed_decides(runs):
    first, again, other = (
        [label for label, _ in runs(MANY, f"--seed={seed}")] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(set(first)) == len(first)
    rounds = [first[:7], first[7:13], first[13:]]
    assert rounds[0].count("b") == 1
    rounds[0].remove("b")
    for number, names in enumerate(rounds, start=1):
        assert {name.rpartition(" #")[2] for name in names} == {str(number)}
    orders = {tuple(name.rpartition(" #")[0] for name in names) for names in rounds}
    assert len(orders) > 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"a: \xff\xfe\x00\x81", "not YAML"),
        *((opening * 20_000, "nested too deeply") for opening in (b"[", b"{a: ", b"- ", b"? ")),
        (b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"".join(b" " * n + b"a:\n" for n in range(999)), "nested too deeply"),
        (b"#" * (1 << 20) + b"\n", "has more than 1 MiB"),
    ],
)
def test_files_that_cannot_be_read(call, tmp_path, monkeypatch, data, words):
    monkeypatch.chdir(tmp_path)
    Path("suite.yaml").write_bytes(data)
    begun = time.process_time()
    err = call("sweep", "suite.yaml", code=2).err
    assert time.process_time() - begun < 0.5
    assert re.match(rf"cnnbench: error: suite\.yaml: .*{words}", err)


def test_aliases_cost_nothing(sweep):
    # Ten levels of nine aliases each would be three thousand million nodes.
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 10)]
    assert 'suite.yaml:1: unknown key "l0"' in sweep("\n".join(lines), code=2).err


OF_YAML = [
    ("a: 1\nb: [1, 2\nc: 3\n", 3),
    ("a: 1\n\tb: 2\n", 2),
    ("a: 1\nb: 2\na: 3\n", 3),
    ("a: 1\n---\nb: 2\n", 2),
    ("a: !!python/object/apply:os.system [ls]\nb: !mine 3\n", 2),
    ("? [a, b]\n: 1\n", 1),
    ("a: &x [1, *x]\n", 1),
    ("a: *nowhere\n", 1),
]

OF_SUITES = [
    ("name: x\nentires: []", 2),
    ("name: x", 1),
    ("[1]", 1),
    ("entries: 3", 1),
    ("entries: []", 1),
    ("defaults:\n  repeat: 2\nentries: [{name: a}]", 2),
    ("entries:\n - flags: {}", 2),
    ("entries:\n - name: a\n - name: a", 3),
    ("entries:\n - name: a b", 2),
    ("entries:\n - name: e\n   matrix: {x: [1, 1]}", 3),
    ("entries:\n - {name: a, flags: {model: trivial, batch_size: 32}}\n - {name: b}", 3),
]

OF_ENTRIES = [
    "flgas: {}",
    "zzz: {}",
    "repeats: 0",
    "repeats: two",
    "repeats: yes",
    "timeout: -1",
    "timeout: 0",
    "timeout: 1_0",
    "repeats: 1_0",
    "timeout: .inf",
    "command: rum",
    "optional: 1",
    "alternatives: 1",
    "flags: [x]",
    "flags: {x: {y: 1}}",
    "flags: {x: [[1]]}",
    "matrix: {x: 3}",
    "matrix: {x: []}",
    "matrix: {x: [1, {y: 2}]}",
    "matrix: {x: [{a: 4}, {b: 5}], b: [8]}",
    "exclude: [{}]",
    "bounds: {mfa: {min: 1}}",
    "bounds: {mfu: {}}",
    "bounds: {mfu: {mim: 1}}",
    "bounds: {mfu: {min: 12345678, max: 0.5}}",
    "launch: {workers: 0}",
    "launch: {worker: 2}",
    "launch: {workers: 200, ps: 200}",
    "launch: 2",
    "flags: {workers: 2}",
    "matrix: {workers: [0]}",
    "matrix: {workers: [~]}",
    "matrix: {controller: [1]}",
    "launch: {ps: 100}\n   matrix: {workers: [200]}",
    "matrix: {workers: [1, 01]}",
    "matrix: {workers: [1, 2]}\n   exclude: [{workers: 3}]",
    "matrix: {workers: [1, 2]}\n   exclude: [{workers: ~}]",
    "matrix:\n     ps: [1]\n     workers: [1, 2]\n   flags: {variable_update: replicated}",
    "matrix: {x: [{workers: 2, ps: 1}]}\n   flags: {variable_update: collective_all_reduce}",
    "matrix: {x: [1]}\n   exclude: [{x: 1}, {x: 2}]",
    "matrix: {x: [1]}\n   exclude: [{y: 1}]",
    "matrix: {x: [1]}\n   exclude: [{x: 1, y: null}]",
    "matrix: {x: [1]}\n   exclude: [{x: 1}]",
    "matrix: {x: [1]}\n   include: [{x: 1}]",
    "matrix: {" + ", ".join(f"x{i}: [1, 2, 3, 4]" for i in range(7)) + "}",
    "command: allreduce\n   bounds: {mfu: {min: 1}}",
    "command: allreduce\n   launch: {workers: 2}",
    "command: allreduce\n   matrix: {workers: [2]}",
]

OF_FLAGS = [
    "modle: lenet",
    "model: lenett",
    "num_gpus: 0",
    "num_gpus: two",
    "xla: maybe",
    "num_batches: 3\n     num_epochs: 2",
    "result_json: x.json",
    "result_csv: x.csv",
    "train_dir: /nowhere",
    "data_dir: /nowhere/at/all",
    "data_dir: ${CNNBENCH_NONE}",
    "worker_hosts: a:1\n   launch: {workers: 2}",
    "find_batch_size: true\n   launch: {workers: 2}",
    "find_batch_size: true\n     eval_batch_size: 2",
    "find_batch_size: true\n   command: allreduce",
    "batch_size: 3\n   command: allreduce",
    "sizes: 4Q\n   command: allreduce",
    "model: nonesuch\n   command: allreduce",
    "all_reduce_spec: rxing\n   command: allreduce",
    "result_json: x\n   command: allreduce",
]


MISTAKES = dict(
    [
        *OF_YAML,
        *OF_SUITES,
        *((f"entries:\n - name: e\n   {text}", None) for text in OF_ENTRIES),
        *((f"entries:\n - name: good\n - name: e\n   flags:\n     {text}", 5) for text in OF_FLAGS),
    ]
)
"""Texts of suites, and the line that an error names; None: any of the entry."""


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_named_with_its_line(sweep, monkeypatch, text):
    monkeypatch.delenv("CNNBENCH_NONE", raising=False)
    out, err = sweep(text, code=2)
    place = f"cnnbench: error: suite.yaml:{MISTAKES[text] or ''}"
    assert err.startswith(place)
    assert (out, err.count("\n")) == ("", 1)
    golden = Path(__file__).parent / "golden" / "mistakes.txt"
    cases = [json.dumps(text) for text in MISTAKES]
    # The reasons of flags stand with those of their command, those of YAML are of its library.
    sentence = re.sub(r"(--\w+=\S+:|not YAML:) .*", r"\1 ...", err.rstrip("\n"))
    sentences(golden, {json.dumps(text): sentence}, cases)
