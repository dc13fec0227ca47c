"""Facts and flags that differ between two sides.

Tests cnnbench/judge/compare/facts.py.
"""

from dataclasses import replace

import pytest

from cnnbench.base.locks import CHECKOUT
from cnnbench.campaigns.processes.identity import environment_identity
from cnnbench.errors import FlagError
from cnnbench.judge.compare import METRICS, Criteria, Verdict, compare_records
from cnnbench.judge.compare.comparability import (
    MeasurementGroup,
    check_fact_names,
    differing_values_text,
    fact_differences,
    incomparable_outcome,
    incomplete_outcome,
    missing_metric_outcome,
)
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.compare.facts import GROUPS
from cnnbench.plan import parse_run
from cnnbench.records.codec import encode
from cnnbench.records.run import Batch, Imported, ModelInfo

SPEED = METRICS["throughput"]


def unlike(base, new, *allowed):
    """The facts that differ: values of both sides, and whether they block a verdict."""
    (entry,) = compare_records(base, new, Criteria(allow_different=allowed)).entries
    assert all(str(one).startswith(f"{one.fact} is ") for one in entry.differences)
    return {one.fact: (one.base, one.new, one.blocks) for one in entry.differences}


def by_fact(found):
    return {fact: blocks for fact, (_, _, blocks) in found.items()}


@pytest.mark.parametrize(
    ("name", "before", "after", "blocks"),
    [
        ("cpu_model", "Fast CPU", "Slow CPU", True),
        ("logical_cpus", 2, 4, True),
        ("tensorflow_version", "2.21.0", "2.20.0", True),
        ("gpu_names", ["A"], ["A", "A"], True),
        ("gpu_driver_cuda", "12.8", "13.1", True),
        ("loaded_cudnn", "9.3.0", "9.19.0", True),
        ("cpu_governor", "performance", "powersave", True),
        ("hostname", "one", "two", False),
        ("git_commit", "one", "two", False),
        ("new_fact", "one", "two", False),
        ("env_TF_CPP_MIN_LOG_LEVEL", "0", "1", False),
        ("env_KMP_INIT_AT_FORK", "FALSE", None, False),
    ],
)
def test_which_facts_block(runs, name, before, after, blocks):
    base, new, like = ([runs(environment={name: one})] for one in (before, after, before))
    assert by_fact(unlike(base, new)) == {name: blocks}
    assert unlike(base, like) == {}


@pytest.mark.parametrize(
    ("name", "before", "after", "blocks"),
    [
        ("env_XLA_FLAGS", "--xla_dump_to=/a --xla_x=1", "--xla_dump_to='/b c' --xla_x=1", None),
        ("env_XLA_FLAGS", "--xla_gpu_cuda_data_dir=/a/b", "--xla_gpu_cuda_data_dir=c", None),
        ("env_XLA_FLAGS", "--xla_dump_to=/a --xla_x=1", "--xla_dump_to=/a --xla_x=2", True),
        ("env_XLA_FLAGS", "--xla_x=1", "--xla_x=1 --xla_dump_to=/a", True),
        ("env_NCCL_TOPO_FILE", "/a.xml", "/b.xml", None),
        ("env_NCCL_TOPO_FILE", "/a.xml", None, True),
    ],
)
def test_of_places_in_variables_only_their_presence_counts(runs, name, before, after, blocks):
    base, new = ([runs(environment={name: one})] for one in (before, after))
    assert by_fact(unlike(base, new)) == ({} if blocks is None else {name: blocks})
    same = [environment_identity({name: one}) for one in (before, after)]
    assert (same[0] == same[1]) == (blocks is None)


def fact(name, value):
    return {"environment": {name: value}}


SLOW = fact("cpu_model", "Slow CPU")
ONEDNN = "env_TF_ENABLE_ONEDNN_OPTS"
SIZES = {"trainable_parameters": 10, "forward_flops_per_image": 20, "training_flops_per_image": 60}
WIDER = {"model": ModelInfo(name="lenet", parameters=11, **SIZES)}
OTHER_BATCH = {"batch": Batch(per_device=8, global_=16)}
ELSEWHERE = {"flags": {"data_dir": "/b"}}


@pytest.mark.parametrize(
    ("new", "fact", "values", "blocks"),
    [
        (SLOW, "cpu_model", ("Fast CPU", "Slow CPU"), True),
        # A limit that is not there is no limit, a variable that is not set has no value.
        (fact("cgroup_cpu_limit", 1.5), "cgroup_cpu_limit", ("none", "1.5"), True),
        (fact(ONEDNN, "0"), ONEDNN, ("none", "0"), True),
        # A fact that one side does not know is not held against it.
        (fact("cpu_turbo", True), "cpu_turbo", ("unknown", "true"), False),
        (WIDER, "model_parameters", ("10", "11"), True),
        (OTHER_BATCH, "global_batch", ("8", "16"), True),
        (ELSEWHERE, "data_dir", ("none", "/b"), True),
    ],
)
def test_both_values_are_named(runs, new, fact, values, blocks):
    before, after = ((value,) for value in values)
    assert unlike([runs()], [runs(**new)]) == {fact: (before, after, blocks)}


