"""The candidates of spaces, and what is dropped, without measurements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from registries import kept

from cnnbench.campaigns.launch import JobLayout
from cnnbench.campaigns.tune import environment
from cnnbench.campaigns.tune.space import (
    TUNABLE,
    SearchSpace,
    candidates_of_group,
    default_groups,
    read_groups,
)
from cnnbench.errors import UsageError
from cnnbench.flags import FLAGS, args_from_values, parse_flags
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
JOB = JobLayout(workers=2)
JOB_WITH_PS = JobLayout(workers=2, ps=1)

Listed: TypeAlias = Callable[..., tuple[dict[str, list[str]], dict[str, str]]]
Aggregated: TypeAlias = Callable[..., tuple[list[str], dict[str, str]]]


@pytest.fixture
def listed(tmp_path: Path) -> Listed:
    """listed(FLAG..., space=TEXT, group=NAME): candidates by group, and reasons of dropped ones.

    Of a candidate that changes what is trained, the changes follow in brackets. The space is that
    of the situation, on a machine of four CPUs, if no text of a file is given. Without a name, all
    groups are made.
    """

    def listed(
        *flags: str,
        space: str = "",
        allow: str = "",
        group: str = "",
        on_gpu: bool = False,
        cpus: int = 4,
        **more: Any,
    ) -> tuple[dict[str, list[str]], dict[str, str]]:
        args = args_from_values(parse_flags(flags, ACCEPTED.values()))
        made = SearchSpace(args=args, allowed=frozenset(filter(None, allow.split(","))), **more)
        first = made.make_candidate({})
        if space:
            (tmp_path / "space.yaml").write_text(space)
            groups = read_groups(str(tmp_path / "space.yaml"), made.given_texts)
        else:
            groups = default_groups(made, first, on_gpu=on_gpu, cpus=cpus)
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


def varied(found: dict[str, list[str]], dropped: dict[str, str]) -> set[str]:
    """The flags of all candidates."""
    names = [*dropped, *(name for names in found.values() for name in names)]
    return {word.partition("=")[0] for name in names for word in name.split() if "=" in word}


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
    assert varied(found, {}) <= TUNABLE | environment.VARIABLES
    assert not any("(" in name for names in found.values() for name in names)  # no changes
    assert len(set(aggregation)) == len(aggregation)


def test_the_space_of_several_workers(listed: Listed) -> None:
    found, reasons = listed(*ONE_EACH, layout=JOB, group="aggregation")
    assert {
        AS_GIVEN,
        "gradient_repacking=8",
        "variable_update=multi_worker_mirrored_strategy",
        "variable_update=distributed_all_reduce all_reduce_spec=pscpu:32K:xring",
        "variable_update=distributed_all_reduce all_reduce_spec=tree gradient_repacking=8",
    } <= set(found["aggregation"])
    assert reasons["variable_update=replicated"].startswith(
        "--variable_update=replicated: works in one process only; with launch "
    )
    assert reasons["variable_update=parameter_server"].startswith("--ps=0: ")
    in_one, dropped = listed(*LENET, group="aggregation")
    names = [*in_one["aggregation"], *dropped]
    assert not any("distributed_all_reduce all_reduce_spec=tree" in name for name in names)
    # Tasks for variables make other candidates.
    found, _ = listed(*ONE_EACH, layout=JOB_WITH_PS, group="aggregation")
    aggregation = found["aggregation"]
    assert aggregation[:2] == [AS_GIVEN, "local_parameter_device=cpu"]
    assert "variable_update=distributed_replicated" in aggregation


@pytest.mark.parametrize(
    ("layout", "flags", "mode"),
    [
        (None, LENET, "parameter_server"),
        (JOB, ONE_EACH, "collective_all_reduce"),
        (JOB_WITH_PS, ONE_EACH, "parameter_server"),
        (
            JobLayout(workers=2, controller=True),
            ONE_EACH,
            "distributed_all_reduce all_reduce_spec=pscpu:32K:xring",
        ),
        (
            JobLayout(workers=2, controller=True),
            ("--all_reduce_spec=xring", *ONE_EACH),
            "distributed_all_reduce",
        ),
    ],
)
def test_the_mode_of_flags_that_name_none(
    listed: Listed, layout: JobLayout | None, flags: tuple[str, ...], mode: str
) -> None:
    reason = "means the same as the flags as given"
    _, dropped = listed(*flags, layout=layout, group="aggregation")
    assert dropped[f"variable_update={mode}"] == reason


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
    # All processes of a job count.
    alone, job = (
        dropped(2**10, *ONE_EACH, layout=layout) for layout in (None, JobLayout(workers=3, ps=1))
    )
    assert mebibytes(job, "xla=true") > 3 * mebibytes(alone, "xla=true")


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


def test_what_means_the_same_is_measured_once(listed: Listed) -> None:
    matrix = "{variable_update: [replicated], gradient_reduction: [null, mean]}"
    found, dropped = listed(*LENET, space=f"entries: [{{name: a, matrix: {matrix}}}]")
    first = "variable_update=replicated"
    assert found == {"a": [AS_GIVEN, first]}
    assert dropped == {f"{first} gradient_reduction=mean": f"means the same as {first}"}


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
    found, dropped = listed("--model=lenet", "--num_gpus=2", on_gpu=True, cpus=16)
    assert "data_format=NHWC" in found["computing"]
    assert "variable_update=replicated all_reduce_spec=nccl" in found["aggregation"]
    assert "gpu_thread_mode=global" in found["threads"]
    assert "environment" not in found
    assert varied(found, dropped) <= TUNABLE


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


PRECISION = "entries: [{name: a, matrix: {precision: [bf16], variable_update: [independent]}}]"
COORDINATED = "entries: [{name: a, matrix: {variable_update: [parameter_server_strategy]}}]"


@pytest.mark.parametrize(
    ("text", "flags", "layout", "allowed"),
    [
        (PRECISION, LENET, None, "precision,consistency"),
        (COORDINATED, ONE_EACH, JOB_WITH_PS, "consistency"),  # workers train asynchronously
    ],
)
def test_changes_of_the_result_in_a_file_need_leave(
    listed: Listed, text: str, flags: tuple[str, ...], layout: JobLayout | None, allowed: str
) -> None:
    _, dropped = listed(*flags, layout=layout, space=text)
    assert [*dropped.values()] == [f"{ALLOW}{allowed.partition(',')[0]}"]
    ((first, second),) = listed(*flags, layout=layout, allow=allowed, space=text)[0].values()
    assert first == AS_GIVEN
    assert second.endswith(f" ({allowed.replace(',', ', ')})")


def test_a_flag_without_effect_makes_no_candidate(listed: Listed) -> None:
    modes = "variable_update: [parameter_server, replicated], all_reduce_spec: [null, xring]"
    space = f"entries: [{{name: reductions, matrix: {{{modes}}}}}]"
    found, reasons = listed(*LENET, space=space)
    assert found["reductions"] == [
        AS_GIVEN,
        "variable_update=replicated",
        "variable_update=replicated all_reduce_spec=xring",
    ]
    assert reasons.pop("variable_update=parameter_server").startswith("means the same as the flags")
    ((name, reason),) = reasons.items()
    assert name == "variable_update=parameter_server all_reduce_spec=xring"
    assert reason.startswith("--all_reduce_spec has no effect ")


def test_entries_of_a_file_are_groups(listed: Listed) -> None:
    space = """
