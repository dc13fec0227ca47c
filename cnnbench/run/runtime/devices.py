"""Configures TensorFlow in this process: its environment, devices and threads; starts servers.

TensorFlow fixes most settings when it first uses a device, so a process has one configuration. A
second run in the same process can only use the same configuration.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from cnnbench import lazy_tensorflow as tf
from cnnbench.base.job import Job
from cnnbench.base.text import count_text
from cnnbench.errors import BenchmarkError, FlagError, informative_line
from cnnbench.machine.cpu import available_cpu_count
from cnnbench.machine.facts import XLA_CACHE
from cnnbench.machine.gpu import least_free_gpu_memory
from cnnbench.plan import MachineFlags, RunPlan, card_numbers, gpu_numbers
from cnnbench.run.runtime import loading, supervisor

_SILENT_SECONDS = 6.0
"""Time limit for a GPU, on a busy machine, to add two numbers and copy the result."""
_DIVIDED = 0.9
"""Share of a card's memory that its logical GPUs get. CUDA and its libraries need the rest."""

# If these variables contradict a flag, there is no warning, because users set them on purpose.
_FOR_THE_USER = ("TF_CPP_MIN_LOG_LEVEL", "CUDA_VISIBLE_DEVICES")

_RU_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Devices(NamedTuple):
    """The devices of one run, and the sizes of TensorFlow's thread pools.

    Attributes:
      job: all tasks and the devices of their towers, with the kind of device.
      numbers: numbers of this process's devices in the machine, in the order of the towers.
      intra_threads, inter_threads: sizes of TensorFlow's thread pools; 0 for TensorFlow's choice.
      input_threads: size of the input pipeline's own thread pool; 0 without one.
      notices: lines for the user about TensorFlow's version and the choice of devices.
    """

    job: Job
    numbers: tuple[int, ...]
    intra_threads: int
    inter_threads: int
    input_threads: int = 0
    notices: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of the devices of the run's towers, "cpu" or "gpu"."""
        return self.job.device


def choose_devices(flags: MachineFlags, job: Job | None = None) -> Devices:
    """Selects the devices that the flags request, without initialising them.

    FlagError if there are too few devices. Without `job`, the run has only this process.
    """
    gpus = flags.gpus_per_card * len(tf.config.list_physical_devices("GPU"))
    kind, notices = _device_kind(flags, gpus)
    intra, inter = choose_thread_counts(flags, kind, available_cpu_count())
    chosen = gpu_numbers(flags) if kind == "gpu" else tuple(range(flags.num_gpus))
    if kind == "gpu" and max(chosen) >= gpus:
        reason = f"TensorFlow sees GPUs 0 to {gpus - 1} only"
        raise FlagError("gpu_indices", flags.gpu_indices, reason)
    # TensorFlow allocates memory on all visible GPUs, so only the GPUs of the run are made visible.
    # TensorFlow numbers the visible GPUs in the order of their numbers in the machine, not in the
    # order of --gpu_indices.
    order = [sorted(chosen).index(number) for number in chosen]
    job = job or Job(towers_per_worker=flags.num_gpus)
    return Devices(
        # A controller only controls the workers: it has no towers, and only one CPU device.
        job=job.with_devices(kind, order if len(order) == job.towers_per_worker else ()),
        numbers=chosen,
        intra_threads=intra,
        inter_threads=inter,
        input_threads=choose_input_threads(flags, kind),
        notices=(*loading.untested_version_notices(tf), *notices),
    )


def configure_devices(flags: MachineFlags, job: Job | None = None) -> Devices:
    """Selects devices (see `choose_devices`), and applies thread, compiler and device flags.

    Raises:
      FlagError: there are fewer devices than requested, or TensorFlow was already initialised in
        this process with fewer logical devices than needed.
    """
    chosen = choose_devices(flags, job)
    set_threads(flags, chosen.intra_threads, chosen.inter_threads)
    # Both options are always set, even to their defaults, because an earlier run in this process
    # may have changed them.
    tf.config.optimizer.set_jit("autoclustering" if flags.xla else False)
    options = {"disable_meta_optimizer": not flags.enable_optimizations}
    tf.config.optimizer.set_experimental_options(options)
    tf.config.set_soft_device_placement(False)
    if chosen.kind == "gpu":
        gpus = tf.config.list_physical_devices("GPU")
        _make_gpus_visible(flags, [gpus[number] for number in sorted(card_numbers(flags))])
    else:
        # TensorFlow would allocate memory on visible GPUs even for a run on the CPU, so all GPUs
        # are hidden.
        with contextlib.suppress(RuntimeError):  # An earlier run may have initialised TensorFlow.
            tf.config.set_visible_devices([], "GPU")
        _divide_cpu(flags.num_gpus)
    return chosen


