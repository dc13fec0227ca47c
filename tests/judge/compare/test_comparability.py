import pytest

from cnnbench.flags import FLAGS, parse_args
from cnnbench.flags.reductions import running_all_reduce, strategy_reduction
from cnnbench.judge.compare.comparability import Group, differences, unknown_facts
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.metrics.comparable_facts import (
    FACTS,
    GROUPS,
    PATTERNS,
    Role,
    allowed,
    expand,
    fact,
)
from cnnbench.records.parts import Batch, ModelInfo


def group(*records):
    return Group(Configuration.of(records[0]), records)


def unlike(base, new, *allowed):
    return differences(base, new, expand(allowed))


def by_fact(found):
    return {one.fact: one.blocks for one in found}


@pytest.mark.parametrize(
    ("name", "before", "after", "blocks"),
    [
        ("cpu_model", "Fast CPU", "Slow CPU", True),
        ("logical_cpus", 2, 4, True),
        ("tensorflow_version", "2.21.0", "2.20.0", True),
        ("gpu_names", ["A"], ["A", "A"], True),
        ("cpu_governor", "performance", "powersave", True),
        ("hostname", "one", "two", False),
        ("git_commit", "one", "two", False),
        ("new_fact", "one", "two", False),
        ("env_TF_CPP_MIN_LOG_LEVEL", "0", "1", False),
        ("env_KMP_INIT_AT_FORK", "FALSE", None, False),
    ],
)
def test_which_facts_block(runs, name, before, after, blocks):
    base, new = (group(runs(environment={name: value})) for value in (before, after))
    assert by_fact(unlike(base, new)) == {name: blocks}
    assert unlike(base, group(runs(environment={name: before}))) == ()


def test_runs_on_emulated_gpus_are_compared_with_no_others(runs):
    base, new = group(runs()), group(runs(environment={"emulated_gpus": True}))
    assert by_fact(unlike(base, new, *GROUPS)) == {"emulated_gpus": True}
    assert unlike(new, new) == ()


ONEDNN = "env_TF_ENABLE_ONEDNN_OPTS"


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"cpu_model": "Slow CPU"}, "cpu_model is Fast CPU in BASE and Slow CPU in NEW"),
        # A limit that is not there is no limit, a variable that is not set has no value.
        ({"cgroup_cpu_limit": 1.5}, "cgroup_cpu_limit is none in BASE and 1.5 in NEW"),
        ({ONEDNN: "0"}, f"{ONEDNN} is none in BASE and 0 in NEW"),
    ],
)
def test_both_values_are_named(runs, environment, text):
    (found,) = unlike(group(runs()), group(runs(environment=environment)))
    assert (str(found), found.blocks) == (text, True)


def test_mixtures_are_comparable_with_nothing(runs):
    (found,) = unlike(group(runs()), group(runs(), runs(environment={"logical_cpus": 64})))
    assert str(found) == "logical_cpus is 2 in BASE and 2 or 64 in NEW"
    mixed = [group(runs(), runs(environment={"cpu_model": "Slow CPU"})) for _ in range(2)]
    (found,) = unlike(*mixed)
    assert found.blocks
    assert str(found) == "cpu_model is Fast CPU or Slow CPU within each side"


def test_measurements_of_the_moment_are_ignored(runs):
    assert fact("load_average_1min").role is Role.IGNORED
    loads = [group(runs(environment={"load_average_1min": load})) for load in (0.1, 3.5)]
    assert unlike(*loads) == ()


def test_a_fact_that_one_side_does_not_know_is_not_held_against_it(runs):
    (found,) = unlike(group(runs()), group(runs(environment={"cpu_turbo": True})))
    assert (str(found), found.blocks) == ("cpu_turbo is unknown in BASE and true in NEW", False)
    # Of facts that do not block that is not even mentioned.
    assert unlike(group(runs()), group(runs(environment={"keras_version": "3"}))) == ()


def test_another_network_or_batch_blocks(runs):
    sizes = {"trainable_parameters": 10, "forward_flops_per_image": 20}
    model = ModelInfo(name="lenet", parameters=11, training_flops_per_image=60, **sizes)
    (found,) = unlike(group(runs()), group(runs(model=model)))
    assert str(found) == "model_parameters is 10 in BASE and 11 in NEW"
    found = unlike(group(runs()), group(runs(batch=Batch(per_device=8, global_=16))))
    assert by_fact(found) == {"global_batch": True}


_THREADS = {"num_intra_threads": 1, "num_inter_threads": 2, "datasets_num_private_threads": 1}
_POOLS = {"intra_op_threads": 1, "inter_op_threads": 2}


