"""Checks the output files and folders of a run, before TensorFlow is loaded."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial

from cnnbench.base.locks import lock_folder
from cnnbench.base.terminal import MessageWriter
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.plan import RunPlan, refuse_files_of_run
from cnnbench.records import checkpoints
from cnnbench.records.files import (
    OutputFile,
    ensure_writable,
    prepare_export,
    resolve_links,
)
from cnnbench.records.result_files import ResultFiles

_RESTART_SECONDS = 3.0
"""Time that a killed predecessor may need to exit."""


def partition_path(prefix: str, number: int) -> str:
    """Returns the path of one device's graph: the number is inserted before the suffix."""
    stem, suffix = os.path.splitext(prefix)
    return f"{stem}{number}{suffix}"


@contextlib.contextmanager
def locked_outputs(plan: RunPlan, results: ResultFiles, messages: MessageWriter) -> Iterator[None]:
    """A context that checks all output paths of a run, and locks the folder of its checkpoints.

    A file in the folder shows that the training is running and, after the block, how it has ended.
    A refused run does not change the folder.

    Raises:
      FlagError: a path cannot be written, or another process has locked its folder. The error names
        the flag.
    """
    outputs = (*results.output_files, *output_files(plan))
    refuse_files_of_run(outputs, vars(plan.params))
    notice = results.check_writable(output_files(plan))
    if notice is not None:
        messages.notice(notice)
    prepare_folders(plan)
    folder = plan.checkpoint_save_folder
    if folder is None:
        yield
        return
    with lock_folder("train_dir", folder, partial(messages.warning, name="lock"), _RESTART_SECONDS):
        before = checkpoints.read_training_status(folder)
        checkpoints.write_training_status(folder, checkpoints.RUNNING)
        status = "failed"
        try:
            yield
            status = "ok"
        except UsageError:
            status = before
            raise
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            checkpoints.write_training_status(folder, status)


def prepare_folders(plan: RunPlan) -> None:
    """Creates the folders of output files, and checks that they are writable."""
    if (folder := plan.checkpoint_save_folder) is not None:
        if checkpoints.is_checkpoint_prefix(folder):
            why = "names a single checkpoint, which only --eval can use; give its folder"
            raise FlagError("train_dir", folder, why)
        ensure_writable("train_dir", folder)
    if plan.params.trace_file and not plan.params.use_chrome_trace_format:
        ensure_writable("trace_file", plan.params.trace_file)
    if plan.params.export_dir is not None:
        prepare_export(plan.params.export_dir)
    if plan.summarizes_evaluations:
        ensure_writable("eval_dir", plan.params.eval_dir)
    if cache := plan.params.xla_cache_dir:
        resolve_links("xla_cache_dir", cache)
        if re.search(r"[\s'\"]", os.path.abspath(cache)):
            why = "must have no spaces or quotes in its absolute path, which would end it in XLA"
            raise FlagError("xla_cache_dir", cache, why)
        ensure_writable("xla_cache_dir", cache)
    if plan.params.benchmark_log_dir:
        ensure_writable("benchmark_log_dir", plan.params.benchmark_log_dir)


def check_steps_left(plan: RunPlan, folder: str) -> None:
    """Raises FlagError if the newest checkpoint in `folder` has more steps than --num_batches.

    Does not load TensorFlow, so it cannot read how many examples the steps trained on, which
    --num_epochs counts: `cnnbench.run.driver.restore` checks --num_epochs.
    """
    if plan.params.num_epochs:
        return
    # If the folder cannot be read, the error is reported later, when the checkpoint is restored.
    with contextlib.suppress(BenchmarkError):
        path = checkpoints.find_latest_checkpoint(folder)
        if path is not None:
            plan.length.check_steps_left(plan.params, int(path.rpartition("-")[2]))


def output_files(plan: RunPlan) -> Iterator[OutputFile]:
    """The output files of a run except its records, each with its flag."""
    yield OutputFile("graph_file", plan.params.graph_file)
    yield OutputFile("profile_json", plan.params.profile_json)
    if plan.params.use_chrome_trace_format:
        yield OutputFile("trace_file", plan.params.trace_file)
    prefix = plan.params.partitioned_graph_file_prefix
    # There is one file for each device, and one file for the host.
    for number in range(plan.params.num_gpus + 1 if prefix else 0):
        yield OutputFile("partitioned_graph_file_prefix", partition_path(prefix or "", number))