def set_environment(flags: MachineFlags) -> tuple[str, ...]:
    """Sets environment variables that TensorFlow reads when it is imported; returns warnings.

    It must be called before the import. Variables that are already set keep their values; a
    warning names each of them that contradicts the flags.
    """
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if flags.gpu_thread_mode != "global":
        variables["TF_GPU_THREAD_MODE"] = flags.gpu_thread_mode
        variables["TF_GPU_THREAD_COUNT"] = str(flags.per_gpu_thread_count or 2)
    if flags.autotune_threshold is not None:
        variables["TF_AUTOTUNE_THRESHOLD"] = str(flags.autotune_threshold)
    if flags.use_unified_memory:
        variables["TF_FORCE_UNIFIED_MEMORY"] = "1"
    variables["TF_ENABLE_WINOGRAD_NONFUSED"] = "1" if flags.winograd_nonfused else "0"
    persistent = "1" if flags.batchnorm_persistent else "0"
    variables["TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"] = persistent
    xla_flags = []
    if flags.xla:
        # Without this flag, XLA's auto-clustering ignores operations on the CPU.
        xla_flags.append("--tf_xla_cpu_global_jit")
    if flags.xla_cache_dir:
        # The path must be absolute: XLA resolves a relative path only at its first compilation,
        # when the working folder may be another.
        xla_flags.append(XLA_CACHE + os.path.abspath(flags.xla_cache_dir))
    if xla_flags:
        variables["TF_XLA_FLAGS"] = " ".join(xla_flags)
    if flags.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    warnings = []
    for name, value in variables.items():
        value_set = os.environ.setdefault(name, value)
        if value_set != value and name not in _FOR_THE_USER:
            warnings.append(
                f"the environment variable {name}={value_set} overrides the flags, which need "
                f"{value!r}"
            )
    return tuple(warnings)


def choose_thread_counts(flags: MachineFlags, kind: str, cores: int) -> tuple[int, int]:
    """Chooses sizes of the intra-op and inter-op thread pools; 0 leaves the choice to TensorFlow.

    On the CPU, TensorFlow's default is two pools with one thread per core, which all towers share.
    This is the fastest for one tower. With as many towers as cores, it is faster not to split
    operations: each core runs one operation of one tower, and no operation waits for its parts
    (docs/evidence.md contains the ratio). With fewer towers, the default is kept, because all
    towers share the intra-op pool. GPUs need one host thread per kernel launch, as in
    tf_cnn_benchmarks.
    """
    intra, inter = flags.num_intra_threads, flags.num_inter_threads
    if kind == "gpu":
        return 1 if intra is None else intra, inter
    if intra is None and inter == 0 and flags.num_gpus >= max(cores, 2):
        return 1, cores
    return 0 if intra is None else intra, inter


def choose_input_threads(flags: MachineFlags, kind: str) -> int:
    """Chooses the number of threads in the input pipeline's own pool.

    0 means that the pipeline uses TensorFlow's pools. By default, the pipeline has its own pool: in
    an inter-op pool with one thread, it would wait for the step that needs its batch. With GPUs,
    the pool has one thread for each core that is not needed to launch kernels.
    """
    if flags.datasets_num_private_threads is not None:
        return flags.datasets_num_private_threads
    cores = available_cpu_count()
    if kind == "cpu":
        return cores
    launchers = 0 if flags.gpu_thread_mode == "global" else (flags.per_gpu_thread_count or 2)
    return max(1, cores - (launchers + 2) * flags.num_gpus)


