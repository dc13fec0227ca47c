import pytest

from cnnbench.compare.comparability import Group, differences, known_facts
from cnnbench.compare.configuration import Configuration
from cnnbench.flags import FLAGS
from cnnbench.metrics.comparable_facts import FACTS, GROUPS, PATTERNS, Role, expand, fact
from cnnbench.records.run import Batch, ModelInfo


def group(*records):
    return Group(Configuration.of(records[0]), records)


def unlike(base, new, *allowed):
    return differences(base, new, expand(allowed))


def test_like_runs_do_not_differ(runs):
    assert unlike(group(runs(), runs()), group(runs())) == ()


@pytest.mark.parametrize(
    ("fact_name", "before", "after"),
    [
        ("cpu_model", "Fast CPU", "Slow CPU"),
        ("logical_cpus", 2, 4),
        ("tensorflow_version", "2.21.0", "2.20.0"),
        ("gpu_names", ["A"], ["A", "A"]),
        ("gpu_driver", "550.1", "560.2"),
        ("cpu_governor", "performance", "powersave"),
    ],
)
def test_other_machines_and_versions_block(runs, fact_name, before, after):
    found = unlike(
        group(runs(environment={fact_name: before})), group(runs(environment={fact_name: after}))
    )
    assert [one.fact for one in found if one.blocks] == [fact_name]


def test_both_values_are_named(runs):
    (found,) = unlike(group(runs()), group(runs(environment={"cpu_model": "Slow CPU"})))
    assert str(found) == "cpu_model is Fast CPU in BASE and Slow CPU in NEW"
    (found,) = unlike(group(runs()), group(runs(), runs(environment={"logical_cpus": 64})))
    assert str(found) == "logical_cpus is 2 in BASE and 2 or 64 in NEW"


def test_a_mixture_is_not_comparable_to_the_same_mixture(runs):
    def mixed():
        return group(runs(), runs(environment={"cpu_model": "Slow CPU"}))

    (found,) = unlike(mixed(), mixed())
    assert found.blocks
    assert str(found) == "cpu_model is Fast CPU or Slow CPU within each side"


@pytest.mark.parametrize("fact_name", ["hostname", "git_commit", "keras_version", "new_fact"])
def test_harmless_differences_are_mentioned(runs, fact_name):
    found = unlike(
        group(runs(environment={fact_name: "one"})), group(runs(environment={fact_name: "two"}))
    )
    assert [(one.fact, one.blocks) for one in found] == [(fact_name, False)]


def test_what_changes_by_the_second_is_not_even_mentioned(runs):
    found = unlike(
        group(runs(environment={"load_average_1min": 0.1})),
        group(runs(environment={"load_average_1min": 3.5})),
    )
    assert found == ()


def test_a_fact_that_one_side_could_not_read_is_not_held_against_it(runs):
    (found,) = unlike(group(runs()), group(runs(environment={"cpu_turbo": True})))
    assert not found.blocks
    assert str(found) == "cpu_turbo is unknown in BASE and true in NEW"
    # Of harmless facts that is not worth a word.
    assert unlike(group(runs()), group(runs(environment={"keras_version": "3"}))) == ()


def test_a_limit_that_is_not_there_is_no_limit(runs):
    (found,) = unlike(group(runs()), group(runs(environment={"cgroup_cpu_limit": 1.5})))
    assert found.blocks
    assert str(found) == "cgroup_cpu_limit is none in BASE and 1.5 in NEW"


def test_environment_variables_block_unless_they_only_talk(runs):
    (found,) = unlike(group(runs()), group(runs(environment={"env_TF_ENABLE_ONEDNN_OPTS": "0"})))
    assert found.blocks
    (found,) = unlike(group(runs()), group(runs(environment={"env_TF_CPP_MIN_LOG_LEVEL": "0"})))
    assert not found.blocks


def test_another_revision_of_the_model_blocks(runs):
    model = ModelInfo(
        name="lenet",
        parameters=11,
        trainable_parameters=10,
        forward_flops_per_image=20,
        training_flops_per_image=60,
    )
    (found,) = unlike(group(runs()), group(runs(model=model)))
    assert str(found) == "model_parameters is 10 in BASE and 11 in NEW"
    assert found.blocks


def test_another_global_batch_blocks(runs):
    (found,) = unlike(group(runs()), group(runs(batch=Batch(per_device=8, global_=16))))
    assert (found.fact, found.blocks) == ("global_batch", True)


def test_flags_block_and_come_with_what_they_bring_along(runs):
    new = group(runs(flags={"batch_size": 16}))
    found = unlike(group(runs()), new)
    assert {one.fact for one in found if one.blocks} == {"batch_size", "global_batch"}
    assert not any(one.blocks for one in unlike(group(runs()), new, "batch_size"))


def test_more_devices_bring_a_split_of_the_threads_along(runs):
    threads = {"num_intra_threads": 1, "num_inter_threads": 2, "datasets_num_private_threads": 1}
    facts = {"intra_op_threads": 1, "inter_op_threads": 2}
    new = group(runs(devices=2, flags=threads, environment=facts))
    found = unlike(group(runs()), new)
    assert {one.fact for one in found if one.blocks} == {
        *("num_gpus", "global_batch", *threads, *facts)
    }
    assert not any(one.blocks for one in unlike(group(runs()), new, "num_gpus"))


@pytest.mark.parametrize("allowed", ["precision", "use_fp16"])
def test_precision_may_be_called_by_its_old_name(runs, allowed):
    flags = {"precision": "fp16", "use_fp16": True, "fp16_loss_scale": 128.0}
    found = unlike(group(runs()), group(runs(flags=flags)), allowed)
    assert {one.fact: one.blocks for one in found} == {"precision": False, "fp16_loss_scale": False}


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
    (found,) = unlike(group(runs()), new, allowed)
    assert (found.fact, found.blocks) == ("tensorflow_version", False)


def test_blocking_facts_come_first(runs):
    new = group(
        runs(environment={"git_commit": "b" * 40, "tensorflow_version": "3", "hostname": "x"})
    )
    found = unlike(group(runs()), new)
    assert found[0].fact == "tensorflow_version"
    assert [one.blocks for one in found] == [True, False, False]


def test_flags_that_were_given_come_before_what_follows_from_them(runs):
    flags = {"precision": "fp16", "fp16_loss_scale": 128.0}
    found = unlike(group(runs()), group(runs(flags=flags, explicit_flags=("precision",))))
    assert [one.fact for one in found] == ["precision", "fp16_loss_scale"]


def test_known_facts(runs):
    found = known_facts([runs()])
    assert {"cpu_model", "xla", "global_batch", "model_parameters"} <= found


def test_the_table_says_why():
    assert all(one.reason for one in (*FACTS.values(), *PATTERNS.values()))


def test_groups_named_after_a_flag_hold_it():
    flags = {spec.name for spec in FLAGS}
    for name, members in GROUPS.items():
        if name in flags:
            assert name in members


def test_this_machine_s_facts_are_in_the_table():
    # A fact that somebody adds must be given a role: blocking, mentioned or ignored.
    from cnnbench.machine import facts as environment

    unlisted = [name for name in environment.collect() if fact(name).reason.startswith("not known")]
    assert unlisted == []


def test_measurements_of_the_moment_are_ignored():
    assert fact("load_average_1min").role is Role.IGNORED
