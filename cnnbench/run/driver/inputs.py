"""The input of a run: a pipeline per worker, for training or validation."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.jobs.job import Task
from cnnbench.data import InputSource, InputSpec, make_input
from cnnbench.data.distributed import InputDistribution
from cnnbench.data.joined import JoinedInput
from cnnbench.flags import Params
from cnnbench.run.driver.plan import COMPUTE_DTYPES, Plan
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.strategies import make
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr


def make_inputs(
    params: Params,
    plan: Plan,
    devices: runtime.Devices,
    subset: str,
    manager: VariableMgr | None = None,
) -> InputSource:
    """The input of a run.

    Args:
      subset: "train" or "validation".
      manager: one whose strategy takes batches to the devices, if that is asked for.

    Raises:
      FlagError: data that is not there.
      DataError: data that cannot be read.
    """
    workers = devices.job.own_workers
    shards = devices.job.num_workers
    if plan.asynchronous and subset != "train":
        # Which other workers will be left at the evaluation is not known.
        workers, shards = workers[:1], 1
    distribution = None if manager is None else _distribution(params, manager)
    if distribution is not None and not distribution.by_pipeline:
        shards = 1  # TensorFlow distributes the batches
    sources = [
        worker_input(params, plan, devices, subset, worker, shards, distribution)
        for worker in workers
    ]
    return sources[0] if len(sources) == 1 else JoinedInput(sources)


def worker_input(
    params: Params,
    plan: Plan,
    devices: runtime.Devices,
    subset: str,
    worker: Task,
    shards: int,
    distribution: InputDistribution | None = None,
    towers: Sequence[str] | None = None,
) -> InputSource:
    """The input of one worker's towers, made on its CPU.

    Args:
      subset: "train" or "validation".
      shards: parts that the data set is cut into; the worker reads its own.
      towers: devices that batches go to, if not those of the worker's towers.
    """
    training = subset == "train"
    spec = InputSpec.from_flags(
        params,
        dataset=plan.dataset,
        data_dir=params.data_dir,
        subset=subset,
        batch_per_device=plan.batch_per_device if training else plan.eval_batch_per_device,
        num_devices=devices.job.towers_per_worker,
        num_shards=shards,
        shard_index=worker.index if shards > 1 else 0,
        shard_files=training and params.auto_shard_policy == "file",
        host=worker.device("cpu"),
        image_size=getattr(plan.model, "image_size", 0),
        channels=plan.model.channels,
        num_classes=plan.spec.num_classes,
        examples=plan.examples,
        elements=plan.spec.elements,
        preprocess=plan.preprocess(training=training),
        seed=params.tf_random_seed,
        dtype=COMPUTE_DTYPES[params.precision],
        datasets_num_private_threads=runtime.input_threads(
            runtime.Settings.of(params), devices.kind
        ),
    )
    return make_input(spec, towers or towers_of(devices, worker), distribution)


def _distribution(params: Params, manager: VariableMgr) -> InputDistribution | None:
    if params.input_distribution == "towers" or params.data_dir is None:
        return None
    assert isinstance(manager, StrategyVariableMgr)
    per_replica = params.input_replication == "per_replica"
    on_device = params.prefetch_on_device
    strategy = manager.strategy
    return InputDistribution(
        strategy=make.for_input_per_replica(strategy) if per_replica else strategy,
        manual=params.input_sharding == "manual",
        per_replica=per_replica,
        auto_shard_policy=params.auto_shard_policy,
        prefetch_on_device=not per_replica if on_device is None else on_device,
    )


def towers_of(devices: runtime.Devices, worker: Task) -> list[str]:
    """Devices of a worker's towers."""
    job = devices.job
    return [job.tower_device(tower) for tower in job.own_towers if job.worker_of(tower) == worker]