def set_threads(flags: MachineFlags, intra: int, inter: int) -> None:
    """Sets the sizes of the intra-op and inter-op thread pools.

    Raises FlagError if TensorFlow already runs in this process with other sizes than a flag names.
    """
    pools = (
        ("num_intra_threads", "intra_op", intra, flags.num_intra_threads),
        ("num_inter_threads", "inter_op", inter, flags.num_inter_threads or None),
    )
    for flag, pool, size, threads in pools:
        try:
            getattr(tf.config.threading, f"set_{pool}_parallelism_threads")(size)
        except RuntimeError:
            # Once TensorFlow is initialised, its pools cannot change. That is an error only if the
            # flag requests other sizes.
            have = getattr(tf.config.threading, f"get_{pool}_parallelism_threads")()
            if threads not in (None, have):
                number = count_text(have, "thread", "threads")
                reason = f"this process already runs TensorFlow with {number}"
                raise FlagError(flag, threads, reason) from None


def register_early_setup(
    fork: Callable[[], None], flags: MachineFlags, find_run_plan: Callable[[], RunPlan | None]
) -> None:
    """Prepares this process for plug-ins that use TensorFlow when they are loaded.

    Args:
      fork: continues in the process that measures, before the first plug-in is loaded.
      flags: the flags of devices, if `find_run_plan` returns no plan.
      find_run_plan: called when a plug-in imports TensorFlow, to configure the devices. Returns
        the plan as far as it is known, or None; or raises an error for wrong flags.
    """
    supervisor.state.measuring = fork
    loading.early_setup[:] = [lambda: _configuring_early(flags, find_run_plan)]


@contextlib.contextmanager
def _configuring_early(
    flags: MachineFlags, find_run_plan: Callable[[], RunPlan | None]
) -> Iterator[None]:
    """A context around a plug-in's import of TensorFlow, which then configures the devices."""
    plan = find_run_plan()
    if plan is not None:
        flags = plan.process_flags
    set_environment(flags)
    yield
    configure_devices(flags, None if plan is None else plan.place.job)


def start_server(flags: MachineFlags, job: Job) -> Any:
    """Starts TensorFlow's server on the port of this task, with one device for each tower."""
    tf = loading.load_tensorflow()
    chosen = choose_devices(flags)
    # This class is not public, but no public class sets the devices, threads and visible GPUs of a
    # server.
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": len(chosen.numbers) if chosen.kind == "cpu" else 1},
        intra_op_parallelism_threads=chosen.intra_threads,
        inter_op_parallelism_threads=chosen.inter_threads,
    )
    if chosen.kind == "gpu":
        config.gpu_options.visible_device_list = ",".join(map(str, sorted(card_numbers(flags))))
        config.gpu_options.allow_growth = bool(flags.allow_growth)
        for parts in _memory_limits_mib(flags).values():
            config.gpu_options.experimental.virtual_devices.add(memory_limit_mb=parts)
    else:
        config.device_count["GPU"] = 0
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(job.hosts_by_job),
            job_name=job.task.tensorflow_job,
            task_index=job.task.index,
            protocol="grpc",
            config=config,
        )
    except tf.errors.OpError as error:
        address = job.address(job.task)
        raise BenchmarkError(
            f"{job.task} cannot serve on {address}: {informative_line(error)}; is the port in use?"
        ) from error


def _device_kind(flags: MachineFlags, visible_gpus: int) -> tuple[str, tuple[str, ...]]:
    """Resolves --device to "cpu" or "gpu". Also returns notices for the user."""
    if flags.device == "cpu":
        return "cpu", ()
    if flags.device == "auto" and visible_gpus == 0:
        return "cpu", (
            f"no GPU visible to TensorFlow: running on {flags.num_gpus} logical CPU device(s); "
            "--device=cpu avoids this notice, --device=gpu makes it an error",
        )
    if visible_gpus < flags.num_gpus:
        parts = f", {flags.gpus_per_card} on each card" if flags.gpus_per_card > 1 else ""
        raise FlagError(
            "num_gpus",
            flags.num_gpus,
            f"TensorFlow sees {visible_gpus} GPU(s){parts}; use at most that many, or "
            "--device=cpu for logical CPU devices",
        )
    if flags.gpus_per_card > 1:
        parts = f"--gpus_per_card={flags.gpus_per_card}: the GPUs are parts of cards"
        return "gpu", (f"{parts}, and their speed is not that of whole cards",)
    return "gpu", ()


