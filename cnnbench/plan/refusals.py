"""Rules that refuse flags that contradict each other, the mode or the network.

`cnnbench.plan.place` contains the rules about addresses, `cnnbench.plan.notices` the rules about
flags without effect.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable
from functools import partial

from cnnbench.base import plugins
from cnnbench.base.rules import (
    FlagRule,
    always,
    raise_first_refusal,
    refuse,
    refuse_any_value,
)
from cnnbench.base.text import count_text, format_bytes
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.declare import RunPart, names_of_flags
from cnnbench.flags.groups.run import EVAL_DURING_TRAINING
from cnnbench.flags.params import FLAGS, SPECS, refuse_fp16_contradiction
from cnnbench.machine.cpu import ONEDNN, Host, processor_facts
from cnnbench.models.model import Model
from cnnbench.models.spec import elements_of_role
from cnnbench.optimizers.registry import OPTIMIZERS, SCHEDULES
from cnnbench.plan.place import WorkKind, built_in_mode_names
from cnnbench.plan.run_plan import RunPlan
from cnnbench.plan.setup import FEWEST_COORDINATED_THREADS, check_all_reduce
from cnnbench.records import files as checkpoint_folder
from cnnbench.records.files import refuse_shared_outputs
from cnnbench.variable_mgr.modes import (
    BETWEEN_WORKERS,
    MOST_PACKS,
    Mode,
    Processes,
    Reduction,
    refuse_several_cpu_towers,
    refuse_unsupported_devices,
)

# Refuses flags that contradict each other or the mode, before TensorFlow is loaded.

_SMALLEST_FP16 = 2.0**-14
"""The smallest normal number of fp16."""

# Input paths and folders come first: if two flags name the same path, the later flag is refused.
# Several flags may name the same folder of logs or caches.
_PATHS = (
    plugins.FLAG,
    *(spec.name for spec in FLAGS if spec.takes_urls and spec.name != "eval_dir"),
    *(spec.name for spec in FLAGS if spec.path == "file" and spec.name != plugins.FLAG),
)
OF_WARM_UP = tuple(name for name in names_of_flags(FLAGS, RunPart.PROFILE) if name != "graph_file")
"""Flags that profile or save a step of the warm-up."""

CROSS_DEVICE = ("cross_device_ops", "bytes_per_pack", "num_packs")
"""Flags of reductions by strategies of tf.distribute."""

_XLA = ("xla", "xla_compile")
_ONE_STEP = "a single step; leave out one of the two flags"


def refuse_contradictions(plan: RunPlan) -> None:
    """Raises FlagError for the first contradiction between flags."""
    added = _optimizer_constant_rules(OPTIMIZERS.plugin_constants, SCHEDULES.plugin_constants)
    raise_first_refusal((*CONTRADICTIONS, *added), plan)


# Functions that rules use: conditions, and reasons why flags are refused.


def _one_of_two(other: str) -> str:
    return f"cannot be used with --{other}; give one of the two"


def _is_given(flag: str, p: RunPlan) -> bool:
    return bool(getattr(p.params, flag))


def _computes_in_8_bits(p: RunPlan) -> bool:
    return p.numerics.in_8_bits


def _uses_fastest_gradients(p: RunPlan) -> bool:
    return p.params.conv_gradients == "fastest"


def _apply_rules_of_mode(p: RunPlan) -> None:
    """Applies the rules that the mode of --variable_update contributes."""
    mode = p.place.mode
    for name in (*(name for rule in mode.rules for name in rule.flags), *mode.needs):
        if name not in SPECS:
            declared = f"the declaration of mode {mode.name} names --{name}"
            raise UsageError(f"{declared}, which is not a flag")
    raise_first_refusal(mode.rules, p)
    for name, value in mode.needs.items():
        if getattr(p.params, name) is None:
            reason = f"needs --{name}, such as --{name}={value}"
            raise FlagError("variable_update", p.params.variable_update, reason)


def _needs_mode_reason(which: Callable[[Mode], bool]) -> Callable[[RunPlan], str]:
    return lambda p: (
        f"needs --variable_update={built_in_mode_names(which)}, not {p.place.mode.name}"
    )


def _workers_are_independent(p: RunPlan) -> bool:
    """Whether each worker runs its updates without waiting for the other workers."""
    return p.place.job.in_cluster and not (p.params.cross_replica_sync or p.place.coordinated)


def _check_plan_all_reduce(p: RunPlan) -> None:
    """Raises FlagError if the all-reduce of a run cannot work on its devices."""
    check_all_reduce(
        p.exchange.all_reduce,
        p.place.job,
        p.params.device,
        network_topology=p.params.network_topology,
        group_size=p.params.all_reduce_group_size,
        communication_hint=p.params.communication_hint,
        shared_cards=p.exchange.cross_device.shared_cards,
    )


def _default_all_reduce_obstacle(p: RunPlan) -> str:
    """Returns why the mode's default all-reduce cannot work, or "" if it can."""
    try:
        if p.exchange.reduces:
            _check_plan_all_reduce(p)
    except FlagError as error:
        return error.reason.partition(": ")[2]
    return ""


