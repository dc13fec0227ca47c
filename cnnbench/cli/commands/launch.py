"""``cnnbench launch``: run all processes of a job, or write its Slurm or Kubernetes file."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cnnbench.base.locks import LOGS, TemporaryFolder, lock_folder
from cnnbench.base.terminal import LineWriter, print_notice, print_warning
from cnnbench.base.urls import is_url
from cnnbench.campaigns.job_session import JobSession
from cnnbench.campaigns.launch import (
    JobLayout,
    TaskCommand,
    check_job_flags,
    check_output_files,
    divide_cores,
    flags_to_arguments,
    parse_task_command,
    plan_chief,
)
from cnnbench.cli.commands import write_init_files
from cnnbench.cli.commands.command_lines import refuse_flags_of_command
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags import FLAGS, Params, flag, parse_command, specs_of, split_at_double_dash
from cnnbench.records.files import ensure_writable

_INIT_FILES = {"slurm": "slurm.sbatch", "kubernetes": "kubernetes.yaml"}
# Flags of launch that a file of --init expresses by flags of its processes.
_OF_INIT = ("init", "workers", "ps", "towers")
# Flags that only read files or folders, which the image or the nodes of a Kubernetes job provide.
_INPUTS = ("plugin", "data_dir", "backbone_model_path")
_RESULTS = "/results"

_ABOUT = """\
Usage: cnnbench launch [FLAGS] -- [allreduce] FLAGS OF EVERY PROCESS

Starts all processes of a job on this machine, each on a free port and with its --job_name and
--task_index, and waits until they end (cnnbench docs cluster). The standard output of the chief is
passed through; the output of other processes goes to standard error, with their names before each
line. With --init, launch writes slurm.sbatch or kubernetes.yaml for one process per machine, and
starts nothing.

  cnnbench launch --workers=2 -- --model=lenet --device=cpu --batch_size=8 --num_batches=20
  cnnbench launch --workers=2 --ps=1 -- --model=resnet50 --variable_update=parameter_server
  cnnbench launch --workers=2 --towers=2 -- --model=resnet50 --variable_update=collective_all_reduce
  cnnbench launch --workers=2 --towers=1 -- allreduce --sizes=64K:16M:x4
  cnnbench launch --init=slurm --workers=4 --towers=8 -- --model=resnet50
"""

_EXIT_CODES = """\
Exit codes: the exit code of the chief; 4 if another process failed; 2 wrong use, before any process
is started; 130 interrupted: the chief's record contains what was measured.
"""


@dataclass(frozen=True, kw_only=True)
class JobLayoutFlags:
    """Flags for the number of processes of a job, which all commands that run jobs accept."""

    workers: int = flag(1, "Number of worker processes, which have towers.", minimum=1, maximum=256)
    ps: int = flag(0, "Number of parameter servers.", minimum=0, maximum=256)
    controller: bool = flag(
        False, "Start a controller, which is a process that runs the steps of all workers."
    )

    @property
    def layout(self) -> JobLayout:
        """The number of processes of each kind: workers, parameter servers and controller."""
        return JobLayout(workers=self.workers, ps=self.ps, controller=self.controller)

    @property
    def multi_process_layout(self) -> JobLayout | None:
        """The number of processes of each kind; None if the job is a single process."""
        return self.layout if self.layout.size > 1 else None


@dataclass(frozen=True, kw_only=True)
class LaunchFlags(JobLayoutFlags):
    """Flags of `cnnbench launch`."""

    towers: int | None = flag(
        None, "Number of towers of each worker (its --num_gpus).", minimum=1, maximum=1024
    )
    init: str | None = flag(
        None,
        "Write the file with which this system runs the job, one process per machine, into the "
        "working folder. Start nothing. An existing file is not replaced.",
        choices=tuple(_INIT_FILES),
    )
    affinity: bool = flag(False, "Divide the processors among the processes.")
    log_dir: str | None = flag(
        None,
        "Folder for one log per process. If not given, a temporary folder, which is removed after "
        "a success.",
        path="folder",
    )


HELP = (_ABOUT, [("Flags", specs_of(LaunchFlags))], _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Runs one job. No process outlives this function."""
    words, flags = split_at_double_dash(argv)
    values, arguments = parse_command(words, specs_of(LaunchFlags))
    options = LaunchFlags(**values)
    if arguments:
        raise UsageError(
            f"launch takes no argument {arguments[0]!r}; put flags of the processes after --"
        )
    refuse_flags_of_command(flags, specs_of(LaunchFlags), "launch")
    command = parse_task_command(flags)
    layout = options.layout
    if command.name == "run":
        layout = layout.with_needed_controller(command.args)
    if options.init is not None:
        return _write_job(options.init, layout, command, options, values)
    chief = check_job_flags(layout, command, options.towers)
    check_output_files(command, chief)
    show = LineWriter(sys.stderr)
    session = JobSession(
        layout=layout,
        command=command,
        towers=options.towers,
        chief=chief,
        show=lambda line: show.write_lines([line]),
        cores=divide_cores(layout.size) if options.affinity else None,
    )
    if options.log_dir is not None:
        ensure_writable("log_dir", options.log_dir)
        with lock_folder(
            "log_dir", options.log_dir, partial(print_warning, name="lock"), file=LOGS
        ):
            return session.run(Path(options.log_dir))
    with TemporaryFolder("cnnbench-launch-") as scratch:
        try:
            status = session.run(scratch.path)
            scratch.kept = status != 0
        except Exception:
            # The logs explain an error, so they are kept. After an interrupt, they are removed.
            scratch.kept = True
            raise
    return status


