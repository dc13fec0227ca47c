"""Flags for printed, recorded, saved and traced output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnnbench.base import values as labels
from cnnbench.base.rules import (
    FlagRule,
    is_set,
    no_effect,
    no_effect_with,
    no_effect_without,
    refuse,
    refuse_both,
)
from cnnbench.base.values import Duration
from cnnbench.flags.declare import (
    Affects,
    ComparedBy,
    OrText,
    RunPart,
    flag,
    names_of_flags,
    specs_of,
)
from cnnbench.flags.facts import (
    FORWARD,
    RunFacts,
    no_effect_forward,
    no_effect_input_only,
    runs_only_forward,
)


def _conditions_fault(text: str) -> str:
    # Imported late, because the import takes 15 ms.
    from cnnbench.machine.checks import parse_silenced

    parse_silenced(text)
    return ""


def _folder_fault(folder: str) -> str:
    if not folder.isprintable():
        return "must be printable UTF-8, because TensorFlow needs this"
    if set(folder) & set("*?[]\\"):
        return "must not contain * ? [ ] or \\, which TensorFlow would treat as a pattern"
    return ""


_untimed = partial(flag, affects=Affects.NOTHING)
_saving = partial(flag, part=RunPart.HEADER)
_profile = partial(flag, compared_by=ComparedBy.PRESENCE, part=RunPart.PROFILE)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class OutputParams:
    """Flags for printed, recorded, saved and traced output."""

    display_every: OrText[int | Duration] = flag(
        10,
        "Number of steps between two step lines, or the time after which the next step prints a "
        "line.",
        minimum=1,
        affects=Affects.NOTHING,
    )
    display_perf_ewma: float | None = _untimed(
        None,
        "Weight of the newest step in the printed speed (a moving average). If not given, all "
        "steps have the same weight.",
        minimum=0,
        maximum=1,
    )
    progress: str = _untimed(
        "auto",
        "Live progress line on standard error. auto shows the line only on terminals.",
        choices=("auto", "on", "off"),
    )
    result_json: str | None = _untimed(
        None, "Write the run record to this file.", path="file", part=RunPart.PER_PROCESS
    )
    result_csv: str | None = _untimed(
        None, "Append one row about the run to this file.", path="file", part=RunPart.PER_PROCESS
    )
    result_label: str | None = _untimed(
        None,
        "Labels of the run in its record, as key=value,key=value. The label commit=... replaces "
        "the detected commit of the measured code, for example in cnnbench history.",
        fault=labels.result_label_fault,
    )
    quiet_conditions: str = _untimed(
        "",
        "Names of warnings that are not printed, comma-separated; cnnbench docs conditions lists "
        "the names. all means all warnings about measuring conditions. The record still contains "
        "these warnings.",
        fault=_conditions_fault,
    )
    train_dir: str | None = flag(
        None,
        "Folder for checkpoints. A training resumes from the newest checkpoint in the folder and "
        "saves new checkpoints there. --eval reads them.",
        path="folder or URL",
        fault=_folder_fault,
        compared_by=ComparedBy.PRESENCE,
        part=RunPart.PER_PROCESS | RunPart.HEADER,
        unset="",
    )
    export_dir: str | None = _untimed(
        None,
        "When the run ends, write the network with its weights as a SavedModel to this folder, for "
        "TensorFlow Serving and tf.saved_model.load.",
        path="folder or URL",
    )
    save_model_secs: int = _saving(
        0,
        "Seconds between two checkpoints. With 0, a checkpoint is saved only at the end.",
        minimum=0,
    )
    save_model_steps: int | None = _saving(None, "Global steps between two checkpoints.", minimum=1)
    max_ckpts_to_keep: int = flag(
        5,
        "Number of newest checkpoints that are kept. With 0, all checkpoints are kept.",
        minimum=0,
        affects=Affects.NOTHING,
        part=RunPart.HEADER,
    )
    eval_dir: str = _untimed(
        "/tmp/tf_cnn_benchmarks/eval",
        "With --summary_verbosity: folder for the event files of evaluations.",
        path="folder or URL",
    )
    summary_verbosity: int = flag(
        0,
        "Event files for TensorBoard in --train_dir and --eval_dir. 0: none. 1: scalars. 2: also "
        "a histogram of every gradient. 3: also a histogram of every variable, and images.",
        minimum=0,
        maximum=3,
    )
    save_summaries_steps: int = flag(
        0,
        "Global steps between two summaries of the training. With 0, no summaries are written.",
        minimum=0,
    )
    trace_file: str = _profile(
        "",
        "Profile the last but one step of the warm-up, and write a trace for chrome://tracing or "
        "ui.perfetto.dev to this file (JSON, compressed if the name ends in .gz).",
        path="file",
    )
    use_chrome_trace_format: bool = flag(
        True,
        "If false, --trace_file names a folder for tensorboard --logdir.",
    )
    profile_json: str | None = _profile(
        None,
        "Profile the last steps of the warm-up, and write their times to this file, by layer, kind "
        "of operation and direction (such as forward). cnnbench explain compares two such files.",
        path="file",
        part=RunPart.PROFILE | RunPart.PER_PROCESS,
    )
    profile_steps: int = flag(
        20,
        "Number of steps that --profile_json profiles, at most all steps of the warm-up except "
        "the first one.",
        minimum=1,
        affects=Affects.NOTHING,
    )
    graph_file: str | None = _profile(
        None,
        "Write the traced graph of the step to this file, as text if the name ends in txt, "
        "otherwise as a binary GraphDef.",
        path="file",
    )
    partitioned_graph_file_prefix: str | None = _profile(
        None,
        "Write the graph of every device to the files PREFIX0, PREFIX1, ..., as TensorFlow "
        "optimized and partitioned it in the first warm-up step. If PREFIX has a suffix, such as "
        ".txt, the number is inserted before the suffix. Files that end in txt contain text.",
        path="file prefix",
        unset="",
    )
    benchmark_log_dir: str | None = _untimed(
        None,
        "Folder for logs in the format of TensorFlow's official models: benchmark_run.log "
        "describes the run, and metric.log contains one JSON object for each printed row and "
        "evaluation. Runs append to metric.log.",
        path="folder",
    )
    benchmark_test_id: str | None = _untimed(
        None, "Name of the run in the logs of --benchmark_log_dir."
    )
    ml_perf_compliance_logging: bool = _untimed(
        False,
        "Write MLPerf's compliance log of a training to stderr: lines that begin with :::MLLOG.",
    )


_SAVING = ("save_model_secs", "save_model_steps", "max_ckpts_to_keep")
_PROFILING = names_of_flags(specs_of(OutputParams), RunPart.PROFILE)
_OF_WARM_UP = tuple(name for name in _PROFILING if name != "graph_file")

RULES: tuple[FlagRule[RunFacts], ...] = (
    refuse(
        _OF_WARM_UP,
        lambda p: (
            p.params.num_warmup_batches == 0 and p.params.warmup == "fixed" and not p.params.eval
        ),
        "profiles or saves a warm-up step; leave out --num_warmup_batches=0",
    ),
    *(  # TensorFlow can run only one profiler at a time.
        refuse_both("profile_json", other) for other in _OF_WARM_UP if other != "profile_json"
    ),
    # Notices.
    no_effect_input_only(
        (
            "train_dir",
            *_SAVING,
            *_PROFILING,
            "summary_verbosity",
            "save_summaries_steps",
            "benchmark_log_dir",
            "ml_perf_compliance_logging",
        )
    ),
    no_effect("eval_dir", lambda p: not p.work.evaluates, "without an evaluation"),
    no_effect(
        "train_dir",
        is_set("forward_only"),
        "with --forward_only: it saves no checkpoints",
        says="is only read from",
    ),
    no_effect_without(("eval_dir", "save_summaries_steps"), "summary_verbosity"),
    no_effect_without((*_SAVING, "save_summaries_steps"), "train_dir"),
    no_effect(
        "save_summaries_steps", runs_only_forward, f"{FORWARD}: it is for summaries of a training"
    ),
    no_effect(
        "summary_verbosity",
        lambda p: not p.work.evaluates and (p.work.only_forward or not p.params.train_dir),
        "without a training that has a --train_dir",
    ),
    no_effect(
        "summary_verbosity",
        lambda p: not p.work.evaluates and not p.params.save_summaries_steps,
        "without --save_summaries_steps",
    ),
    no_effect_forward(_SAVING),
    no_effect("ml_perf_compliance_logging", runs_only_forward, FORWARD),
    no_effect(
        "ml_perf_compliance_logging",
        lambda p: not p.work.evaluates,
        "without evaluations: add one of the eval_during_training flags",
        says="logs no eval_accuracy",
    ),
    no_effect_with(_PROFILING, "eval", ": they show the step of a training or --forward_only"),
    no_effect_without("use_chrome_trace_format", "trace_file"),
    no_effect_without("profile_steps", "profile_json"),
    no_effect_without("benchmark_test_id", "benchmark_log_dir"),
)