def _gpu_indices_descend(p: RunPlan) -> bool:
    numbers = [int(index) for index in re.findall("[0-9]+", p.params.gpu_indices)]
    return numbers != sorted(numbers)


def _constant_vanishes_in_fp16(flag: str, p: RunPlan) -> bool:
    used = flag in p.numerics.optimizer_spec.normal_in_fp16 and not p.work.only_forward
    return p.params.fp16_vars and used and p.numerics.constants[flag] < _SMALLEST_FP16


def _schedule_lacks_flag(flag: str, p: RunPlan) -> bool:
    return flag not in SCHEDULES.find(p.params.learning_rate_schedule).flags


def _explain_missing_schedule_flags(p: RunPlan) -> str:
    missing = [] if p.params.init_learning_rate is not None else ["init_learning_rate"]
    missing += SCHEDULES.find(p.params.learning_rate_schedule).missing_flags(p.params)
    return f"needs {' and '.join(f'--{name}' for name in missing)}" if missing else ""


def _explain_gpu_indices_mismatch(p: RunPlan) -> str:
    """Returns a reason if --gpu_indices does not name as many GPUs as --num_gpus; else ""."""
    count, towers = len(p.params.gpu_indices.split(",")), p.params.num_gpus
    gpus = count_text(count, "GPU", "GPUs")
    return "" if count == towers else f"names {gpus}, but {p.place.names.towers}={towers}"


def _refuse_shared_files(p: RunPlan) -> None:
    """Raises FlagError if two flags name the same file."""
    refuse_shared_outputs(
        (flag, path)
        for flag in _PATHS
        # Without --use_chrome_trace_format, --trace_file is a folder, which checkpoints may share.
        if flag != "trace_file" or p.params.use_chrome_trace_format
        for value in [SPECS[flag].text(getattr(p.params, flag) or "")]
        for path in (value.split(",") if flag in ("profile_layers", plugins.FLAG) else [value])
        if path
    )


def _optimizer_constant_rules(
    optimizers: Iterable[str],
    schedules: Iterable[str],
    schedule: tuple[str, ...] = (),
    rate: tuple[str, ...] = (),
) -> tuple[FlagRule[RunPlan], ...]:
    """Rules that refuse wrong values of optimizer constants, learning rates and their schedules.

    Args:
      optimizers: flags of optimizer constants, such as --momentum.
      schedules: flags of schedule constants.
      schedule: further flags that a --piecewise_learning_rate_schedule excludes, and that need
        the constants of the schedule.
      rate: further flags that only a --piecewise_learning_rate_schedule excludes.
    """
    schedule = (*schedule, *schedules)
    return (
        *(
            refuse_any_value(
                flag,
                partial(_constant_vanishes_in_fp16, flag),
                "is too small for fp16; with --fp16_vars it must be at least 2^-14",
            )
            for flag in optimizers
        ),
        refuse(
            (*schedule, *rate),
            lambda p: p.params.piecewise_learning_rate_schedule,
            "cannot be used with --piecewise_learning_rate_schedule",
        ),
        *(
            refuse(
                flag,
                partial(_schedule_lacks_flag, flag),
                lambda p: (
                    "cannot be used with "
                    f"--learning_rate_schedule={p.params.learning_rate_schedule}, which does not "
                    "depend on it"
                ),
            )
            for flag in schedules
        ),
        refuse(schedule, always, _explain_missing_schedule_flags),
    )


