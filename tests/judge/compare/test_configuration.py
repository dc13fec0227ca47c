"""Configurations: which flags count, and short unique names."""

import dataclasses

import pytest

from cnnbench.flags import FLAGS
from cnnbench.judge.compare import Criteria, compare_records


def only(*records):
    """The only configuration of some records."""
    (entry,) = compare_records(records, []).entries
    return entry.configuration


def key(record):
    return only(record).key


def without(record, flag):
    """The record as of a version without a flag."""
    config = {name: value for name, value in record.config.items() if name != flag}
    return dataclasses.replace(record, config=config)


def named(*records):
    """Names of the configurations of some records, in their order."""
    found = compare_records(records, []).entries
    return [next(entry.name for entry in found if record in entry.base) for record in records]


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ({"result_json": "a.json", "result_csv": "b.csv", "peak_flops": 1e12}, True),
        ({"progress": "on", "display_every": 1, "tf_random_seed": 7}, True),
        ({"batch_size": 16}, False),
        ({"precision": "bf16"}, False),
        ({"xla": True}, False),
        ({"init_learning_rate": 0.1}, False),
        ({"train_dir": "x"}, False),
        ({"worker_hosts": "a:1,b:1"}, False),
        ({"flag_of_a_later_version": 3}, False),
    ],
)
def test_which_flags_count(runs, flags, same):
    assert (key(runs(flags=flags)) == key(runs())) is same


def test_a_number_of_steps_that_ab_chose_does_not_count(runs):
    def steps(number, **ab):
        record = runs(flags={"num_batches": number, "num_epochs": number / 100})
        place = {"side": "a", "seed": 1, "pair": 1, "position": 1, **ab}
        return key(dataclasses.replace(record, ab=place))

    assert steps(300, chose_steps=True) == steps(700, chose_steps=True)
    # What the user has set counts.
    assert steps(300) != steps(700)
    assert steps(300) != steps(300, chose_steps=True)


def test_of_places_only_the_presence_counts_and_of_machines_the_number(runs):
    assert key(runs(flags={"data_dir": "/a"})) == key(runs(flags={"data_dir": "/b"}))
    hosts = [key(runs(flags={"worker_hosts": text})) for text in ("a:1,b:1", "c:1,d:2", "a:1")]
    assert hosts[0] == hosts[1] != hosts[2]


def test_the_key_outlives_new_flags_and_the_order_of_flags(runs):
    record = without(runs(flags={"xla": True}), "conv_gradients")
    assert key(record) == "04f921409eff"  # as every version gives it
    assert key(without(record, "bn_stats")) == key(record)
    turned = dataclasses.replace(record, config=dict(reversed(record.config.items())))
    assert key(turned) == key(record)


def test_runs_before_the_choice_of_gradients_are_compared_with_others_by_permission(runs):
    new = [runs(flags={"conv_gradients": "library"}) for _ in range(2)]
    old = [without(record, "conv_gradients") for record in new]
    assert key(old[0]) != key(new[0])
    assert len(compare_records([*old, *new], []).entries) == 2
    (refused,) = compare_records(old, new).entries
    (difference,) = refused.differences
    assert (difference.fact, difference.blocks) == ("conv_gradients", True)
    assert (difference.base, difference.new) == (("before",), ("library",))
    (allowed,) = compare_records(old, new, Criteria(allow_different=["conv_gradients"])).entries
    assert not any(one.blocks for one in allowed.differences)


def test_runs_that_failed_early_differ_only_in_what_is_resolved_late(runs):
    whole = runs()
    early = runs(None, flags={"device": "auto"}, placement=None)
    other = runs(None, flags={"device": "auto", "xla": True}, placement=None)
    assert key(early) != key(whole)
    assert not only(early).resolved
    assert only(whole, early).resolved
    assert only(whole).differing_flags(only(other)) == ("xla",)