def test_what_is_no_difference(runs):
    # Measurements of the moment, and facts that one side lacks and that do not block.
    loads = ([runs(environment={"load_average_1min": load})] for load in (0.1, 3.5))
    assert unlike(*loads) == {}
    assert unlike([runs()], [runs(environment={"keras_version": "3"})]) == {}
    places = ([runs(flags={"data_dir": name})] for name in ("/a", "/b"))
    assert unlike(*places) == {"data_dir": (("/a",), ("/b",), False)}


def test_the_path_of_a_temporary_worktree_is_no_difference(runs):
    def with_plugins(letter, name):
        folder = f"/scratch/{CHECKOUT}{letter * 8}/{letter * 12}-host"
        return [runs(flags={"plugin": [f"{folder}/bench/{name}", "/own.py"]})]

    base = with_plugins("a", "nets.py")
    assert unlike(base, with_plugins("b", "nets.py")) == {}
    texts = [(f"['bench/{name}', '/own.py']",) for name in ("nets.py", "other.py")]
    assert unlike(base, with_plugins("b", "other.py")) == {"plugin": (*texts, False)}


def test_what_an_imported_run_does_not_say_of_its_work_blocks(runs):
    made = Imported(program="x", file="a.log", sha256="0" * 64, part=1, values={})
    config = {"imported_from": "x", "model": "lenet", "precision": "fp32"}
    silent = runs(imported=made, config=config, placement=None)
    found = by_fact(unlike([silent], [silent]))
    assert {"batch_size", "num_workers"} <= found.keys()
    assert not {"model", "precision"} & found.keys()
    assert set(found.values()) == {True}
    allowed = by_fact(unlike([silent], [silent], "batch_size"))
    assert (allowed["batch_size"], allowed["num_workers"]) == (False, True)
    # A run of cnnbench without a placement is no such doubt.
    bare = runs(placement=None)
    assert unlike([bare], [bare]) == {}
    # What an imported record lacks is unknown, not absent.
    limited = runs(environment={"cgroup_cpu_limit": 1.5})
    (known, other) = ([runs(imported=made)], [runs()])
    assert by_fact(unlike(other, [limited])) == {"cgroup_cpu_limit": True}
    assert by_fact(unlike(known, [limited])).get("cgroup_cpu_limit", False) is False


def test_mixtures_are_comparable_with_nothing(runs):
    found = unlike([runs()], [runs(), runs(environment={"logical_cpus": 64})])
    assert found == {"logical_cpus": (("2",), ("2", "64"), True)}
    mixed = ([runs(), runs(**SLOW)] for _ in range(2))
    both = ("Fast CPU", "Slow CPU")
    assert unlike(*mixed) == {"cpu_model": (both, both, True)}


def test_a_named_fact_may_differ_and_is_mentioned(runs):
    new = [runs(environment={"tensorflow_version": "2.20.0"})]
    for allowed in ("tensorflow", "tensorflow_version", "tensorflow_*"):
        assert by_fact(unlike([runs()], new, allowed)) == {"tensorflow_version": False}


LOADED = {f"loaded_{name}": "1.0" for name in ("cublas", "cudart", "cudnn", "nccl")}
DRIVER = {"gpu_driver": "570", "gpu_driver_cuda": "12.8"}


@pytest.mark.parametrize(
    ("allowed", "facts", "blocks"),
    [("tensorflow", LOADED, False), ("gpu", LOADED, True), ("tensorflow", DRIVER, True)]
    + [(name, DRIVER, False) for name in ("gpu", "machine", "gpu_driver")],
)
def test_groups_of_facts_about_libraries_and_drivers(runs, allowed, facts, blocks):
    base, new = ([runs(environment=side)] for side in (facts, dict.fromkeys(facts, "2.0")))
    assert by_fact(unlike(base, new, allowed)) == dict.fromkeys(facts, blocks)
    # Records of earlier versions do not name them.
    assert not any(by_fact(unlike([runs()], new)).values())


def test_runs_on_emulated_gpus_are_compared_with_no_others(runs):
    new = [runs(environment={"emulated_gpus": True})]
    assert by_fact(unlike([runs()], new, *GROUPS)) == {"emulated_gpus": True}
    assert unlike(new, new) == {}


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
    base, new = [runs()], [runs(**more)]
    assert {name for name, blocks in by_fact(unlike(base, new)).items() if blocks} == facts
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
def test_flags_that_choose_the_reduction_bring_it_along(runs, given, flag):
    def run(*more):
        setup = parse_run(("--num_gpus=4", "--device=cpu", *given.split(), *more))
        (reduction,) = setup.reduction_names(on_gpu=False)
        made = runs(devices=4, flags={name: encode(getattr(setup.params, name))})
        return [replace(made, placement=replace(made.placement, all_reduce=(reduction,)))]

    name = flag.removeprefix("--").partition("=")[0]
    base, new = run(), run(flag)
    assert by_fact(unlike(base, new, "batch_size")) == {name: True, "all_reduce": True}
    assert by_fact(unlike(base, new, name)) == {name: False, "all_reduce": False}


