"""The tables of --result_csv: one row per run, and one row per reduction.

Columns never change their order. Each has the source of its value: a dotted path of attributes and
keys; the cell is empty where a part of it is None or missing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields

from cnnbench.records.allreduce import AllReduceRecord, Point
from cnnbench.records.result_files import CsvTable
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import subject_of
from cnnbench.variable_mgr.aggregation.spec import Packing


def _at(path: str, *names: str) -> dict[str, str]:
    """Columns with the names of attributes or keys below a path."""
    return {name: f"{path}.{name}" for name in names}


_ENVIRONMENT = _at(
    "record.environment",
    *("hostname", "platform", "cpu_model", "logical_cpus", "usable_cpus"),
    *("gpu_names", "gpu_driver"),
    *("python_version", "tensorflow_version", "cnnbench_version", "git_commit"),
)

_SUBJECT = {
    f"subject_{name}": f"subject.{name}" for name in ("repository", "revision", "dirty", "side")
}

_RUN = {
    **_at("record", "run_id", "started_at", "status"),
    **_at("computed", "model"),
    **_at(
        "record.placement", "device", "num_towers", "num_workers", "variable_update", "all_reduce"
    ),
    "batch_per_device": "record.batch.per_device",
    "batch_global": "record.batch.global_",
    **_at("computed", "num_warmup_steps", "num_steps"),
    **_at(
        "summary",
        *("images_per_sec", "images_per_sec_uncertainty", "images_per_sec_jitter"),
        "total_images_per_sec",
        *("achieved_flops_per_sec", "mfu", "peak_flops_per_sec", "peak_flops_source"),
        *("input_wait_fraction", "peak_memory_bytes"),
    ),
    **_at("record", "last_loss"),
    "eval_top_1": "evaluation.top_1",
    "eval_top_5": "evaluation.top_5",
    "startup_import_seconds": "record.startup_seconds.import_",
    "startup_build_seconds": "record.startup_seconds.build",
    "startup_first_step_seconds": "record.startup_seconds.first_step",
    **_at("record.model", "parameters", "training_flops_per_image"),
    **_at(
        "record.config",
        *("data_name", "data_dir", "precision", "data_format", "optimizer"),
        *("forward_only", "eval", "gradient_reduction", "bn_stats", "all_reduce_spec"),
        *("xla", "xla_compile", "num_intra_threads", "num_inter_threads", "tf_random_seed"),
    ),
    **_ENVIRONMENT,
    **_at("computed", "error", "command"),
    **_SUBJECT,
    **_at("record.config", "result_label"),
    **_at("summary", "latency_p50_seconds", "latency_p90_seconds", "latency_p99_seconds"),
    **_at("record.measured", "loop_user_seconds", "loop_system_seconds"),
    **_at("summary", "cpu_seconds_per_step", "busy_cpus"),
    **_at("summary", "images_per_sec_median"),
    **_at("record.conditions.during", "other_cpus"),
}

# Fields of Packing, with whether they were added later.
_PACKING = {one.name: one.metadata.get("optional", False) for one in fields(Packing)}

_ALLREDUCE = {
    **_at("record", "run_id", "started_at"),
    **_at("point", "workload", "bytes", "elements", "tensors", "dtype"),
    **_at("record.placement", "device"),
    **_at("point", "devices", "spec"),
    **_at("computed", "peer"),
    **_at("point.packing", *(name for name, later in _PACKING.items() if not later)),
    **_at("computed", "calls"),
    **_at("record.config", "iters_per_step"),
    "median_seconds": "point.median",
    "p99_seconds": "point.p99",
    "algorithm_bytes_per_sec": "point.algorithm_bandwidth",
    "bus_bytes_per_sec": "point.bus_bandwidth",
    **_at("computed", "share_of_copy_bound"),
    **_at("point", "wrong", "checked", "trace_seconds", "build_seconds", "operations"),
    **_ENVIRONMENT,
    **_at("point", "error"),
    **_at("computed", "command"),
    "max_seconds": "point.longest",
    **_SUBJECT,
    **_at("record.config", "result_label"),
    **_at("point.packing", *(name for name, later in _PACKING.items() if later)),
}

RUNS = CsvTable("result_csv", (*_RUN, "schema"), RunRecord.schema)
REDUCTIONS = CsvTable("result_csv", (*_ALLREDUCE, "schema"), AllReduceRecord.schema)


def run_row(record: RunRecord) -> dict[str, object]:
    """The values of a run by column of `RUNS`."""
    error = record.error
    computed = {
        "model": record.config.get("model") if record.model is None else record.model.name,
        "num_warmup_steps": len(record.warmup_step_seconds),
        "num_steps": len(record.step_seconds),
        "error": None if error is None else f"{error.type}: {error.message}",
        "command": shlex.join(record.command),
    }
    sources = {
        "record": record,
        "summary": record.summary(),
        "evaluation": record.evaluations[-1] if record.evaluations else None,
        "computed": computed,
        "subject": subject_of(record.subject, record.config, record.ab),
    }
    return {name: _value(sources, path) for name, path in _RUN.items()}


def allreduce_row(record: AllReduceRecord, point: Point) -> dict[str, object]:
    """The values of a row by column of `REDUCTIONS`."""
    computed = {
        "peer": point in record.peers,
        "calls": len(point.seconds),
        "share_of_copy_bound": record.share_of_bound(point),
        "command": shlex.join(record.command),
    }
    sources = {
        "record": record,
        "point": point,
        "computed": computed,
        "subject": subject_of(record.subject, record.config),
    }
    return {name: _value(sources, path) for name, path in _ALLREDUCE.items()}


def _value(sources: Mapping[str, object], path: str) -> object:
    found: object = sources
    for name in path.split("."):
        if found is None:
            return None
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name)
    return found
