"""Configures TensorFlow's devices and threads, and determines the machine's peak FLOP rate.

TensorFlow fixes most settings when it first uses a device, so a process has one configuration. A
second run in the same process can only use the same configuration.

The peak FLOP rate of a GPU is the maker's number for dense (not sparse) arithmetic with float32
accumulation. The peak FLOP rate of a CPU is measured here, by matrix products with the threads of
the run, because published numbers do not account for clock rates and thread limits.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

from cnnbench.base.job import Job
from cnnbench.base.text import count_text
from cnnbench.errors import BenchmarkError, FlagError, first_line
from cnnbench.machine.cpu import Host, available_cpu_count
from cnnbench.machine.facts import XLA_CACHE
from cnnbench.machine.gpu import least_free_gpu_memory, uses_tensor_float_32
from cnnbench.plan.run_plan import RunPlan
from cnnbench.plan.setup import MachineFlags, card_numbers, gpu_numbers
from cnnbench.run.runtime import loading, supervisor
from cnnbench.run.runtime.loading import load_tensorflow, untested_version_notices

# TensorFlow's process-wide settings and state: environment, threads, devices, peak memory.

_SILENT_SECONDS = 6.0
"""Time limit for a GPU, on a busy machine, to add two numbers and copy the result."""
_DIVIDED = 0.9
"""Share of a card's memory that its logical GPUs get. CUDA and its libraries need the rest."""
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


def set_tensorflow_environment(flags: MachineFlags) -> tuple[str, ...]:
    """Sets environment variables that TensorFlow reads when it is imported, before its import.

    Variables that are already set keep their values. Returns warnings about variables that
    contradict the flags.
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
    variables["TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"] = (
        "1" if flags.batchnorm_persistent else "0"
    )
    xla_flags = []
    if flags.xla:
        # Without this flag, auto-clustering ignores operations on the CPU.
        xla_flags.append("--tf_xla_cpu_global_jit")
    if flags.xla_cache_dir:
        # The path is absolute, because XLA resolves a relative path only at its first compilation.
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


# Users set these variables on purpose, so no warning says that they contradict a flag.
_FOR_THE_USER = ("TF_CPP_MIN_LOG_LEVEL", "CUDA_VISIBLE_DEVICES")


def choose_devices(flags: MachineFlags, job: Job | None = None) -> Devices:
    """Selects the devices that the flags request, without initialising them.

    FlagError if there are too few devices. Without `job`, the run has only this process.
    """
    import tensorflow as tf

    gpus = flags.gpus_per_card * len(tf.config.list_physical_devices("GPU"))
    kind, notices = _resolve_device_kind(flags, gpus)
    intra, inter = choose_thread_counts(flags, kind, available_cpu_count())
    chosen = gpu_numbers(flags) if kind == "gpu" else tuple(range(flags.num_gpus))
    if kind == "gpu" and max(chosen) >= gpus:
        reason = f"TensorFlow sees GPUs 0 to {gpus - 1} only"
        raise FlagError("gpu_indices", flags.gpu_indices, reason)
    # Only the GPUs of the run are visible, because TensorFlow allocates memory on all visible GPUs.
    # TensorFlow numbers visible GPUs in the order of the machine.
    order = [sorted(chosen).index(number) for number in chosen]
    job = job or Job(towers_per_worker=flags.num_gpus)
    return Devices(
        # A controller has no towers, and only one CPU device.
        job=job.with_devices(kind, order if len(order) == job.towers_per_worker else ()),
        numbers=chosen,
        intra_threads=intra,
        inter_threads=inter,
        input_threads=choose_input_threads(flags, kind),
        notices=(*untested_version_notices(tf), *notices),
    )


def configure_devices(flags: MachineFlags, job: Job | None = None) -> Devices:
    """Selects devices (see `choose_devices`), and applies thread, compiler and device flags.

    Raises:
      FlagError: there are fewer devices than requested, or TensorFlow was already initialised in
        this process with fewer logical devices than needed.
    """
    import tensorflow as tf

    chosen = choose_devices(flags, job)
    _set_threads(tf, flags, chosen.intra_threads, chosen.inter_threads)
    # Both options are always set, because an earlier run in this process may have set them.
    tf.config.optimizer.set_jit("autoclustering" if flags.xla else False)
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": not flags.enable_optimizations}
    )
    tf.config.set_soft_device_placement(False)
    if chosen.kind == "gpu":
        gpus = tf.config.list_physical_devices("GPU")
        _make_gpus_visible(tf, flags, [gpus[number] for number in sorted(card_numbers(flags))])
    else:
        # All GPUs are hidden, because TensorFlow would allocate memory on visible GPUs.
        with contextlib.suppress(RuntimeError):  # An earlier run may have initialised TensorFlow.
            tf.config.set_visible_devices([], "GPU")
        _make_logical_cpus(tf, flags.num_gpus)
    return chosen


def register_plugin_import_hooks(
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
    loading.early_setup[:] = [lambda: _configuring_after_plugin_import(flags, find_run_plan)]


@contextlib.contextmanager
def _configuring_after_plugin_import(
    flags: MachineFlags, find_run_plan: Callable[[], RunPlan | None]
) -> Iterator[None]:
    """A context around a plug-in's import of TensorFlow, which then configures the devices."""
    plan = find_run_plan()
    if plan is not None:
        flags = plan.process_flags
    set_tensorflow_environment(flags)
    yield
    configure_devices(flags, None if plan is None else plan.place.job)