def _memory_limits_mib(flags: MachineFlags) -> dict[int, list[int]]:
    """Returns the memory limits (MiB) of the run's logical GPUs, by card; empty for whole cards.

    These are shares of the whole memory, so processes on the same card get the same result. Raises
    FlagError if the size of the memory is unknown.
    """
    if flags.gpus_per_card == 1:
        return {}
    memory = least_free_gpu_memory(card_numbers(flags), flags.gpus_per_card)
    if memory is None:
        reason = "needs the cards' memory size, which NVML reports: pip install nvidia-ml-py"
        raise FlagError("gpus_per_card", flags.gpus_per_card, reason)
    used = Counter(number // flags.gpus_per_card for number in gpu_numbers(flags))
    return {card: [int(_DIVIDED * memory.total) >> 20] * used[card] for card in sorted(used)}


def _make_gpus_visible(flags: MachineFlags, gpus: Sequence[Any]) -> None:
    """Makes only `gpus` visible, and divides their memory as the flags request."""
    parts = _memory_limits_mib(flags)
    try:
        tf.config.set_visible_devices(gpus, "GPU")
        for gpu, limits in zip(gpus, parts.values(), strict=False):
            wanted = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
            tf.config.set_logical_device_configuration(gpu, wanted)
        for gpu in gpus if flags.allow_growth else ():
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        visible = tf.config.get_visible_devices("GPU")
        if visible != list(gpus) or len(cards_of_gpus()) != flags.num_gpus:
            raise FlagError(
                "num_gpus", flags.num_gpus, "this process already runs TensorFlow on other GPUs"
            ) from None


def _divide_cpu(count: int) -> None:
    """Divides the CPU into at least `count` logical devices.

    Raises FlagError if TensorFlow already runs in this process with fewer devices.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        have = tf.config.get_logical_device_configuration(cpu)
        if have is None or len(have) < count:
            devices = [tf.config.LogicalDeviceConfiguration()] * count
            tf.config.set_logical_device_configuration(cpu, devices)
    except RuntimeError:
        have_now = len(tf.config.list_logical_devices("CPU"))
        if have_now < count:
            why = f"this process already runs TensorFlow with {have_now} logical CPU device(s)"
            raise FlagError("num_gpus", count, why) from None


def cards_of_gpus() -> list[Any]:
    """The physical device of each logical GPU of this process, by its number in TensorFlow."""
    return [
        card
        for card in tf.config.get_visible_devices("GPU")
        for _ in tf.config.get_logical_device_configuration(card) or (card,)
    ]


def find_unresponsive_gpus() -> list[str]:
    """Returns the names, such as "GPU:1", of GPUs of this process that do not respond in time."""

    def add(gpu: str) -> None:
        # An eager copy would keep Python's lock (the GIL) while it waits; a function releases it.
        def add_on_gpu(number: Any) -> Any:
            with tf.device(gpu):
                total = number + number
            with tf.device("CPU:0"):
                return tf.identity(total)

        # An error is a response, too: the GPU is not stuck.
        with contextlib.suppress(Exception), tf.device("CPU:0"):
            tf.function(add_on_gpu, autograph=False)(tf.constant(1.0))

    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    threads = {gpu: threading.Thread(target=add, args=(gpu,), daemon=True) for gpu in gpus}
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + _SILENT_SECONDS
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    return [gpu.rpartition("/device:")[2] for gpu, thread in threads.items() if thread.is_alive()]


def reset_peak_memory(device_kind: str) -> None:
    """Resets the peak memory of the GPUs if `device_kind` is "gpu". The peak
    memory of a process cannot be reset.
    """
    if device_kind == "gpu":
        for number in range(len(cards_of_gpus())):
            tf.config.experimental.reset_memory_stats(f"GPU:{number}")


def read_peak_memory(device_kind: str) -> int | None:
    """Peak memory of a run in bytes.

    If `device_kind` is "gpu", this is the peak memory of tensors on the GPU with the highest peak,
    without memory that TensorFlow's allocator only reserves; None if this process has no GPUs.
    If it is "cpu", this is the peak resident set size of this process since its start.
    """
    if device_kind != "gpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RU_MAXRSS_UNIT
    return max(tensor_bytes_by_gpu("peak"), default=None)


def tensor_bytes_by_gpu(which: Literal["current", "peak"]) -> list[int]:
    """Bytes of tensors on each GPU of this process, now or at the peak."""
    gpus = (f"GPU:{number}" for number in range(len(cards_of_gpus())))
    return [int(tf.config.experimental.get_memory_info(gpu)[which]) for gpu in gpus]
