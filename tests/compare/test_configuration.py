import dataclasses

import pytest

from cnnbench.compare.configuration import UNRESOLVED, Configuration, labels
from cnnbench.flags import FLAGS, Params
from cnnbench.metrics.comparable_facts import PLACES, RULES


def key(record):
    return Configuration.of(record).key


@pytest.mark.parametrize(
    "flags",
    [
        {"result_json": "a.json", "result_csv": "b.csv"},
        {"progress": "on", "display_every": 1},
        {"tf_random_seed": 7},
        {"peak_flops": 1e12},
    ],
)
def test_flags_that_do_not_move_a_measurement(runs, flags):
    assert key(runs(flags=flags)) == key(runs())


@pytest.mark.parametrize(
    "flags",
    [
        {"batch_size": 16},
        {"precision": "bf16"},
        {"num_batches": 7},
        {"xla": True},
        {"init_learning_rate": 0.1},
        {"train_dir": "x"},
        {"data_dir": "x"},
        {"worker_hosts": "a:1,b:1"},
    ],
)
def test_flags_that_count(runs, flags):
    assert key(runs(flags=flags)) != key(runs())


def test_of_places_only_the_presence_counts_and_of_machines_the_number(runs):
    assert key(runs(flags={"data_dir": "/a"})) == key(runs(flags={"data_dir": "/b"}))
    assert key(runs(flags={"worker_hosts": "a:1,b:1"})) == key(
        runs(flags={"worker_hosts": "c:1,d:2"})
    )


def test_a_record_without_a_flag_stands_for_its_default(runs):
    record = runs()
    config = {name: value for name, value in record.config.items() if name != "bn_stats"}
    assert key(dataclasses.replace(record, config=config)) == key(record)


def test_a_flag_this_version_does_not_know_counts(runs):
    assert key(runs(flags={"new_idea": 3})) != key(runs())


def test_every_rule_is_about_a_flag_and_has_a_reason():
    names = {spec.name for spec in FLAGS}
    assert set(RULES) <= names
    assert set(UNRESOLVED) <= names
    assert set(PLACES) <= set(RULES)
    assert all(rule.reason for rule in RULES.values())


def test_every_flag_that_names_a_file_or_folder_has_a_rule():
    # A flag added later with a path in it would make every run a configuration of its own.
    paths = {
        spec.name
        for spec in FLAGS
        if spec.name.endswith(("_dir", "_file", "_path", "_json", "_csv", "_plugin", "_prefix"))
    }
    assert paths
    assert paths <= set(RULES)


def test_runs_that_failed_early_differ_only_in_what_is_resolved_late(runs):
    whole = Configuration.of(runs())
    early = Configuration.of(runs(None, flags={"device": "auto"}, placement=None))
    other = Configuration.of(runs(None, flags={"device": "auto", "xla": True}, placement=None))
    assert not early.resolved
    assert early.key != whole.key
    assert whole.differing(early) == ()
    assert whole.differing(other) == ("xla",)


def test_the_key_does_not_depend_on_the_order_of_flags(runs):
    record = runs()
    turned = dataclasses.replace(record, config=dict(reversed(record.config.items())))
    assert key(turned) == key(record)


def test_labels_name_what_matters_and_tell_all_apart(runs):
    made = [
        runs(),
        runs(flags={"xla": True}),
        runs(flags={"batch_size": 64, "num_gpus": 2, "variable_update": "replicated"}),
        runs(flags={"model": "resnet20", "data_name": "cifar10", "precision": "bf16"}),
        runs(flags={"forward_only": True}),
    ]
    configurations = [Configuration.of(record) for record in made]
    named = labels(configurations)
    assert [named[one.key] for one in configurations] == [
        "lenet, batch 8, 1 cpu, xla=false",
        "lenet, batch 8, 1 cpu, xla=true",
        "lenet, batch 64, 2 cpu, replicated",
        "resnet20, cifar10, batch 8, 1 cpu, bf16",
        "lenet, batch 8, 1 cpu, forward_only",
    ]


def test_what_follows_from_a_flag_that_was_given_is_not_in_the_name(runs):
    def named(*records):
        configurations = [Configuration.of(record) for record in records]
        names = labels(configurations)
        return [names[one.key] for one in configurations]

    # A record's flags are as they turned out: epochs follow from batches, or the other way round.
    short = {"num_batches": 20, "num_epochs": 0.000125}
    long = {"num_batches": 40, "num_epochs": 0.00025}
    assert named(
        runs(flags=short, explicit_flags=("num_batches",)), runs(flags=long, explicit_flags=())
    ) == ["lenet, batch 8, 1 cpu, num_batches=20", "lenet, batch 8, 1 cpu, num_batches=40"]
    assert named(
        runs(flags=short, explicit_flags=("num_epochs",)),
        runs(flags=long, explicit_flags=("num_epochs",)),
    ) == [
        "lenet, batch 8, 1 cpu, num_epochs=0.000125",
        "lenet, batch 8, 1 cpu, num_epochs=0.00025",
    ]
    # Where that does not tell them apart, all that differ are named.
    assert named(
        runs(flags={"num_batches": 20, "xla": False}, explicit_flags=("num_batches",)),
        runs(flags={"num_batches": 20, "xla": True}),
        runs(flags={"num_batches": 40, "xla": False}),
    ) == [
        "lenet, batch 8, 1 cpu, num_batches=20, xla=false",
        "lenet, batch 8, 1 cpu, num_batches=20, xla=true",
        "lenet, batch 8, 1 cpu, num_batches=40, xla=false",
    ]


def test_defaults_of_the_records_in_these_tests_are_those_of_the_flags(runs):
    assert set(runs().config) == {field.name for field in dataclasses.fields(Params)}


def test_flags_shown_are_those_not_at_their_defaults(runs):
    found = Configuration.of(runs(flags={"xla": True, "data_dir": "/data"})).not_default()
    assert found == {
        "batch_size": 8,
        "data_dir": True,
        "data_name": "imagenet",
        "device": "cpu",
        "model": "lenet",
        "xla": True,
    }


def test_a_new_flag_at_its_default_changes_no_key(runs):
    # The key that this version gives; it must outlive flags that are added later.
    record = runs(flags={"xla": True})
    assert key(record) == "04f921409eff"
