"""Output files and folders of a run, checked before TensorFlow is loaded."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from cnnbench.base.lock import hold
from cnnbench.base.text.progress import Messages
from cnnbench.errors import FlagError
from cnnbench.plan.setup import Setup
from cnnbench.records import checkpoint_folder
from cnnbench.records.files import Output, prove_folder, real_path, resolve_saved_model
from cnnbench.records.result_files import ResultFiles

_RESTART_SECONDS = 3.0  # for the end of a killed process after the start of its successor


def partition_file(prefix: str, number: int) -> str:
    """The file of one device's graph: PREFIX0, PREFIX1, ..., a suffix kept at the end."""
    stem, suffix = os.path.splitext(prefix)
    return f"{stem}{number}{suffix}"


def held(
    plan: Setup, results: ResultFiles, messages: Messages
) -> contextlib.AbstractContextManager[object]:
    """Checks all outputs of a run, and locks the folder of its checkpoints in the block.

    Raises:
      FlagError: names the flag of a path that cannot be written, or whose folder another process
        holds.
    """
    notice = results.prepare(files(plan))
    if notice is not None:
        messages.notice(notice)
    prepare_folders(plan)
    folder = plan.saves_into
    if folder is None:
        return contextlib.nullcontext()
    return hold("train_dir", folder, messages.warning, _RESTART_SECONDS)


def prepare_folders(plan: Setup) -> None:
    """Makes the folders of output files and checks that they are writable."""
    if (folder := plan.saves_into) is not None:
        if checkpoint_folder.is_prefix(folder):
            raise FlagError("train_dir", folder, "names one checkpoint; only --eval can use one")
        prove_folder("train_dir", folder)
    if plan.outputs.trace_file and not plan.outputs.use_chrome_trace_format:
        prove_folder("trace_file", plan.outputs.trace_file)
    if plan.outputs.export_dir is not None:
        resolve_saved_model(plan.outputs.export_dir)
    if plan.summarizes_evaluations:
        prove_folder("eval_dir", plan.outputs.eval_dir)
    if plan.machine.xla_cache_dir:
        real_path("xla_cache_dir", plan.machine.xla_cache_dir)
        if re.search(r"[\s'\"]", os.path.abspath(plan.machine.xla_cache_dir)):
            why = "must have no spaces or quotes in its whole path, where TensorFlow ends an option"
            raise FlagError("xla_cache_dir", plan.machine.xla_cache_dir, why)
        prove_folder("xla_cache_dir", plan.machine.xla_cache_dir)
    if plan.outputs.benchmark_log_dir:
        prove_folder("benchmark_log_dir", plan.outputs.benchmark_log_dir)


def files(plan: Setup) -> Iterator[Output]:
    """Output files of a run except its records."""
    yield Output("graph_file", plan.outputs.graph_file, _graph(plan.outputs.graph_file))
    yield Output("tfprof_file", plan.outputs.tfprof_file, "table of operations")
    yield Output("profile_json", plan.outputs.profile_json, "step_profile")
    yield Output(
        "trace_file",
        plan.outputs.trace_file if plan.outputs.use_chrome_trace_format else "",
        "trace",
    )
    prefix = plan.outputs.partitioned_graph_file_prefix
    for number in range(plan.machine.num_gpus + 1 if prefix else 0):  # all devices and the host
        path = partition_file(prefix or "", number)
        yield Output("partitioned_graph_file_prefix", path, _graph(path))
    if plan.outputs.profile_layers:
        from cnnbench.base.charts.draw import FORMATS  # late, as few runs draw
        from cnnbench.run.observe.layers import TABLES

        known = (*TABLES, *FORMATS)
        for path in plan.outputs.profile_layers.split(","):
            if Path(path).suffix.lower()[1:] not in known:
                listed = ", ".join(f".{suffix}" for suffix in known)
                raise FlagError("profile_layers", path, f"must end in one of {listed}")
            yield Output("profile_layers", path)


def _graph(path: str | None) -> str:
    return "graph as text" if (path or "").endswith("txt") else "graph"
