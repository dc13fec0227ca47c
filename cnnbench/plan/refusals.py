"""Flags that contradict each other, as a table, before TensorFlow is loaded.

`cnnbench.plan.place` has the rules of addresses, `cnnbench.plan.refusals_of_modes` those of the
modes of --variable_update, and `cnnbench.plan.network` those that need network or data set.
"""

from __future__ import annotations

import itertools
from functools import partial

from cnnbench.base import plugins
from cnnbench.flags.declare import named
from cnnbench.flags.groups.run import EVAL_DURING_TRAINING
from cnnbench.flags.params import FLAGS, SPECS, check_fp16
from cnnbench.flags.roles import Role, RunPart
from cnnbench.optimizers.registry import OPTIMIZERS, SCHEDULES
from cnnbench.plan.refusals_of_modes import ASYNCHRONOUS, EXCHANGE, JOB, STRATEGIES, of_mode
from cnnbench.plan.rules import Rule, always, excluded, needed, off, on, refuse, refused
from cnnbench.plan.setup import Setup
from cnnbench.plan.work import Work
from cnnbench.records.files import refuse_shared

_SMALLEST_FP16 = 2.0**-14  # the smallest normal number

# What is read, or made as a folder, comes before the files that are written at different times.
# Folders of logs and caches may be shared, and a prefix is no file.
_PATHS = (
    *named(FLAGS, Role.PLUGIN),
    *(spec.name for spec in FLAGS if spec.takes_urls and spec.name != "eval_dir"),
    *(
        spec.name
        for spec in FLAGS
        if spec.path == "file" and spec.role in (Role.OUTPUT, Role.PROFILE, Role.PLACE)
        if spec.name != "partitioned_graph_file_prefix"
    ),
)
OF_WARM_UP = tuple(name for name in named(FLAGS, Role.PROFILE) if name != "graph_file")
"""Flags that profile or save a step of the warm-up."""
_SCHEDULE = ("learning_rate_schedule", *SCHEDULES.constants)
_ONE_OF_TWO = "; give one of the two"


def refuse_contradictions(setup: Setup) -> None:
    """Raises FlagError for the first contradiction of flags."""
    refuse((*JOB, *of_mode(setup.place.mode), *ASYNCHRONOUS, *_REFUSALS), setup)


# Conditions on several flags, and checks that raise errors or return reasons.


def _vanishes(flag: str, p: Setup) -> bool:
    used = flag in p.numerics.optimizer.normal_in_fp16 and not p.work.only_forward
    return p.params.fp16_vars and used and p.numerics.constants[flag] < _SMALLEST_FP16


def _unscheduled(flag: str, p: Setup) -> bool:
    return flag not in SCHEDULES.find(p.params.learning_rate_schedule).flags


def _missing_for_decay(p: Setup) -> str:
    missing = [] if p.params.init_learning_rate is not None else ["init_learning_rate"]
    missing += SCHEDULES.find(p.params.learning_rate_schedule).missing(p.params)
    return f"needs {' and '.join(f'--{name}' for name in missing)}" if missing else ""


def _named_gpus(p: Setup) -> int:
    return len(p.params.gpu_indices.split(","))


def _check_files(p: Setup) -> None:
    refuse_shared(
        (flag, path)
        for flag in _PATHS
        # A folder, which may be that of the checkpoints.
        if flag != "trace_file" or p.params.use_chrome_trace_format
        for given in [SPECS[flag].text(getattr(p.params, flag) or "")]
        for path in (given.split(",") if flag in ("profile_layers", plugins.FLAG) else [given])
        if path
    )


