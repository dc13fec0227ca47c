"""The candidates of spaces, and what is dropped, without measurements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from registries import kept

from cnnbench.campaigns.tune import environment
from cnnbench.campaigns.tune.space import SearchSpace, candidates_of_group, search_groups
from cnnbench.errors import UsageError
from cnnbench.flags import args_from_values, parse_flags
from cnnbench.flags.params import ACCEPTED
from cnnbench.machine import cpu
from cnnbench.machine.cpu import MemoryCapacity
from cnnbench.records.campaigns import AS_GIVEN
from cnnbench.variable_mgr import Mode, registry
from cnnbench.variable_mgr.all_reduce import ReduceContext
from cnnbench.variable_mgr.all_reduce import registry as algorithms

OWN_BATCH = ("--model=lenet", "--device=cpu", "--num_gpus=2")
LENET = (*OWN_BATCH, "--batch_size=8")
ONE_EACH = (*LENET, "--num_gpus=1")

Listed: TypeAlias = Callable[..., tuple[dict[str, list[str]], dict[str, str]]]
Aggregated: TypeAlias = Callable[..., tuple[list[str], dict[str, str]]]


@pytest.fixture
def listed() -> Listed:
    """listed(FLAG..., group=NAME): candidates by group, and reasons of dropped ones.

    Of a candidate that changes what is trained, the changes follow in brackets. The machine has
    four CPUs. Without a name, all groups are made.
    """

    def listed(
        *flags: str,
        allow: str = "",
        group: str = "",
        on_gpu: bool = False,
        cpus: int = 4,
        **more: Any,
    ) -> tuple[dict[str, list[str]], dict[str, str]]:
        args = args_from_values(parse_flags(flags, ACCEPTED.values()))
        made = SearchSpace(args=args, allowed=frozenset(filter(None, allow.split(","))), **more)
        first = made.make_candidate({})
        groups = search_groups(made, first, on_gpu=on_gpu, cpus=cpus)
        if group:
            groups = {group: groups[group]}
        found: dict[str, list[str]] = {}
        reasons: dict[str, str] = {}
        for name, choices in groups.items():
            candidates, dropped = candidates_of_group(made, choices, first)
            found[name] = [
                one.name + (f" ({', '.join(one.changes)})" if one.changes else "")
                for one in candidates
            ]
            reasons |= {one.name: one.reason for one in dropped}
        return found, reasons

    return listed


@pytest.fixture
def aggregated(listed: Listed) -> Aggregated:
    """aggregated(FLAG...): candidates of the group aggregation, and reasons of dropped ones."""

    def aggregated(*flags: str, **more: Any) -> tuple[list[str], dict[str, str]]:
        found, dropped = listed(*flags, group="aggregation", **more)
        return found["aggregation"], dropped

    return aggregated


def test_the_space_of_several_towers_on_a_cpu(listed: Listed) -> None:
    found, _ = listed(*LENET)
    assert list(found) == ["computing", "aggregation", "threads", "environment"]
    assert found["computing"] == [AS_GIVEN, "xla_compile=true", "xla=true"]
    first, *aggregation = found["aggregation"]
    assert first == AS_GIVEN
    assert {
        "local_parameter_device=cpu",
        "variable_update=replicated",
        "variable_update=replicated all_reduce_spec=xring gradient_repacking=8",
        "variable_update=distributed_all_reduce all_reduce_spec=pscpu:32K:xring",
        "variable_update=collective_all_reduce",
        "variable_update=mirrored_strategy cross_device_ops=reduction_to_one_device",
        "variable_update=central_storage_strategy",
    } <= set(aggregation)
    assert not any("independent" in name for name in aggregation)
    lengths = [len(name.split()) for name in aggregation]
    assert lengths == sorted(lengths)
    # One thread, a tower's share of the CPUs, and all of them.
    assert len(found["threads"]) == 4 * 4
    assert "num_intra_threads=4 num_inter_threads=1" in found["threads"]
    assert not any("(" in name for names in found.values() for name in names)  # no changes
    assert len(set(aggregation)) == len(aggregation)


def test_what_needs_more_memory_than_there_is_is_dropped(listed: Listed) -> None:
    def dropped(available: int, *flags: str, **more: Any) -> dict[str, str]:
        memory = MemoryCapacity(available, available)
        return listed(*flags, memory=memory, group="computing", **more)[1]

    def mebibytes(reasons: dict[str, str], name: str) -> float:
        ((size, unit),) = re.findall(r"^takes about (\S+) ([MG])iB of memory, and ", reasons[name])
        return float(size) * (1024 if unit == "G" else 1)

    reasons = dropped(2**10, *OWN_BATCH, allow="batch_size")
    less, more = (mebibytes(reasons, f"batch_size={size}") for size in (64, 128))
    assert less < more
    available = round((less + more) / 2 / 0.9 * 2**20)
    between = dropped(available, *OWN_BATCH, allow="batch_size")
    assert ("batch_size=128" in between, "batch_size=64" in between) == (True, False)


def test_flags_that_are_given_are_fixed(listed: Listed) -> None:
    found, dropped = listed(*LENET, "--variable_update=replicated", "--num_intra_threads=1")
    assert not any("variable_update" in name for name in found["aggregation"])
    assert "all_reduce_spec=xring gradient_repacking=8" in found["aggregation"]
    threads = [AS_GIVEN, *(f"num_inter_threads={threads}" for threads in (1, 2, 4))]
    assert found["threads"] == threads
    assert not any("cross_device_ops" in name for name in dropped)  # it is of other modes


def test_what_applies_follows_from_the_situation(listed: Listed, tmp_path: Path) -> None:
    for flags in (ONE_EACH, (*LENET, "--forward_only")):
        assert [*listed(*flags)[0]] == ["computing", "threads", "environment"]
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (tmp_path / f"{name}.bin").write_bytes(bytes(1 + 3 * 32 * 32))
    found, _ = listed("--model=trivial", "--device=cpu", f"--data_dir={tmp_path}")
    single = [name for name in found["input"] if name.startswith("datasets") and " " not in name]
    threads = [f"datasets_num_private_threads={number}" for number in (2, 4, 8)]
    sizes = [f"datasets_prefetch_buffer_size={size}" for size in (2, 4)]
    assert sorted(single) == [*threads, *sizes]


@pytest.mark.parametrize(
    ("cpus", "towers", "pools"), [(8, 4, (1, 2, 4, 8)), (3, 2, (1, 3)), (1, 2, (1,))]
)
def test_pools_of_threads_follow_from_cpus_and_towers(
    listed: Listed, cpus: int, towers: int, pools: tuple[int, ...]
) -> None:
    found, _ = listed(*LENET, f"--num_gpus={towers}", cpus=cpus, group="threads")
    single = [name for name in found["threads"] if name.startswith("num_inter")]
    assert single == [f"num_inter_threads={number}" for number in pools]


def test_batches_that_vary_are_multiples_of_the_given_one(listed: Listed) -> None:
    def sizes(*flags: str) -> list[str]:
        found, _ = listed(*OWN_BATCH, *flags, allow="batch_size", group="computing")
        names = found["computing"]
        return [name.split()[0] for name in names if re.match(r"batch_size=\d+ \(", name)]

    # The given size is that of the network, and one that is given does not vary.
    assert sizes() == [f"batch_size={size}" for size in (64, 128, 16)]
    assert sizes("--batch_size=8") == sizes("--global_batch_size=16") == []


def of_choices(*choices: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Candidates with these settings, and reasons of dropped ones."""
    made = SearchSpace(args=args_from_values(parse_flags(LENET, ACCEPTED.values())))
    found, dropped = candidates_of_group(made, ({}, *choices), made.make_candidate({}))
    return [one.name for one in found], {one.name: one.reason for one in dropped}


