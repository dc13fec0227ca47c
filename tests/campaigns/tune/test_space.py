"""Candidates of spaces, without anything measured."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from cnnbench.campaigns.launch.tasks import JobLayout
from cnnbench.campaigns.tune.dimensions import (
    ALLOWABLE,
    CHANGES,
    DIMENSIONS,
    TUNABLE,
    SearchSituation,
    Settings,
)
from cnnbench.campaigns.tune.space import (
    Candidate,
    Dropped,
    Space,
    assumed_mode,
    by_reason,
    candidates_of,
    default_groups,
    name_of,
    read_groups,
)
from cnnbench.errors import UsageError
from cnnbench.flags import FLAGS
from cnnbench.machine.cpu import Memory
from cnnbench.records.tune import AS_GIVEN
from cnnbench.run.driver.estimates import PROCESS_BYTES
from cnnbench.variable_mgr.modes import DEFAULT

LENET = {"model": "lenet", "device": "cpu", "num_gpus": "2", "batch_size": "8"}
OWN_BATCH = {name: text for name, text in LENET.items() if name != "batch_size"}
TWO_TOWERS = SearchSituation(towers=2, on_gpu=False, cpus=4, batch_size=8)


class Field(NamedTuple):
    """What `candidates_of` returns."""

    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...]


def default_space(
    fixed: Settings, situation: SearchSituation, allowed: Iterable[str], mode: str = DEFAULT
) -> Space:
    assumed = {} if mode == DEFAULT else {"variable_update": mode}
    given = Space(fixed=fixed, allowed=frozenset(allowed), assumed=assumed)
    return replace(given, groups=default_groups(given, situation))


def fields(space: Space, memory: Memory | None = None) -> dict[str, Field]:
    space = replace(space, memory=memory)
    return {
        name: Field(*candidates_of(space, choices, space.make({})))
        for name, choices in space.groups.items()
    }


def names(field: Field) -> list[str]:
    return [one.name for one in field.candidates]


def test_the_space_of_several_towers_on_a_cpu() -> None:
    found = fields(default_space(LENET, TWO_TOWERS, ()))
    assert list(found) == ["computing", "aggregation", "threads"]
    assert names(found["computing"]) == [AS_GIVEN, "xla_compile=true", "xla=true"]
    aggregation = names(found["aggregation"])
    assert aggregation[0] == AS_GIVEN
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
    lengths = [len(one.settings) for one in found["aggregation"].candidates]
    assert lengths == sorted(lengths)
    assert "num_intra_threads=4 num_inter_threads=1" in names(found["threads"])
    every = [one for field in found.values() for one in field.candidates]
    assert all(one.changes == () for one in every)
    keys = [one.key for one in found["aggregation"].candidates]
    assert len(set(keys)) == len(keys)


TWO_WORKERS = SearchSituation(towers=2, on_gpu=False, cpus=4, batch_size=8, workers=2)
ONE_EACH = {**LENET, "num_gpus": "1"}


def fields_of_jobs(
    space: Space, layout: JobLayout, memory: Memory | None = None
) -> dict[str, Field]:
    space = replace(space, assumed=assumed_mode(space.fixed, layout), layout=layout)
    return fields(space, memory)


def test_the_space_of_several_workers() -> None:
    layout = JobLayout(workers=2)
    mode = assumed_mode(ONE_EACH, layout)
    assert mode == {"variable_update": "collective_all_reduce"}
    space = default_space(ONE_EACH, TWO_WORKERS, (), mode["variable_update"])
    aggregation = fields_of_jobs(space, layout)["aggregation"]
    first = aggregation.candidates[0]
    assert (first.name, first.settings) == (AS_GIVEN, {})
    assert first.flags[-1] == "--variable_update=collective_all_reduce"
    assert first.resolved.global_batch == 16
    assert {
        "gradient_repacking=8",
        "variable_update=multi_worker_mirrored_strategy",
        "variable_update=distributed_all_reduce all_reduce_spec=pscpu:32K:xring",
        "variable_update=distributed_all_reduce all_reduce_spec=tree gradient_repacking=8",
    } <= set(names(aggregation))
    reasons = {one.name: one.reason for one in aggregation.dropped}
    assert reasons["variable_update=replicated"].startswith(
        "--variable_update=replicated: works in one process only; with launch "
    )
    assert reasons["variable_update=parameter_server"].startswith("--ps=0: ")
    # A candidate that names the mode has not that of the flags as given.
    chosen = [one for one in aggregation.candidates if "variable_update" in one.settings]
    assert all(sum("variable_update" in flag for flag in one.flags) == 1 for one in chosen)
    in_one = default_space(LENET, TWO_TOWERS, ())
    assert not any("distributed_all_reduce all_reduce_spec=tree" in n for n in _names(in_one))


def _names(space: Space) -> list[str]:
    return [name_of(choice) for choices in space.groups.values() for choice in choices]


@pytest.mark.parametrize(
    ("fixed", "layout", "mode"),
    [
        ({}, None, {}),
        ({}, JobLayout(workers=2, ps=1), {}),
        ({"variable_update": "parameter_server"}, JobLayout(workers=2), {}),
        (
            {},
            JobLayout(workers=2, controller=True),
            {"variable_update": "distributed_all_reduce", "all_reduce_spec": "pscpu:32K:xring"},
        ),
        (
            {"all_reduce_spec": "xring"},
            JobLayout(workers=2, controller=True),
            {"variable_update": "distributed_all_reduce"},
        ),
    ],
)
def test_the_mode_of_a_job_whose_flags_name_none(
    fixed: dict[str, str], layout: JobLayout | None, mode: dict[str, str]
) -> None:
    assert assumed_mode(fixed, layout) == mode


def test_ps_tasks_make_other_candidates() -> None:
    found = fields_of_jobs(default_space(ONE_EACH, TWO_WORKERS, ()), JobLayout(workers=2, ps=1))
    assert names(found["aggregation"])[:2] == [AS_GIVEN, "local_parameter_device=cpu"]
    assert "variable_update=distributed_replicated" in names(found["aggregation"])


def test_all_processes_of_a_job_need_memory() -> None:
    layout = JobLayout(workers=3, ps=1)
    alone = Space(fixed=ONE_EACH)
    one = alone.make({}).resolved.needed_bytes
    job = replace(alone, layout=layout).make({}).resolved.needed_bytes
    assert job > 3 * one + PROCESS_BYTES
    space = default_space(OWN_BATCH, TWO_WORKERS, ("batch_size",))
    between = Memory(total=job, available=round(job / 0.95))
    dropped = fields_of_jobs(space, layout, between)["computing"].dropped
    assert {one.reason.partition(" about ")[0] for one in dropped} == {"takes"}


def test_a_coordinator_lets_workers_train_asynchronously(space: Callable[..., Space]) -> None:
    text = "entries:\n  - {name: a, matrix: {variable_update: [parameter_server_strategy]}}\n"
    for allowed, changes in (((), None), (("consistency",), ("consistency",))):
        found = space(text, fixed=ONE_EACH, allowed=allowed)
        (field,) = fields_of_jobs(found, JobLayout(workers=2, ps=1)).values()
        if changes is None:
            (dropped,) = field.dropped
            assert dropped.reason.endswith("allow it with --allow=consistency")
        else:
            assert field.candidates[1].changes == changes
            assert field.candidates[1].resolved.asynchronous


def test_flags_that_are_given_are_fixed() -> None:
    fixed = {**LENET, "variable_update": "replicated", "num_intra_threads": "1"}
    found = fields(default_space(fixed, TWO_TOWERS, ()))
    aggregation = found["aggregation"].candidates
    assert {one.resolved.config["variable_update"] for one in aggregation} == {"replicated"}
    assert "all_reduce_spec=xring gradient_repacking=8" in names(found["aggregation"])
    assert names(found["threads"]) == [
        AS_GIVEN,
        *(f"num_inter_threads={threads}" for threads in (1, 2, 4)),
    ]
    assert all("--num_intra_threads=1" in one.flags for one in found["threads"].candidates)


def test_what_applies_follows_from_the_situation() -> None:
    alone = SearchSituation(towers=1, on_gpu=False, cpus=2, batch_size=8)
    fixed = {**LENET, "num_gpus": "1"}
    assert list(fields(default_space(fixed, alone, ()))) == ["computing", "threads"]
    inference = SearchSituation(towers=2, on_gpu=False, cpus=2, batch_size=8, trains=False)
    space = default_space({**LENET, "forward_only": "true"}, inference, ())
    assert [*space.groups] == ["computing", "threads"]
    gpus = SearchSituation(towers=8, on_gpu=True, cpus=16, batch_size=64, from_files=True)
    space = default_space({"model": "resnet50"}, gpus, ())
    groups = space.groups
    assert {"data_format": "NHWC"} in groups["computing"]
    assert {"variable_update": "replicated", "all_reduce_spec": "nccl"} in groups["aggregation"]
    assert {"gpu_thread_mode": "global"} in groups["threads"]
    assert {"datasets_num_private_threads": "16", "datasets_prefetch_buffer_size": "2"} in (
        groups["input"]
    )


def test_what_changes_the_result_varies_only_where_that_is_allowed() -> None:
    found = fields(default_space(OWN_BATCH, TWO_TOWERS, ALLOWABLE))
    changes = {one.name: one.changes for one in found["computing"].candidates}
    assert changes["precision=bf16"] == ("precision",)
    assert changes["batch_size=16"] == ("batch_size",)
    assert changes["precision=bf16 batch_size=4"] == ("precision", "batch_size")
    changes = {one.name: one.changes for one in found["aggregation"].candidates}
    assert changes["staged_vars=true"] == ("consistency",)
    assert changes["gradient_reduction=sum"] == ("gradient_reduction",)
    relaxed = "variable_update=replicated variable_consistency=relaxed"
    assert changes[relaxed] == ("consistency",)
    refused = {
        name: reason
        for reason, names in by_reason(found["aggregation"].dropped).items()
        for name in names
    }
    assert refused["variable_update=multi_worker_mirrored_strategy"].startswith("--num_gpus=2: ")


def test_a_flag_without_effect_makes_no_candidate(space: Callable[..., Space]) -> None:
    (field,) = fields(
        space(
            """
            entries:
              - name: reductions
                matrix:
                  variable_update: [parameter_server, replicated]
                  all_reduce_spec: [null, xring]
            """
        )
    ).values()
    assert names(field) == [
        AS_GIVEN,
        "variable_update=replicated",
        "variable_update=replicated all_reduce_spec=xring",
    ]
    reasons = {one.name: one.reason for one in field.dropped}
    same = reasons.pop("variable_update=parameter_server")
    assert same == "means the same as the flags as given"
    ((name, reason),) = reasons.items()
    assert name == "variable_update=parameter_server all_reduce_spec=xring"
    assert reason.startswith("--all_reduce_spec has no effect ")


def test_what_needs_more_memory_than_there_is_is_dropped() -> None:
    space = default_space(OWN_BATCH, TWO_TOWERS, ("batch_size",))
    needed = [space.make({"batch_size": size}).resolved.needed_bytes for size in ("16", "32")]
    assert needed[0] < needed[1]
    between = round(sum(needed) / 2 / 0.9)
    found = fields(space, Memory(total=between, available=between))["computing"]
    assert "batch_size=16" in names(found)
    (reason,) = [one.reason for one in found.dropped if one.name == "batch_size=32"]
    assert reason.startswith("takes about ")
    assert " of memory, and " in reason


def test_entries_of_a_file_are_groups(space: Callable[..., Space]) -> None:
    found = space(
        """
        entries:
          - name: mode
            matrix: {variable_update: [replicated, mirrored_strategy]}
          - name: threads
            matrix: {num_intra_threads: [1, 2], num_inter_threads: [1, 2]}
            exclude: [{num_intra_threads: 2, num_inter_threads: 2}]
        """,
        fixed={**LENET, "num_inter_threads": "1"},
    )
    assert [*found.groups.items()] == [
        ("mode", ({}, *({"variable_update": m} for m in ("replicated", "mirrored_strategy")))),
        ("threads", ({}, {"num_intra_threads": "1"}, {"num_intra_threads": "2"})),
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("matrix: {optimizer: [sgd, adam]}", "a: optimizer changes what is measured; it cannot"),
        ("matrix: {num_gpus: [1, 2]}", "a: num_gpus changes what is measured; it cannot vary"),
        ("matrix: {threads: [1, 2]}", "a: threads is no flag of a run; it cannot vary"),
        ("matrix: {model: [lenet]}", "a: model changes what is measured"),
        ("bounds: {throughput: {min: 1}}, matrix: {xla: [true]}", "has no use for bounds"),
        ("max_batch_search: true, matrix: {xla: [true]}", "has no use for max_batch_search"),
        ("matrix: {device: [cpu]}", "a: device changes what is measured"),
        ("matrix: {batch_size: [8]}", "nothing is left to vary"),
        ("matrix: {all_reduce_spec: [pscpu, ring]}", "a: --all_reduce_spec=ring: "),
        ("matrix: {num_intra_threads: [1, two]}", "a: --num_intra_threads=two: must be an integer"),
        ("matrix: {variable_update: [mirored]}", "a: --variable_update=mirored: must be one of "),
    ],
)
def test_a_file_that_cannot_be_searched(
    space: Callable[..., Space], entry: str, message: str
) -> None:
    with pytest.raises(UsageError, match=r"suite\.yaml:|nothing") as caught:
        space(f"entries:\n  - {{name: a, {entry}}}\n")
    assert message in str(caught.value)


def test_changes_of_the_result_in_a_file_need_leave(space: Callable[..., Space]) -> None:
    text = (
        "entries:\n  - name: a\n    matrix: {precision: [bf16], variable_update: [independent]}\n"
    )
    fixed = {"model": "lenet", "device": "cpu", "num_gpus": "2"}
    (field,) = fields(space(text, fixed=fixed)).values()
    (dropped,) = field.dropped
    assert dropped.reason == "changes what is trained; allow it with --allow=precision"
    allowed = ("precision", "consistency")
    (field,) = fields(space(text, fixed=fixed, allowed=allowed)).values()
    assert field.candidates[1].changes == allowed


def test_the_table_names_flags_that_exist_and_may_vary() -> None:
    known = {spec.name for spec in FLAGS}
    assert known >= TUNABLE
    gpus = SearchSituation(towers=8, on_gpu=True, cpus=16, batch_size=64, from_files=True)
    for situation in (TWO_TOWERS, gpus):
        for dimension in (one for group in DIMENSIONS.values() for one in group):
            for settings in dimension.values(situation):
                assert settings.keys() <= TUNABLE
                words = {CHANGES[name] for name in settings if name in CHANGES}
                assert words <= {dimension.allow}


@pytest.fixture
def space(tmp_path: Path) -> Callable[..., Space]:
    """Reads a space from the text of a file."""

    def read(text: str, fixed: Mapping[str, str] = LENET, allowed: tuple[str, ...] = ()) -> Space:
        path = tmp_path / "suite.yaml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        groups = read_groups(str(path), fixed)
        return Space(fixed=fixed, groups=groups, allowed=frozenset(allowed))

    return read