def _write_job(
    system: str,
    layout: JobLayout,
    command: TaskCommand,
    options: LaunchFlags,
    values: Mapping[str, Any],
) -> int:
    """Writes the file of a job on several machines (--init).

    The flags are checked, but neither data nor folders, which this machine may not have.
    """
    for name in values:
        if name not in _OF_INIT:
            raise FlagError(name, values[name], "cannot be used with --init")
    if command.name != "run" or layout.controller:
        what = "allreduce" if command.name != "run" else "a job with a controller"
        raise FlagError("init", system, f"is only for runs of workers and ps tasks, not {what}")
    if layout.size == 1:
        raise FlagError("workers", layout.workers, "with --init, must be at least 2 without --ps")
    plan = plan_chief(command.args, layout, options.towers)
    _ = plan.network  # An unknown model is refused.
    more = {"cluster_ps": layout.ps or None, "num_gpus": options.towers}
    own = flags_to_arguments({name: value for name, value in more.items() if value is not None})
    words = (*command.words, *own)
    if "\n" in "".join(words):
        raise UsageError(f"--init={system}: a flag contains a line break")
    gpus = 0 if plan.params.device == "cpu" else plan.params.num_gpus
    marks = {"@PROCESSES@": str(layout.size)}
    if system == "kubernetes":
        stores_results = _check_result_paths(plan.params)
        marks |= _kubernetes_marks(words, gpus, stores_results)
    else:
        asked = f"#SBATCH --gpus-per-node={gpus}\n" if gpus else ""
        marks |= {"@FLAGS@": shlex.join(words), "@GPUS@\n": asked}
    template = _INIT_FILES[system]
    write_init_files(system, {Path(template): f"jobs/{template}"}, marks)
    if system == "kubernetes":
        print_notice("replace the image registry.example.org/cnnbench by your own")
        if stores_results:
            print_notice(f"replace the claim cnnbench-results by your own volume for {_RESULTS}")
    return ExitCode.OK


def _check_result_paths(params: Params) -> bool:
    """Returns whether the pods of a Kubernetes job write files. Raises FlagError for a path that
    would be lost with the pod.
    """
    stores = False
    for spec in FLAGS:
        path = getattr(params, spec.name)
        if not spec.path or not path or path == spec.default or spec.name in _INPUTS:
            continue
        if is_url(path):
            continue
        if not os.path.normpath(path).startswith(f"{_RESULTS}/"):
            why = f"with --init=kubernetes, must be below {_RESULTS}, the volume of the pods"
            raise FlagError(spec.name, path, f"{why}, or a URL" if "URL" in spec.path else why)
        stores = True
    return stores


def _kubernetes_marks(words: Sequence[str], gpus: int, stores_results: bool) -> dict[str, str]:
    """Returns the marks of kubernetes.yaml: flags, GPUs of a pod, and a volume for results."""
    # Kubernetes would replace $(NAME) by an environment variable. JSON texts are valid YAML.
    items = [json.dumps(word.replace("$(", "$$(")) for word in words]
    limits = f"""\
            limits:
              nvidia.com/gpu: {gpus}     # Pods of parameter servers request GPUs, too.
"""
    mounts = f"""\
          volumeMounts:
            - name: results
              mountPath: {_RESULTS}
      volumes:
        - name: results
          persistentVolumeClaim:   # With access mode ReadWriteMany, because all pods mount it.
            claimName: cnnbench-results
      securityContext:
        fsGroup: 10001             # The user of the image may write to the volume.
"""
    return {
        "@FLAGS@": f"\n{' ' * 12}".join(f"- {item}" for item in items),
        "@GPUS@\n": limits if gpus else "",
        "@RESULTS@\n": mounts if stores_results else "",
    }