_PRECISION = {"precision": "fp16", "use_fp16": True, "fp16_loss_scale": 128.0}
_SHARED = {"num_intra_threads": 1, "num_inter_threads": 2}
_TWO = {"devices": 2, "flags": _THREADS, "environment": _POOLS}


@pytest.mark.parametrize(
    ("flag", "more", "facts"),
    [
        ("batch_size", {"flags": {"batch_size": 16}}, {"batch_size", "global_batch"}),
        ("num_gpus", _TWO, {"num_gpus", "global_batch", *_THREADS, *_POOLS}),
        ("precision", {"flags": _PRECISION}, {"precision", "fp16_loss_scale"}),
        *(
            (flag, {"flags": _SHARED, "environment": _POOLS}, {*_SHARED, *_POOLS})
            for flag in _SHARED  # each follows from whether the other one is given
        ),
    ],
)
def test_flags_bring_along_what_follows_from_them(runs, flag, more, facts):
    base, new = group(runs()), group(runs(**more))
    assert {one.fact for one in unlike(base, new) if one.blocks} == facts
    assert by_fact(unlike(base, new, flag)) == dict.fromkeys(facts, False)
    if flag == "precision":  # which may be called by its old name
        assert by_fact(unlike(base, new, "use_fp16")) == dict.fromkeys(facts, False)


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ("--variable_update=replicated", "--variable_update=mirrored_strategy"),
        ("--variable_update=replicated", "--all_reduce_spec=xring"),
        ("--variable_update=replicated", "--hierarchical_copy"),
        ("--variable_update=replicated --all_reduce_spec=copy/xring", "--all_reduce_group_size=2"),
        ("--variable_update=mirrored_strategy", "--cross_device_ops=reduction_to_one_device"),
    ],
)
def test_flags_that_choose_the_reduction_bring_it_along(given, flag):
    def reduction(*more):
        params = parse_args(("--num_gpus=4", "--device=cpu", *given.split(), *more)).params
        return strategy_reduction(params, on_gpu=False) or str(running_all_reduce(params))

    assert reduction() != reduction(flag)
    name = flag.removeprefix("--").partition("=")[0]
    assert allowed("all_reduce", expand((name,)))
    assert not allowed("all_reduce", expand(("batch_size",)))


def test_places_are_mentioned(runs):
    found = unlike(group(runs(flags={"data_dir": "/a"})), group(runs(flags={"data_dir": "/b"})))
    assert [(str(one), one.blocks) for one in found] == [
        ("data_dir is /a in BASE and /b in NEW", False)
    ]
    (found,) = unlike(group(runs()), group(runs(flags={"data_dir": "/b"})))
    assert (str(found), found.blocks) == ("data_dir is none in BASE and /b in NEW", True)


@pytest.mark.parametrize("allowed", ["tensorflow", "tensorflow_version", "tensorflow_*"])
def test_a_named_fact_may_differ_and_is_mentioned(runs, allowed):
    new = group(runs(environment={"tensorflow_version": "2.20.0"}))
    assert by_fact(unlike(group(runs()), new, allowed)) == {"tensorflow_version": False}


def test_blocking_facts_come_first_and_flags_before_what_follows_from_them(runs):
    facts = {"git_commit": "b" * 40, "tensorflow_version": "3", "hostname": "x"}
    found = unlike(group(runs()), group(runs(environment=facts)))
    assert [one.blocks for one in found] == [True, False, False]
    flags = {"precision": "fp16", "fp16_loss_scale": 128.0}
    found = unlike(group(runs()), group(runs(flags=flags, explicit_flags=("precision",))))
    assert [one.fact for one in found] == ["precision", "fp16_loss_scale"]


def test_facts_of_records_are_known(runs):
    record = runs(environment={"own_fact": 1})
    names = ["own_fact", "own_*", "xla", "global_batch", "own_fakt"]
    assert unknown_facts(names, [record]) == {"own_fakt": "own_fact"}


def test_the_tables_are_complete():
    assert all(one.reason for one in (*FACTS.values(), *PATTERNS.values()))
    flags = {spec.name for spec in FLAGS}
    assert all(name in members for name, members in GROUPS.items() if name in flags)


def test_this_machine_s_facts_are_in_the_table():
    # A fact that somebody adds must be given a role: blocking, mentioned or ignored.
    from cnnbench.machine import facts as environment

    unlisted = [name for name in environment.collect() if fact(name).reason.startswith("not known")]
    assert unlisted == []
