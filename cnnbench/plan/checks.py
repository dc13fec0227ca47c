"""Checks of a run's flags against each other, before TensorFlow is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from cnnbench.base.text import labels
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.declare import named
from cnnbench.flags.groups.run import EVAL_DURING_TRAINING
from cnnbench.flags.params import FLAGS, SPECS, Params, check_fp16
from cnnbench.flags.roles import Role, RunPart
from cnnbench.optimizers.declared import OPTIMIZERS
from cnnbench.plan.exchange import check_all_reduce
from cnnbench.plan.place import names_of
from cnnbench.plan.rules import Refusals
from cnnbench.plan.setup import Setup
from cnnbench.records.files import refuse_shared
from cnnbench.variable_mgr.aggregation.spec import MOST_PACKS
from cnnbench.variable_mgr.all_reduce.spec import single
from cnnbench.variable_mgr.modes import Mode, Processes, Reduction
from cnnbench.variable_mgr.strategies.spec import BETWEEN_WORKERS, refuse_devices, refuse_towers


def _check_job(setup: Setup) -> Refusals:
    params, mode, job = setup.params, setup.place.mode, setup.place.job
    if not params.job_name:
        return
    separate = job.client_per_worker and job.num_workers > 1
    if separate and params.bn_stats == "sync" and params.summary_verbosity > 1:
        # Worker 0 computes those gradients alone, and would wait for the moments of the others.
        yield "summary_verbosity", f"must be at most 1 with --bn_stats=sync in {mode.name}"
    spec = params.all_reduce_spec
    if spec is not None and "collective" in spec.names and not job.client_per_worker:
        fitting = names_of(lambda other: other.all_reduce == "collective")
        yield (
            "all_reduce_spec",
            "collective does not work where one process drives the others; leave it to "
            f"--variable_update={fitting}",
        )


def _check_mode(setup: Setup) -> Refusals:
    params = setup.params
    mode = setup.place.mode
    if mode.processes is Processes.COORDINATOR and not params.job_name:
        reason = "needs processes: cnnbench launch --ps=1 starts them, or give --job_name"
        yield "variable_update", f"{reason}, --worker_hosts, --ps_hosts and --controller_host"
    if mode.processes is Processes.COORDINATOR and not params.controller_host:
        yield "controller_host", f"--variable_update={mode.name} needs a process that coordinates"
    if mode.one_tower and params.num_gpus > 1:
        yield "num_gpus", f"--variable_update={mode.name} {mode.one_tower}"
    for settings in mode.refuses:
        for setting in settings.split(","):
            _known(mode, setting.partition("=")[0])
    for name, reason in _held(params, mode.refuses.items()):
        yield name, f"cannot go with --variable_update={mode.name}, {reason}"
    for name, value in mode.needs.items():
        _known(mode, name)
        if getattr(params, name) is None:
            yield "variable_update", f"needs --{name}, such as --{name}={value}"


def _known(mode: Mode, name: str) -> None:
    if name not in SPECS:
        raise UsageError(f"the row of mode {mode.name} names --{name}, which is no flag")


def holds(params: Params, setting: str) -> bool:
    """Whether a flag is on (its name), or has a value (``name=value``)."""
    name, equals, value = setting.partition("=")
    found = getattr(params, name)
    return SPECS[name].text(found) == value if equals else bool(found)


def _held(params: Params, rows: Iterable[tuple[str, str]]) -> Refusals:
    """The last flag, with the reason, of each row of comma-separated settings that all hold."""
    for settings, reason in rows:
        *others, last = settings.split(",")
        if all(holds(params, setting) for setting in (*others, last)):
            yield last.partition("=")[0], reason


def _check_async(setup: Setup) -> Refusals:
    params = setup.params
    mode = setup.place.mode
    if params.cross_replica_sync or not params.job_name or setup.place.coordinated:
        return
    if not mode.asynchronous:
        others = names_of(lambda other: other.asynchronous)
        reason = f"--variable_update={mode.name} waits for all workers; only {others} does not"
        yield "cross_replica_sync", f"{reason}, so leave it true"
    if params.precision == "fp16" and params.fp16_enable_auto_loss_scale:
        reason = "needs the gradients of all workers, so leave out --nocross_replica_sync"
        yield "fp16_enable_auto_loss_scale", reason


def _check_variable_update(setup: Setup) -> Refusals:
    params = setup.params
    mode, spec = setup.place.mode, params.all_reduce_spec
    if setup.exchange.reduces and params.gradient_repacking > MOST_PACKS:
        yield "gradient_repacking", f"must be at most {MOST_PACKS} packs"
    if params.staged_vars and not mode.staged:
        fitting = names_of(lambda other: other.staged)
        yield "staged_vars", f"needs --variable_update={fitting}, not {mode.name}"
    one_algorithm = mode.reduction is Reduction.ALL_REDUCE and not mode.by_size
    if spec is not None and one_algorithm and len(spec.ranges) > 1:
        fitting = names_of(lambda other: other.by_size and "all_reduce_spec" in other.needs)
        yield (
            "all_reduce_spec",
            f"has algorithms by size, which --variable_update={fitting} takes; "
            f"{mode.name} takes one algorithm",
        )
    if not setup.exchange.reduces:
        return
    running = setup.exchange.all_reduce
    try:
        check_all_reduce(
            running,
            setup.place.job,
            params.device,
            network_topology=params.network_topology,
            group_size=params.all_reduce_group_size,
            communication_hint=params.communication_hint,
        )
    except FlagError as error:
        if spec:
            raise
        # No spec was given that the error could point into.
        collective = running == single("collective")
        name = "communication_hint" if collective else "network_topology"
        yield name, error.reason.partition(": ")[2]


def _check_strategies(setup: Setup) -> Refusals:
    params = setup.params
    mode = setup.place.mode
    mirroring = names_of(lambda other: other.mirrors)
    names = named(FLAGS, RunPart.CROSS_DEVICE | RunPart.DISTRIBUTION)
    given = {name for name in names if getattr(params, name) != SPECS[name].default}
    for name in named(FLAGS, RunPart.CROSS_DEVICE):
        if name in given and mode.reduction is not Reduction.CROSS_DEVICE:
            yield name, f"needs --variable_update={mirroring}, not {mode.name}"
    if mode.multi_worker_strategy:
        yield from _check_multi_worker(setup)
    refuse_devices(params.cross_device_ops, params.num_gpus, on_gpu=params.device != "cpu")
    if params.input_distribution == "strategy" and not mode.strategy:
        yield "input_distribution", f"needs a strategy, not --variable_update={mode.name}"
    for name in named(FLAGS, RunPart.DISTRIBUTION):
        if name in given and params.input_distribution != "strategy":
            yield name, "needs --input_distribution=strategy"
    if params.auto_shard_policy != "auto" and params.input_sharding == "manual":
        yield "auto_shard_policy", "cannot go with --input_sharding=manual"
    if params.input_replication == "per_replica" and not mode.mirrors:
        yield "input_replication", f"needs --variable_update={mirroring}, not {mode.name}"


def _check_multi_worker(setup: Setup) -> Refusals:
    params = setup.params
    mode = params.variable_update
    if params.device == "cpu":
        refuse_towers(setup.place.job)
    if params.cross_device_ops not in BETWEEN_WORKERS:
        others = ", ".join(BETWEEN_WORKERS)
        yield (
            "cross_device_ops",
            f"works in one process; --variable_update={mode} has {others}",
        )
    if params.num_packs != SPECS["num_packs"].default:
        yield "num_packs", f"does not work with --variable_update={mode}; use --bytes_per_pack"
    indices = [int(index) for index in re.findall("[0-9]+", params.gpu_indices)]
    if indices != sorted(indices):
        yield "gpu_indices", f"must ascend: --variable_update={mode} takes GPUs in their order"


# Such a factor and its inverse are both normal numbers in float32.
_LARGEST_LOSS_SCALE = 2.0**126
_SMALLEST_FP16 = 2.0**-14  # the smallest normal number
_SMALLEST_PEAK = 1e9  # FLOP/s; smaller values are meant as GFLOP/s or TFLOP/s

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
LOOKING = tuple(name for name in named(FLAGS, Role.PROFILE) if name != "graph_file")
"""Flags that profile or save a step of the warm-up."""


def refusals(setup: Setup) -> Refusals:
    """Flags that contradict each other."""
    for check in _CHECKS:
        yield from check(setup)


def check_labels(text: str | None) -> None:
    """Raises FlagError for a malformed --result_label."""
    try:
        (text or "").encode()
        labels.parse(text or "")
    except UnicodeEncodeError:
        raise FlagError(labels.FLAG, text, "must be text in UTF-8") from None
    except ValueError as error:
        raise FlagError(labels.FLAG, text, str(error)) from None


def _one_of_two(other: str) -> str:
    return f"cannot go with --{other}; give one of the two"


_NO_INT8 = "cannot go with --precision=int8"
_EXCLUDED = (
    ("eval,forward_only", "cannot go with --eval, which runs forward only by itself"),
    (
        "train_dir,forward_only,freeze_when_forward_only",
        "cannot go with --train_dir: it comes before a checkpoint is restored",
    ),
    ("eval,input_only", "builds no network, so leave out --eval"),
    ("forward_only,input_only", "builds no network, so leave out --forward_only"),
    ("num_epochs,num_batches", _one_of_two("num_epochs")),
    ("num_eval_epochs,num_eval_batches", _one_of_two("num_eval_epochs")),
    ("save_model_secs,save_model_steps", _one_of_two("save_model_secs")),
    ("precision=int8,device=gpu", f"{_NO_INT8}, which has kernels for NHWC on CPUs alone"),
    ("precision=int8,data_format=NCHW", f"{_NO_INT8}, which has kernels for NHWC on CPUs alone"),
    ("precision=int8,xla", f"{_NO_INT8}: XLA has no such kernels"),
    ("precision=int8,xla_compile", f"{_NO_INT8}: XLA has no such kernels"),
    ("gradient_repacking,gradient_bucket_bytes", _one_of_two("gradient_repacking")),
    (
        "xla_compile,bn_stats=sync",
        "cannot go with --xla_compile: a tower compiled by itself cannot wait for the others",
    ),
    (
        "input_only,input_distribution=strategy",
        "cannot go with --input_only, which makes no strategy",
    ),
    ("auto_shard_policy=hint", "needs a hint in the pipeline, which has none; use data"),
    ("input_sharding=auto,input_replication=per_replica", "needs --input_sharding=manual"),
    (
        "input_replication=per_replica,prefetch_on_device",
        "cannot go with --input_replication=per_replica",
    ),
    (
        "gpu_thread_mode=global,per_gpu_thread_count",
        "needs --gpu_thread_mode=gpu_private or gpu_shared",
    ),
)
"""Settings that cannot go together, and why the flag of the last one is refused."""


def _check_run(setup: Setup) -> Refusals:
    params = setup.params
    yield from _held(params, _EXCLUDED)
    if params.eval and params.train_dir is None:
        yield "eval", "needs --train_dir, the folder of the checkpoints"
    if params.train_dir and not params.train_dir.isprintable():
        yield "train_dir", "must be printable UTF-8, as TensorFlow takes it"
    if params.train_dir and set(params.train_dir) & set("*?[]\\"):
        yield "train_dir", "must be without * ? [ ] and \\, which TensorFlow takes for a pattern"
    if params.peak_flops and params.peak_flops < _SMALLEST_PEAK:
        yield "peak_flops", "must be 0 or at least 1e9; it is in FLOP/s, as 312e12"
    given = [name for name in EVAL_DURING_TRAINING if getattr(params, name)]
    if len(given) > 1:
        yield given[1], _one_of_two(given[0])
    if params.input_only and params.data_dir is None:
        yield "input_only", "needs --data_dir: synthetic data costs a step nothing"
    for excluded in named(FLAGS, RunPart.WORK):
        if given and getattr(params, excluded):
            yield given[0], f"needs training, so leave out --{excluded}"
    for name in ("stop_at", "stop_at_top_1_accuracy"):
        if getattr(params, name) is not None and not given:
            yield (
                name,
                "needs an evaluation to stop at: add --eval_during_training_every_n_steps "
                "or another of the eval_during_training flags",
            )
    if params.stop_at_top_1_accuracy is not None and params.stop_at is not None:
        yield "stop_at_top_1_accuracy", _one_of_two("stop_at")


def _check_model(setup: Setup) -> Refusals:
    params = setup.params
    check_fp16(params.precision, params.use_fp16)
    frozen = params.forward_only and params.freeze_when_forward_only
    if params.precision == "int8" and not frozen:
        yield "precision", "needs --forward_only and --freeze_when_forward_only: kernels are fixed"
    if params.precision != "fp16":
        return
    scale = params.fp16_loss_scale
    if scale is not None and not 1 / _LARGEST_LOSS_SCALE <= scale <= _LARGEST_LOSS_SCALE:
        yield "fp16_loss_scale", "must be from 2^-126 to 2^126; 128 is usual"


def _check_fp16_vars(setup: Setup) -> Refusals:
    params = setup.params
    if not params.fp16_vars:
        return
    if params.precision != "fp16":
        yield "fp16_vars", "needs --precision=fp16"
    if params.eval or params.forward_only:
        return
    optimizer = OPTIMIZERS[params.optimizer]
    if optimizer.refuses_fp16:
        yield "fp16_vars", f"cannot go with --optimizer={optimizer.name}: {optimizer.refuses_fp16}"
    for name in optimizer.normal_in_fp16:
        if getattr(params, name) < _SMALLEST_FP16:
            yield name, "vanishes in fp16; with --fp16_vars it must be at least 2^-14"


_DECAY = ("num_epochs_per_decay", "learning_rate_decay_factor")


def _check_optimizer(setup: Setup) -> Refusals:
    params = setup.params
    schedule, start = params.learning_rate_schedule, params.init_learning_rate
    given = [name for name in (*_DECAY, "minimum_learning_rate") if getattr(params, name)]
    if schedule != "staircase":  # the default, without decay of its own
        given.insert(0, "learning_rate_schedule")
    if params.piecewise_learning_rate_schedule is not None:
        for name in (*given, *(["init_learning_rate"] if start is not None else [])):
            yield name, "cannot go with --piecewise_learning_rate_schedule"
        return
    needed = [] if start is not None else ["--init_learning_rate"]
    needed += [f"--{n}" for n in _DECAY if n not in given and schedule != "cosine"]
    if given and needed:
        yield given[0], f"needs {' and '.join(needed)}"
    if schedule == "cosine":
        for name in (name for name in _DECAY if name in given):
            yield name, "cannot go with --learning_rate_schedule=cosine, which ends with the run"
        if start is not None and params.minimum_learning_rate > start:
            yield "minimum_learning_rate", f"must be at most --init_learning_rate={start:g}"


def _check_runtime(setup: Setup) -> Refusals:
    params = setup.params
    if not params.gpu_indices:
        return
    indices = [piece.strip() for piece in params.gpu_indices.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", index) for index in indices):
        yield "gpu_indices", "must be whole numbers with commas, as in 0,1,3,2"
    if len({int(index) for index in indices}) != len(indices):
        yield "gpu_indices", "must name every GPU once"
    if len(indices) != params.num_gpus:
        towers = f"{setup.place.names.towers}={params.num_gpus}"
        yield "gpu_indices", f"names {len(indices)} GPUs, but {towers}"


def _check_output(setup: Setup) -> Refusals:
    params = setup.params
    if params.quiet_conditions:
        from cnnbench.machine.checks import parse_quiet  # late: its imports take 15 ms

        parse_quiet(params.quiet_conditions)
    check_labels(params.result_label)
    looking = [flag for flag in LOOKING if getattr(params, flag)]
    if looking and params.num_warmup_batches == 0 and params.warmup == "fixed" and not params.eval:
        yield looking[0], "looks at a step of the warm-up; leave out --num_warmup_batches=0"
    others = [flag for flag in looking if flag != "profile_json"]
    if params.profile_json is not None and others:
        yield "profile_json", _one_of_two(others[0])  # TensorFlow has one profiler
    refuse_shared(
        (flag, path)
        for flag in _PATHS
        # A folder, which may be that of the checkpoints.
        if flag != "trace_file" or params.use_chrome_trace_format
        for given in [getattr(params, flag) or ""]
        for path in (given.split(",") if flag == "profile_layers" else [given])
        if path
    )


_CHECKS: tuple[Callable[[Setup], Refusals], ...] = (
    _check_job,
    _check_mode,
    _check_async,
    _check_run,
    _check_model,
    _check_fp16_vars,
    _check_optimizer,
    _check_variable_update,
    _check_strategies,
    _check_runtime,
    _check_output,
)
