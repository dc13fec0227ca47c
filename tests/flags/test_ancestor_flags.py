"""Every flag of tf_cnn_benchmarks exists with its type and default, but for the rulings."""

import json
from pathlib import Path

import pytest

from cnnbench.flags import FLAGS
from cnnbench.flags.retired import OBSOLETE

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
# Ruling 7 of the design: where to run and in which layout follows from the machine.
NEW_DEFAULTS = {"device": ("gpu", "auto"), "data_format": ("NCHW", "auto")}
# Horovod's mode is another name on the command line only.
GONE_CHOICES = {"variable_update": {"horovod"}}
# Of earlier versions and forks of tf_cnn_benchmarks, without meaning.
EARLIER_FLAGS = {
    *("flush_stdout", "use_nccl", "use_multi_device_iterator", "use_data_sets"),
    *("datasets_prefetch_threadpool_size", "enable_layout_optimizer", "memory_optimization"),
    *("gpu_pending_cap", "num_omp_threads", "result_storage", "pretrain_dir", "gpu_mem_fraction"),
}

NEW_FLAGS = {
    "input_only",
    "stop_at",
    "communication_hint",
    "jpeg_fancy_upscaling",
    "cross_device_ops",
    "bytes_per_pack",
    "num_packs",
    *("input_distribution", "input_sharding", "auto_shard_policy", "input_replication"),
    "prefetch_on_device",
    "all_reduce_group_size",
    "gradient_bucket_bytes",
    "all_reduce_share_memory",
    "precision",
    "gradient_reduction",
    "bn_stats",
    "ps_strategy",
    "variable_caching",
    "aux_head",
    "export_dir",
    "label_smoothing",
    "learning_rate_schedule",
    "model_plugin",
    "dataset_plugin",
    "variable_mgr_plugin",
    "on_bad_record",
    "result_json",
    "result_csv",
    "result_label",
    "profile_layers",
    "profile_json",
    "profile_steps",
    "allow_nonfinite",
    "check_replica_consistency",
    "progress",
    "peak_flops",
    "warmup",
    "xla_cache_dir",
    "max_warmup_batches",
    "quiet_conditions",
    "cluster",
    "cluster_timeout",
    "stall_timeout",
    "cluster_ps",
    "rendezvous",
}


def test_the_fixture_is_the_whole_list():
    # 137 flags of the library and one of each of its two scripts.
    assert len(ANCESTOR) == 139


def test_types():
    kinds = {name: (OURS[name].kind, row["type"]) for name, row in ANCESTOR.items()}
    assert {name: pair for name, pair in kinds.items() if pair[0] not in KINDS[pair[1]]} == {}


def test_defaults_differ_only_where_ruled():
    different = {}
    for name, row in ANCESTOR.items():
        old = tuple(row["default"]) if row["type"] == "list" else row["default"]
        new = OURS[name].default
        if type(old) is not type(new) and row["type"] != "float":
            pytest.fail(f"{name}: {old!r} became {new!r}")
        if old != new:
            different[name] = (old, new)
    assert different == NEW_DEFAULTS


def test_old_choices_still_spell_a_value():
    for name, row in ANCESTOR.items():
        spec = OURS[name]
        for choice in set(row.get("choices", ())) - GONE_CHOICES.get(name, set()):
            spec.check(spec.normalise(choice))


def test_old_bounds_hold():
    bounded = {name: row["bounds"] for name, row in ANCESTOR.items() if "bounds" in row}
    assert len(bounded) == 4
    for name, (low, high) in bounded.items():
        assert (OURS[name].minimum, OURS[name].maximum) == (low, high)


def test_new_flags_are_listed_here():
    assert set(OURS) - set(ANCESTOR) == NEW_FLAGS | EARLIER_FLAGS


def test_a_flag_is_either_alive_or_obsolete():
    assert len(OURS) == len(FLAGS) + len(OBSOLETE)
