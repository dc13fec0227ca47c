"""Every flag of tf_cnn_benchmarks exists with its type, default, choices and bounds.

Tests the declarations in `cnnbench/flags/groups/`.

Tests cnnbench/flags/groups/*.py; their rules are tested in tests/plan.
"""

import json
from pathlib import Path

from cnnbench.flags import FLAGS
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS, params_from_values
from cnnbench.flags.obsolete import OBSOLETE

ANCESTOR = {
    row["name"]: row
    for row in json.loads((Path(__file__).parent / "ancestor_flags.json").read_text())
}
OURS = {spec.name: spec for spec in (*FLAGS, *OBSOLETE)}
KINDS = {
    "boolean": {"boolean"},
    "integer": {"integer"},
    "float": {"number"},
    "string": {"string"},
    "enum": {"string"},
    "list": {"integers", "numbers"},
}
# Of earlier versions and forks of tf_cnn_benchmarks, without meaning.
EARLIER_FLAGS = {
    *("flush_stdout", "use_nccl", "use_multi_device_iterator", "use_data_sets"),
    *("datasets_prefetch_threadpool_size", "enable_layout_optimizer", "memory_optimization"),
    *("gpu_pending_cap", "num_omp_threads", "result_storage", "pretrain_dir", "gpu_mem_fraction"),
}


def test_flags_are_accepted_and_each_is_either_alive_or_obsolete():
    # 137 flags of the library and one of each of its two scripts.
    assert len(ANCESTOR) == 139
    assert OURS.keys() >= {*ANCESTOR, *EARLIER_FLAGS}
    assert len(OURS) == len(FLAGS) + len(OBSOLETE)


def test_types_and_defaults_differ_only_where_ruled():
    different = {}
    for name, row in ANCESTOR.items():
        spec = OURS[name]
        assert spec.kind.name.split(" or ")[0] in KINDS[row["type"]], name
        old = tuple(row["default"]) if row["type"] == "list" else row["default"]
        assert type(old) is type(spec.default) or row["type"] == "float", name
        if old != spec.default:
            different[name] = (old, spec.default)
    # Where to run and in which layout follows from the machine.
    assert different == {"device": ("gpu", "auto"), "data_format": ("NCHW", "auto")}


def test_old_choices_and_bounds_hold():
    for name, row in ANCESTOR.items():
        for choice in row.get("choices", ()):
            if choice != "horovod":  # which is another name on the command line only
                OURS[name].check(OURS[name].stored_form(choice))
    bounded = {name: row["bounds"] for name, row in ANCESTOR.items() if "bounds" in row}
    assert len(bounded) == 4
    for name, bounds in bounded.items():
        assert [OURS[name].minimum, OURS[name].maximum] == bounds


def test_flags_of_allreduce_are_values_by_name():
    values = params_from_values({"num_batches": 7, "sizes": "4K"}).as_dict()
    usual = {spec.name: spec.default for spec in ALL_REDUCE_FLAGS}
    assert values == {**usual, "num_batches": 7, "sizes": "4K"}
    assert [*values] == [*usual]