CONTRADICTIONS: tuple[FlagRule[RunPlan], ...] = (
    # Rules about the processes of a job.
    refuse(
        "summary_verbosity",
        # Only worker 0 computes gradients for summaries, so its sync batch norm would wait forever.
        lambda p: (
            p.place.job.client_per_worker
            and p.place.job.num_workers > 1
            and p.params.bn_stats == "sync"
            and p.params.summary_verbosity > 1
        ),
        lambda p: f"must be at most 1 with --bn_stats=sync in {p.place.mode.name}",
    ),
    refuse(
        "all_reduce_spec",
        lambda p: (
            p.place.job.in_cluster
            and not p.place.job.client_per_worker
            and p.exchange.all_reduce.names_across_steps
        ),
        lambda p: (
            f"{p.exchange.all_reduce.names_across_steps[0]} does not work if one process controls "
            "the others; use it with --variable_update="
            + built_in_mode_names(
                lambda mode: (
                    mode.reduction is Reduction.ALL_REDUCE
                    and mode.processes is Processes.CLIENT_PER_WORKER
                )
            )
        ),
    ),
    refuse(
        "variable_update",
        lambda p: p.place.coordinated and not p.place.job.in_cluster,
        "needs processes: cnnbench launch --ps=1 starts them, or give --job_name, --worker_hosts, "
        "--ps_hosts and --controller_host",
    ),
    refuse_any_value(
        "controller_host",
        lambda p: p.place.coordinated and not p.params.controller_host,
        lambda p: f"--variable_update={p.place.mode.name} needs a process that coordinates workers",
    ),
    refuse(
        "num_inter_threads",
        lambda p: (
            p.feeds_coordinated_workers and p.params.num_inter_threads < FEWEST_COORDINATED_THREADS
        ),
        lambda p: (
            f"must be at least {FEWEST_COORDINATED_THREADS} (or 0) with "
            f"--variable_update={p.place.mode.name} and --data_dir, because steps that wait for "
            "their input block threads"
        ),
    ),
    refuse(
        "num_gpus",
        lambda p: p.place.mode.one_tower,
        lambda p: f"--variable_update={p.place.mode.name} {p.place.mode.one_tower}",
    ),
    refuse_any_value("variable_update", always, _apply_rules_of_mode),
    # Rules about workers that do not wait for each other.
    refuse(
        "cross_replica_sync",
        lambda p: _workers_are_independent(p) and not p.place.mode.asynchronous,
        lambda p: (
            f"--variable_update={p.place.mode.name} waits for all workers; only "
            f"{built_in_mode_names(lambda mode: mode.asynchronous)} does not wait, so leave the "
            "flag true"
        ),
    ),
    refuse(
        "fp16_enable_auto_loss_scale",
        lambda p: _workers_are_independent(p) and p.params.precision == "fp16",
        "needs the gradients of all workers, so leave out --nocross_replica_sync",
    ),
    # Rules about training, evaluation, forward passes, and numbers of steps.
    refuse(
        "forward_only",
        lambda p: p.params.eval,
        "cannot be used with --eval, which already runs the forward pass only",
    ),
    refuse(
        "freeze_when_forward_only",
        lambda p: p.params.forward_only and p.params.train_dir,
        "cannot be used with --train_dir: the graph is frozen before a checkpoint is restored",
    ),
    refuse("input_only", lambda p: p.params.eval, "builds no network, so leave out --eval"),
    refuse(
        "input_only",
        lambda p: p.params.forward_only,
        "builds no network, so leave out --forward_only",
    ),
    refuse("global_batch_size", lambda p: p.params.batch_size, _one_of_two("batch_size")),
    refuse(
        "find_batch_size",
        lambda p: p.params.find_batch_size,
        "works only in cnnbench run without --repeats, as a command on Linux; otherwise, find the "
        "batch size with cnnbench run --find_batch_size, and give it as --batch_size",
    ),
    refuse("num_batches", lambda p: p.params.num_epochs, _one_of_two("num_epochs")),
    refuse(
        "max_seconds",
        lambda p: p.params.num_epochs,
        "cannot be used with --num_epochs, which needs all steps of its epochs",
    ),
    refuse(
        "max_seconds",
        lambda p: p.params.eval,
        "cannot be used with --eval, which has no timed loop of training steps",
    ),
    refuse("num_eval_batches", lambda p: p.params.num_eval_epochs, _one_of_two("num_eval_epochs")),
    refuse("save_model_steps", lambda p: p.params.save_model_secs, _one_of_two("save_model_secs")),
    refuse(
        "device",
        lambda p: _computes_in_8_bits(p) and p.params.device == "gpu",
        "cannot be used with --precision=int8, which supports only NHWC on CPUs",
    ),
    refuse(
        "data_format",
        lambda p: _computes_in_8_bits(p) and p.params.data_format == "NCHW",
        "cannot be used with --precision=int8, which supports only NHWC on CPUs",
    ),
    refuse(
        _XLA, _computes_in_8_bits, "cannot be used with --precision=int8: XLA has no 8-bit kernels"
    ),
    refuse(
        "device",
        lambda p: _uses_fastest_gradients(p) and p.params.device == "gpu",
        "cannot be used with --conv_gradients=fastest, which supports only the gradient kernels of "
        "the libraries",
    ),
    refuse(
        "data_format",
        lambda p: _uses_fastest_gradients(p) and p.params.data_format == "NCHW",
        "cannot be used with --conv_gradients=fastest: it supports only NHWC without XLA",
    ),
    refuse(
        _XLA,
        _uses_fastest_gradients,
        "cannot be used with --conv_gradients=fastest: it supports only NHWC without XLA",
    ),
    refuse(
        _XLA,
        lambda p: p.params.recompute == "blocks",
        "cannot be used with --recompute=blocks: XLA would merge both computations of a value",
    ),
    refuse_any_value(
        "gradient_bucket_bytes",
        lambda p: p.params.gradient_repacking and p.params.gradient_bucket_bytes,
        _one_of_two("gradient_repacking"),
    ),
    refuse(
        "bn_stats",
        lambda p: p.params.xla_compile and p.params.bn_stats == "sync",
        "cannot be used with --xla_compile: a tower that is compiled separately cannot wait for "
        "the other towers",
    ),
    refuse(
        "input_distribution",
        lambda p: p.params.input_only and p.params.input_distribution == "strategy",
        "cannot be used with --input_only, which creates no strategy",
    ),
    refuse(
        "auto_shard_policy",
        lambda p: p.params.auto_shard_policy == "hint",
        "needs a SHARD_HINT in the input pipeline, and cnnbench's pipeline has none; use "
        "--auto_shard_policy=data",
    ),
    refuse(
        "input_replication",
        lambda p: p.params.input_sharding == "auto",
        "needs --input_sharding=manual",
    ),
    refuse_any_value(
        "prefetch_on_device",
        lambda p: p.params.input_replication == "per_replica" and p.params.prefetch_on_device,
        "cannot be used with --input_replication=per_replica",
    ),
    refuse(
        "per_gpu_thread_count",
        lambda p: p.params.gpu_thread_mode == "global",
        "needs --gpu_thread_mode=gpu_private or gpu_shared",
    ),
    refuse(
        "eval", lambda p: not p.params.train_dir, "needs --train_dir, the folder of the checkpoints"
    ),
    *(
        refuse(second, partial(_is_given, first), _one_of_two(first))
        for first, second in itertools.combinations(EVAL_DURING_TRAINING, 2)
    ),
    refuse(
        "input_only",
        lambda p: not p.params.data_dir,
        "needs --data_dir: synthetic data takes no time to read",
    ),
    *(
        refuse(
            EVAL_DURING_TRAINING,
            partial(_is_given, other),
            f"needs training, so leave out --{other}",
        )
        for other in names_of_flags(FLAGS, RunPart.WORK)
    ),
    refuse(
        ("stop_at", "stop_at_top_1_accuracy"),
        lambda p: p.work is not WorkKind.TRAINING_AND_EVALUATION,
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
        "needs workers that update the variables together; with asynchronous updates, each "
        "update has its own batch",
    ),
    refuse(
        "gradient_accumulation_steps",
        lambda p: p.params.staged_vars,
        "cannot be used with --staged_vars: all passes of an update use the same weights",
    ),
    refuse(
        "steps_per_execution",
        lambda p: p.work in (WorkKind.EVALUATION, WorkKind.INPUT),
        "needs steps of a training or of a forward pass, so leave out --eval or --input_only",
    ),
    refuse(
        "steps_per_execution",
        lambda p: p.place.asynchronous or p.place.coordinated,
        "needs workers that update the variables together; with asynchronous updates, each "
        "update is a separate call of a worker",
    ),
    refuse(
        "steps_per_execution",
        lambda p: p.params.profile_json,
        f"explain, roofline and --profile_json divide {_ONE_STEP}",
    ),
    refuse(
        "steps_per_execution",
        lambda p: p.params.profile_layers,
        f"--profile_layers divides {_ONE_STEP}",
    ),
    refuse(
        "steps_per_execution", lambda p: p.params.tfprof_file, f"--tfprof_file divides {_ONE_STEP}"
    ),
    refuse(
        "steps_per_execution",
        lambda p: p.params.partitioned_graph_file_prefix,
        f"--partitioned_graph_file_prefix writes {_ONE_STEP}",
    ),
    refuse(
        "ema_decay",
        lambda p: p.place.asynchronous and p.work.trains,
        "needs workers that update the variables together; with asynchronous updates, there is "
        "no step that ends for all workers",
    ),
    refuse(
        "ema_decay",
        lambda p: p.params.fp16_vars,
        "cannot be used with --fp16_vars, which rounds averages",
    ),
    refuse(
        "stop_at_top_1_accuracy",
        lambda p: p.params.stop_at,
        _one_of_two("stop_at"),
    ),
    # Rules about number formats and the optimizer.
    refuse_any_value(
        "use_fp16",
        always,
        lambda p: refuse_fp16_contradiction(p.params.precision, p.params.use_fp16),
    ),
    refuse(
        "precision",
        lambda p: _computes_in_8_bits(p) and not p.numerics.frozen,
        "needs --forward_only and --freeze_when_forward_only, which make the weights constant",
    ),
    refuse("fp16_vars", lambda p: p.params.precision != "fp16", "needs --precision=fp16"),
    refuse(
        "fp16_vars",
        lambda p: p.numerics.optimizer_spec.refuses_fp16 and not p.work.only_forward,
        lambda p: (
            f"cannot be used with --optimizer={p.numerics.optimizer_spec.name}: "
            f"{p.numerics.optimizer_spec.refuses_fp16}"
        ),
    ),
    *_optimizer_constant_rules(
        OPTIMIZERS.constants,
        SCHEDULES.constants,
        ("learning_rate_schedule",),
        ("init_learning_rate",),
    ),
    # Rules about the exchange of gradients.
    refuse(
        "gradient_repacking",
        lambda p: p.exchange.reduces and p.params.gradient_repacking > MOST_PACKS,
        f"must be at most {MOST_PACKS} packs",
    ),
    refuse(
        "staged_vars",
        lambda p: not p.place.mode.staged,
        _needs_mode_reason(lambda mode: mode.staged),
    ),
    refuse(
        "all_reduce_spec",
        lambda p: (
            p.place.mode.reduction is Reduction.ALL_REDUCE
            and not p.place.mode.by_size
            and len(p.exchange.all_reduce.ranges) > 1
        ),
        lambda p: (
            "selects algorithms by tensor size, which only --variable_update="
            + built_in_mode_names(lambda mode: mode.by_size and "all_reduce_spec" in mode.needs)
            + " supports; "
            f"{p.place.mode.name} uses one algorithm for all sizes"
        ),
    ),
    refuse("all_reduce_spec", lambda p: p.exchange.reduces, _check_plan_all_reduce),
    refuse_any_value(
        "communication_hint",
        lambda p: p.exchange.reduces and p.exchange.all_reduce.reads("communication_hint"),
        _default_all_reduce_obstacle,
    ),
    refuse_any_value("network_topology", always, _default_all_reduce_obstacle),
    # Rules about strategies of tf.distribute.
    refuse(
        CROSS_DEVICE,
        lambda p: p.place.mode.reduction is not Reduction.CROSS_DEVICE,
        _needs_mode_reason(lambda mode: mode.uses_cross_device_ops),
    ),
    refuse(
        "num_gpus",
        lambda p: p.place.mode.uses_multi_worker_strategy and p.params.device == "cpu",
        lambda p: refuse_several_cpu_towers(p.place.job),
    ),
    refuse(
        "cross_device_ops",
        lambda p: (
            p.place.mode.uses_multi_worker_strategy
            and p.params.cross_device_ops not in BETWEEN_WORKERS
        ),
        lambda p: (
            f"works in one process only; with --variable_update={p.place.mode.name} use one of "
            f"{', '.join(BETWEEN_WORKERS)}"
        ),
    ),
    refuse(
        "num_packs",
        lambda p: p.place.mode.uses_multi_worker_strategy,
        lambda p: f"does not work with --variable_update={p.place.mode.name}; use --bytes_per_pack",
    ),
    refuse(
        "gpu_indices",
        lambda p: p.place.mode.uses_multi_worker_strategy and _gpu_indices_descend(p),
        lambda p: (
            f"must ascend: --variable_update={p.place.mode.name} uses GPUs in the order of their "
            "numbers"
        ),
    ),
    refuse(
        "cross_device_ops",
        always,
        lambda p: refuse_unsupported_devices(
            p.params.cross_device_ops,
            p.params.num_gpus,
            on_gpu=p.params.device != "cpu",
            shared_cards=p.exchange.cross_device.shared_cards,
        ),
    ),
    refuse(
        "input_distribution",
        lambda p: not p.place.mode.strategy,
        lambda p: (
            "needs a mode with a strategy of tf.distribute, such as mirrored_strategy, "
            f"not --variable_update={p.place.mode.name}"
        ),
    ),
    refuse(
        ("input_sharding", "auto_shard_policy", "input_replication", "prefetch_on_device"),
        lambda p: p.params.input_distribution != "strategy",
        "needs --input_distribution=strategy",
    ),
    refuse(
        "auto_shard_policy",
        lambda p: p.params.input_sharding == "manual",
        "cannot be used with --input_sharding=manual",
    ),
    refuse(
        "input_replication",
        lambda p: not p.place.mode.uses_cross_device_ops,
        _needs_mode_reason(lambda mode: mode.uses_cross_device_ops),
    ),
    # Rules about devices and output files.
    refuse("gpu_indices", always, _explain_gpu_indices_mismatch),
    refuse(
        "allow_growth",
        lambda p: p.params.allow_growth and p.params.gpus_per_card > 1,
        "cannot be used with --gpus_per_card, which divides the memory before the run",
    ),
    refuse(
        "gpus_per_card",
        lambda p: (
            p.place.job.in_cluster
            and p.params.num_gpus % p.params.gpus_per_card > 0
            and p.params.gpus_per_card % p.params.num_gpus > 0
        ),
        lambda p: (
            f"must be a divisor or a multiple of {p.place.names.towers}={p.params.num_gpus}, so "
            "that the processes of a job can share cards"
        ),
    ),
    refuse(
        OF_WARM_UP,
        lambda p: (
            p.params.num_warmup_batches == 0 and p.params.warmup == "fixed" and not p.params.eval
        ),
        "profiles or saves a warm-up step; leave out --num_warmup_batches=0",
    ),
    *(  # TensorFlow can run only one profiler at a time.
        refuse("profile_json", partial(_is_given, other), _one_of_two(other))
        for other in OF_WARM_UP
        if other != "profile_json"
    ),
    refuse(_PATHS, always, _refuse_shared_files),
)
"""Rules in the order of their checks: the first rule that applies is reported."""


