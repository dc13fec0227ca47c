"""``cnnbench roofline``: show where the time of a step goes, layer by layer."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cnnbench.base.document.console import sections_to_text
from cnnbench.base.terminal import MessageWriter, ProgressLine
from cnnbench.base.text import count_text
from cnnbench.cli.commands import declare_output_flag, refuse_ending, write_or_print_output
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags import (
    FLAGS,
    Params,
    RunPart,
    flag,
    names_of_flags,
    parse_command,
    specs_of,
    split_options,
)
from cnnbench.judge.report.sections.roofline import roofline_chart, roofline_sections
from cnnbench.lab.roofline import measure_roofline, roofline_to_csv
from cnnbench.plan import (
    ADDRESSES,
    RunPlan,
    check_flags,
    plan_before_plugins,
    refuse_files_of_run,
    resolve,
)
from cnnbench.records.files import (
    PICTURES,
    OutputFile,
    check_outputs,
    write_plot,
    write_text,
)
from cnnbench.records.roofline import Roofline
from cnnbench.run.runtime.devices import register_early_setup
from cnnbench.run.runtime.supervisor import fork_supervised

_ABOUT = """\
Usage: cnnbench roofline MODEL [-o FILE] [--csv=FILE] [--json=FILE] [--plot=FILE] [FLAGS OF A RUN]

Shows where the time of a step goes. For every layer (forward pass, gradient of its input, gradient
of its kernel), a row contains the time, FLOPs and bytes moved, and the estimated time if the
machine worked at its measured rates of matrix products and of copying memory. Rows with the largest
excess over this estimate are first. Sums by kind of operation follow (cnnbench docs roofline).

  cnnbench roofline resnet50 --batch_size=8
  cnnbench roofline resnet50 --batch_size=8 --precision=bf16 --plot=roofline.svg
  cnnbench roofline resnet50 --forward_only --csv=layers.csv
"""

_EXIT_CODES = """\
All flags of cnnbench run are accepted, except flags for several processes, --eval, --input_only,
--trace_file and --partitioned_graph_file_prefix.
--num_batches steps (10 if not given) are profiled after --num_warmup_batches (5 if not given), and
the same number of steps is timed without a profiler. Times are means over the faster half of them.

Exit codes: 0 done; 2 wrong use; 4 the run failed; 130 interrupted.
"""

_STEPS, _WARM_UP = 10, 5
# TensorFlow can run only one profiler at a time.
_PROFILERS = ("trace_file", "partitioned_graph_file_prefix")


@dataclass(frozen=True, kw_only=True)
class RooflineFlags:
    """Flags of `cnnbench roofline`."""

    rows: int = flag(
        25, "Number of rows to print; 0 prints all. Files contain all rows.", minimum=0
    )
    csv: str | None = flag(None, "Write the rows to this file, with all digits.", path="file")
    output: str | None = declare_output_flag("Write the table to this file.")
    json: str | None = flag(
        None,
        "Write rows, sums, rates and the record to this file. Reports can read the file.",
        path="file",
    )
    plot: str | None = flag(
        None,
        "Draw the roofline chart with all rows into this file: .svg, .png or .pdf.",
        path="file",
    )


_SPECS = specs_of(RooflineFlags)
HELP = (_ABOUT, [("Flags", _SPECS)], _EXIT_CODES)
TAKES_RUN_FLAGS = True


def main(argv: Sequence[str]) -> int:
    """Measures a roofline. If it raises UsageError, nothing has been run."""
    values, names = parse_command(argv, (*_SPECS, *FLAGS), _check_and_prepare)
    params = _check_and_prepare(values)
    options, flags = split_options(RooflineFlags, values)
    named = [*names, *([params.model] if "model" in flags else [])]
    if len(named) != 1:
        named_models = f"not {', '.join(named)}" if named else "such as cnnbench roofline resnet50"
        raise UsageError(f"name one model, {named_models}")
    refuse_ending(options.output, "the output is a table; --csv and --json write other formats")
    progress = ProgressLine(sys.stderr, params.progress)
    plan = check_flags(params.replace(model=named[0]))
    plan = plan.with_changes(explicit_flags=tuple(flags))
    _check_outputs(options, plan)
    fork_supervised()
    messages = MessageWriter()
    roofline, plan = measure_roofline(
        resolve(plan),
        command=("cnnbench", "roofline", *argv),
        messages=messages,
        progress=progress,
    )
    if (roofline.total.share_of_bound or 0.0) > 1:
        messages.warning(
            "the step is faster than the estimate: the machine's rates were measured while "
            "other programs used it; measure again on a quiet machine",
            "peak",
        )
    mode = plan.work.value
    images = count_text(plan.length.batch_per_device, "image", "images")
    devices = count_text(plan.params.num_gpus, "device", "devices")
    title = f"{plan.network.model.name}, {mode}, {plan.params.precision}, {images} on {devices}"
    _write(options, roofline, title)
    return ExitCode.OK


def _check_and_prepare(values: Mapping[str, Any]) -> Params:
    """Checks the flags of the run, and prepares the process for plug-ins that run TensorFlow
    operations.

    Raises FlagError for flags that are invalid whatever plug-ins are loaded.
    """
    _, flags = split_options(RooflineFlags, values)
    for name in (
        *names_of_flags(FLAGS, RunPart.NO_TIMED_STEPS),
        "num_epochs",
        "cluster",
        *ADDRESSES,
    ):
        if name in flags:
            raise FlagError(
                name, flags[name], "is not supported by roofline, which profiles one process"
            )
    for name in _PROFILERS:
        if flags.get(name):
            why = "is not supported by roofline, which profiles the warm-up itself"
            raise FlagError(name, flags[name], why)
    if flags.get("warmup") == "auto":
        raise FlagError(
            "warmup",
            "auto",
            "is not supported by roofline: it profiles the last warm-up steps; give "
            "--num_warmup_batches",
        )
    params = Params.from_dict(flags)
    steps, before = params.num_batches or _STEPS, params.num_warmup_batches
    before = _WARM_UP if before is None else before
    params = params.replace(num_batches=steps, num_warmup_batches=before + steps)
    register_early_setup(fork_supervised, params, partial(plan_before_plugins, params))
    return params


def _check_outputs(options: RooflineFlags, plan: RunPlan) -> None:
    """Raises FlagError for output files of the roofline that cannot be written, or that the run
    reads or writes.
    """
    outputs = [
        OutputFile("output", options.output),
        OutputFile("csv", options.csv),
        OutputFile("json", options.json),
        OutputFile("plot", options.plot, PICTURES),
    ]
    check_outputs(outputs)
    refuse_files_of_run(outputs, vars(plan.params))


def _write(options: RooflineFlags, roofline: Roofline, title: str) -> None:
    if options.csv is not None:
        write_text("csv", options.csv, roofline_to_csv(roofline))
    if options.json is not None:
        write_text("json", options.json, roofline.to_json())
    if options.plot is not None:
        write_plot(options.plot, [roofline_chart(roofline, title)], f"roofline of {title}")
    sections = roofline_sections(roofline, f"roofline of {title}", options.rows)
    write_or_print_output(options.output, sections_to_text(sections))