def start_server(flags: MachineFlags, job: Job) -> Any:
    """Starts TensorFlow's server on the port of this task, with one device for each tower."""
    tf = load_tensorflow()
    chosen = choose_devices(flags)
    # TensorFlow has no other public class for a server's devices, threads and visible GPUs.
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": len(chosen.numbers) if chosen.kind == "cpu" else 1},
        intra_op_parallelism_threads=chosen.intra_threads,
        inter_op_parallelism_threads=chosen.inter_threads,
    )
    if chosen.kind == "gpu":
        config.gpu_options.visible_device_list = ",".join(map(str, sorted(card_numbers(flags))))
        config.gpu_options.allow_growth = bool(flags.allow_growth)
        for parts in _memory_limits_by_card(flags).values():
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
            f"{job.task} cannot serve on {address}: {first_line(error)}; is the port in use?"
        ) from error


def resolve_data_format(layout: str, kind: str) -> Literal["NHWC", "NCHW"]:
    """Resolves --data_format: "auto" is NCHW on GPUs and NHWC on CPUs."""
    return "NCHW" if layout == "NCHW" or (layout == "auto" and kind == "gpu") else "NHWC"


def check_nchw_support(dtype: str) -> None:
    """Raises FlagError if convolutions of this dtype do not support NCHW on this CPU.

    Without oneDNN, convolutions of all dtypes need NHWC.
    """
    import tensorflow as tf

    image, kernel = tf.zeros([1, 1, 4, 4], dtype), tf.zeros([3, 3, 1, 1], dtype)
    try:
        with tf.device("cpu:0"):
            tf.nn.conv2d(image, kernel, 1, "SAME", data_format="NCHW")
    except tf.errors.UnimplementedError:
        raise FlagError(
            "data_format",
            "NCHW",
            f"Conv2D of {dtype} supports only NHWC on this CPU; use NHWC or auto, or --device=gpu",
        ) from None


def _resolve_device_kind(flags: MachineFlags, visible_gpus: int) -> tuple[str, tuple[str, ...]]:
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


def _memory_limits_by_card(flags: MachineFlags) -> dict[int, list[int]]:
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


def _set_threads(tf: Any, flags: MachineFlags, intra: int, inter: int) -> None:
    pools = (
        ("num_intra_threads", "intra_op", intra, flags.num_intra_threads),
        ("num_inter_threads", "inter_op", inter, flags.num_inter_threads or None),
    )
    for flag, pool, size, threads in pools:
        try:
            getattr(tf.config.threading, f"set_{pool}_parallelism_threads")(size)
        except RuntimeError:
            # TensorFlow is already initialised, which is an error if the flag requests other sizes.
            have = getattr(tf.config.threading, f"get_{pool}_parallelism_threads")()
            if threads not in (None, have):
                number = count_text(have, "thread", "threads")
                reason = f"this process already runs TensorFlow with {number}"
                raise FlagError(flag, threads, reason) from None