# Refuses flags that the network or the data set does not support.

_LARGEST_GRAPH = 2**31 - 2**26
"""Bytes of weights in a graph: the limit of protocol buffers, minus space for the operations."""

# Without VNNI or AMX instructions, CPUs add 8-bit products in 16 bits, which overflow.
_INT8_INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "amx_int8")

_MIXING = names_of_flags(FLAGS, RunPart.MIXING)


def _metric_names_text(p: RunPlan) -> str:
    names = ", ".join(p.network.model.metric_names)
    return f"its metrics are {names}" if names else "it has other metrics"


def _network_has_backbone(p: RunPlan) -> bool:
    """Whether the network has variables of a backbone, which --backbone_model_path restores."""
    prefix = p.network.model.backbone
    return bool(prefix) and any(v.name.startswith(f"{prefix}/") for v in p.network.spec.variables)


def _explain_example_mismatch(p: RunPlan) -> str:
    """Returns why the model cannot use the examples of the data set, or "" if it can."""
    if type(p.network.model).preprocess is not Model.preprocess:
        return ""
    offered_elements = {
        element.name: (element.shape, element.dtype) for element in p.network.examples
    }
    for element in p.network.spec.elements:
        if offered_elements.get(element.name) != (element.shape, element.dtype):
            offered = ", ".join(
                f"{name} {shape} {dtype}" for name, (shape, dtype) in offered_elements.items()
            )
            taken = f"takes {element.name} {element.shape} {element.dtype} of an example"
            return f"{taken}, but data set {p.network.dataset.name} gives {offered}"
    return ""


