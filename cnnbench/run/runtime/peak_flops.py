"""Peak FLOP/s of the devices of a run, and the source of the number.

GPUs: the maker's number for dense (not sparse) arithmetic with float32 accumulation, by name and
type. CPU: matrix multiplication, timed here with the threads of the run; published numbers do not
account for clocks and thread limits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cnnbench.machine.cpu import available_cores
from cnnbench.machine.gpu import uses_tensor_float_32
from cnnbench.machine.host import Host
from cnnbench.run.runtime.tensorflow import cards_of_gpus

_TERA = 1e12


# Columns of the table below after name and pattern, which matches the whole device name without
# maker and product line: dense TFLOP/s of one GPU, None where the hardware lacks the type.
_TYPES = ("float32", "tf32", "float16", "bfloat16")
_Row = tuple[str, str, float, float | None, float | None, float | None]
# Half precision is that of the tensor cores (P100: packed arithmetic). Where a data sheet
# gives only the number with sparsity, half of it.
_GPUS: tuple[_Row, ...] = (
    # Tesla P100 data sheet (2016): 9.3/18.7 PCIe, 10.6/21.2 NVLink.
    ("P100 PCIe", r"P100-PCIE-1[26]GB", 9.3, None, 18.7, None),
    ("P100 SXM2", r"P100-SXM2-16GB", 10.6, None, 21.2, None),
    # Tesla V100 data sheet (2020): tensor cores 112 PCIe, 125 SXM2, 130 V100S.
    ("V100 PCIe", r"V100-PCIE-(16|32)GB", 14.0, None, 112.0, None),
    ("V100 SXM", r"V100-SXM[23]-(16|32)GB(-LS)?", 15.7, None, 125.0, None),
    ("V100S PCIe", r"V100S-PCIE-32GB", 16.4, None, 130.0, None),
    # T4 data sheet (2019).
    ("T4", r"T4", 8.1, None, 65.0, None),
    # A100 data sheet (2021); both memory sizes and both form factors.
    ("A100", r"A100(-SXM4?-(40|64|80)GB|-PCIE-40GB| 80GB PCIe)", 19.5, 156.0, 312.0, 312.0),
    # A10 data sheet (2021).
    ("A10", r"A10", 31.2, 62.5, 125.0, 125.0),
    # A30 data sheet (2022).
    ("A30", r"A30", 10.3, 82.0, 165.0, 165.0),
    # L4 data sheet (2023): TF32 120 and FP16 242 with sparsity.
    ("L4", r"L4", 30.3, 60.0, 121.0, 121.0),
    # L40 data sheet (2023).
    ("L40", r"L40", 90.5, 90.5, 181.0, 181.0),
    # L40S data sheet (2023).
    ("L40S", r"L40S", 91.6, 183.0, 362.0, 362.0),
    # H100 data sheet (2023): TF32 989, 756, 835; FP16 1979, 1513, 1671 with sparsity.
    ("H100 SXM", r"H100 80GB HBM3", 67.0, 494.5, 989.5, 989.5),
    ("H100 PCIe", r"H100 PCIe", 51.0, 378.0, 756.5, 756.5),
    ("H100 NVL", r"H100 NVL", 60.0, 417.5, 835.5, 835.5),
    # GH200 data sheet (2023) and H200 data sheet (2024): the arithmetic of the H100.
    ("GH200", r"GH200 \d+GB", 67.0, 494.5, 989.5, 989.5),
    ("H200 SXM", r"H200", 67.0, 494.5, 989.5, 989.5),
    ("H200 NVL", r"H200 NVL", 60.0, 417.5, 835.5, 835.5),
    # Blackwell data sheet (2024): HGX B200 and GB200, per GPU, TF32 2200 and 2500,
    # FP16 4500 and 5000 with sparsity.
    ("B200", r"B200", 75.0, 1100.0, 2250.0, 2250.0),
    ("GB200", r"GB200", 80.0, 1250.0, 2500.0, 2500.0),
    # GA102 white paper (2021), appendix; tensor cores at float32 accumulation.
    ("RTX 3090", r"RTX 3090", 35.6, 35.6, 71.0, 71.0),
    # Ada white paper (2022), appendix; tensor cores at float32 accumulation.
    ("RTX 4090", r"RTX 4090", 82.6, 82.6, 165.2, 165.2),
)

_SIZES = (2048, 1024, 512, 256)
_BUDGET_SECONDS = 1.2
_MAX_REPETITIONS = 8


def peak(
    device_kind: str, devices: Sequence[str], dtype: str, user_value: float | None = None
) -> tuple[float, str] | None:
    """Peak FLOP/s of all devices of the run together, and the source of the number.

    None for unknown GPUs or types.

    Args:
      device_kind: "cpu" or "gpu".
      devices: TensorFlow name of each tower's device. CPU towers share one machine, so their number
        does not count.
      dtype: dtype of the arithmetic: "float32", "float16" or "bfloat16".
      user_value: --peak_flops, of one device; takes precedence. 0 for no peak.
    """
    if user_value == 0:
        return None
    count = len(devices) if device_kind == "gpu" else 1
    if user_value is not None:
        return user_value * count, "given: --peak_flops"
    if device_kind == "cpu":
        return measured(dtype)
    names = [gpu_name(device) for device in devices]
    return published([name for name in names if name is not None], dtype) if all(names) else None


def published(
    gpu_names: Sequence[str], dtype: str, tf32: bool | None = None
) -> tuple[float, str] | None:
    """Sum of the makers' numbers for the GPUs, named as the driver does, and its source.

    `tf32` is whether float32 products use TF32 where the hardware can; None for what TensorFlow
    and the environment say. None is returned if a GPU is not in the table or lacks the type.
    """
    if tf32 is None:
        tf32 = uses_tensor_float_32(Host())
    total, sources = 0.0, []
    for name in gpu_names:
        short = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", name.strip())
        matching = ((gpu, rates) for gpu, pattern, *rates in _GPUS if re.fullmatch(pattern, short))
        found = next(matching, None)
        if found is None:
            return None
        gpu, rates = found
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


def measured(dtype: str) -> tuple[float, str]:
    """Best rate of square matrix products on the CPU, in under two seconds, and its source.

    Uses the threads that TensorFlow uses in this process: one product at a time on its intra-op
    pool or, if that pool is smaller than the machine, as many at once as fill the cores. Matrices
    are 2048 wide, or smaller where that would take too long. Allocates up to 50 MB per product.
    """
    import tensorflow as tf

    cores = available_cores()
    pool = tf.config.threading.get_intra_op_parallelism_threads() or cores
    streams = max(1, cores // pool)
    cube = _seconds(_SIZES[-1], dtype, 2, streams) / _SIZES[-1] ** 3
    fitting = (size for size in _SIZES if 3 * cube * size**3 <= _BUDGET_SECONDS)
    size = next(fitting, _SIZES[-1])
    seconds = _seconds(size, dtype, _MAX_REPETITIONS, streams)
    at_once = f"{streams} x " if streams > 1 else ""
    source = f"measured: {at_once}matmul {size}x{size}x{size} {dtype}"
    return streams * 2 * size**3 / seconds, source


def gpu_name(device: str) -> str | None:
    """The driver's name of a TensorFlow GPU device, such as "NVIDIA H200"; None if unknown."""
    import tensorflow as tf

    found = re.search(r"GPU:(\d+)$", device, re.IGNORECASE)
    cards = cards_of_gpus()
    if found is None or int(found.group(1)) >= len(cards):
        return None
    details = tf.config.experimental.get_device_details(cards[int(found.group(1))])
    name = details.get("device_name")
    return None if name is None else str(name)


def _seconds(size: int, dtype: str, repetitions: int, streams: int) -> float:
    """Shortest time of several products of that size (`streams` at once), within the budget."""
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
            before = time.perf_counter()
            list(threads.map(product, range(streams)))
            after = time.perf_counter()
            best = min(best, after - before)
            if after - start > _BUDGET_SECONDS:
                break
    return best
