"""Flags whose machinery does not exist yet: one table, shortened as it comes.

A flag in the table is accepted at its default, which means "off", and refused
otherwise. An entry with ``values`` refuses those values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cnnbench.errors import FlagError
from cnnbench.flags.declare import FlagSpec


@dataclass(frozen=True)
class NotYet:
    """One entry.

    Attributes:
      machinery: what is missing, in a few words.
      values: the values refused; empty refuses everything but the default.
    """

    machinery: str
    values: tuple[str, ...] = ()


_PROCESSES = "runs of several processes"
_PROFILING = "traces and profiles"
_SUMMARIES = "summaries"
_FREEZING = "frozen inference graphs"

NOT_YET: dict[str, NotYet] = {
    # run
    "collect_eval_results_async": NotYet("object-detection models"),
    "freeze_when_forward_only": NotYet(_FREEZING),
    "trt_mode": NotYet(_FREEZING),
    # model
    "backbone_model_path": NotYet("object-detection models"),
    "fp16_vars": NotYet("fp16 variables"),
    # data
    "data_name": NotYet("speech and detection data", ("librispeech", "coco")),
    "dataset_plugin": NotYet("data-set plug-ins"),
    # variable update
    "variable_update": NotYet(
        "this mode",
        (
            "distributed_replicated",
            "collective_all_reduce",
            "mirrored_strategy",
            "multi_worker_mirrored_strategy",
            "central_storage_strategy",
            "parameter_server_strategy",
        ),
    ),
    "bn_stats": NotYet("synchronised batch norm", ("sync",)),
    "staged_vars": NotYet("staged variables"),
    # cluster
    "job_name": NotYet(_PROCESSES),
    "ps_hosts": NotYet(_PROCESSES),
    "worker_hosts": NotYet(_PROCESSES),
    "controller_host": NotYet(_PROCESSES),
    "task_index": NotYet(_PROCESSES),
    "server_protocol": NotYet(_PROCESSES),
    "cross_replica_sync": NotYet(_PROCESSES),
    # output
    "eval_dir": NotYet(_SUMMARIES),
    "summary_verbosity": NotYet(_SUMMARIES),
    "save_summaries_steps": NotYet(_SUMMARIES),
    "trace_file": NotYet(_PROFILING),
    "use_chrome_trace_format": NotYet(_PROFILING),
    "tfprof_file": NotYet(_PROFILING),
    "graph_file": NotYet("dumps of the graph"),
    "partitioned_graph_file_prefix": NotYet("dumps of the graph"),
    "ml_perf_compliance_logging": NotYet("MLPerf's compliance log"),
}


def check_available(spec: FlagSpec, value: Any) -> None:
    """Refuses a value whose machinery does not exist yet.

    Raises:
      FlagError: "not available yet", with what can be used meanwhile.
    """
    entry = NOT_YET.get(spec.name)
    if entry is None or value == spec.default:
        return
    if entry.values and value not in entry.values:
        return
    raise FlagError(
        spec.name, spec.text(value), f"not available yet ({entry.machinery}); {_instead(spec)}"
    )


def available_choices(spec: FlagSpec) -> tuple[str, ...]:
    """The choices of a flag that work today."""
    entry = NOT_YET.get(spec.name)
    if entry is None:
        return spec.choices
    if not entry.values:
        return tuple(choice for choice in spec.choices if choice == spec.default)
    return tuple(choice for choice in spec.choices if choice not in entry.values)


def _instead(spec: FlagSpec) -> str:
    if NOT_YET[spec.name].values:
        return "use " + " or ".join(available_choices(spec))
    if spec.kind == "boolean":
        return f"only --{spec.name}={spec.text(spec.default)} is"
    if not spec.default and spec.default != 0:
        return "leave it out"
    return f"leave it at {spec.text(spec.default)}"