def _reads_training_data(p: RunPlan) -> bool:
    return bool(p.params.data_dir) and not p.work.only_forward


def _classifies_images(p: RunPlan) -> bool:
    """Whether the examples are images with one class each, and the loss is a softmax loss."""
    features, labels = (
        elements_of_role(p.network.spec.elements, role) for role in ("feature", "label")
    )
    kinds = [(one.role, len(one.shape), one.is_real) for one in (*features, *labels)]
    own = kinds == [("feature", 3, True), ("label", 0, False)]
    return own and p.network.model.has_softmax_loss()


def _explain_class_count_mismatch(p: RunPlan) -> str:
    """Returns why a Keras model's outputs do not fit the data set's classes, or "" if they do."""
    dataset, outputs = p.network.dataset, p.network.spec.num_classes
    # In ImageNet and CIFAR-10, one label has no examples, so a model may omit its output.
    if not p.params.data_dir or outputs in (dataset.num_classes, dataset.num_classes - 1):
        return ""
    return f"has {outputs} outputs, and data set {dataset.name} {dataset.num_classes} classes"


def _frozen_weight_bytes(p: RunPlan) -> int:
    """Bytes of all weights in a frozen graph, which contains one copy of them per device."""
    bytes_per_weight = {"fp32": 4, "int8": 5}.get(p.params.precision, 2)
    return bytes_per_weight * p.network.spec.parameters * len(p.place.job.own_towers)


