"""Plans: every flag of every entry is checked before anything runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from data_sets import write_cifar10
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN

from cnnbench.campaigns.sweep.document import find_suite, load, shipped_suites
from cnnbench.campaigns.sweep.planning import Item, make_plan, ordered
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


ON_GPUS = "{name: g, flags: {num_gpus: 2, variable_update: replicated, all_reduce_spec: nccl}}"


def test_a_folder_without_data_is_refused(plan, tmp_path):
    (tmp_path / "train-00000-of-00001").write_bytes(b"")
    with pytest.raises(UsageError, match=r"suite\.yaml:1: .*hold no records"):
        plan(f"entries: [{{name: a, flags: {{data_name: imagenet, data_dir: '{tmp_path}'}}}}]")


@pytest.mark.parametrize(("value", "lack"), [(None, "is not set"), ("", "is empty")])
def test_optional_entries_are_left_out_aloud(plan, monkeypatch, value, lack):
    if value is not None:
        monkeypatch.setenv("CNNBENCH_NONE", value)
    optional = "{name: b, optional: true, flags: {data_dir: '${CNNBENCH_NONE}'}}"
    made = plan(f"entries: [{{name: a}}, {optional}]")
    assert [case.name for case in made.cases] == ["a"]
    assert made.notices == (f"b: left out, because CNNBENCH_NONE {lack}",)
    with pytest.raises(UsageError, match=f"no entry is left to run; {made.notices[0]}"):
        plan(f"entries: [{optional}]")


def test_a_filter_chooses_by_name(plan):
    text = "entries: [{name: a, matrix: {num_gpus: [1, 2, 12]}}]"
    assert [c.name for c in plan(text, pattern="gpus=1$").cases] == ["a num_gpus=1"]
    # The flags for all need not suit what is left out.
    text = f"entries: [{ON_GPUS}, {{name: b}}]"
    assert [c.name for c in plan(text, {"device": "cpu"}, "b").cases] == ["b"]


def test_notices_name_the_configuration(plan):
    made = plan("entries: [{name: a, flags: {single_l2_loss_op: true}}]")
    assert len(made.notices) == 1
    assert made.notices[0].startswith("a: --single_l2_loss_op")
    # A run of a sweep has a record, so that this has an effect.
    assert plan("entries: [{name: a, flags: {peak_flops: 1e12}}]").notices == ()


def test_all_reduces(suite):
    checked = suite(
        """
        entries:
          - {name: a, command: allreduce, flags: {sizes: [4K, 1M], num_gpus: [2, 4]}}
          - {name: b}
        """
    ).with_settings(None, None, BatchSizeSearch())
    made = make_plan(checked, FACTS, {"device": "cpu", "batch_size": "3"})
    reduce, run = made.cases
    assert (reduce.command, run.command) == ("allreduce", "run")
    # A flag for all goes to those that know it.
    assert reduce.flags == ("--sizes=4K,1M", "--num_gpus=2,4", "--device=cpu")
    assert run.flags == ("--device=cpu", "--batch_size=3")
    assert reduce.resolved.config["num_gpus"] == [2, 4]
    assert (reduce.search, run.search) == (None, BatchSizeSearch())


def key_of(suite, text=TINY, **facts):
    return make_plan(suite(text), {**FACTS, **facts}).cases[0].key


@pytest.mark.parametrize(
    ("flags", "settings", "facts", "same"),
    [
        ("", "repeats: 4, timeout: 5", {}, True),
        ("batch_size: 32", "", {}, True),
        ("progress: 'off'", "", {}, True),
        ("", "", {"load_average_1min": 7.0}, True),
        ("", "", {"git_commit": "abc"}, True),
        ("num_gpus: 2", "", {}, False),
        ("precision: bf16", "", {}, False),
        ("batch_size: 31", "", {}, False),
        ("tf_random_seed: 1", "", {}, False),
        ("", "max_batch_search: true", {}, False),
        ("", "", {"tensorflow_version": "2.20.0"}, False),
        ("", "", {"hostname": "there"}, False),
        ("", "", {"env_TF_ENABLE_ONEDNN_OPTS": "0"}, False),
        ("", "", {"gpu_names": ["A100"]}, False),
    ],
)
def test_the_key_is_of_what_is_measured_and_of_the_environment(suite, flags, settings, facts, same):
    text = f"entries: [{{name: other, flags: {{model: lenet, {flags}}}, {settings}}}]"
    assert (key_of(suite, text, **facts) == key_of(suite)) is same


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
        scaled = make_plan(suite, FACTS, flags, suite.on_cpu.filter)
        works = [case.resolved.work for case in scaled.cases]
        assert {work.kind for work in works if work is not None} == {"cpu"}


def test_finding_suites(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_suite("smoke").endswith("configs/smoke.yaml")
    (tmp_path / "smoke").write_text("mine", encoding="utf-8")
    assert find_suite("smoke") == "smoke"


MANY = """
entries:
  - {name: a, repeats: 3, matrix: {num_gpus: [1, 2, 3, 4, 5, 6]}}
  - {name: b, repeats: 1, flags: {model: lenet}, max_batch_search: true}
"""


def repeats(plan):
    return {case.name.partition(" ")[0]: case.repeats for case in plan.cases}


def test_repeats_follow_from_what_is_judged_together(plan, suite):
    sizes = ", ".join(map(str, range(101, 170)))
    text = f"entries: [{{name: a, matrix: {{batch_size: [{sizes}]}}}}, {{name: b, repeats: 2}}]"
    made = plan(text)
    assert repeats(made) == {"a": 8, "b": 2}
    # Fewer configurations need fewer processes.
    assert repeats(plan(text, pattern="^a batch_size=11")) == {"a": 7}
    assert repeats(make_plan(suite(text).with_settings(3, None, None), FACTS)) == {"a": 3, "b": 3}
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
defaults: {flags: {model: lenet, num_batches: 1}, launch: {workers: 2, ps: 1}}
entries:
  - {name: job, flags: {num_gpus: 2}}
  - name: other
    launch: {workers: 3, controller: true}
    flags: {variable_update: distributed_all_reduce, all_reduce_spec: xring}
"""


def test_jobs(plan):
    job, other = plan(LAUNCH).cases
    assert arguments(Item(job, 1)) == (
        *("launch", "--workers=2", "--ps=1", "--"),
        *("--model=lenet", "--num_batches=1", "--num_gpus=2"),
    )
    assert arguments(Item(other, 1))[:4] == ("launch", "--workers=3", "--controller", "--")
    assert job.resolved.config["worker_hosts"].count("localhost:") == 2
    assert plan(LAUNCH).cases[0].key == job.key
