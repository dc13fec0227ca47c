"""Flags that were given but have no effect in a run, as a table; each causes only a notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cnnbench.flags.declare import named
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import RunPart
from cnnbench.optimizers.declared import OPTIMIZERS
from cnnbench.plan.checks import LOOKING, holds
from cnnbench.plan.rules import Unused, notices
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


def _follows_model(setup: Setup) -> bool:
    """Whether the learning rate follows the schedule of the model."""
    params = setup.params
    return params.init_learning_rate is None and params.piecewise_learning_rate_schedule is None


def _all_reduces(setup: Setup) -> bool:
    return setup.place.mode.reduction is Reduction.ALL_REDUCE


def _running(setup: Setup) -> frozenset[str]:
    spec = setup.exchange.running
    return frozenset() if spec is None else spec.names


def _has_two_levels(setup: Setup) -> bool:
    spec = setup.params.all_reduce_spec
    return spec is not None and spec.has_two_levels


def _groups(setup: Setup) -> int:
    return len(groups_of(setup.place.job.tower_devices, setup.params.all_reduce_group_size))


_ALL_REDUCING = [mode.name for mode in BUILT_IN if mode.reduction is Reduction.ALL_REDUCE]
_A_MODE_THAT_DOES = f"--variable_update={', '.join(_ALL_REDUCING[:-1])} or {_ALL_REDUCING[-1]}"
_SITUATIONS: dict[str, Callable[[Setup], bool]] = {
    "an evaluation": lambda p: p.work.evaluates,
    "--eval or --forward_only": lambda p: p.work.only_forward,
    "--init_learning_rate or --piecewise_learning_rate_schedule": lambda p: not _follows_model(p),
    _A_MODE_THAT_DOES: _all_reduces,
    "a hierarchical copy": lambda p: "hierarchical_copy" in _running(p),
    "a two-level algorithm in --all_reduce_spec": _has_two_levels,
    "--result_json or --result_csv": lambda p: bool(p.params.result_json or p.params.result_csv),
    "--xla_compile or --xla": lambda p: bool(p.params.xla_compile or p.params.xla),
}
"""Conditions on several flags, by their words in the notice."""


def _has(setup: Setup, setting: str) -> bool:
    """Whether "--flag" is on, "--flag=value" holds, or one of `_SITUATIONS` does."""
    if setting in _SITUATIONS:
        return _SITUATIONS[setting](setup)
    return holds(setup.params, setting.removeprefix("--"))


def _without(setting: str, *flags: str, why: str = "") -> Unused[Setup]:
    """Flags without effect unless a setting is given (see `_has`)."""
    setting = setting if setting in _SITUATIONS else f"--{setting}"
    reason = f"without {setting}{why and ': '}{why}"
    return Unused(flags, lambda setup: not _has(setup, setting), reason)


def _with(setting: str, *flags: str, why: str = "", says: str = "") -> Unused[Setup]:
    setting = setting if setting in _SITUATIONS else f"--{setting}"
    reason = f"with {setting}{why and ': '}{why}"
    return Unused(flags, lambda setup: _has(setup, setting), reason, says)


def _in_mode(which: Callable[[Mode], bool], *flags: str, why: str = "") -> Unused[Setup]:
    return Unused(
        flags,
        lambda setup: which(setup.place.mode),
        lambda setup: f"with --variable_update={setup.place.mode.name}{why and ': '}{why}",
    )


# Of the entries for a flag, the first that applies gives the reason.
UNUSED: tuple[Unused[Setup], ...] = (
    Unused(
        (
            *("train_dir", "local_parameter_device", "variable_update", "print_training_accuracy"),
            *("allow_nonfinite", "graph_file", "data_format", "xla_compile", "peak_flops"),
            *("xla_cache_dir", "aux_head"),
            *(*_SAVING, *_LOSS_SCALE, *_UPDATING, *LOOKING),
            *("summary_verbosity", "save_summaries_steps", "freeze_when_forward_only"),
            *("benchmark_log_dir", "ml_perf_compliance_logging"),
        ),
        lambda p: p.params.input_only,
        "with --input_only: no network is built",
    ),
    _without("--xla_compile or --xla", "xla_cache_dir"),
    _without("train_dir", *_SAVING),
    _without("trace_file", "use_chrome_trace_format"),
    _without("profile_json", "profile_steps"),
    _without("an evaluation", "eval_dir", "collect_eval_results_async"),
    Unused(
        ("collect_eval_results_async",),
        lambda p: p.params.eval and not p.params.eval_interval_secs,
        "with --eval of one checkpoint: there is nothing that goes on meanwhile",
    ),
    _without("summary_verbosity", "eval_dir", "save_summaries_steps"),
    _without("train_dir", "save_summaries_steps"),
    _with(
        "--eval or --forward_only",
        "save_summaries_steps",
        why="it is for summaries of a training",
    ),
    Unused(
        ("summary_verbosity",),
        lambda p: not p.work.evaluates and (p.work.only_forward or not p.params.train_dir),
        "without a training that has a --train_dir",
    ),
    Unused(
        ("summary_verbosity",),
        lambda p: not p.work.evaluates and not p.params.save_summaries_steps,
        "without --save_summaries_steps",
    ),
    _with("forward_only", "train_dir", why="it saves no checkpoints", says="is only read from"),
    _with("--eval or --forward_only", "aux_head", why="it is for the training loss"),
    _with("eval", "warmup", "max_warmup_batches", why="it has no warm-up"),
    _without("warmup=auto", "max_warmup_batches"),
    _without("eval", "eval_interval_secs"),
    _without(
        "an evaluation",
        *("num_eval_batches", "num_eval_epochs", "eval_batch_size"),
        why="add --eval or one of the eval_during_training flags",
    ),
    _without("precision=fp16", *_LOSS_SCALE),
    _with("--eval or --forward_only", *_SAVING, *_LOSS_SCALE, *_UPDATING, why="they do not train"),
    _without("fp16_enable_auto_loss_scale", "fp16_inc_loss_scale_every_n"),
    Unused(
        ("local_parameter_device",),
        lambda p: p.work.only_forward and _all_reduces(p),
        "with --eval or --forward_only: every device has its own variables, and nothing is reduced",
    ),
    _with("--eval or --forward_only", "print_training_accuracy", why="they always print it"),
    _without("benchmark_log_dir", "benchmark_test_id"),
    _without("forward_only", "freeze_when_forward_only"),
    _with("--eval or --forward_only", "ml_perf_compliance_logging"),
    _with("eval", "allow_nonfinite", why="it ends for no loss"),
    _with("eval", "graph_file", *LOOKING, why="they show the step of a training or --forward_only"),
    _without("data_dir", *named(FLAGS, RunPart.READING), *_DISTRIBUTION),
    _with("eval", *_DISTRIBUTION, why="they are for training batches"),
    _with(
        "input_preprocessor=official_models_imagenet",
        *("resize_method", "distortions", "distort_color_in_yiq", "ml_perf"),
    ),
    _without("distortions", "distort_color_in_yiq"),
    *(
        _without(f"optimizer={optimizer.name}", *optimizer.flags)
        for optimizer in OPTIMIZERS.values()
        if optimizer.flags
    ),
    Unused(
        ("learning_rate_schedule",),
        lambda p: (
            p.params.learning_rate_schedule == "staircase" and not p.params.num_epochs_per_decay
        ),
        "without --num_epochs_per_decay",
    ),
    Unused(
        ("num_learning_rate_warmup_epochs",),
        _follows_model,
        "on a model's own schedule; add --init_learning_rate or --piecewise_learning_rate_schedule",
    ),
    _with("--init_learning_rate or --piecewise_learning_rate_schedule", "resnet_base_lr"),
    _in_mode(
        lambda mode: mode.reduction is Reduction.NONE,
        *("gradient_reduction", "local_parameter_device", "sparse_to_dense_grads"),
    ),
    _without(
        _A_MODE_THAT_DOES,
        *(name for name in _AGGREGATING if name != "sparse_to_dense_grads"),
    ),
    _in_mode(
        lambda mode: bool(mode.strategy) and mode.processes is not Processes.COORDINATOR,
        "local_parameter_device",
        why="TensorFlow decides",
    ),
    Unused(
        (
            *(name for name in _AGGREGATING if name != "variable_consistency"),
            *("gradient_reduction", "bn_stats", *_CROSS_DEVICE),
        ),
        lambda p: p.place.job.num_towers == 1,
        "with --num_gpus=1: there is nothing to reduce",
    ),
    _in_mode(
        lambda mode: mode.processes is Processes.COORDINATOR,
        *("cross_replica_sync", "ps_strategy", "variable_caching", "local_parameter_device"),
        why="no worker waits for another, and variables go to the ps tasks in turn",
    ),
    Unused(
        ("check_replica_consistency",),
        lambda p: p.place.job.num_towers == 1,
        "with --num_gpus=1: there is one copy of every variable",
    ),
    _in_mode(
        lambda mode: mode.copies is Copies.ONE,
        "check_replica_consistency",
        why="it keeps one copy of every variable",
    ),
    _in_mode(
        lambda mode: not mode.in_sync,
        "check_replica_consistency",
        why="its copies are meant to differ",
    ),
    Unused(
        ("bytes_per_pack",),
        lambda p: p.place.mode.mirrors and p.params.cross_device_ops not in COLLECTIVE,
        "without --cross_device_ops=ring or auto",
    ),
    Unused(
        ("num_packs",),
        lambda p: p.params.cross_device_ops not in PACKED,
        "without --cross_device_ops=hierarchical_copy or nccl",
    ),
    Unused(
        ("local_parameter_device",),
        lambda p: _all_reduces(p) and "copy" not in _running(p),
        "with this all-reduce: of all algorithms, only copy uses it",
    ),
    Unused(
        ("all_reduce_spec",),
        lambda p: _has_two_levels(p) and _groups(p) == 1,
        "where all devices are one group: a group size of less than --num_gpus makes several",
        says="has no second level",
    ),
    Unused(
        ("all_reduce_spec",),
        lambda p: _has_two_levels(p) and _groups(p) == p.place.job.num_towers,
        "where every device is a group of its own",
        says="has no first level",
    ),
    _with("device=gpu", "all_reduce_share_memory", why="GPUs never share memory"),
    Unused(
        ("all_reduce_share_memory",),
        lambda p: _running(p) <= INDIFFERENT_TO_MEMORY,
        "with copy, collective or nccl: they do the same in either case",
    ),
    Unused(
        ("communication_hint",),
        lambda p: "collective" not in _running(p),
        "without collective in --all_reduce_spec",
    ),
    Unused(
        ("allreduce_merge_scope",),
        lambda p: p.params.allreduce_merge_scope > 1,
        "as profiles show them: --gradient_repacking joins gradients",
        says="changes only the names of operations",
    ),
    _with("variable_consistency=relaxed", "sparse_to_dense_grads", why="all gradients are dense"),
    _with("agg_small_grads_max_group=1", "agg_small_grads_max_bytes"),
    _with("all_reduce_spec", "hierarchical_copy"),
    _without("a hierarchical copy", "network_topology"),
    _without("a two-level algorithm in --all_reduce_spec", "all_reduce_group_size"),
    _without("ps_hosts", "ps_strategy", "variable_caching"),
    _without("job_name", "cross_replica_sync", why="there are no other workers to wait for"),
    _with("--eval or --forward_only", "cross_replica_sync", why="they update nothing"),
    Unused(
        ("all_reduce_group_size",),
        lambda p: _groups(p) == 1,
        "with so few devices: they are one group",
    ),
    _with("precision=fp32", "compact_gradient_transfer"),
    _without("agg_small_grads_max_bytes", "agg_small_grads_max_group"),
    Unused(("iters_per_step",), lambda p: True, "in a run: it is for cnnbench allreduce"),
    _with("device=cpu", *named(FLAGS, RunPart.GPU)),
    _without("--result_json or --result_csv", "peak_flops"),
)


def unused_notices(setup: Setup, explicit_flags: Iterable[str]) -> tuple[str, ...]:
    """A notice per reason why given flags have no effect, except flags at a falsy default."""
    values = ((spec, getattr(setup.params, spec.name)) for spec in FLAGS)
    silent = {spec.name for spec, value in values if not value and value == spec.default}
    return notices(UNUSED, setup, [name for name in explicit_flags if name not in silent])