def test_what_means_the_same_is_measured_once() -> None:
    mode = {"variable_update": "replicated"}
    found, dropped = of_choices(mode, {**mode, "xla": "false"})
    first = "variable_update=replicated"
    assert found == [AS_GIVEN, first]
    assert dropped == {f"{first} xla=false": f"means the same as {first}"}
    _, dropped = of_choices({"variable_update": "parameter_server"})
    assert [*dropped.values()] == ["means the same as the flags as given"]


def test_a_group_adds_to_the_best_of_those_before() -> None:
    made = SearchSpace(args=args_from_values(parse_flags(LENET, ACCEPTED.values())))
    best = made.make_candidate({"variable_update": "replicated"})
    candidates, dropped = candidates_of_group(made, ({}, {"num_intra_threads": "1"}), best)
    assert [one.name for one in candidates] == [
        "variable_update=replicated",
        "variable_update=replicated num_intra_threads=1",
    ]
    assert dropped == ()
    assert candidates[1].flags == {
        **{"model": "lenet", "device": "cpu", "num_gpus": "2", "batch_size": "8"},
        **{"variable_update": "replicated", "num_intra_threads": "1"},
    }


@pytest.mark.slow
def test_what_applies_to_gpus(listed: Listed) -> None:
    found, _ = listed("--model=lenet", "--num_gpus=2", on_gpu=True, cpus=16)
    assert "data_format=NHWC" in found["computing"]
    assert "variable_update=replicated all_reduce_spec=nccl" in found["aggregation"]
    assert "gpu_thread_mode=global" in found["threads"]
    assert "environment" not in found