def test_labels_are_short_and_unique(runs):
    assert named(
        runs(),
        runs(flags={"xla": True}),
        runs(flags={"batch_size": 64, "num_gpus": 2, "variable_update": "replicated"}),
        runs(flags={"model": "resnet20", "data_name": "cifar10", "precision": "bf16"}),
        runs(flags={"forward_only": True}),
    ) == [
        "lenet, batch 8, 1 cpu, xla=false",
        "lenet, batch 8, 1 cpu, xla=true",
        "lenet, batch 64, 2 cpu, replicated",
        "resnet20, cifar10, batch 8, 1 cpu, bf16",
        "lenet, batch 8, 1 cpu, forward_only",
    ]
    paused = "eval_during_training_at_specified_steps"
    assert named(runs(flags={paused: [5, 10]}), runs(flags={paused: []})) == [
        f"lenet, batch 8, 1 cpu, {paused}=5,10",
        f"lenet, batch 8, 1 cpu, {paused}=",
    ]


def test_labels_of_jobs_name_their_processes(runs):
    def job(**flags):
        return runs(flags={"variable_update": "collective_all_reduce", **flags})

    of_two = {"job_name": "worker", "worker_hosts": "a:1,a:2"}
    mode = "lenet, batch 8, 1 cpu, collective_all_reduce"
    jobs = (job(job_name="worker", worker_hosts="a:1"), job(**of_two))
    assert named(job(), *jobs, job(**of_two, ps_hosts="b:1")) == [
        *(mode, f"{mode}, 1 worker", f"{mode}, 2 workers", f"{mode}, 1 ps, 2 workers"),
    ]
    # The number is named only where it differs.
    assert named(job(**of_two), runs()) == [mode, "lenet, batch 8, 1 cpu"]
    driven = {**of_two, "job_name": "controller", "controller_host": "c:1"}
    assert named(job(**of_two), job(**driven)) == [
        f"{mode}, controller_host=false, job_name=worker",
        f"{mode}, controller_host=true, job_name=controller",
    ]


def test_labels_name_given_flags_and_not_what_follows_from_them(runs):
    # Epochs follow from batches, or the other way round.
    short = {"num_batches": 20, "num_epochs": 0.000125}
    long = {"num_batches": 40, "num_epochs": 0.00025}
    batches, epochs = ("num_batches",), ("num_epochs",)
    assert named(
        runs(flags=short, explicit_flags=batches), runs(flags=long, explicit_flags=())
    ) == [f"lenet, batch 8, 1 cpu, num_batches={number}" for number in (20, 40)]
    assert named(
        runs(flags=short, explicit_flags=epochs), runs(flags=long, explicit_flags=epochs)
    ) == [f"lenet, batch 8, 1 cpu, num_epochs={number}" for number in (0.000125, 0.00025)]
    # Where that does not make them unique, all that differ are named.
    assert named(
        runs(flags={"num_batches": 20, "xla": False}, explicit_flags=batches),
        runs(flags={"num_batches": 20, "xla": True}),
        runs(flags={"num_batches": 40, "xla": False}),
    ) == [
        "lenet, batch 8, 1 cpu, num_batches=20, xla=false",
        "lenet, batch 8, 1 cpu, num_batches=20, xla=true",
        "lenet, batch 8, 1 cpu, num_batches=40, xla=false",
    ]


def test_flags_that_are_not_at_their_defaults(runs):
    assert set(runs().config) == {spec.name for spec in FLAGS}
    found = only(runs(flags={"xla": True, "data_dir": "/data"})).non_default_flags
    given = {"batch_size": 8, "data_name": "imagenet", "device": "cpu", "model": "lenet"}
    # Of a record that lacks conv_gradients, it is "before".
    assert found == {**given, "conv_gradients": "auto", "data_dir": True, "xla": True}


def test_flags_that_only_one_of_two_programs_has_are_not_compared(runs):
    config = {"imported_from": "x", "model": "lenet", "batch_size": 16}
    other = only(dataclasses.replace(runs(), config=config))
    own = only(runs())
    assert own.differing_flags(other) == ("imported_from", "batch_size")
    assert other.differing_flags(own) == ("imported_from", "batch_size")
    assert other.differing_flags(other) == own.differing_flags(own) == ()
    # Of two records of one program, a flag that one lacks differs.
    less = only(dataclasses.replace(runs(), config={"imported_from": "x", "model": "lenet"}))
    assert less.differing_flags(other) == ("batch_size",)