entries:
  - name: mode
    matrix: {variable_update: [replicated, mirrored_strategy]}
  - name: threads
    matrix: {num_intra_threads: [1, 2], num_inter_threads: [1, 2]}
    exclude: [{num_intra_threads: 2, num_inter_threads: 2}]
"""
    found, _ = listed(*LENET, "--num_inter_threads=1", space=space)
    modes = [f"variable_update={mode}" for mode in ("replicated", "mirrored_strategy")]
    threads = [f"num_intra_threads={number}" for number in (1, 2)]
    assert found == {"mode": [AS_GIVEN, *modes], "threads": [AS_GIVEN, *threads]}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("command: allreduce, flags: {sizes: 1K}", "command: allreduce has no effect"),
        ("launch: {workers: 2}, matrix: {xla: [true]}", "launch has no effect"),
        ("matrix: {optimizer: [sgd, adam]}", "a: optimizer changes what is measured; it cannot"),
        ("matrix: {num_gpus: [1, 2]}", "a: num_gpus changes what is measured; it cannot vary"),
        ("matrix: {threads: [1, 2]}", "a: threads is not a flag of a run; it cannot vary"),
        ("matrix: {model: [lenet]}", "a: model changes what is measured"),
        ("bounds: {throughput: {min: 1}}, matrix: {xla: [true]}", "bounds has no effect"),
        ("matrix: {find_batch_size: [true]}", "a: find_batch_size changes what is measured"),
        ("matrix: {device: [cpu]}", "a: device changes what is measured"),
        ("matrix: {batch_size: [8]}", "nothing is left to vary"),
        ("matrix: {all_reduce_spec: [pscpu, ring]}", "a: --all_reduce_spec=ring: "),
        ("matrix: {num_intra_threads: [1, two]}", "a: --num_intra_threads=two: must be an integer"),
        ("matrix: {variable_update: [mirored]}", "a: --variable_update=mirored: must be one of "),
    ],
)
def test_a_file_that_cannot_be_searched(listed: Listed, entry: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        listed(*LENET, space=f"entries:\n  - {{name: a, {entry}}}\n")
    assert re.match(r"\S*space\.yaml:|nothing", str(refused.value))
    assert message in str(refused.value)


@pytest.mark.slow
def test_all_candidates_are_of_flags_that_exist_and_may_vary(listed: Listed) -> None:
    found, dropped = listed(*OWN_BATCH, allow="precision,batch_size,consistency")
    assert varied(found, dropped) - environment.VARIABLES <= TUNABLE
    assert {spec.name for spec in FLAGS} >= TUNABLE


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
