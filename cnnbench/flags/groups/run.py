"""Flags that select what a run does and how long it lasts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

from cnnbench.base.rules import (
    FlagRule,
    always,
    is_set,
    no_effect,
    no_effect_with,
    no_effect_without,
    refuse,
    refuse_both,
    refuse_with,
)
from cnnbench.base.values import StopAt, parse_number
from cnnbench.errors import FlagError
from cnnbench.flags.declare import (
    Affects,
    ComparedBy,
    FlagSpec,
    Items,
    OrText,
    RunPart,
    flag,
    names_of_flags,
    number_flag,
    specs_of,
)
from cnnbench.flags.facts import (
    FORWARD,
    RunFacts,
    has_one_tower,
    no_effect_forward,
    no_effect_in_modes,
    no_effect_input_only,
    runs_only_forward,
)
from cnnbench.records.endings import ENDINGS
from cnnbench.variable_mgr.modes import Copies, Reduction

_FORM = "must be METRIC:VALUE, as in top_1:0.759 or loss:2.5"


def parse_stop_at(text: str) -> StopAt:
    """Parses the value of --stop_at, ``METRIC:VALUE``. FlagError names the invalid part."""
    metric, colon, number = (part.strip() for part in text.rpartition(":"))
    if not (metric and colon):
        raise FlagError("stop_at", text, _FORM)
    try:
        return StopAt(metric, parse_number(number), text)
    except ValueError:
        reason = f"{number!r} is not a finite number; {_FORM}"
        raise FlagError("stop_at", text, reason) from None


MOST_IMAGES = 2**20
"""Maximum batch size, so that typing errors are detected early. Even the smallest images would
take a gigabyte.
"""


_work = partial(flag, part=RunPart.WORK)
_evaluating = partial(flag, part=RunPart.EVALUATIONS)
_length = partial(flag, part=RunPart.LENGTH)
_warm_up = partial(flag, part=RunPart.WARM_UP)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RunParams:
    """Flags that select what a run does and how long it lasts."""

    eval: bool = _work(
        False,
        "Evaluate the checkpoints in --train_dir instead of training.",
        part=RunPart.WORK | RunPart.NO_TIMED_STEPS | RunPart.HEADER,
    )
    eval_interval_secs: int = flag(
        0,
        "With --eval: seconds between two searches for a new checkpoint. Each new checkpoint is "
        "evaluated. The run ends after the training in --train_dir has ended. With 0, the run "
        "evaluates once.",
        minimum=0,
    )
    eval_timeout_secs: int = flag(
        0,
        "With --eval_interval_secs: end the run if there is no new checkpoint for this many "
        "seconds. With 0, the run waits without limit for the end of the training.",
        minimum=0,
    )
    eval_during_training_every_n_steps: int | None = _evaluating(
        None,
        "Pause training after every N global steps, evaluate, and continue.",
        minimum=1,
        unset=0,
    )
    eval_during_training_every_n_epochs: float | None = _evaluating(
        None,
        "Pause training after every N epochs, evaluate, and continue.",
        above=0,
        unset=0,
    )
    eval_during_training_at_specified_steps: Items[int] = flag(
        (),
        "Pause training after each of these global steps (comma-separated), evaluate, and "
        "continue.",
        minimum=1,
        part=RunPart.EVALUATIONS,
    )
    eval_during_training_at_specified_epochs: Items[float] = flag(
        (),
        "Pause training after each of these epochs (comma-separated, fractions allowed), "
        "evaluate, and continue.",
        above=0,
        part=RunPart.EVALUATIONS,
    )
    stop_at: OrText[StopAt | None] = flag(
        None,
        "End training as soon as an evaluation reaches METRIC:VALUE, such as top_1:0.759: at "
        "least VALUE, or at most VALUE if a lower value is better (loss:2.5, "
        "word_error_rate:0.2). METRIC is loss, or a metric that the model's evaluations print. "
        "Needs one of the eval_during_training flags.",
        parser=parse_stop_at,
        part=RunPart.LENGTH,
    )
    stop_at_top_1_accuracy: float | None = _length(
        None,
        "Older spelling of --stop_at=top_1:VALUE; for ssd300, of --stop_at=map:VALUE.",
        minimum=0,
        maximum=1,
        unset=0,
    )
    collect_eval_results_async: bool = flag(
        False,
        "Compute metrics that need all examples of an evaluation (mean average precision, error "
        "and hit rates) in a separate process while the run continues.",
    )
    input_only: bool = _work(
        False,
        "Measure only the input pipeline of the training and each of its stages. No network is "
        "built. Needs --data_dir.",
        part=RunPart.WORK | RunPart.NO_TIMED_STEPS,
    )
    forward_only: bool = _work(
        False,
        "Measure inference: run only the forward pass of the network. On GPUs, up to 100 more "
        "batches follow, one at a time, to measure the latency.",
        part=RunPart.WORK | RunPart.HEADER,
    )
    freeze_when_forward_only: bool = flag(
        False,
        "With --forward_only: store the variables in the graph as constants, at most 2 GiB for "
        "all devices together. Cannot be used with --train_dir.",
    )
    print_training_accuracy: bool = flag(
        False,
        "Add top-1 and top-5 accuracy of the training batches to the step lines.",
        part=RunPart.HEADER,
    )
    batch_size: int = flag(
        0,
        "Images per step and device (not the global batch). With 0, the batch size of the model "
        "is used.",
        minimum=0,
        maximum=MOST_IMAGES,
        part=RunPart.BATCH | RunPart.STEP_WORK,
    )
    global_batch_size: int = flag(
        0,
        "Images per update, on all devices and in all passes together. Replaces --batch_size, "
        "which is per device. With 0, --batch_size is used.",
        minimum=0,
        maximum=MOST_IMAGES,
        part=RunPart.BATCH,
    )
    find_batch_size: bool = flag(
        False,
        "If memory runs out, try again in a new process with half the batch size, until the batch "
        "fits. The record contains the requested batch size and the batch size that was used. "
        "Works only in cnnbench run and in suites, with a single process.",
        # Repetitions may differ in this flag, because the record contains the batch size that was
        # used.
        affects=Affects.NOTHING,
    )
    gradient_accumulation_steps: int = flag(
        1,
        "Number of passes per update. In each pass, every device computes the gradients of one "
        "batch. Each device adds the gradients of all passes before gradients are exchanged and "
        "applied once. A step is an update, and --batch_size is the batch size of a pass.",
        minimum=1,
        maximum=MOST_IMAGES,
        part=RunPart.UPDATE,
    )
    steps_per_execution: int = flag(
        1,
        "Number of steps that the host starts with one call; a loop in the traced function runs "
        "them. The time of each call is measured, and the record contains the mean time of its "
        "steps. --num_batches and the warm-up are rounded up to whole calls. Checkpoints, "
        "evaluations, step lines and checks whether to stop wait for the end of a call.",
        minimum=1,
        maximum=1_000_000,
    )
    eval_batch_size: int = flag(
        0,
        "Images per evaluation step and device. With 0, --batch_size is used.",
        minimum=0,
        maximum=MOST_IMAGES,
        part=RunPart.HEADER,
    )
    num_batches: int | None = _length(
        None,
        "Number of timed steps, without the warm-up; 100 if neither --num_batches nor "
        "--num_epochs is given.",
        minimum=1,
    )
    num_epochs: float | None = _length(
        None, "Epochs to run instead of --num_batches, rounded up to whole steps.", above=0
    )
    max_seconds: float | None = _length(None, ENDINGS["max_seconds"].help, above=0)
    num_eval_batches: int | None = flag(
        None,
        "Steps of one evaluation. If not given, --num_batches is used.",
        minimum=1,
        part=RunPart.HEADER,
    )
    num_eval_epochs: float | None = flag(
        None,
        "Passes over the validation set in one evaluation. If not given, --num_epochs is used.",
        above=0,
        part=RunPart.HEADER,
    )
    num_warmup_batches: int | None = _warm_up(
        None,
        "Number of steps before timing starts. If not given: 10, or 5 * autotune_threshold "
        "squared if this is larger.",
        minimum=0,
    )
    warmup: str = _warm_up(
        "fixed",
        "Length of the warm-up. fixed: --num_warmup_batches steps. auto: at least "
        "--num_warmup_batches steps, until step times are steady or --max_warmup_batches steps "
        "are done.",
        choices=("fixed", "auto"),
    )
    max_warmup_batches: int = _warm_up(
        200,
        "With --warmup=auto: number of steps after which timing starts even if step times are not "
        "steady.",
        minimum=20,
    )
    autotune_threshold: int | None = flag(
        None,
        "Number of times that cuDNN tries each algorithm before it chooses one; exported as "
        "TF_AUTOTUNE_THRESHOLD.",
        minimum=0,
    )
    tf_random_seed: int = flag(
        1234,
        "Seed of all random numbers: initial values, dropout, synthetic data and shuffling.",
        minimum=0,
        maximum=2**31 - 1,
        compared_by=ComparedBy.SEED,
    )
    allow_nonfinite: bool = flag(
        False,
        "If the loss becomes infinite or NaN, continue the run. Without this flag, the run fails.",
    )
    plugin: Items[str] = flag(
        (),
        "Python file that registers your own networks, data sets, modes, all-reduce algorithms, "
        "optimizers, schedules, metrics or readers. The file is loaded before flags are checked. "
        "May be repeated.",
        path="file",
        repeated=True,
        compared_by=ComparedBy.PRESENCE,
    )
    check_replica_consistency: int = flag(
        0,
        "Compare the copies of every variable and optimizer slot on all devices bit by bit, "
        "before the first step and after every N global steps. Step times do not include the "
        "comparison. If copies differ, the run ends with exit code 4. With 0, copies are never "
        "compared.",
        minimum=0,
        affects=Affects.NOTHING,
        part=RunPart.UPDATE,
    )


def added_endings() -> dict[str, FlagSpec]:
    """Returns, by name, the flags of `ENDINGS`, which end the timed loop, that are not declared as
    fields of `RunParams`.
    """
    return {
        name: number_flag(name, ending.help, RunPart.LENGTH, optional=True, above=0)
        for name, ending in ENDINGS.items()
        if name not in RunParams.__dataclass_fields__
    }


EVAL_DURING_TRAINING = names_of_flags(specs_of(RunParams), RunPart.EVALUATIONS)
_OTHER_WORK = names_of_flags(specs_of(RunParams), RunPart.WORK)
_UPDATING = names_of_flags(specs_of(RunParams), RunPart.UPDATE)
_OF_ONE_STEP = {
    "profile_json": "explain, roofline and --profile_json divide",
    "partitioned_graph_file_prefix": "--partitioned_graph_file_prefix writes",
}
_ONE_STEP = "a single step; leave out one of the two flags"
_ONE_UPDATE = "needs workers that update the variables together; with asynchronous updates, "


def _never_evaluates(p: RunFacts) -> bool:
    return not p.work.evaluates


def _rounding_notice(flag: str) -> FlagRule[RunFacts]:
    """Makes a rule for the notice that --steps_per_execution rounds up the steps in `flag`."""

    def explain(p: RunFacts) -> str:
        steps, together = getattr(p.params, flag) or 0, p.params.steps_per_execution
        rounded = steps + -steps % together
        multiple = f"to {rounded}, the next multiple of --steps_per_execution={together}"
        return "" if rounded == steps else multiple

    return no_effect(flag, always, explain, says="is rounded up")


CONFLICTS: tuple[FlagRule[RunFacts], ...] = (
    refuse_with("forward_only", "eval", ", which already runs the forward pass only"),
    refuse(
        "freeze_when_forward_only",
        lambda p: p.params.forward_only and p.params.train_dir,
        "cannot be used with --train_dir: the graph is frozen before a checkpoint is restored",
    ),
    refuse("input_only", is_set("eval"), "builds no network, so leave out --eval"),
    refuse("input_only", is_set("forward_only"), "builds no network, so leave out --forward_only"),
    refuse_both("global_batch_size", "batch_size"),
    refuse(
        "find_batch_size",
        is_set("find_batch_size"),
        "works only in cnnbench run without --repeats, as a command on Linux, and in a suite "
        "without launch; otherwise, find the batch size with cnnbench run --find_batch_size, and "
        "give it as --batch_size",
    ),
    refuse_both("num_batches", "num_epochs"),
    refuse_with("max_seconds", "num_epochs", ", which needs all steps of its epochs"),
    refuse_with("max_seconds", "eval", ", which has no timed loop of training steps"),
    refuse_both("num_eval_batches", "num_eval_epochs"),
    refuse_both("save_model_steps", "save_model_secs"),
)

RULES: tuple[FlagRule[RunFacts], ...] = (
    refuse(
        "eval", lambda p: not p.params.train_dir, "needs --train_dir, the folder of the checkpoints"
    ),
    *(
        refuse_both(second, first)
        for first, second in itertools.combinations(EVAL_DURING_TRAINING, 2)
    ),
    refuse(
        "input_only",
        lambda p: not p.params.data_dir,
        "needs --data_dir: synthetic data takes no time to read",
    ),
    *(
        refuse(EVAL_DURING_TRAINING, is_set(other), f"needs training, so leave out --{other}")
        for other in _OTHER_WORK
    ),
    refuse(
        ("stop_at", "stop_at_top_1_accuracy"),
        lambda p: not (p.work.trains and p.work.evaluates),
        "needs an evaluation to stop at: add --eval_during_training_every_n_steps "
        "or another of the eval_during_training flags",
    ),
    refuse(
        "gradient_accumulation_steps",
        lambda p: not p.work.trains,
        "needs updates, so leave out --eval, --forward_only or --input_only",
    ),
    refuse(
        "gradient_accumulation_steps",
        lambda p: p.place.mode.reduction is Reduction.NONE,
        lambda p: (
            f"needs devices that train one common model; {p.place.mode.name} trains a "
            "separate model on each device"
        ),
    ),
    refuse(
        "gradient_accumulation_steps",
        lambda p: p.place.asynchronous,
        f"{_ONE_UPDATE}each update has its own batch",
    ),
    refuse_with(
        "gradient_accumulation_steps",
        "staged_vars",
        ": all passes of an update use the same weights",
    ),
    refuse(
        "steps_per_execution",
        lambda p: p.params.eval or p.params.input_only,
        "needs steps of a training or of a forward pass, so leave out --eval or --input_only",
    ),
    refuse(
        "steps_per_execution",
        lambda p: p.place.asynchronous or p.place.coordinated,
        f"{_ONE_UPDATE}each update is a separate call of a worker",
    ),
    *(
        refuse("steps_per_execution", is_set(other), f"{does} {_ONE_STEP}")
        for other, does in _OF_ONE_STEP.items()
    ),
    refuse(
        "ema_decay",
        lambda p: p.place.asynchronous and p.work.trains,
        f"{_ONE_UPDATE}there is no step that ends for all workers",
    ),
    refuse_with("ema_decay", "fp16_vars", ", which rounds averages"),
    refuse_both("stop_at_top_1_accuracy", "stop_at"),
    # Notices.
    _rounding_notice("num_batches"),
    _rounding_notice("num_warmup_batches"),
    no_effect_input_only(
        (*_UPDATING, "print_training_accuracy", "allow_nonfinite", "freeze_when_forward_only")
    ),
    no_effect_forward(_UPDATING),
    no_effect("collect_eval_results_async", _never_evaluates, "without an evaluation"),
    no_effect(
        "collect_eval_results_async",
        lambda p: p.params.eval and not p.params.eval_interval_secs,
        "with --eval of one checkpoint: nothing else runs meanwhile",
    ),
    no_effect(
        ("num_eval_batches", "num_eval_epochs", "eval_batch_size"),
        _never_evaluates,
        "without an evaluation: add --eval or one of the eval_during_training flags",
    ),
    no_effect("print_training_accuracy", runs_only_forward, f"{FORWARD}: they always print it"),
    no_effect(
        "check_replica_consistency",
        has_one_tower,
        "with --num_gpus=1: there is one copy of every variable",
    ),
    no_effect_in_modes(
        "check_replica_consistency",
        lambda mode: mode.copies is Copies.ONE,
        ": it keeps one copy of every variable",
    ),
    no_effect_in_modes(
        "check_replica_consistency",
        lambda mode: not mode.in_sync,
        ": this mode does not keep the copies of a variable equal",
    ),
    no_effect_without("eval_interval_secs", "eval"),
    no_effect_without("eval_timeout_secs", "eval_interval_secs"),
    no_effect_without("freeze_when_forward_only", "forward_only"),
    no_effect_with(("warmup", "max_warmup_batches"), "eval", ": it has no warm-up"),
    no_effect("max_warmup_batches", lambda p: p.params.warmup != "auto", "without --warmup=auto"),
    no_effect_with("allow_nonfinite", "eval", ": an evaluation never ends because of a loss"),
)