def test_blocking_facts_come_first_and_flags_before_what_follows_from_them(runs):
    facts = {"git_commit": "b" * 40, "tensorflow_version": "3", "hostname": "x"}
    found = unlike([runs()], [runs(environment=facts)])
    assert [*by_fact(found).values()] == [True, False, False]
    flags = {"precision": "fp16", "fp16_loss_scale": 128.0}
    found = unlike([runs()], [runs(flags=flags, explicit_flags=("precision",))])
    assert [*by_fact(found)] == ["precision", "fp16_loss_scale"]


def test_facts_of_records_are_known(runs):
    record = runs(environment={"own_fact": 1})
    check_fact_names(["own_fact", "own_*", "xla", "global_batch"], [record])
    with pytest.raises(FlagError, match=r"own_fakt.*own_fact"):
        check_fact_names(["own_fakt"], [record])


def test_the_program_of_imported_runs_comes_before_given_flags(runs):
    made = Imported(program="x", file="a.log", sha256="0" * 64, part=1, values={})
    config = {"imported_from": "x", "model": "lenet", "batch_size": 16}
    imported = runs(imported=made, config=config, explicit_flags=("batch_size",))
    found = [*unlike([runs()], [imported])]
    assert found.index("imported_from") < found.index("batch_size")


def group_of(*records):
    return MeasurementGroup(Configuration.of(records[0]), records)


def test_runs_of_one_side_alone_are_missing(runs):
    one = group_of(runs())
    none = MeasurementGroup(one.configuration)
    for sides in ((one, none), (none, one), (none, none)):
        verdict, _ = incomparable_outcome(*sides, (), SPEED)
        assert verdict is Verdict.MISSING
    reasons = [incomparable_outcome(*sides, (), SPEED)[1] for sides in ((one, none), (none, one))]
    assert reasons[0] != reasons[1]
    assert incomparable_outcome(one, group_of(runs()), (), SPEED) is None


def test_failures_come_before_differences(runs):
    failed = runs(None, error=("OSError", "x" * 300))
    other = runs(environment={"cpu_model": "Slow CPU"})
    unlike = fact_differences(group_of(runs()), group_of(other))
    assert [one.blocks for one in unlike] == [True]
    verdict, reason = incomparable_outcome(group_of(runs()), group_of(failed), unlike, SPEED)
    assert verdict is Verdict.FAILED
    # A message has at most 200 characters.
    assert reason.count("x") == 200
    verdict, _ = incomparable_outcome(group_of(runs()), group_of(other), unlike, SPEED)
    assert verdict is Verdict.NOT_COMPARABLE
    both, reason = incomparable_outcome(group_of(failed), group_of(failed, runs()), (), SPEED)
    assert (both, reason.count("OSError")) == (Verdict.FAILED, 2)
    assert ("1 of 1 run " in reason, "1 of 2 runs " in reason) == (True, True)


@pytest.mark.parametrize("side", [0, 1])
def test_incomplete_sets_of_runs(runs, side):
    def outcome(*records, kept=None):
        sides = [group_of(runs()), group_of(runs())]
        sides[side] = group_of(*records)
        found = incomplete_outcome(*sides, sides[0] if kept is None else kept)
        return found and found[0]

    cut = runs(status="interrupted")
    assert outcome(runs()) is None
    assert outcome(runs(), cut) is Verdict.INCONCLUSIVE
    assert outcome(runs(), kept=MeasurementGroup(group_of(cut).configuration)) is (
        Verdict.INCONCLUSIVE
    )
    same = runs()
    assert incomplete_outcome(group_of(same), group_of(same, runs()), group_of(same))[0] is (
        Verdict.INCONCLUSIVE
    )


@pytest.mark.parametrize(
    ("asked", "verdict"), [(True, Verdict.NOT_MEASURED), (False, Verdict.INCONCLUSIVE)]
)
def test_runs_without_the_metric(runs, asked, verdict):
    bare = runs(step_seconds=(), losses=())
    for sides in ((group_of(bare), group_of(runs())), (group_of(runs()), group_of(runs(), bare))):
        found, _ = missing_metric_outcome(*sides, SPEED, asked)
        assert found is verdict
    assert missing_metric_outcome(group_of(runs()), group_of(runs()), SPEED, asked) is None


def test_at_most_three_differences_are_named(runs):
    facts = {"cpu_model": "x", "logical_cpus": 64, "cpu_isa": ["y"], "numa_nodes": 3}
    sides = [group_of(runs(environment=one)) for one in (dict.fromkeys(facts, 1), facts)]
    verdict, reason = incomparable_outcome(*sides, fact_differences(*sides), SPEED)
    assert verdict is Verdict.NOT_COMPARABLE
    assert "and 1 more" in reason


def test_values_within_both_sides():
    alike = {differing_values_text("x", one, one) for one in (("1", "2"), ("unknown",))}
    assert len(alike) == 2
    assert differing_values_text("memory_bytes", ("1024",), ("2048",)).count("KiB") == 2