_WORK: tuple[Rule[Setup], ...] = (
    excluded("eval,forward_only", ", which runs forward only by itself"),
    excluded(
        "train_dir,forward_only,freeze_when_forward_only",
        ": it comes before a checkpoint is restored",
    ),
    refused("input_only", on("eval"), "builds no network, so leave out --eval"),
    refused("input_only", on("forward_only"), "builds no network, so leave out --forward_only"),
    excluded("num_epochs,num_batches", _ONE_OF_TWO),
    excluded("num_eval_epochs,num_eval_batches", _ONE_OF_TWO),
    excluded("save_model_secs,save_model_steps", _ONE_OF_TWO),
    excluded("precision=int8,device=gpu", ", which has kernels for NHWC on CPUs alone"),
    excluded("precision=int8,data_format=NCHW", ", which has kernels for NHWC on CPUs alone"),
    excluded("precision=int8,xla", ": XLA has no such kernels"),
    excluded("precision=int8,xla_compile", ": XLA has no such kernels"),
    excluded("gradient_repacking,gradient_bucket_bytes", _ONE_OF_TWO),
    excluded(
        "xla_compile,bn_stats=sync", ": a tower compiled by itself cannot wait for the others"
    ),
    excluded("input_only,input_distribution=strategy", ", which makes no strategy"),
    refused(
        "auto_shard_policy",
        on("auto_shard_policy=hint"),
        "needs a hint in the pipeline, which has none; use data",
    ),
    refused("input_replication", on("input_sharding=auto"), "needs --input_sharding=manual"),
    excluded("input_replication=per_replica,prefetch_on_device", ""),
    refused(
        "per_gpu_thread_count",
        on("gpu_thread_mode=global"),
        "needs --gpu_thread_mode=gpu_private or gpu_shared",
    ),
    refused("eval", off("train_dir"), "needs --train_dir, the folder of the checkpoints"),
    *(
        excluded(",".join(pair), _ONE_OF_TWO)
        for pair in itertools.combinations(EVAL_DURING_TRAINING, 2)
    ),
    refused("input_only", off("data_dir"), "needs --data_dir: synthetic data costs a step nothing"),
    *(
        refused(EVAL_DURING_TRAINING, on(other), f"needs training, so leave out --{other}")
        for other in named(FLAGS, RunPart.WORK)
    ),
    refused(
        ("stop_at", "stop_at_top_1_accuracy"),
        lambda p: p.work is not Work.TRAINING_AND_EVALUATION,
        "needs an evaluation to stop at: add --eval_during_training_every_n_steps "
        "or another of the eval_during_training flags",
    ),
    refused("stop_at_top_1_accuracy", on("stop_at"), f"cannot go with --stop_at{_ONE_OF_TWO}"),
)

_NUMERICS: tuple[Rule[Setup], ...] = (
    needed("use_fp16", always, lambda p: check_fp16(p.params.precision, p.params.use_fp16)),
    refused(
        "precision",
        lambda p: p.params.precision == "int8" and not p.numerics.frozen,
        "needs --forward_only and --freeze_when_forward_only: kernels are fixed",
    ),
    refused("fp16_vars", lambda p: p.params.precision != "fp16", "needs --precision=fp16"),
    refused(
        "fp16_vars",
        lambda p: p.numerics.optimizer.refuses_fp16 and not p.work.only_forward,
        lambda p: (
            f"cannot go with --optimizer={p.numerics.optimizer.name}: "
            f"{p.numerics.optimizer.refuses_fp16}"
        ),
    ),
    *(
        needed(
            flag,
            partial(_vanishes, flag),
            "vanishes in fp16; with --fp16_vars it must be at least 2^-14",
        )
        for flag in OPTIMIZERS.constants
    ),
    refused(
        (*_SCHEDULE, "init_learning_rate"),
        on("piecewise_learning_rate_schedule"),
        "cannot go with --piecewise_learning_rate_schedule",
    ),
    *(
        refused(
            flag,
            partial(_unscheduled, flag),
            lambda p: (
                f"cannot go with --learning_rate_schedule={p.params.learning_rate_schedule}, "
                "which does not depend on it"
            ),
        )
        for flag in SCHEDULES.constants
    ),
    refused(_SCHEDULE, always, _missing_for_decay),
)

_MACHINE: tuple[Rule[Setup], ...] = (
    refused(
        "gpu_indices",
        lambda p: _named_gpus(p) != p.params.num_gpus,
        lambda p: f"names {_named_gpus(p)} GPUs, but {p.place.names.towers}={p.params.num_gpus}",
    ),
    refused(
        "allow_growth",
        lambda p: p.params.allow_growth and p.params.gpus_per_card > 1,
        "cannot go with --gpus_per_card, which divides the memory beforehand",
    ),
    refused(
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
)

_OUTPUT: tuple[Rule[Setup], ...] = (
    refused(
        OF_WARM_UP,
        lambda p: (
            p.params.num_warmup_batches == 0 and p.params.warmup == "fixed" and not p.params.eval
        ),
        "looks at a step of the warm-up; leave out --num_warmup_batches=0",
    ),
    *(  # TensorFlow has one profiler
        excluded(f"{other},profile_json", _ONE_OF_TWO)
        for other in OF_WARM_UP
        if other != "profile_json"
    ),
    refused(_PATHS, always, _check_files),
)

_REFUSALS = (*_WORK, *_NUMERICS, *EXCHANGE, *STRATEGIES, *_MACHINE, *_OUTPUT)
