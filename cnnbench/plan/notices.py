"""Notices about flags that have no effect in a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial

from cnnbench.base.rules import FlagRule, HasFlags, R, always, no_effect, notices_about
from cnnbench.flags.declare import RunPart, names_of_flags
from cnnbench.flags.groups.data import DataParams
from cnnbench.flags.groups.optimizer import added_flags
from cnnbench.flags.groups.strategies import StrategyParams
from cnnbench.flags.params import FLAGS, SPECS
from cnnbench.optimizers.registry import OPTIMIZERS, SCHEDULES
from cnnbench.plan.place import WorkKind
from cnnbench.plan.refusals import CROSS_DEVICE, OF_WARM_UP
from cnnbench.plan.run_plan import RunPlan
from cnnbench.plan.training import round_up_steps
from cnnbench.variable_mgr.all_reduce.spec import group_devices, readers_of
from cnnbench.variable_mgr.modes import (
    BUILT_IN,
    COLLECTIVE,
    IN_PACKS,
    Copies,
    Mode,
    Processes,
    Reduction,
)

_SAVING = ("save_model_secs", "save_model_steps", "max_ckpts_to_keep")
_LOSS_SCALE = ("fp16_loss_scale", "fp16_enable_auto_loss_scale", "fp16_inc_loss_scale_every_n")
_AGGREGATING = names_of_flags(FLAGS, RunPart.AGGREGATION)
_UPDATING = (*names_of_flags(FLAGS, RunPart.UPDATE | RunPart.AGGREGATION), *CROSS_DEVICE)
_READING = {field.name for field in fields(DataParams)} - {"data_dir", "data_name"}
_DISTRIBUTING = {field.name for field in fields(StrategyParams)} - {*CROSS_DEVICE}

_FORWARD = "with --eval or --forward_only"
_ALL_REDUCING = [mode.name for mode in BUILT_IN if mode.reduction is Reduction.ALL_REDUCE]


def unused_flag_notices(plan: RunPlan, explicit_flags: Iterable[str]) -> tuple[str, ...]:
    """Returns notices about flags of the command line without effect, one notice for each reason.

    Flags that are set to their default are ignored if the default is false, zero or empty.
    """
    explicit = [
        name
        for name in explicit_flags
        # The flags of absl.app, which cnnbench run also accepts, have no values in a plan.
        if name not in SPECS
        or (value := getattr(plan.params, name))
        or value != SPECS[name].default
    ]
    added = (
        no_effect(
            tuple(added_flags()),
            lambda p: not p.work.trains,
            "in a run that trains nothing",
        ),
        *_other_optimizer_rules(OPTIMIZERS.plugin_constants),
    )
    return notices_about((*UNUSED, *added, *plan.place.mode.rules), plan, explicit)


def _runs_only_forward(p: RunPlan) -> bool:
    return p.work.only_forward


def _never_evaluates(p: RunPlan) -> bool:
    return not p.work.evaluates


def _has_one_tower(p: RunPlan) -> bool:
    return p.place.job.num_towers == 1


def _uses_schedule_of_model(p: RunPlan) -> bool:
    """Whether the learning rate follows the schedule of the model."""
    return p.params.init_learning_rate is None and p.params.piecewise_learning_rate_schedule is None


def _other_optimizer_rules(constants: Iterable[str]) -> tuple[FlagRule[RunPlan], ...]:
    """Rules for optimizer flags, such as --momentum, that the optimizer of the run does not use."""
    by_users: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for flag in constants:
        by_users[OPTIMIZERS.users_text(flag)] += (flag,)
    return tuple(
        no_effect(flags, partial(_optimizer_ignores_flags, flags), f"without --optimizer={names}")
        for names, flags in by_users.items()
    )


def _optimizer_ignores_flags(flags: Sequence[str], p: RunPlan) -> bool:
    """Whether the optimizer of a run uses none of the flags."""
    return not set(flags) & p.numerics.optimizer_spec.flags.keys()


def _uses_all_reduce(p: RunPlan) -> bool:
    return p.place.mode.reduction is Reduction.ALL_REDUCE


def _active_all_reduce_names(p: RunPlan) -> frozenset[str]:
    """Names of the all-reduce algorithms that the run uses."""
    spec = p.exchange.running
    return frozenset() if spec is None else spec.algorithm_names


def _has_two_levels(p: RunPlan) -> bool:
    spec = p.params.all_reduce_spec
    return spec is not None and spec.has_two_levels


def _count_device_groups(p: RunPlan) -> int:
    return len(group_devices(p.place.job.tower_devices, p.params.all_reduce_group_size))


def _no_effect_in_mode(
    flags: str | Sequence[str], which: Callable[[Mode], object], why: str
) -> FlagRule[RunPlan]:
    """A rule for flags that have no effect in the modes of --variable_update that `which` selects.

    `why` is appended to the reason "with --variable_update=MODE".
    """
    return no_effect(
        flags,
        lambda p: which(p.place.mode),
        lambda p: f"with --variable_update={p.place.mode.name}{why}",
    )


def unread_flag_rule(flag: str, running: Callable[[R], frozenset[str] | None]) -> FlagRule[R]:
    """A rule for a flag that only some all-reduce algorithms read, as they declare.

    `running` returns the names of the algorithms in use; None if all algorithms are in use.
    """

    def is_unread(p: R) -> bool:
        names = running(p)
        return names is not None and names.isdisjoint(readers_of(flag))

    def reason(p: R) -> str:
        *names, last = sorted(readers_of(flag))
        named = f"{', '.join(names)} or {last}" if names else last
        return f"without {named} in --all_reduce_spec"

    return no_effect(flag, is_unread, reason)


def unused_all_reduce_rules(
    running: Callable[[R], frozenset[str] | None],
    has_two_levels: Callable[[R], bool],
    groups: Callable[[R], Sequence[int]],
    are_single: Callable[[R], bool],
) -> tuple[FlagRule[R], ...]:
    """Rules for all-reduce flags that have no effect, in a run or in ``cnnbench allreduce``.

    Args:
      running: returns the names of the algorithms in use; None if all algorithms are in use.
      has_two_levels: whether --all_reduce_spec contains an algorithm with two levels.
      groups: returns the number of device groups, for each measured number of devices.
      are_single: whether every group consists of one device.
    """

    return (
        no_effect(
            "all_reduce_share_memory",
            lambda p: p.params.device == "gpu",
            "with --device=gpu: GPUs never share memory",
        ),
        no_effect(
            "all_reduce_group_size",
            lambda p: not has_two_levels(p),
            "without a two-level algorithm in --all_reduce_spec",
        ),
        no_effect(
            "all_reduce_group_size",
            lambda p: max(groups(p)) == 1,
            "with so few devices, because all of them are one group",
        ),
        no_effect(
            "all_reduce_spec",
            lambda p: has_two_levels(p) and 1 in groups(p),
            "where all devices are one group: use a group size of less than --num_gpus",
            says="has no second level",
        ),
        no_effect(
            "all_reduce_spec",
            lambda p: has_two_levels(p) and are_single(p),
            "where every group contains one device",
            says="has no first level",
        ),
        *(
            unread_flag_rule(flag, running)
            for flag in ("all_reduce_share_memory", "communication_hint", "network_topology")
        ),
    )


ON_GPUS: FlagRule[HasFlags] = no_effect(
    (
        *("gpu_indices", "gpus_per_card", "gpu_thread_mode", "per_gpu_thread_count"),
        *("allow_growth", "use_unified_memory", "winograd_nonfused", "batchnorm_persistent"),
    ),
    lambda p: p.params.device == "cpu",
    "with --device=cpu",
)
"""The rule for flags that have an effect only on GPUs."""


def _step_rounding_rule(flag: str) -> FlagRule[RunPlan]:
    """A rule for the notice that --steps_per_execution rounds up the number of steps in `flag`."""

    def rounded_steps_text(p: RunPlan) -> str:
        steps_given, together = getattr(p.params, flag) or 0, p.params.steps_per_execution
        steps = round_up_steps(steps_given, together)
        multiple = f"to {steps}, the next multiple of --steps_per_execution={together}"
        return "" if steps == steps_given else multiple

    return no_effect(flag, always, rounded_steps_text, says="is rounded up")


UNUSED: tuple[FlagRule[RunPlan], ...] = (
    _step_rounding_rule("num_batches"),
    _step_rounding_rule("num_warmup_batches"),
    no_effect(
        (
            *("train_dir", "local_parameter_device", "variable_update", "print_training_accuracy"),
            *("allow_nonfinite", "graph_file", "data_format", "xla_compile", "peak_flops"),
            *("xla_cache_dir", "aux_head", "conv_gradients", "recompute"),
            *(*_SAVING, *_LOSS_SCALE, *_UPDATING, *OF_WARM_UP),
            *("summary_verbosity", "save_summaries_steps", "freeze_when_forward_only"),
            *("benchmark_log_dir", "ml_perf_compliance_logging"),
        ),
        lambda p: p.params.input_only,
        "with --input_only: no network is built",
    ),
    no_effect(
        ("eval_dir", "collect_eval_results_async"), _never_evaluates, "without an evaluation"
    ),
    no_effect(
        "collect_eval_results_async",
        lambda p: p.params.eval and not p.params.eval_interval_secs,
        "with --eval of one checkpoint: nothing else runs meanwhile",
    ),
    no_effect(
        "train_dir",
        lambda p: p.params.forward_only,
        "with --forward_only: it saves no checkpoints",
        says="is only read from",
    ),
    # The next four rules have priority over the later rules about --eval and --forward_only.
    no_effect(
        ("eval_dir", "save_summaries_steps"),
        lambda p: not p.params.summary_verbosity,
        "without --summary_verbosity",
    ),
    no_effect(
        (*_SAVING, "save_summaries_steps"),
        lambda p: not p.params.train_dir,
        "without --train_dir",
    ),
    no_effect(_LOSS_SCALE, lambda p: p.params.precision != "fp16", "without --precision=fp16"),
    no_effect(
        "cross_replica_sync",
        lambda p: not p.params.job_name,
        "without --job_name: there are no other workers to wait for",
    ),
    no_effect(
        "save_summaries_steps", _runs_only_forward, f"{_FORWARD}: it is for summaries of a training"
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
    no_effect("aux_head", _runs_only_forward, f"{_FORWARD}: it is for the training loss"),
    no_effect(
        ("conv_gradients", "recompute"),
        _runs_only_forward,
        f"{_FORWARD}: they compute no gradients",
    ),
    no_effect(
        ("num_eval_batches", "num_eval_epochs", "eval_batch_size"),
        _never_evaluates,
        "without an evaluation: add --eval or one of the eval_during_training flags",
    ),
    no_effect(
        (*_SAVING, *_LOSS_SCALE, *_UPDATING), _runs_only_forward, f"{_FORWARD}: they do not train"
    ),
    no_effect(
        "local_parameter_device",
        lambda p: p.work.only_forward and _uses_all_reduce(p),
        f"{_FORWARD}: every device has its own variables, and nothing is reduced",
    ),
    no_effect(
        ("distortions", "augment"),
        lambda p: p.params.eval,
        "with --eval: they change training images",
    ),
    no_effect(
        names_of_flags(FLAGS, RunPart.MIXING), _runs_only_forward, f"{_FORWARD}: they do not train"
    ),
    no_effect("print_training_accuracy", _runs_only_forward, f"{_FORWARD}: they always print it"),
    no_effect("ml_perf_compliance_logging", _runs_only_forward, _FORWARD),
    no_effect(
        "ml_perf_compliance_logging",
        _never_evaluates,
        "without evaluations: add one of the eval_during_training flags",
        says="logs no eval_accuracy",
    ),
    no_effect(
        ("graph_file", *OF_WARM_UP),
        lambda p: p.params.eval,
        "with --eval: they show the step of a training or --forward_only",
    ),
    *_other_optimizer_rules(OPTIMIZERS.constants),
    no_effect(
        "ema_decay",
        lambda p: p.work is WorkKind.FORWARD and p.params.train_dir is None,
        "with --forward_only and without --train_dir, from which averages are read",
    ),
    no_effect(
        "learning_rate_schedule",
        lambda p: SCHEDULES.find(p.params.learning_rate_schedule).missing_flags(p.params),
        lambda p: (
            "without --"
            + SCHEDULES.find(p.params.learning_rate_schedule).missing_flags(p.params)[0]
        ),
    ),
    no_effect(
        "num_learning_rate_warmup_epochs",
        _uses_schedule_of_model,
        "on the model's own schedule; add --init_learning_rate or "
        "--piecewise_learning_rate_schedule",
    ),
    no_effect(
        "resnet_base_lr",
        lambda p: not _uses_schedule_of_model(p),
        "with --init_learning_rate or --piecewise_learning_rate_schedule",
    ),
    _no_effect_in_mode(
        ("gradient_reduction", "local_parameter_device", "sparse_to_dense_grads"),
        lambda mode: mode.reduction is Reduction.NONE,
        "",
    ),
    no_effect(
        [name for name in _AGGREGATING if name != "sparse_to_dense_grads"],
        lambda p: not _uses_all_reduce(p),
        f"without --variable_update={', '.join(_ALL_REDUCING[:-1])} or {_ALL_REDUCING[-1]}",
    ),
    _no_effect_in_mode(
        "local_parameter_device",
        lambda mode: mode.strategy and mode.processes is not Processes.COORDINATOR,
        ": TensorFlow decides",
    ),
    no_effect(
        (
            *(name for name in _AGGREGATING if name != "variable_consistency"),
            *("gradient_reduction", "bn_stats", *CROSS_DEVICE),
        ),
        _has_one_tower,
        "with --num_gpus=1: there is nothing to reduce",
    ),
    _no_effect_in_mode(
        ("cross_replica_sync", "ps_strategy", "variable_caching", "local_parameter_device"),
        lambda mode: mode.processes is Processes.COORDINATOR,
        ": no worker waits for another, and variables are placed on the ps tasks round-robin",
    ),
    no_effect(
        "check_replica_consistency",
        _has_one_tower,
        "with --num_gpus=1: there is one copy of every variable",
    ),
    _no_effect_in_mode(
        "check_replica_consistency",
        lambda mode: mode.copies is Copies.ONE,
        ": it keeps one copy of every variable",
    ),
    _no_effect_in_mode(
        "check_replica_consistency",
        lambda mode: not mode.in_sync,
        ": this mode does not keep the copies of a variable equal",
    ),
    no_effect(
        "bytes_per_pack",
        lambda p: (
            p.place.mode.uses_cross_device_ops and p.params.cross_device_ops not in COLLECTIVE
        ),
        "without --cross_device_ops=ring or auto",
    ),
    unread_flag_rule(
        "local_parameter_device",
        lambda p: _active_all_reduce_names(p) if _uses_all_reduce(p) else None,
    ),
    no_effect("eval_interval_secs", lambda p: not p.params.eval, "without --eval"),
    no_effect(
        "eval_timeout_secs",
        lambda p: not p.params.eval_interval_secs,
        "without --eval_interval_secs",
    ),
    no_effect(
        "freeze_when_forward_only", lambda p: not p.params.forward_only, "without --forward_only"
    ),
    no_effect(
        ("warmup", "max_warmup_batches"),
        lambda p: p.params.eval,
        "with --eval: it has no warm-up",
    ),
    no_effect("max_warmup_batches", lambda p: p.params.warmup != "auto", "without --warmup=auto"),
    no_effect(
        "allow_nonfinite",
        lambda p: p.params.eval,
        "with --eval: an evaluation never ends because of a loss",
    ),
    no_effect(
        "fp16_inc_loss_scale_every_n",
        lambda p: not p.params.fp16_enable_auto_loss_scale,
        "without --fp16_enable_auto_loss_scale",
    ),
    no_effect((*_READING, *_DISTRIBUTING), lambda p: not p.params.data_dir, "without --data_dir"),
    no_effect(
        ("resize_method", "distortions", "distort_color_in_yiq", "ml_perf"),
        lambda p: p.params.input_preprocessor == "official_models_imagenet",
        "with --input_preprocessor=official_models_imagenet",
    ),
    no_effect("distort_color_in_yiq", lambda p: not p.params.distortions, "without --distortions"),
    no_effect("ema_decay", lambda p: p.params.input_only, "with --input_only: no network is built"),
    no_effect(
        ("ps_strategy", "variable_caching"),
        lambda p: not p.params.ps_hosts,
        "without --ps_hosts",
    ),
    no_effect(
        "hierarchical_copy",
        lambda p: p.params.all_reduce_spec is not None,
        "with --all_reduce_spec",
    ),
    no_effect(
        "compact_gradient_transfer",
        lambda p: p.params.precision == "fp32",
        "with --precision=fp32",
    ),
    no_effect(
        "agg_small_grads_max_bytes",
        lambda p: p.params.agg_small_grads_max_group == 1,
        "with --agg_small_grads_max_group=1",
    ),
    no_effect(
        "agg_small_grads_max_group",
        lambda p: not p.params.agg_small_grads_max_bytes,
        "without --agg_small_grads_max_bytes",
    ),
    no_effect(
        "sparse_to_dense_grads",
        lambda p: p.params.variable_consistency == "relaxed",
        "with --variable_consistency=relaxed: all gradients are dense",
    ),
    no_effect(
        "num_packs",
        lambda p: p.params.cross_device_ops not in IN_PACKS,
        f"without --cross_device_ops={' or '.join(IN_PACKS)}",
    ),
    no_effect(
        sorted(_DISTRIBUTING),
        lambda p: p.params.eval,
        "with --eval: a strategy distributes input only for training batches",
    ),
    ON_GPUS,
    no_effect(
        "xla_cache_dir",
        lambda p: not (p.params.xla_compile or p.params.xla),
        "without --xla_compile or --xla",
    ),
    no_effect(
        "peak_flops",
        lambda p: not (p.params.result_json or p.params.result_csv),
        "without --result_json or --result_csv",
    ),
    no_effect("use_chrome_trace_format", lambda p: not p.params.trace_file, "without --trace_file"),
    no_effect("profile_steps", lambda p: not p.params.profile_json, "without --profile_json"),
    no_effect(
        "benchmark_test_id",
        lambda p: not p.params.benchmark_log_dir,
        "without --benchmark_log_dir",
    ),
    *unused_all_reduce_rules(
        _active_all_reduce_names,
        _has_two_levels,
        lambda p: (_count_device_groups(p),),
        lambda p: _count_device_groups(p) == p.place.job.num_towers,
    ),
    no_effect(
        "allreduce_merge_scope",
        lambda p: p.params.allreduce_merge_scope > 1,
        "in profiles; to join gradients, use --gradient_repacking",
        says="changes only the names of operations",
    ),
    no_effect("cross_replica_sync", _runs_only_forward, f"{_FORWARD}: they update nothing"),
    no_effect("iters_per_step", always, "in a run: it is for cnnbench allreduce"),
)
"""Flags without effect, and why. For each flag, the first rule that applies gives the reason."""