def test_the_environment_varies_on_cpus(listed: Listed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    monkeypatch.setattr(cpu, "convolution_kernels", lambda host: "eigen-avx2")
    monkeypatch.setattr(
        environment, "why_unusable", lambda name, value: "no" if "jemalloc" in value else ""
    )
    memory = ["GLIBC_TUNABLES=<kept_memory>", "GLIBC_TUNABLES=<huge_pages>"]
    memory += ["LD_PRELOAD=libtcmalloc_minimal.so.4"]
    found, dropped = listed(*ONE_EACH)
    assert found["environment"] == [AS_GIVEN, *memory]
    assert dropped == {"LD_PRELOAD=libjemalloc.so.2": "no"}
    found, _ = listed(*ONE_EACH, allow="environment")
    both = {f"TF_ENABLE_ONEDNN_OPTS={value} {memory[0]} (environment)" for value in (0, 1)}
    assert {AS_GIVEN, "TF_ENABLE_ONEDNN_OPTS=1 (environment)", *memory} | both <= {
        *found["environment"]
    }
    monkeypatch.setenv("LD_PRELOAD", "")
    assert "environment" not in listed(*ONE_EACH)[0]


@pytest.mark.slow
def test_what_changes_the_result_varies_only_where_that_is_allowed(listed: Listed) -> None:
    allow = "precision,batch_size,consistency,gradient_reduction"
    found, reasons = listed(*OWN_BATCH, allow=allow)
    assert {
        "precision=bf16 (precision)",
        "batch_size=64 (batch_size)",
        "precision=bf16 batch_size=16 (precision, batch_size)",
    } <= set(found["computing"])
    assert {
        "staged_vars=true (consistency)",
        "gradient_reduction=sum (gradient_reduction)",
        "variable_update=replicated variable_consistency=relaxed (consistency)",
    } <= set(found["aggregation"])
    assert reasons["variable_update=multi_worker_mirrored_strategy"].startswith("--num_gpus=2: ")


ALLOW = "changes what is trained; allow it with --allow="


@pytest.mark.slow
def test_a_mode_that_changes_the_result_leaves_the_others(
    listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {"staged_vars": "true"}
    own = Mode(name="own", manager=".per_tower:ReplicatedVariableMgr", staged=True, needs=needs)
    monkeypatch.setitem(registry.MODES, "own", own)
    found, dropped = listed(*LENET, group="aggregation")
    assert "variable_update=replicated" in found["aggregation"]
    assert dropped["variable_update=own staged_vars=true"] == f"{ALLOW}consistency"
    found, _ = listed(*LENET, allow="consistency", group="aggregation")
    assert "variable_update=own staged_vars=true (consistency)" in found["aggregation"]


def test_a_flag_without_effect_makes_no_candidate() -> None:
    spec = {"all_reduce_spec": "xring"}
    modes = [{"variable_update": mode, **spec} for mode in ("replicated", "parameter_server")]
    found, dropped = of_choices(*modes)
    assert found == [AS_GIVEN, "variable_update=replicated all_reduce_spec=xring"]
    ((name, reason),) = dropped.items()
    assert name == "variable_update=parameter_server all_reduce_spec=xring"
    assert reason.startswith("--all_reduce_spec has no effect ")


def test_where_all_flags_are_given_nothing_is_searched(
    listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    threads = ("--num_intra_threads=1", "--num_inter_threads=1")
    with pytest.raises(UsageError, match="nothing is left to vary"):
        listed(*ONE_EACH, "--xla=false", "--xla_compile=false", *threads)


class OfEvenDevices:
    def __init__(self, context: ReduceContext) -> None:
        if len(context.devices) % 2:
            raise ValueError("takes an even number of devices")

    def __call__(self, tensors: list[Any], index: int) -> list[Any]:
        return [sum(tensors)] * len(tensors)


@pytest.fixture
def even() -> Iterator[Callable[..., None]]:
    """even(DECLARED=VALUE, ...): registers an algorithm as a plug-in does."""
    algorithms.declarations()  # what a test imports is forgotten after it
    with kept(algorithms.ALGORITHMS):
        yield lambda **declared: algorithms.register("even", **declared)(OfEvenDevices)


REPLICATED = (*LENET, "--variable_update=replicated")
ON_GPUS = ("--model=lenet", "--num_gpus=2", "--variable_update=replicated")
EVEN = "all_reduce_spec=even"


@pytest.mark.slow
def test_an_algorithm_that_is_registered_is_tried(
    aggregated: Aggregated, even: Callable[..., None]
) -> None:
    assert EVEN not in aggregated(*REPLICATED)[0]
    even()
    found, _ = aggregated(*REPLICATED)
    assert {EVEN, f"{EVEN} gradient_repacking=8"} <= set(found)
    found, dropped = aggregated(*REPLICATED, "--num_gpus=3")
    assert EVEN not in found
    assert dropped[EVEN].endswith("'even': takes an even number of devices")


@pytest.mark.slow
def test_an_algorithm_says_where_it_is_tried(
    aggregated: Aggregated, even: Callable[..., None]
) -> None:
    even(tuned_on=("gpu",))
    found, dropped = aggregated(*REPLICATED)
    assert not any(EVEN in name for name in (*found, *dropped))
    found, _ = aggregated(*ON_GPUS, on_gpu=True)
    assert EVEN in found


@pytest.mark.slow
def test_an_algorithm_that_rounds_more_changes_the_precision(
    aggregated: Aggregated, even: Callable[..., None]
) -> None:
    even(lossy=True)
    found, dropped = aggregated(*REPLICATED)
    assert not any(EVEN in name for name in found)
    assert dropped[EVEN] == f"{ALLOW}precision"
    found, _ = aggregated(*REPLICATED, allow="precision")
    assert f"{EVEN} (precision)" in found


@pytest.mark.parametrize(
    ("on_gpu", "tried"),
    [
        (False, {"pscpu", "rechd", "tree", "xring"}),
        (True, {"hierarchical_copy", "nccl", "rechd", "tree", "xring"}),
    ],
)
def test_the_algorithms_that_are_worth_trying(
    aggregated: Aggregated, on_gpu: bool, tried: set[str]
) -> None:
    names, _ = aggregated(*ON_GPUS, *(() if on_gpu else ("--device=cpu",)), on_gpu=on_gpu)
    assert {name for name in names if re.fullmatch(r"all_reduce_spec=\w+", name)} == {
        f"all_reduce_spec={name}" for name in tried
    }
