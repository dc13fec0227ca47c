"""``cnnbench launch``: run all processes of a job, or write its Slurm or Kubernetes file."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cnnbench.base.locks import LOGS, TemporaryFolder, lock_folder
from cnnbench.base.tables import dataclasses_to_csv
from cnnbench.base.terminal import (
    ChildProcessReporter,
    LineWriter,
    print_notice,
    print_result,
    print_warning,
)
from cnnbench.base.text import count_text
from cnnbench.campaigns import scaling
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
from cnnbench.campaigns.processes import Campaign, ResultsFolder
from cnnbench.campaigns.scaling import SCALING, STRONG, WEAK, ScalingJobs, ScalingPoint
from cnnbench.cli.commands import PlotFlags, declare_output_flag, write_init_files
from cnnbench.cli.commands.campaign_flags import CampaignFlags
from cnnbench.cli.commands.command_lines import printing_resume_command
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags import (
    Params,
    flag,
    flag_sections,
    parse_command,
    redeclare_flag,
    specs_of,
    split_at_double_dash,
)
from cnnbench.lab.predict.predict import parse_link
from cnnbench.machine import facts
from cnnbench.machine.cpu import available_cpu_count
from cnnbench.plan import resolve
from cnnbench.records.files import (
    PICTURES,
    OutputFile,
    check_outputs,
    csv_beginning,
    ensure_writable,
    register_file_kind,
    write_plot,
    write_text,
)

_INIT_FILES = {"slurm": "slurm.sbatch", "kubernetes": "kubernetes.yaml"}
# Flags of launch that a file of --init expresses by flags of its processes.
_OF_INIT = ("init", "workers", "ps", "towers")

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
  cnnbench launch --scaling=1,2,4 --link=tcp25 --plot=scaling.svg -- --model=resnet50
  cnnbench launch --scaling=1,2,4 --scaling_kind=strong -- --model=resnet50 --global_batch_size=64
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
    scaling: tuple[int, ...] = flag(
        (),
        "Numbers of workers, comma-separated. Run one job for each number, and one process "
        "without gradient exchange, and print how the speed grows.",
        minimum=1,
        maximum=256,
    )
    scaling_kind: str = flag(
        "weak",
        "What is equal in all jobs: the batch size per device (weak), or the global batch size "
        "(strong), which is the batch size of one worker or --global_batch_size.",
        choices=(WEAK, STRONG),
        lower=True,
    )
    repeats: int = flag(
        1,
        "Number of runs of each job; the jobs alternate. With 2 or more, the table shows the range "
        "of the efficiency.",
        minimum=1,
        maximum=1000,
    )
    results: str = flag("scaling", "Folder for records and logs.", path="folder")
    resume: bool = redeclare_flag(CampaignFlags, "resume")
    link: str | None = flag(
        None,
        "Link between the processes. The cost model of cnnbench allreduce --predict then predicts "
        "the same jobs. The value is a preset such as tcp25, or "
        "alpha=SECONDS,bandwidth=BYTES_PER_SECOND.",
    )
    output: str | None = declare_output_flag("Write the table to this .csv file.")
    plot: str | None = redeclare_flag(PlotFlags, "plot")


_SECTIONS = flag_sections(LaunchFlags, {"workers": "Flags", "scaling": "Scaling"})
HELP = (_ABOUT, tuple(_SECTIONS.items()), _EXIT_CODES)

_POINTS = register_file_kind("csv of scaling", csv_beginning("workers"))


def main(argv: Sequence[str]) -> int:
    """Runs one job, or a job for each number of workers. No process outlives this function."""
    words, flags = split_at_double_dash(argv)
    values, arguments = parse_command(words, specs_of(LaunchFlags))
    options = LaunchFlags(**values)
    if arguments:
        raise UsageError(
            f"launch takes no argument {arguments[0]!r}; put flags of the processes after --"
        )
    if options.scaling and flags and flags[0] == "allreduce":
        reason = "only works for runs; for allreduce, give --workers instead"
        raise FlagError("scaling", options.scaling, reason)
    if options.scaling:
        return _measure_scaling(options, values, argv)
    for name in (spec.name for spec in _SECTIONS["Scaling"] if spec.name in values):
        raise FlagError(name, values[name], "needs --scaling")
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
    _ = plan_chief(command.args, layout, options.towers).network  # An unknown model is refused.
    more = {"cluster_ps": layout.ps or None, "num_gpus": options.towers}
    own = flags_to_arguments({name: value for name, value in more.items() if value is not None})
    words = (*command.words, *own)
    if "\n" in "".join(words):
        raise UsageError(f"--init={system}: a flag contains a line break")
    flags = shlex.join(words)
    if system == "kubernetes":
        # Kubernetes would replace $(NAME) by an environment variable. JSON texts are valid YAML.
        items = [json.dumps(word.replace("$(", "$$(")) for word in words]
        flags = f"\n{' ' * 12}".join(f"- {item}" for item in items)
    template = _INIT_FILES[system]
    marks = {"@PROCESSES@": str(layout.size), "@FLAGS@": flags}
    write_init_files(system, {Path(template): f"jobs/{template}"}, marks)
    if system == "kubernetes":
        print_notice("replace the image registry.example.org/cnnbench by your own")
    return ExitCode.OK


def _measure_scaling(options: LaunchFlags, values: Mapping[str, Any], argv: Sequence[str]) -> int:
    for name in ("workers", "init", "affinity", "log_dir"):
        if name in values:
            raise FlagError(name, values[name], "cannot be used with --scaling")
    counts = tuple(sorted(set(options.scaling)))
    command = parse_task_command(split_at_double_dash(argv)[1])
    any_layout = options.layout.with_needed_controller(command.args)
    layouts = {n: any_layout._replace(workers=n) for n in counts}
    command = _with_batch_size(options, command, any_layout)
    chiefs = {
        n: resolve(plan_chief(command.args, layout, options.towers))
        for n, layout in layouts.items()
    }
    largest, chief = layouts[counts[-1]].size, chiefs[counts[-1]]
    link = None if options.link is None else parse_link("link", options.link)
    _check_outputs(options, chief.params)
    shared = available_cpu_count() < largest
    if shared:
        print_notice(
            f"{largest} processes share {count_text(available_cpu_count(), 'CPU', 'CPUs')}: it is "
            "assumed that n "
            "workers need n times as long for the computation as one worker"
        )
    predicted: dict[int, float] = {}
    reason = "needs --link"
    if link is not None:
        predicted, reason = scaling.predict_exchange_seconds(chief, link, options.ps, counts)
    if reason:
        print_notice(f"no prediction: {reason}")
    if options.repeats == 1:
        print_notice(
            "--repeats=1: single runs vary, so efficiencies may be above 100 %; "
            "--repeats=5 shows their ranges"
        )
    jobs = ScalingJobs(
        kind=options.scaling_kind,
        layouts=layouts,
        chiefs=chiefs,
        command=command,
        towers=options.towers,
        cores=0 if shared else available_cpu_count() // largest,
    )
    title = f"{options.scaling_kind.capitalize()} scaling of {chief.params.model}"
    title += f", {chief.place.mode.name}"
    return _run_jobs(jobs, options, argv, title, predicted)


def _with_batch_size(options: LaunchFlags, command: TaskCommand, layout: JobLayout) -> TaskCommand:
    """A copy of the command with the batch size that --scaling_kind requires for all jobs."""
    fixed = command.args.given.get("global_batch_size")
    if options.scaling_kind == WEAK:
        if fixed:
            reason = "is the same for every number of workers; this needs --scaling_kind=strong"
            raise FlagError("global_batch_size", fixed, reason)
        return command
    of_one_worker = resolve(plan_chief(command.args, layout._replace(workers=1), options.towers))
    if of_one_worker.place.asynchronous:
        reason = (
            f"workers of {of_one_worker.place.mode.name} update independently and share no batch"
        )
        raise FlagError("scaling_kind", STRONG, reason)
    whole = f"--global_batch_size={fixed or of_one_worker.length.global_batch}"
    return parse_task_command((*command.words, "--batch_size=0", whole))


def _run_jobs(
    jobs: ScalingJobs,
    options: LaunchFlags,
    argv: Sequence[str],
    title: str,
    predicted: Mapping[int, float],
) -> int:
    """Measures all jobs, stores the results in the journal under a title, and writes them."""
    identity = jobs.identity(facts.collect())
    reporter = ChildProcessReporter(sys.stderr)
    with ResultsFolder(SCALING, options.results, identity, resume=options.resume) as folder:
        folder.add_session_start()

        def known() -> str:
            any_job = any(runs for n, runs in jobs.records.items() if n)
            return scaling.table_text(jobs.points(predicted)) if any_job else ""

        with printing_resume_command(reporter, "launch", argv, specs_of(LaunchFlags), known):
            campaign = Campaign(reporter, identity=identity)
            campaign.run_requests(jobs.requests(folder, options.repeats))
        points = jobs.points(predicted)
        scaling.store_points(folder, title, points)
    if options.output is not None:
        write_text("output", options.output, dataclasses_to_csv(ScalingPoint, points))
    if options.plot is not None:
        write_plot(options.plot, [scaling.scaling_chart(points, title)], title)
    print_result(scaling.table_text(points))
    return ExitCode.OK


def _check_outputs(options: LaunchFlags, params: Params) -> None:
    for name in ("result_json", "train_dir"):
        if (value := getattr(params, name)) is not None:
            raise FlagError(name, value, "cannot be used by several jobs; use --results")
    ensure_writable("results", options.results)
    check_outputs(
        [
            OutputFile("output", options.output, _POINTS, suffixes=(".csv",)),
            OutputFile("plot", options.plot, suffixes=PICTURES),
        ]
    )
