"""Given flags without effect in a run, as a table; each causes only a notice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from cnnbench.flags.declare import named
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import RunPart
from cnnbench.optimizers.registry import OPTIMIZERS, SCHEDULES
from cnnbench.plan.refusals import OF_WARM_UP
from cnnbench.plan.rules import Rule, always, idle, notices, off, on
from cnnbench.plan.setup import Setup
from cnnbench.variable_mgr.all_reduce.context import groups_of
from cnnbench.variable_mgr.modes import BUILT_IN, Copies, Mode, Processes, Reduction
from cnnbench.variable_mgr.strategies.spec import COLLECTIVE, PACKED

INDIFFERENT_TO_MEMORY = frozenset({"copy", "collective", "nccl"})
"""All-reduce algorithms for which shared memory changes nothing."""

_SAVING = named(FLAGS, RunPart.CHECKPOINTS)
_LOSS_SCALE = named(FLAGS, RunPart.LOSS_SCALE)
_AGGREGATING = named(FLAGS, RunPart.AGGREGATION)
_CROSS_DEVICE = named(FLAGS, RunPart.CROSS_DEVICE)
_DISTRIBUTION = ("input_distribution", *named(FLAGS, RunPart.DISTRIBUTION))
_UPDATING = named(FLAGS, RunPart.UPDATE | RunPart.AGGREGATION | RunPart.CROSS_DEVICE)

_FORWARD = "with --eval or --forward_only"
_ALL_REDUCING = [mode.name for mode in BUILT_IN if mode.reduction is Reduction.ALL_REDUCE]


def unused_notices(setup: Setup, explicit_flags: Iterable[str]) -> tuple[str, ...]:
    """A notice per reason why given flags have no effect, except flags at a falsy default."""
    values = ((spec, getattr(setup.params, spec.name)) for spec in FLAGS)
    silent = {spec.name for spec, value in values if not value and value == spec.default}
    return notices(UNUSED, setup, [name for name in explicit_flags if name not in silent])


def _only_forward(p: Setup) -> bool:
    return p.work.only_forward


def _never_evaluates(p: Setup) -> bool:
    return not p.work.evaluates


def _one_tower(p: Setup) -> bool:
    return p.place.job.num_towers == 1


def _follows_model(p: Setup) -> bool:
    """Whether the learning rate follows the schedule of the model."""
    return p.params.init_learning_rate is None and p.params.piecewise_learning_rate_schedule is None


def _by_users() -> dict[str, tuple[str, ...]]:
    """Flags of constants by the optimizers that have them."""
    found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for flag in OPTIMIZERS.constants:
        found[OPTIMIZERS.users(flag)] += (flag,)
    return found


def _ignores(flags: Sequence[str], p: Setup) -> bool:
    """Whether the optimizer of a run has no constants of these flags."""
    return not set(flags) & p.numerics.optimizer.flags.keys()


def _all_reduces(p: Setup) -> bool:
    return p.place.mode.reduction is Reduction.ALL_REDUCE


def _running(p: Setup) -> frozenset[str]:
    spec = p.exchange.running
    return frozenset() if spec is None else spec.names


def _has_two_levels(p: Setup) -> bool:
    spec = p.params.all_reduce_spec
    return spec is not None and spec.has_two_levels


def _groups(p: Setup) -> int:
    return len(groups_of(p.place.job.tower_devices, p.params.all_reduce_group_size))


def _in_mode(flags: str, which: Callable[[Mode], object], why: str) -> Rule[Setup]:
    """Flags without effect in the modes with a property."""
    return idle(
        flags,
        lambda p: which(p.place.mode),
        lambda p: f"with --variable_update={p.place.mode.name}{why}",
    )


# Of the rules for a flag, the first that applies gives the reason.
UNUSED: tuple[Rule[Setup], ...] = (
    idle(
        (
            *("train_dir", "local_parameter_device", "variable_update", "print_training_accuracy"),
            *("allow_nonfinite", "graph_file", "data_format", "xla_compile", "peak_flops"),
            *("xla_cache_dir", "aux_head"),
            *(*_SAVING, *_LOSS_SCALE, *_UPDATING, *OF_WARM_UP),
            *("summary_verbosity", "save_summaries_steps", "freeze_when_forward_only"),
            *("benchmark_log_dir", "ml_perf_compliance_logging"),
        ),
        on("input_only"),
        "with --input_only: no network is built",
    ),
    idle("xla_cache_dir", off("xla_compile,xla"), "without --xla_compile or --xla"),
    idle(_SAVING, off("train_dir"), "without --train_dir"),
    idle("use_chrome_trace_format", off("trace_file"), "without --trace_file"),
    idle("profile_steps", off("profile_json"), "without --profile_json"),
    idle("eval_dir,collect_eval_results_async", _never_evaluates, "without an evaluation"),
    idle(
        "collect_eval_results_async",
        lambda p: p.params.eval and not p.params.eval_interval_secs,
        "with --eval of one checkpoint: there is nothing that goes on meanwhile",
    ),
    idle("eval_dir,save_summaries_steps", off("summary_verbosity"), "without --summary_verbosity"),
    idle("save_summaries_steps", off("train_dir"), "without --train_dir"),
    idle("save_summaries_steps", _only_forward, f"{_FORWARD}: it is for summaries of a training"),
    idle(
        "summary_verbosity",
        lambda p: not p.work.evaluates and (p.work.only_forward or not p.params.train_dir),
        "without a training that has a --train_dir",
    ),
    idle(
        "summary_verbosity",
        lambda p: not p.work.evaluates and not p.params.save_summaries_steps,
        "without --save_summaries_steps",
    ),
    idle(
        "train_dir",
        on("forward_only"),
        "with --forward_only: it saves no checkpoints",
        says="is only read from",
    ),
    idle("aux_head", _only_forward, f"{_FORWARD}: it is for the training loss"),
    idle("warmup,max_warmup_batches", on("eval"), "with --eval: it has no warm-up"),
    idle("max_warmup_batches", off("warmup=auto"), "without --warmup=auto"),
    idle("eval_interval_secs", off("eval"), "without --eval"),
    idle(
        "num_eval_batches,num_eval_epochs,eval_batch_size",
        _never_evaluates,
        "without an evaluation: add --eval or one of the eval_during_training flags",
    ),
    idle(_LOSS_SCALE, off("precision=fp16"), "without --precision=fp16"),
    idle((*_SAVING, *_LOSS_SCALE, *_UPDATING), _only_forward, f"{_FORWARD}: they do not train"),
    idle(
        "fp16_inc_loss_scale_every_n",
        off("fp16_enable_auto_loss_scale"),
        "without --fp16_enable_auto_loss_scale",
    ),
    idle(
        "local_parameter_device",
        lambda p: p.work.only_forward and _all_reduces(p),
        f"{_FORWARD}: every device has its own variables, and nothing is reduced",
    ),
    idle("print_training_accuracy", _only_forward, f"{_FORWARD}: they always print it"),
    idle("benchmark_test_id", off("benchmark_log_dir"), "without --benchmark_log_dir"),
    idle("freeze_when_forward_only", off("forward_only"), "without --forward_only"),
    idle("ml_perf_compliance_logging", _only_forward, _FORWARD),
    idle("allow_nonfinite", on("eval"), "with --eval: it ends for no loss"),
    idle(
        ("graph_file", *OF_WARM_UP),
        on("eval"),
        "with --eval: they show the step of a training or --forward_only",
    ),
    idle((*named(FLAGS, RunPart.READING), *_DISTRIBUTION), off("data_dir"), "without --data_dir"),
    idle(_DISTRIBUTION, on("eval"), "with --eval: they are for training batches"),
    idle(
        "resize_method,distortions,distort_color_in_yiq,ml_perf",
        on("input_preprocessor=official_models_imagenet"),
        "with --input_preprocessor=official_models_imagenet",
    ),
    idle("distort_color_in_yiq", off("distortions"), "without --distortions"),
    *(
        idle(flags, partial(_ignores, flags), f"without --optimizer={names}")
        for names, flags in _by_users().items()
    ),
    idle(
        "learning_rate_schedule",
        lambda p: SCHEDULES.find(p.params.learning_rate_schedule).missing(p.params),
        lambda p: (
            "without --" + SCHEDULES.find(p.params.learning_rate_schedule).missing(p.params)[0]
        ),
    ),
    idle(
        "num_learning_rate_warmup_epochs",
        _follows_model,
        "on a model's own schedule; add --init_learning_rate or --piecewise_learning_rate_schedule",
    ),
    idle(
        "resnet_base_lr",
        lambda p: not _follows_model(p),
        "with --init_learning_rate or --piecewise_learning_rate_schedule",
    ),
    _in_mode(
        "gradient_reduction,local_parameter_device,sparse_to_dense_grads",
        lambda mode: mode.reduction is Reduction.NONE,
        "",
    ),
    idle(
        [name for name in _AGGREGATING if name != "sparse_to_dense_grads"],
        lambda p: not _all_reduces(p),
        f"without --variable_update={', '.join(_ALL_REDUCING[:-1])} or {_ALL_REDUCING[-1]}",
    ),
    _in_mode(
        "local_parameter_device",
        lambda mode: mode.strategy and mode.processes is not Processes.COORDINATOR,
        ": TensorFlow decides",
    ),
    idle(
        (
            *(name for name in _AGGREGATING if name != "variable_consistency"),
            *("gradient_reduction", "bn_stats", *_CROSS_DEVICE),
        ),
        _one_tower,
        "with --num_gpus=1: there is nothing to reduce",
    ),
    _in_mode(
        "cross_replica_sync,ps_strategy,variable_caching,local_parameter_device",
        lambda mode: mode.processes is Processes.COORDINATOR,
        ": no worker waits for another, and variables go to the ps tasks in turn",
    ),
    idle(
        "check_replica_consistency",
        _one_tower,
        "with --num_gpus=1: there is one copy of every variable",
    ),
    _in_mode(
        "check_replica_consistency",
        lambda mode: mode.copies is Copies.ONE,
        ": it keeps one copy of every variable",
    ),
    _in_mode(
        "check_replica_consistency",
        lambda mode: not mode.in_sync,
        ": its copies are meant to differ",
    ),
    idle(
        "bytes_per_pack",
        lambda p: p.place.mode.mirrors and p.params.cross_device_ops not in COLLECTIVE,
        "without --cross_device_ops=ring or auto",
    ),
    idle(
        "num_packs",
        lambda p: p.params.cross_device_ops not in PACKED,
        "without --cross_device_ops=hierarchical_copy or nccl",
    ),
    idle(
        "local_parameter_device",
        lambda p: _all_reduces(p) and "copy" not in _running(p),
        "with this all-reduce: of all algorithms, only copy uses it",
    ),
    idle(
        "all_reduce_spec",
        lambda p: _has_two_levels(p) and _groups(p) == 1,
        "where all devices are one group: a group size of less than --num_gpus makes several",
        says="has no second level",
    ),
    idle(
        "all_reduce_spec",
        lambda p: _has_two_levels(p) and _groups(p) == p.place.job.num_towers,
        "where every device is a group of its own",
        says="has no first level",
    ),
    idle("all_reduce_share_memory", on("device=gpu"), "with --device=gpu: GPUs never share memory"),
    idle(
        "all_reduce_share_memory",
        lambda p: _running(p) <= INDIFFERENT_TO_MEMORY,
        "with copy, collective or nccl: they do the same in either case",
    ),
    idle(
        "communication_hint",
        lambda p: "collective" not in _running(p),
        "without collective in --all_reduce_spec",
    ),
    idle(
        "allreduce_merge_scope",
        lambda p: p.params.allreduce_merge_scope > 1,
        "as profiles show them: --gradient_repacking joins gradients",
        says="changes only the names of operations",
    ),
    idle(
        "sparse_to_dense_grads",
        on("variable_consistency=relaxed"),
        "with --variable_consistency=relaxed: all gradients are dense",
    ),
    idle(
        "agg_small_grads_max_bytes",
        on("agg_small_grads_max_group=1"),
        "with --agg_small_grads_max_group=1",
    ),
    idle("hierarchical_copy", on("all_reduce_spec"), "with --all_reduce_spec"),
    idle(
        "network_topology",
        lambda p: "hierarchical_copy" not in _running(p),
        "without a hierarchical copy",
    ),
    idle(
        "all_reduce_group_size",
        lambda p: not _has_two_levels(p),
        "without a two-level algorithm in --all_reduce_spec",
    ),
    idle("ps_strategy,variable_caching", off("ps_hosts"), "without --ps_hosts"),
    idle(
        "cross_replica_sync",
        off("job_name"),
        "without --job_name: there are no other workers to wait for",
    ),
    idle("cross_replica_sync", _only_forward, f"{_FORWARD}: they update nothing"),
    idle(
        "all_reduce_group_size",
        lambda p: _groups(p) == 1,
        "with so few devices: they are one group",
    ),
    idle("compact_gradient_transfer", on("precision=fp32"), "with --precision=fp32"),
    idle(
        "agg_small_grads_max_group",
        off("agg_small_grads_max_bytes"),
        "without --agg_small_grads_max_bytes",
    ),
    idle("iters_per_step", always, "in a run: it is for cnnbench allreduce"),
    idle(named(FLAGS, RunPart.GPU), on("device=cpu"), "with --device=cpu"),
    idle("peak_flops", off("result_json,result_csv"), "without --result_json or --result_csv"),
)
"""Flags without effect, and why."""