def _make_gpus_visible(tf: Any, flags: MachineFlags, gpus: Sequence[Any]) -> None:
    """Makes only `gpus` visible, and divides their memory as the flags request."""
    parts = _memory_limits_by_card(flags)
    try:
        tf.config.set_visible_devices(gpus, "GPU")
        for gpu, limits in zip(gpus, parts.values(), strict=False):
            wanted = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
            tf.config.set_logical_device_configuration(gpu, wanted)
        for gpu in gpus if flags.allow_growth else ():
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        visible = tf.config.get_visible_devices("GPU")
        if visible != list(gpus) or len(physical_devices_of_gpus()) != flags.num_gpus:
            raise FlagError(
                "num_gpus", flags.num_gpus, "this process already runs TensorFlow on other GPUs"
            ) from None


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


def _make_logical_cpus(tf: Any, count: int) -> None:
    """Divides the CPU into at least `count` logical devices.

    Raises FlagError if TensorFlow already runs in this process with fewer devices.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        have = tf.config.get_logical_device_configuration(cpu)
        if have is None or len(have) < count:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * count
            )
    except RuntimeError:
        have_now = len(tf.config.list_logical_devices("CPU"))
        if have_now < count:
            raise FlagError(
                "num_gpus",
                count,
                f"this process already runs TensorFlow with {have_now} logical CPU device(s)",
            ) from None


def reset_peak_memory(device_kind: str) -> None:
    """Resets the peak memory of GPUs. The peak memory of a process cannot be reset."""
    if device_kind == "gpu":
        import tensorflow as tf

        for number in range(len(physical_devices_of_gpus())):
            tf.config.experimental.reset_memory_stats(f"GPU:{number}")


def read_peak_memory(device_kind: str) -> int | None:
    """Peak memory of a run in bytes.

    If `device_kind` is "gpu", this is the peak memory of tensors on the GPU with the highest peak,
    without memory that TensorFlow's allocator only reserves; None if this process has no GPUs.
    Otherwise, it is the peak resident set size of this process since its start.
    """
    if device_kind != "gpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RU_MAXRSS_UNIT
    return max(tensor_bytes_by_gpu("peak"), default=None)


def tensor_bytes_by_gpu(key: str) -> list[int]:
    """Bytes of tensors on each GPU of this process. `key` is "current" or "peak"."""
    import tensorflow as tf

    gpus = (f"GPU:{number}" for number in range(len(physical_devices_of_gpus())))
    return [int(tf.config.experimental.get_memory_info(gpu)[key]) for gpu in gpus]


def physical_devices_of_gpus() -> list[Any]:
    """The physical device of each logical GPU of this process, by its number in TensorFlow."""
    import tensorflow as tf

    return [
        card
        for card in tf.config.get_visible_devices("GPU")
        for _ in tf.config.get_logical_device_configuration(card) or (card,)
    ]


def find_unresponsive_gpus() -> list[str]:
    """Returns the names, such as "GPU:1", of GPUs of this process that do not respond in time."""
    import tensorflow as tf

    def add(gpu: str) -> None:
        # A function is used, because its call releases the GIL, unlike an eager copy.
        def add_on_gpu(number: Any) -> Any:
            with tf.device(gpu):
                total = number + number
            with tf.device("CPU:0"):
                return tf.identity(total)

        # An error also shows that the GPU responds.
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


# The peak FLOP/s of the devices of a run, and the source of this number.

_TERA = 1e12


_TYPES = ("float32", "tf32", "float16", "bfloat16")
"""Number formats of the TFLOP/s in `_GPUS`."""
_Row = tuple[str, str, float, float | None, float | None, float | None]
# Each row contains a GPU's name, a pattern for names of devices, and dense TFLOP/s by `_TYPES`.
# The pattern matches the device name without maker and product line.
# A rate is None if the hardware does not support the number format.
# Rates for half precision are rates of the tensor cores (for the P100, of packed arithmetic).
# If a data sheet only contains the rate with sparsity, half of this rate is used.
_GPUS: tuple[_Row, ...] = (
    # Source: Tesla P100 data sheet (2016), with FP32/FP16 TFLOP/s 9.3/18.7 and 10.6/21.2.
    ("P100 PCIe", r"P100-PCIE-1[26]GB", 9.3, None, 18.7, None),
    ("P100 SXM2", r"P100-SXM2-16GB", 10.6, None, 21.2, None),
    # Source: Tesla V100 data sheet (2020), with FP16 TFLOP/s of the tensor cores.
    ("V100 PCIe", r"V100-PCIE-(16|32)GB", 14.0, None, 112.0, None),
    ("V100 SXM", r"V100-SXM[23]-(16|32)GB(-LS)?", 15.7, None, 125.0, None),
    ("V100S PCIe", r"V100S-PCIE-32GB", 16.4, None, 130.0, None),
    # Source: T4 data sheet (2019).
    ("T4", r"T4", 8.1, None, 65.0, None),
    # Source: A100 data sheet (2021), for both memory sizes and both form factors.
    ("A100", r"A100(-SXM4?-(40|64|80)GB|-PCIE-40GB| 80GB PCIe)", 19.5, 156.0, 312.0, 312.0),
    # Source: A10 data sheet (2021).
    ("A10", r"A10", 31.2, 62.5, 125.0, 125.0),
    # Source: A30 data sheet (2022).
    ("A30", r"A30", 10.3, 82.0, 165.0, 165.0),
    # Source: L4 data sheet (2023), which lists TF32 120 and FP16 242 TFLOP/s with sparsity.
    ("L4", r"L4", 30.3, 60.0, 121.0, 121.0),
    # Source: L40 data sheet (2023).
    ("L40", r"L40", 90.5, 90.5, 181.0, 181.0),
    # Source: L40S data sheet (2023).
    ("L40S", r"L40S", 91.6, 183.0, 362.0, 362.0),
    # Source: H100 data sheet (2023), with sparsity: TF32 989, 756, 835; FP16 1979, 1513, 1671.
    ("H100 SXM", r"H100 80GB HBM3", 67.0, 494.5, 989.5, 989.5),
    ("H100 PCIe", r"H100 PCIe", 51.0, 378.0, 756.5, 756.5),
    ("H100 NVL", r"H100 NVL", 60.0, 417.5, 835.5, 835.5),
    # Source: GH200 (2023) and H200 (2024) data sheets, which list the same rates as the H100.
    ("GH200", r"GH200 \d+GB", 67.0, 494.5, 989.5, 989.5),
    ("H200 SXM", r"H200", 67.0, 494.5, 989.5, 989.5),
    ("H200 NVL", r"H200 NVL", 60.0, 417.5, 835.5, 835.5),
    # Source: Blackwell data sheet (2024), per GPU of HGX B200 and GB200.
    # With sparsity, the Blackwell data sheet lists TF32 2200 and 2500, FP16 4500 and 5000.
    ("B200", r"B200", 75.0, 1100.0, 2250.0, 2250.0),
    ("GB200", r"GB200", 80.0, 1250.0, 2500.0, 2500.0),
    # Source: GA102 white paper (2021), appendix, with float32 accumulation in tensor cores.
    ("RTX 3090", r"RTX 3090", 35.6, 35.6, 71.0, 71.0),
    # Source: Ada white paper (2022), appendix, with float32 accumulation in tensor cores.
    ("RTX 4090", r"RTX 4090", 82.6, 82.6, 165.2, 165.2),
)

_SIZES = (2048, 1024, 512, 256)
_BUDGET_SECONDS = 1.2
_MAX_REPETITIONS = 8


def peak_flops(
    device_kind: str, devices: Sequence[str], dtype: str, user_value: float | None = None
) -> tuple[float, str] | None:
    """Determines the peak FLOP/s of all devices of a run together, and the source of this number.

    Returns None for unknown GPUs or dtypes.

    Args:
      device_kind: "cpu" or "gpu".
      devices: TensorFlow name of each tower's device. The number of CPU towers has no effect,
        because they share one machine.
      dtype: dtype of the arithmetic: "float32", "float16" or "bfloat16".
      user_value: value of --peak_flops for one device, which takes precedence; 0 means no peak.
    """
    if user_value == 0:
        return None
    count = len(devices) if device_kind == "gpu" else 1
    if user_value is not None:
        return user_value * count, "given: --peak_flops"
    if device_kind == "cpu":
        return measure_peak_flops(dtype)
    names = [gpu_name(device) for device in devices]
    return (
        sum_published_peak_flops([name for name in names if name is not None], dtype)
        if all(names)
        else None
    )


def sum_published_peak_flops(
    gpu_names: Sequence[str], dtype: str, tf32: bool | None = None
) -> tuple[float, str] | None:
    """Adds up the manufacturers' peak FLOP/s of GPUs. Also returns the source of the sum.

    `tf32` is whether float32 products use TF32 if the hardware supports it; None reads the setting
    of TensorFlow and the environment. The result is None if a GPU is not in the table or does not
    support the dtype.
    """
    if tf32 is None:
        tf32 = uses_tensor_float_32(Host())
    total, sources = 0.0, []
    for name in gpu_names:
        short = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", name.strip())
        matching = ((gpu, rates) for gpu, pattern, *rates in _GPUS if re.fullmatch(pattern, short))
        published_rates = next(matching, None)
        if published_rates is None:
            return None
        gpu, rates = published_rates
        by_type = dict(zip(_TYPES, rates, strict=True))
        kind = "tf32" if dtype == "float32" and tf32 and by_type["tf32"] is not None else dtype
        tflops = by_type[kind]
        if tflops is None:
            return None
        total += tflops * _TERA
        sources.append(f"{gpu} {kind} {tflops:g} TFLOP/s")
    if not sources:
        return None
    counts = [f"{sources.count(s)} x {s}" for s in dict.fromkeys(sources)]
    return total, f"published: {', '.join(counts)}"


def measure_peak_flops(dtype: str) -> tuple[float, str]:
    """Measures the highest FLOP/s of square matrix products on the CPU, in less than two seconds.

    Also returns the source of the number, as text. The products use TensorFlow's threads in this
    process: one product at a time in the intra-op pool or, if that pool has fewer threads than
    cores, so many products at once that all cores are used. Matrices have 2048 columns, or fewer if
    that would take too long. Allocates up to 50 MB per product.
    """
    import tensorflow as tf

    cores = available_cpu_count()
    pool = tf.config.threading.get_intra_op_parallelism_threads() or cores
    streams = max(1, cores // pool)
    cube = _measure_matmul_seconds(_SIZES[-1], dtype, 2, streams) / _SIZES[-1] ** 3
    fitting = (size for size in _SIZES if 3 * cube * size**3 <= _BUDGET_SECONDS)
    size = next(fitting, _SIZES[-1])
    seconds = _measure_matmul_seconds(size, dtype, _MAX_REPETITIONS, streams)
    at_once = f"{streams} x " if streams > 1 else ""
    source = f"measured: {at_once}matmul {size}x{size}x{size} {dtype}"
    return streams * 2 * size**3 / seconds, source


def gpu_name(device: str) -> str | None:
    """The driver's name of a TensorFlow GPU device, such as "NVIDIA H200"; None if unknown."""
    import tensorflow as tf

    match = re.search(r"GPU:(\d+)$", device, re.IGNORECASE)
    cards = physical_devices_of_gpus()
    if match is None or int(match.group(1)) >= len(cards):
        return None
    details = tf.config.experimental.get_device_details(cards[int(match.group(1))])
    name = details.get("device_name")
    return None if name is None else str(name)


def _measure_matmul_seconds(size: int, dtype: str, repetitions: int, streams: int) -> float:
    """Times up to `repetitions` matrix products (`streams` at once). Returns the least seconds."""
    import tensorflow as tf

    with tf.device("/CPU:0"):
        shape = (size, size)
        left = tf.cast(tf.random.stateless_uniform(shape, (1, 2)), dtype)
        right = tf.cast(tf.random.stateless_uniform(shape, (3, 4)), dtype)

    def product(_: int) -> None:
        with tf.device("/CPU:0"):
            tf.linalg.matmul(left, right)

    best = float("inf")
    start = time.perf_counter()
    with ThreadPoolExecutor(streams) as threads:
        for _ in range(repetitions):
            begin = time.perf_counter()
            list(threads.map(product, range(streams)))
            end = time.perf_counter()
            best = min(best, end - begin)
            if end - start > _BUDGET_SECONDS:
                break
    return best
