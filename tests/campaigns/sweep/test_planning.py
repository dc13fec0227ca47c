"""Plans: every flag of every entry is checked before anything runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from data_sets import write_cifar10
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN

from cnnbench.campaigns.sweep.document import find_suite, load, shipped_suites
from cnnbench.campaigns.sweep.planning import Item, Overrides, make_plan, ordered
from cnnbench.campaigns.sweep.runner import arguments
from cnnbench.campaigns.sweep.schema import BatchSizeSearch, check
from cnnbench.errors import UsageError

FACTS = {"hostname": "here", "tensorflow_version": "2.21.0", "load_average_1min": 1.0}
TINY = "entries: [{name: a, flags: {model: lenet}}]"


def test_a_case(plan):
    (case,) = plan(
        """
        defaults: {repeats: 2, timeout: 7}
        entries:
          - {name: a, flags: {model: lenet, num_batches: 5, use_fp16: true}}
        """
    ).cases
    assert case.flags == ("--model=lenet", "--num_batches=5", "--use_fp16=true")
    assert (case.name, case.command, case.repeats, case.timeout) == ("a", "run", 2, 7)
    assert case.resolved.batch_size == 32
    assert case.resolved.config["precision"] == "fp16"
    assert case.resolved.config["num_warmup_batches"] == 10
    given = {"model", "num_batches", "use_fp16", "result_json"}
    assert set(case.resolved.explicit_flags) == given


@pytest.mark.parametrize(
    ("flags", "line", "message"),
    [
        ("modle: lenet", 5, 'unknown key "modle"; did you mean "model"?'),
        ("model: lenett", 5, "--model=lenett: "),
        ("model: lenet\n     num_gpus: 0", 6, "--num_gpus=0: must be from 1 to 1024"),
        ("model: lenet\n     num_gpus: two", 6, "--num_gpus=two: must be an integer"),
        ("model: lenet\n     xla: maybe", 6, "--xla=maybe: must be true or false"),
        ("num_batches: 3\n     num_epochs: 2", 5, "cannot go with --num_epochs"),
        ("result_json: x.json", 5, "is set by the sweep"),
        ("result_csv: x.csv", 5, "is set by the sweep"),
        ("train_dir: /nowhere", 5, "training in a sweep"),
        ("data_dir: /nowhere/at/all", 5, "/nowhere/at/all"),
        ("data_name: imagenet\n     data_dir: ${CNNBENCH_TEST_EMPTY}", 3, "hold no records"),
    ],
)
def test_a_mistake_in_a_flag_is_refused_with_its_line(
    plan, tmp_path, monkeypatch, flags, line, message
):
    (tmp_path / "train-00000-of-00001").write_bytes(b"")
    monkeypatch.setenv("CNNBENCH_TEST_EMPTY", str(tmp_path))
    lines = ["entries:", " - {name: good}", " - name: bad", "   flags:", f"     {flags}"]
    with pytest.raises(UsageError) as caught:
        plan("\n".join(lines))
    assert f"suite.yaml:{line}: " in str(caught.value)
    assert message in str(caught.value)


REDUCE = "entries: [{name: a, command: allreduce, %s}]"
VARIED = "entries: [{name: a, matrix: {num_gpus: [1, 2]}}]"
ON_GPUS = "{name: g, flags: {num_gpus: 2, variable_update: replicated, all_reduce_spec: nccl}}"


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (
            "entries:\n - {name: a, flags: {model: trivial, batch_size: 32}}\n - {name: b}",
            {},
            'yaml:3: "b" runs the same as "a"',
        ),
        ("entries: [{name: a, max_batch_search: {limit: 16}}]", {}, "ends at 16, below the batch"),
        (REDUCE % "flags: {batch_size: 3}", {}, 'yaml:1: unknown key "batch_size"'),
        (REDUCE % "flags: {sizes: 4Q}", {}, "--sizes=4Q: "),
        (REDUCE % "flags: {model: nonesuch}", {}, "--model=nonesuch: "),
        (REDUCE % "flags: {all_reduce_spec: rxing}", {}, "--all_reduce_spec=rxing: "),
        (REDUCE % "flags: {result_json: x}", {}, "is set by the sweep"),
        (REDUCE % "bounds: {mfu: {min: 1}}", {}, "a: bounds needs command: run"),
        (REDUCE % "max_batch_search: true", {}, "a: max_batch_search needs command: run"),
        (REDUCE % "launch: {workers: 2}", {}, "a: launch needs command: run"),
        (VARIED, {"flags": {"num_gpus": "4"}}, '--num_gpus=4: is what "a" varies; choose with'),
        (VARIED, {"filter": "resnet"}, "matches none of"),
        (VARIED, {"filter": "("}, "is not a regular expression"),
        (f"entries: [{ON_GPUS}]", {"flags": {"device": "cpu"}}, "nccl sums on GPUs only"),
    ],
)
def test_suites_that_cannot_be_run(plan, text, overrides, message):
    with pytest.raises(UsageError) as caught:
        plan(text, Overrides(**overrides))
    assert message in str(caught.value)


def test_a_filter_chooses_by_name(plan):
    text = "entries: [{name: a, matrix: {num_gpus: [1, 2, 12]}}]"
    assert [c.name for c in plan(text, Overrides(filter="gpus=1$")).cases] == ["a num_gpus=1"]
    # The flags for all need not suit what is left out.
    text = f"entries: [{ON_GPUS}, {{name: b}}]"
    assert [c.name for c in plan(text, Overrides({"device": "cpu"}, filter="b")).cases] == ["b"]


def test_notices_name_the_configuration(plan):
    made = plan("entries: [{name: a, flags: {single_l2_loss_op: true}}]")
    assert len(made.notices) == 1
    assert made.notices[0].startswith("a: --single_l2_loss_op")
    # A run of a sweep has a record, so that this has an effect.
    assert plan("entries: [{name: a, flags: {peak_flops: 1e12}}]").notices == ()


def test_optional_entries_are_left_out_aloud(plan, monkeypatch):
    monkeypatch.delenv("CNNBENCH_NO_SUCH", raising=False)
    optional = "{name: b, optional: true, flags: {data_dir: '${CNNBENCH_NO_SUCH}'}}"
    made = plan(f"entries: [{{name: a}}, {optional}]")
    assert [case.name for case in made.cases] == ["a"]
    assert made.notices == ("b: left out, because CNNBENCH_NO_SUCH is not set",)
    with pytest.raises(UsageError, match="no entry is left to run; b: left out"):
        plan(f"entries: [{optional}]")


def test_all_reduces(plan):
    made = plan(
        """
        entries:
          - {name: a, command: allreduce, flags: {sizes: [4K, 1M], num_gpus: [2, 4]}}
          - {name: b}
        """,
        Overrides({"device": "cpu", "batch_size": "3"}, search=True),
    )
    reduce, run = made.cases
    assert (reduce.command, run.command) == ("allreduce", "run")
    # A flag for all goes to those that know it.
    assert reduce.flags == ("--sizes=4K,1M", "--num_gpus=2,4", "--device=cpu")
    assert run.flags == ("--device=cpu", "--batch_size=3")
    assert reduce.resolved.config["num_gpus"] == [2, 4]
    assert (reduce.search, run.search) == (None, BatchSizeSearch())


def key_of(suite, text=TINY, facts=FACTS):
    return make_plan(suite(text), facts).cases[0].key


def test_the_key_is_of_the_resolved_configuration(suite):
    key = key_of(suite)
    spelled = "entries: [{name: other, repeats: 4, flags: {model: lenet, batch_size: 32}}]"
    assert key_of(suite, spelled) == key
    shown = "entries: [{name: a, flags: {model: lenet, progress: 'off'}}]"
    assert key_of(suite, shown) == key
    for flags in ("num_gpus: 2", "precision: bf16", "batch_size: 31", "tf_random_seed: 1"):
        changed = f"entries: [{{name: a, flags: {{model: lenet, {flags}}}}}]"
        assert key_of(suite, changed) != key
    searched = "entries: [{name: a, flags: {model: lenet}, max_batch_search: true}]"
    assert key_of(suite, searched) != key


def test_the_key_is_of_the_environment_that_matters(suite):
    key = key_of(suite)
    assert key_of(suite, facts={**FACTS, "load_average_1min": 7.0}) == key
    assert key_of(suite, facts={**FACTS, "git_commit": "abc"}) == key
    for change in (
        {"tensorflow_version": "2.20.0"},
        {"hostname": "there"},
        {"env_TF_ENABLE_ONEDNN_OPTS": "0"},
        {"gpu_names": ["A100"]},
    ):
        assert key_of(suite, facts={**FACTS, **change}) != key


def test_the_key_is_of_a_plug_in_s_text(suite, tmp_path):
    plugin = tmp_path / "plugin.py"
    source = Path("docs/examples/tiny_plugin.py")
    text = (Path(__file__).parents[3] / source).read_text(encoding="utf-8").replace("tiny", "tiny9")
    plugin.write_text(text, encoding="utf-8")
    yaml = f"entries: [{{name: a, flags: {{model: tiny9, model_plugin: {plugin}}}}}]"
    key = key_of(suite, yaml)
    assert key_of(suite, yaml) == key
    plugin.write_text(text + "# another text\n", encoding="utf-8")
    assert key_of(suite, yaml) != key
    text = Path(LOCAL_SGD_PLUGIN).read_text(encoding="utf-8")
    plugin.write_text(text, encoding="utf-8")
    own = f"variable_update: {LOCAL_SGD}, variable_mgr_plugin: {plugin}"
    yaml = f"entries: [{{name: a, flags: {{{own}}}}}]"
    key = key_of(suite, yaml)
    plugin.write_text(text + "# another text\n", encoding="utf-8")
    assert key_of(suite, yaml) != key


@pytest.fixture(scope="module")
def data_folders(tmp_path_factory):
    """Folders that look like data sets to whoever only plans."""
    cifar = tmp_path_factory.mktemp("cifar10")
    images = np.zeros((10, 32, 32, 3), np.uint8)
    for subset in ("train", "validation"):
        write_cifar10(cifar, images, np.arange(10), subset=subset, form="binary")
    imagenet = tmp_path_factory.mktemp("imagenet")
    for name in ("train-00000-of-00001", "validation-00000-of-00001"):
        with tf.io.TFRecordWriter(str(imagenet / name)) as records:
            records.write(b"not looked into")
    return {"CNNBENCH_CIFAR10": str(cifar), "CNNBENCH_IMAGENET": str(imagenet)}


@pytest.mark.parametrize("name", shipped_suites())
def test_every_shipped_suite_plans(name, data_folders, monkeypatch):
    for variable, folder in data_folders.items():
        monkeypatch.setenv(variable, folder)
    suite = check(load(find_suite(name)))
    made = make_plan(suite, FACTS)
    assert suite.name == name
    assert suite.description
    assert len(made.cases) >= 8
    assert len({case.key for case in made.cases}) == len(made.cases)
    assert all("no effect" not in notice for notice in made.notices), made.notices
    if suite.on_cpu is not None:  # the command line that a machine without a GPU is given
        flags = {name: node.text for name, node in suite.on_cpu.flags.items()}
        overrides = Overrides(flags, filter=suite.on_cpu.filter or None)
        scaled = make_plan(suite, FACTS, overrides)
        works = [case.resolved.work for case in scaled.cases]
        assert {work.kind for work in works if work is not None} == {"cpu"}


def test_finding_suites(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_suite("smoke").endswith("configs/smoke.yaml")
    (tmp_path / "smoke").write_text("mine", encoding="utf-8")
    assert find_suite("smoke") == "smoke"
    with pytest.raises(UsageError, match=r"no suite 'smok'; there are all_reduce, .*or name a"):
        find_suite("smok")
    with pytest.raises(UsageError, match=r"^x/y\.yaml: no such file; shipped suites are"):
        find_suite("x/y.yaml")


MANY = """
entries:
  - {name: a, repeats: 3, matrix: {num_gpus: [1, 2, 3, 4, 5, 6]}}
  - {name: b, repeats: 1, flags: {model: lenet}, max_batch_search: true}
