"""What is printed, recorded, saved and traced."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cnnbench.errors import FlagError
from cnnbench.flags.declare import flag
from cnnbench.machine.checks import parse_quiet
from cnnbench.text import labels

if TYPE_CHECKING:
    from cnnbench.flags.params import Params


@dataclass(frozen=True, kw_only=True)
class OutputParams:
    """What is printed, recorded, saved and traced."""

    display_every: int = flag(10, "Steps between two lines of progress.", minimum=1)
    display_perf_ewma: float | None = flag(
        None,
        "Weight of the newest step in the printed speed (moving average); "
        "all steps count alike if not given.",
        minimum=0,
        maximum=1,
    )
    progress: str = flag(
        "auto",
        "Live progress line on stderr; auto shows it on terminals only.",
        choices=("auto", "on", "off"),
    )
    result_json: str | None = flag(None, "Write the run record to this file.")
    result_csv: str | None = flag(None, "Append one row about the run to this file.")
    result_label: str | None = flag(
        None,
        "What the record should say about the run, as key=value,key=value; cnnbench history makes "
        "a point of each commit=... .",
    )
    quiet_conditions: str = flag(
        "",
        "Measuring conditions not to warn about, comma-separated (docs/conditions.md lists "
        "them), or all; the record has them nevertheless.",
    )
    train_dir: str | None = flag(
        None, "Folder for checkpoints: resumed from and saved to when training, read by --eval."
    )
    save_model_secs: int = flag(
        0, "Seconds between two checkpoints; 0 saves at the end only.", minimum=0
    )
    save_model_steps: int | None = flag(None, "Steps between two checkpoints.", minimum=1)
    max_ckpts_to_keep: int = flag(5, "Newest checkpoints to keep; 0 keeps all.", minimum=0)
    eval_dir: str = flag("/tmp/tf_cnn_benchmarks/eval", "Folder for events of evaluations.")
    summary_verbosity: int = flag(
        0,
        "Summaries to write: 1 scalars, 2 gradient histograms, 3 a histogram per variable "
        "and images; 0 none.",
        minimum=0,
        maximum=3,
    )
    save_summaries_steps: int = flag(0, "Steps between two summaries; 0 for none.", minimum=0)
    trace_file: str = flag("", "Trace one warm-up step and write the trace to this file.")
    use_chrome_trace_format: bool = flag(True, "Write --trace_file in Chrome's trace format.")
    tfprof_file: str | None = flag(None, "Profile the first steps and write the profile here.")
    graph_file: str | None = flag(
        None, "Write the graph of the step here, as text if the name ends in txt."
    )
    partitioned_graph_file_prefix: str | None = flag(
        None, "Write the graph of every device to files that start with this."
    )
    ml_perf_compliance_logging: bool = flag(False, "Print MLPerf's compliance log.")


def check(params: Params) -> None:
    """Checks names and labels, and that checkpoints have one rhythm, results one file each.

    Raises:
      FlagError: says which flag to leave out.
    """
    parse_quiet(params.quiet_conditions)
    if params.save_model_secs and params.save_model_steps is not None:
        raise FlagError(
            "save_model_steps",
            params.save_model_steps,
            "cannot go with --save_model_secs; give one of the two",
        )
    check_labels(params.result_label)
    if params.result_json is None or params.result_csv is None:
        return
    if os.path.abspath(params.result_json) == os.path.abspath(params.result_csv):
        raise FlagError("result_csv", params.result_csv, "is the file of --result_json too")


def check_labels(text: str | None) -> None:
    """Refuses what are no labels.

    Raises:
      FlagError: says which part is none.
    """
    try:
        labels.parse(text or "")
    except ValueError as error:
        raise FlagError(labels.FLAG, text, str(error)) from None
