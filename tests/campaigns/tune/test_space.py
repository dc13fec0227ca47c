"""Candidates of spaces, without anything measured."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from cnnbench.campaigns.launch.tasks import JobLayout
from cnnbench.campaigns.tune.dimensions import (
    ALLOWABLE,
    TUNABLE,
    SearchSituation,
    Settings,
    dimensions,
)
from cnnbench.campaigns.tune.space import (
    Candidate,
    Space,
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
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.modes import Mode

LENET = {"model": "lenet", "device": "cpu", "num_gpus": "2", "batch_size": "8"}
OWN_BATCH = {name: text for name, text in LENET.items() if name != "batch_size"}
ONE_EACH = {**LENET, "num_gpus": "1"}
TWO_TOWERS = SearchSituation(towers=2, on_gpu=False, cpus=4, batch_size=8)
TWO_WORKERS = replace(TWO_TOWERS, workers=2)
EIGHT_GPUS = SearchSituation(towers=8, on_gpu=True, cpus=16, batch_size=64, from_files=True)
WORKERS = JobLayout(workers=2)
WITH_PS = JobLayout(workers=2, ps=1)

Found: TypeAlias = tuple[dict[str, Candidate], dict[str, str]]
"""The candidates of a group by name, and the reasons of dropped ones."""


def default_space(
    fixed: Settings,
    situation: SearchSituation,
    allowed: Collection[str] = (),
    layout: JobLayout | None = None,
) -> Space:
    given = Space(fixed=fixed, allowed=frozenset(allowed), layout=layout)
    return replace(given, groups=default_groups(given, situation))


@pytest.fixture
def space(tmp_path: Path) -> Callable[..., Space]:
    """Reads a space from the text of a file."""

    def read(text: str, fixed: Mapping[str, str] = LENET, allowed: tuple[str, ...] = ()) -> Space:
        path = tmp_path / "suite.yaml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        groups = read_groups(str(path), fixed)
        return Space(fixed=fixed, groups=groups, allowed=frozenset(allowed))

    return read


def found_in(space: Space) -> dict[str, Found]:
    found = {}
    for name, choices in space.groups.items():
        candidates, dropped = candidates_of(space, choices, space.make({}))
        by_name = {one.name: one for one in candidates}
        found[name] = (by_name, {one.name: one.reason for one in dropped})
    return found


def test_the_space_of_several_towers_on_a_cpu() -> None:
    found = {name: one for name, (one, _) in found_in(default_space(LENET, TWO_TOWERS)).items()}
    assert list(found) == ["computing", "aggregation", "threads"]
    assert list(found["computing"]) == [AS_GIVEN, "xla_compile=true", "xla=true"]
    aggregation = found["aggregation"]
    assert next(iter(aggregation)) == AS_GIVEN
    assert {
        "local_parameter_device=cpu",
        "variable_update=replicated",
        "variable_update=replicated all_reduce_spec=xring gradient_repacking=8",
        "variable_update=distributed_all_reduce all_reduce_spec=pscpu:32K:xring",
        "variable_update=collective_all_reduce",
        "variable_update=mirrored_strategy cross_device_ops=reduction_to_one_device",
        "variable_update=central_storage_strategy",
    } <= aggregation.keys()
    assert not any("independent" in name for name in aggregation)
    lengths = [len(one.settings) for one in aggregation.values()]
    assert lengths == sorted(lengths)
    assert "num_intra_threads=4 num_inter_threads=1" in found["threads"]
    assert all(one.changes == () for field in found.values() for one in field.values())
    assert len({one.key for one in aggregation.values()}) == len(aggregation)


def test_the_space_of_several_workers() -> None:
    space = default_space(ONE_EACH, TWO_WORKERS, layout=WORKERS)
    candidates, reasons = found_in(space)["aggregation"]
    first = candidates[AS_GIVEN]
    assert first.settings == {}
    assert first.flags[-1] == "--variable_update=collective_all_reduce"
    assert first.resolved.global_batch == 16
    assert {
        "gradient_repacking=8",
        "variable_update=multi_worker_mirrored_strategy",
        "variable_update=distributed_all_reduce all_reduce_spec=pscpu:32K:xring",
        "variable_update=distributed_all_reduce all_reduce_spec=tree gradient_repacking=8",
    } <= candidates.keys()
    assert reasons["variable_update=replicated"].startswith(
        "--variable_update=replicated: works in one process only; with launch "
    )
    assert reasons["variable_update=parameter_server"].startswith("--ps=0: ")
    # A candidate that names the mode has not that of the flags as given.
    chosen = [one for one in candidates.values() if "variable_update" in one.settings]
    assert all(sum("variable_update" in flag for flag in one.flags) == 1 for one in chosen)
    in_one = [name_of(one) for one in default_space(LENET, TWO_TOWERS).groups["aggregation"]]
    assert not any("distributed_all_reduce all_reduce_spec=tree" in name for name in in_one)
    # Tasks for variables make other candidates.
    space = default_space(ONE_EACH, TWO_WORKERS, layout=WITH_PS)
    candidates, _ = found_in(space)["aggregation"]
    assert list(candidates)[:2] == [AS_GIVEN, "local_parameter_device=cpu"]
    assert "variable_update=distributed_replicated" in candidates


CONTROLLED = JobLayout(workers=2, controller=True)
REDUCING = {"variable_update": "distributed_all_reduce"}


@pytest.mark.parametrize(
    ("fixed", "layout", "mode"),
    [
        ({}, None, {}),
        ({}, WORKERS, {"variable_update": "collective_all_reduce"}),
        ({}, WITH_PS, {}),
        ({"variable_update": "parameter_server"}, WORKERS, {}),
        ({}, CONTROLLED, {**REDUCING, "all_reduce_spec": "pscpu:32K:xring"}),
        ({"all_reduce_spec": "xring"}, CONTROLLED, REDUCING),
    ],
)
def test_the_mode_of_a_job_whose_flags_name_none(
    fixed: dict[str, str], layout: JobLayout | None, mode: dict[str, str]
) -> None:
    assert Space(fixed=fixed, layout=layout).assumed == mode


def test_what_needs_more_memory_than_there_is_is_dropped() -> None:
    space = default_space(OWN_BATCH, TWO_TOWERS, ("batch_size",))
    needed = [space.make({"batch_size": size}).resolved.needed_bytes for size in ("16", "32")]
    assert needed[0] < needed[1]
    between = round(sum(needed) / 2 / 0.9)
    space = replace(space, memory=Memory(total=between, available=between))
    candidates, dropped = found_in(space)["computing"]
    assert "batch_size=16" in candidates
    assert dropped["batch_size=32"].startswith("takes about ")
    assert " of memory, and " in dropped["batch_size=32"]
    # All processes of a job count.
    alone = Space(fixed=ONE_EACH)
    job = replace(alone, layout=JobLayout(workers=3, ps=1)).make({}).resolved.needed_bytes
    assert job > 3 * alone.make({}).resolved.needed_bytes + PROCESS_BYTES


def test_flags_that_are_given_are_fixed() -> None:
    fixed = {**LENET, "variable_update": "replicated", "num_intra_threads": "1"}
    found = {name: one for name, (one, _) in found_in(default_space(fixed, TWO_TOWERS)).items()}
    aggregation = found["aggregation"].values()
    assert {one.resolved.config["variable_update"] for one in aggregation} == {"replicated"}
    assert "all_reduce_spec=xring gradient_repacking=8" in found["aggregation"]
    threads = [AS_GIVEN, *(f"num_inter_threads={threads}" for threads in (1, 2, 4))]
    assert list(found["threads"]) == threads
    assert all("--num_intra_threads=1" in one.flags for one in found["threads"].values())


def test_what_applies_follows_from_the_situation() -> None:
    alone = default_space(ONE_EACH, replace(TWO_TOWERS, towers=1))
    assert [*alone.groups] == ["computing", "threads"]
    inference = replace(TWO_TOWERS, trains=False)
    space = default_space({**LENET, "forward_only": "true"}, inference)
    assert [*space.groups] == ["computing", "threads"]
    groups = default_space({"model": "resnet50"}, EIGHT_GPUS).groups
    assert {"data_format": "NHWC"} in groups["computing"]
    assert {"variable_update": "replicated", "all_reduce_spec": "nccl"} in groups["aggregation"]
    assert {"gpu_thread_mode": "global"} in groups["threads"]
    assert {"datasets_num_private_threads": "16", "datasets_prefetch_buffer_size": "2"} in (
        groups["input"]
    )


def test_what_changes_the_result_varies_only_where_that_is_allowed() -> None:
    found = found_in(default_space(OWN_BATCH, TWO_TOWERS, ALLOWABLE))
    changes = {name: one.changes for those, _ in found.values() for name, one in those.items()}
    expected = {
        "precision=bf16": ("precision",),
        "batch_size=16": ("batch_size",),
        "precision=bf16 batch_size=4": ("precision", "batch_size"),
        "staged_vars=true": ("consistency",),
        "gradient_reduction=sum": ("gradient_reduction",),
        "variable_update=replicated variable_consistency=relaxed": ("consistency",),
    }
    assert {name: changes[name] for name in expected} == expected
    _, refused = found["aggregation"]
    assert refused["variable_update=multi_worker_mirrored_strategy"].startswith("--num_gpus=2: ")


def test_a_mode_that_changes_the_result_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"staged_vars": "true"}
    own = Mode(name="own", manager=".per_tower:ReplicatedVariableMgr", staged=True, needs=needs)
    monkeypatch.setitem(registry._modes, "own", own)
    candidates, dropped = found_in(default_space(LENET, TWO_TOWERS))["aggregation"]
    assert "variable_update=replicated" in candidates
    reason = "changes what is trained; allow it with --allow=consistency"
    assert dropped["variable_update=own staged_vars=true"] == reason
    candidates, _ = found_in(default_space(LENET, TWO_TOWERS, ("consistency",)))["aggregation"]
    assert candidates["variable_update=own staged_vars=true"].changes == ("consistency",)


PRECISION = "entries: [{name: a, matrix: {precision: [bf16], variable_update: [independent]}}]"
COORDINATED = "entries: [{name: a, matrix: {variable_update: [parameter_server_strategy]}}]"


@pytest.mark.parametrize(
    ("text", "fixed", "layout", "allowed"),
    [
        (PRECISION, OWN_BATCH, None, ("precision", "consistency")),
        (COORDINATED, ONE_EACH, WITH_PS, ("consistency",)),  # workers train asynchronously
    ],
)
def test_changes_of_the_result_in_a_file_need_leave(
    space: Callable[..., Space],
    text: str,
    fixed: Settings,
    layout: JobLayout | None,
    allowed: tuple[str, ...],
) -> None:
    ((_, dropped),) = found_in(replace(space(text, fixed), layout=layout)).values()
    reason = f"changes what is trained; allow it with --allow={allowed[0]}"
    assert list(dropped.values()) == [reason]
    ((candidates, _),) = found_in(replace(space(text, fixed, allowed), layout=layout)).values()
    _, one = candidates.values()
    assert one.changes == allowed
    assert one.resolved.asynchronous == (layout is not None)


def test_a_flag_without_effect_makes_no_candidate(space: Callable[..., Space]) -> None:
    ((candidates, reasons),) = found_in(
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
    assert list(candidates) == [
        AS_GIVEN,
        "variable_update=replicated",
        "variable_update=replicated all_reduce_spec=xring",
    ]
    same = reasons.pop("variable_update=parameter_server")
    assert same == "means the same as the flags as given"
    ((name, reason),) = reasons.items()
    assert name == "variable_update=parameter_server all_reduce_spec=xring"
    assert reason.startswith("--all_reduce_spec has no effect ")


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


def test_the_table_names_flags_that_exist_and_may_vary() -> None:
    assert {spec.name for spec in FLAGS} >= TUNABLE
    for group in (*dimensions(TWO_TOWERS).values(), *dimensions(EIGHT_GPUS).values()):
        assert all(settings.keys() <= TUNABLE for values, _ in group for settings in values)