"""


def repeats(plan):
    return {case.name.partition(" ")[0]: case.repeats for case in plan.cases}


def test_repeats_follow_from_what_is_judged_together(plan):
    sizes = ", ".join(map(str, range(101, 170)))
    text = f"entries: [{{name: a, matrix: {{batch_size: [{sizes}]}}}}, {{name: b, repeats: 2}}]"
    made = plan(text)
    assert repeats(made) == {"a": 8, "b": 2}
    # Fewer configurations need fewer processes.
    assert repeats(plan(text, Overrides(filter="^a batch_size=11"))) == {"a": 7}
    assert repeats(plan(text, Overrides(repeats=3))) == {"a": 3, "b": 3}
    few = plan("entries: [{name: a, repeats: auto}, {name: b, matrix: {num_gpus: [2, 4]}}]")
    assert repeats(few) == {"a": 7, "b": 7}


def test_every_reduction_of_a_process_is_judged(plan):
    sizes = ",".join(f"{size}K" for size in range(1, 36))
    flags = f'{{sizes: "{sizes}", all_reduce_spec: "xring,pscpu", num_gpus: 2, device: cpu}}'
    made = plan(f"entries: [{{name: r, command: allreduce, flags: {flags}}}, {{name: a}}]")
    assert made.cases[0].resolved.rows == 70
    assert repeats(made) == {"r": 8, "a": 7}


def test_rounds_are_not_mixed_and_the_seed_decides(plan):
    cases = plan(MANY).cases
    items = ordered(cases, 1)
    assert [item.repeat for item in items] == [0] + [1] * 7 + [2] * 6 + [3] * 6
    assert len({(item.case.name, item.repeat) for item in items}) == len(items)
    assert ordered(cases, 1) == ordered(cases, 1)
    assert ordered(cases, 1) != ordered(cases, 2)
    one, two = ([i for i in ordered(cases, 1) if i.repeat == r] for r in (2, 3))
    assert [i.case for i in one] != [i.case for i in two]


LAUNCH = """
defaults: {{flags: {{model: lenet, num_batches: 1}}, launch: {{workers: 2, ps: 1}}}}
entries:
  - {{name: job, {0}}}
  - name: other
    launch: {{workers: 3, controller: true}}
    flags: {{variable_update: distributed_all_reduce, all_reduce_spec: xring}}
