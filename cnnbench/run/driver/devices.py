"""Starts TensorFlow and the devices of a run, and prints the header of its output."""

from __future__ import annotations

import time

from cnnbench.errors import FlagError
from cnnbench.machine import facts as environment
from cnnbench.machine.cpu import LIBRARY
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.plan.place import WorkKind
from cnnbench.records.run import (
    EMULATED_GPU,
    Batch,
    Cluster,
    ModelInfo,
    Placement,
    TaskAddress,
    WorkerShare,
    device_kind_for_record,
)
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.describe import header_lines
from cnnbench.run.driver.estimates import check_memory
from cnnbench.run.runtime.convolutions import (
    check_nchw_support,
    resolve_conv_gradients,
    resolve_data_format,
)
from cnnbench.run.runtime.devices import (
    Devices,
    configure_devices,
    reset_peak_memory,
    set_environment,
)
from cnnbench.run.runtime.loading import early_import_seconds, load_tensorflow
from cnnbench.run.runtime.native_log import without_info_lines


def start_devices(run: RunContext) -> Devices:
    """Loads TensorFlow, connects the devices of the job, and prints the header of the run.

    Raises:
      FlagError: the devices do not exist, or do not support a flag.
      BenchmarkError: TensorFlow cannot be loaded, or a process of the job is missing.
    """
    plan, messages, measurements = run.plan, run.messages, run.measurements
    settings = plan.process_flags
    start = time.perf_counter()
    for warning in set_environment(settings):
        messages.warning(warning, "variables")
    with without_info_lines():
        tf = load_tensorflow()
        seconds = time.perf_counter() - start + sum(early_import_seconds)
        measurements.update_record("startup_seconds", import_=seconds)
        devices = configure_devices(settings, plan.place.job)
        devices = run.membership.connect_tensorflow(devices)
    for notice in devices.notices:
        messages.notice(notice)
    _check_devices(run, devices)
    # The load of the machine is recorded before the run, because the run itself adds load.
    measurements.update_record(environment=environment.collect())
    _warn_of_setup(run, devices)
    tf.random.set_seed(plan.params.tf_random_seed)
    _record_setup(run, devices)
    device = device_kind_for_record(devices.kind, measurements.parts.environment)
    if device == EMULATED_GPU:
        messages.notice(EMULATED_NOTICE)
    config = measurements.parts.config
    run.console.lines(*header_lines(plan, devices, tf.__version__, device, config))
    reset_peak_memory(devices.kind)
    return devices


def _check_devices(run: RunContext, devices: Devices) -> None:
    """Raises FlagError for flags or a checkpoint that cannot be used. Warns of missing files."""
    plan, messages = run.plan, run.messages
    if plan.params.device != "cpu":
        check_memory(plan, run.measurements, messages, devices.kind)
    if devices.kind == "cpu" and plan.params.data_format == "NCHW":
        check_nchw_support(plan.numerics.dtype)
    dataset, data = plan.network.dataset, plan.params.data_dir
    if data is not None:
        for subset in plan.work.subsets:
            for gap in dataset.file_notices(subset, data):
                messages.warning(f"--data_dir={data}: {gap}", "files")
    target = plan.length.target
    older = plan.params.stop_at_top_1_accuracy
    if older is not None and target and target.metric != "top_1":
        messages.notice(
            f"for {plan.network.model.name}, --stop_at_top_1_accuracy means {target.metric}, "
            f"as in tf_cnn_benchmarks; --stop_at={target} has the same effect"
        )
    if devices.kind == "gpu" and plan.numerics.in_8_bits:
        reason = "TensorFlow sees a GPU, and --precision=int8 supports only CPUs; use --device=cpu"
        raise FlagError("device", plan.params.device, reason)
    folder = plan.params.train_dir
    if folder is not None and plan.work is not WorkKind.INPUT and devices.job.is_chief:
        # This module loads TensorFlow.
        from cnnbench.run.driver.stored_checkpoint import check_old_checkpoint

        check_old_checkpoint(folder, plan.network.spec)


def _warn_of_setup(run: RunContext, devices: Devices) -> None:
    """Warns of code whose commit is unknown, and of flags that CPUs support only badly."""
    plan, messages = run.plan, run.messages
    facts, subject = run.measurements.parts.environment, run.measurements.parts.subject
    if subject is not None and subject.unknown_commit_warning:
        messages.warning(subject.unknown_commit_warning, "commit")
    if devices.kind != "cpu":
        return
    # The instruction sets with fp16 arithmetic are avx512_fp16 and amx_fp16.
    if plan.numerics.dtype == "float16" and "_fp16" not in str(facts.get("cpu_isa")):
        messages.warning(
            "--precision=fp16 runs on a CPU without fp16 arithmetic; "
            "bf16 is about ten times faster there",
            "fp16",
        )
    if plan.place.mode.uses_worker_strategy:
        messages.notice("on CPUs, MultiWorkerMirroredStrategy supports only one device per process")


def _record_setup(run: RunContext, devices: Devices) -> None:
    """Records what is known before the first step: model, placement, batch size and flags."""
    plan, measurements = run.plan, run.measurements
    job, spec = plan.place.job, plan.network.spec
    measurements.update_record(
        model=ModelInfo(
            name=plan.network.model.name,
            parameters=spec.parameters,
            trainable_parameters=spec.trainable_parameters,
            forward_flops_per_image=spec.forward_flops_per_image,
            training_flops_per_image=spec.training_flops_per_image,
            recomputed_flops_per_image=plan.recomputed_flops,
        ),
        placement=Placement(
            device=device_kind_for_record(devices.kind, measurements.parts.environment),
            devices=devices.job.own_tower_devices,
            num_towers=job.num_towers,
            num_workers=job.num_workers,
            variable_update=plan.place.mode.name,
            # The record contains the actual all-reduce, the header the requested all-reduce.
            all_reduce=plan.reduction_names(on_gpu=devices.kind == "gpu"),
        ),
        batch=Batch(
            per_device=plan.length.batch_per_device,
            global_=plan.length.global_batch,
            requested_per_device=measurements.requested_batch,
        ),
    )
    if job.in_cluster:
        tasks = tuple(TaskAddress(task=str(t), address=job.address(t)) for t in job.tasks)
        workers = tuple(WorkerShare(task=str(w), steps=0, images=0) for w in job.workers)
        measurements.update_record(cluster=Cluster(tasks=tasks, workers=workers))
    by_library = resolve_conv_gradients(plan, devices.kind) == LIBRARY
    measurements.update_config(
        device=devices.kind,
        data_format=resolve_data_format(plan.params.data_format, devices.kind),
        conv_gradients=LIBRARY if by_library else "fastest",
        num_intra_threads=devices.intra_threads,
        num_inter_threads=devices.inter_threads,
        datasets_num_private_threads=devices.input_threads,
    )