def _explain_missing_int8_support(p: RunPlan) -> str:
    """Returns why this model or machine cannot run 8-bit convolutions, or "" if they can."""
    if not p.numerics.in_8_bits:
        return ""
    if not any(len(variable.shape) == 4 for variable in p.network.spec.variables):
        return f"{p.network.model.name} has no convolution to run in 8 bits"
    if p.network.model.keras_layers is not None:
        return "Keras models run in fp32, bf16 and fp16"
    instructions = processor_facts(Host()).get("cpu_isa")
    if not isinstance(instructions, list) or not set(instructions) & set(_INT8_INSTRUCTIONS):
        return f"this CPU has none of {', '.join(_INT8_INSTRUCTIONS)}; use bf16 or fp32"
    without = os.environ.get(ONEDNN) == "0"
    return f"its kernels are oneDNN's; unset {ONEDNN}" if without else ""


def _explain_file_sharding_refusal(p: RunPlan) -> str:
    """Returns why --auto_shard_policy=file cannot divide files among workers, or "" if it can."""
    dataset, workers = p.network.dataset, p.place.job.num_workers
    files = len(dataset.files_by_subset(p.params.data_dir or "")["train"])
    if not dataset.skips_bad_records:
        return f"every worker reads the files of data set {dataset.name} whole; use data or off"
    few = count_text(files, "training file", "training files")
    return f"{few} for {workers} workers; use data or off" if files < workers else ""