"""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("flags: {worker_hosts: a:1}", "suite.yaml:4: job: --worker_hosts=a:1: is set by launch"),
        ("launch: {workers: 0}", "suite.yaml:4: workers: '0' must be from 1 to 256"),
        ("launch: {worker: 2}", 'suite.yaml:4: unknown key "worker"; did you mean "workers"?'),
        ("launch: {workers: 200, ps: 200}", "suite.yaml:4: launch: more than 256 processes"),
        ("launch: 2", "suite.yaml:4: launch must be a mapping"),
    ],
)
def test_mistakes_in_jobs(plan, settings, message):
    with pytest.raises(UsageError) as caught:
        plan(LAUNCH.format(settings))
    assert message in str(caught.value)


def test_jobs(plan):
    job, other = plan(LAUNCH.format("flags: {num_gpus: 2}")).cases
    assert arguments(Item(job, 1)) == (
        *("launch", "--workers=2", "--ps=1", "--"),
        *("--model=lenet", "--num_batches=1", "--num_gpus=2"),
    )
    assert arguments(Item(other, 1))[:4] == ("launch", "--workers=3", "--controller", "--")
    assert job.resolved.config["worker_hosts"].count("localhost:") == 2
    assert plan(LAUNCH.format("flags: {num_gpus: 2}")).cases[0].key == job.key