NETWORK: tuple[FlagRule[RunPlan], ...] = (
    refuse(
        "aux_head",
        lambda p: p.network.model.aux_head is None,
        lambda p: f"--model={p.params.model} has no auxiliary head; leave the flag out",
    ),
    refuse(
        "recompute",
        lambda p: p.network.spec.recomputed_flops_per_image is None,
        lambda p: (
            f"--model={p.params.model} declares no blocks (net.block in build()); leave the flag "
            "out"
        ),
    ),
    refuse(
        "keras_layers",
        lambda p: p.network.model.keras_layers is None,
        lambda p: f"--model={p.params.model} is not a Keras model; leave the flag out",
    ),
    refuse(
        "keras_layers",
        lambda p: p.work.trains and p.params.bn_stats == "sync",
        "Keras' own batch norm uses the moments of one device; --bn_stats=sync needs fused",
    ),
    refuse(
        "data_format",
        lambda p: p.network.model.data_format not in ("auto", p.params.data_format),
        lambda p: f"--model={p.params.model} has only {p.network.model.data_format} layers",
    ),
    refuse_any_value(
        "model", lambda p: p.network.model.keras_layers is not None, _explain_class_count_mismatch
    ),
    refuse(
        "label_smoothing",
        lambda p: p.work.trains and not p.network.model.has_softmax_loss(),
        lambda p: (
            f"needs a softmax loss, but --model={p.params.model} has its own loss; leave the "
            "flag out"
        ),
    ),
    refuse(
        _MIXING,
        lambda p: _reads_training_data(p) and not _classifies_images(p),
        lambda p: (
            f"mixes images with one class each, for a softmax loss, but --model={p.params.model} "
            "has other examples or its own loss; leave the flag out"
        ),
    ),
    refuse(
        _MIXING,
        lambda p: _reads_training_data(p) and p.length.batch_per_device % 2,
        lambda p: (
            "mixes pairs of images, so the batch of each device must be even, "
            f"not {p.length.batch_per_device}"
        ),
    ),
    refuse(
        "print_training_accuracy",
        lambda p: p.work.trains and "top_1" not in p.network.model.metric_names,
        lambda p: (
            f"model {p.network.model.name} has no top-1 accuracy; {_metric_names_text(p)}: leave "
            "the flag out"
        ),
    ),
    refuse(
        "collect_eval_results_async",
        lambda p: p.work.evaluates and not p.network.model.has_host_metrics(),
        lambda p: (
            f"--model={p.params.model} has no metrics that are computed in a separate process; "
            "leave the flag out"
        ),
    ),
    refuse_any_value(
        "input_preprocessor",
        lambda p: p.params.input_preprocessor not in p.network.dataset.preprocessors,
        lambda p: (
            f"data set {p.network.dataset.name} takes "
            f"{' or '.join(p.network.dataset.preprocessors)}"
        ),
    ),
    refuse(
        "on_bad_record",
        lambda p: p.params.data_dir and not p.network.dataset.skips_bad_records,
        lambda p: (
            f"the files of data set {p.network.dataset.name} are read as a whole, "
            "so no record can be left out; use fail"
        ),
    ),
    refuse(
        "on_bad_record",
        lambda p: p.feeds_coordinated_workers and p.params.on_bad_record == "skip",
        lambda p: (
            f"reads damaged files in Python, which --variable_update={p.place.mode.name} "
            "cannot do; use fail"
        ),
    ),
    refuse(
        "augment",
        lambda p: p.params.data_dir and not p.network.dataset.augments,
        lambda p: (
            f"the pipeline of data set {p.network.dataset.name} has no augmentation; use none"
        ),
    ),
    refuse(
        "backbone_model_path",
        lambda p: p.work.trains and not _network_has_backbone(p),
        lambda p: f"--model={p.network.model.name} has no backbone",
    ),
    refuse(
        "backbone_model_path",
        lambda p: (
            p.work.trains
            and checkpoint_folder.find_latest_checkpoint(p.params.backbone_model_path or "") is None
        ),
        "there is no checkpoint",
    ),
    refuse_any_value("model", always, _explain_example_mismatch),
    refuse(
        "freeze_when_forward_only",
        lambda p: p.numerics.frozen and _frozen_weight_bytes(p) >= _LARGEST_GRAPH,
        lambda p: (
            f"{p.params.model} on {len(p.place.job.own_towers)} devices has "
            f"{format_bytes(_frozen_weight_bytes(p))} of weights, and a graph must have less than "
            "2 GiB; use fewer devices or a 16-bit --precision"
        ),
    ),
    refuse("precision", always, _explain_missing_int8_support),
    refuse(
        "auto_shard_policy",
        lambda p: (
            p.params.auto_shard_policy == "file"
            and p.place.job.num_workers > 1
            and p.params.data_dir
            and not p.params.eval
        ),
        _explain_file_sharding_refusal,
    ),
)
