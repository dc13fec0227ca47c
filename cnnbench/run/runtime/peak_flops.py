"""The peak FLOP rate of the devices of a run, and the source of this number.

The peak FLOP rate of a GPU is the maker's number for dense (not sparse) arithmetic with float32
accumulation. The peak FLOP rate of a CPU is measured here, by matrix products with the threads of
the run, because published numbers do not account for clock rates and thread limits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from cnnbench import lazy_tensorflow as tf
from cnnbench.machine.cpu import Host, available_cpu_count
from cnnbench.machine.gpu import allows_tensor_float_32
from cnnbench.run.runtime.devices import cards_of_gpus

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
    # Source: Tesla P100 data sheet (2016), FP32 and FP16: PCIe 9.3 and 18.7, SXM2 10.6 and 21.2
    # TFLOP/s.
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
    # Source: L4 data sheet (2023), which lists TF32 120 and FP16 242 TFLOP/s with sparsity, twice
    # the dense rates.
    ("L4", r"L4", 30.3, 60.0, 121.0, 121.0),
    # Source: L40 data sheet (2023).
    ("L40", r"L40", 90.5, 90.5, 181.0, 181.0),
    # Source: L40S data sheet (2023).
    ("L40S", r"L40S", 91.6, 183.0, 362.0, 362.0),
    # Source: H100 data sheet (2023), which lists rates with sparsity, twice the dense rates. SXM,
    # PCIe, NVL: TF32 989, 756, 835; FP16 1979, 1513, 1671.
    ("H100 SXM", r"H100 80GB HBM3", 67.0, 494.5, 989.5, 989.5),
    ("H100 PCIe", r"H100 PCIe", 51.0, 378.0, 756.5, 756.5),
    ("H100 NVL", r"H100 NVL", 60.0, 417.5, 835.5, 835.5),
    # Source: GH200 (2023) and H200 (2024) data sheets, which list the same rates as the H100.
    ("GH200", r"GH200 \d+GB", 67.0, 494.5, 989.5, 989.5),
    ("H200 SXM", r"H200", 67.0, 494.5, 989.5, 989.5),
    ("H200 NVL", r"H200 NVL", 60.0, 417.5, 835.5, 835.5),
    # Source: Blackwell data sheet (2024), per GPU of HGX B200 and of GB200. The data sheet lists
    # rates with sparsity, twice the dense rates: B200 TF32 2200 and FP16 4500, GB200 TF32 2500 and
    # FP16 5000.
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


class PeakFlops(NamedTuple):
    """A peak FLOP rate.

    Attributes:
      flops_per_sec: FLOP/s of all devices together.
      source: text that says whether the rate was given, measured or published.
    """

    flops_per_sec: float
    source: str


def peak_flops(
    device_kind: str, devices: Sequence[str], dtype: str, user_value: float | None = None
) -> PeakFlops | None:
    """Determines the peak FLOP/s of all devices of a run together.

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
        return PeakFlops(user_value * count, "given: --peak_flops")
    if device_kind == "cpu":
        return measure_cpu_peak(dtype)
    names = [name for name in map(gpu_name, devices) if name]
    return sum_published_peak_flops(names, dtype) if len(names) == len(devices) else None


def sum_published_peak_flops(
    gpu_names: Sequence[str], dtype: str, tf32: bool | None = None
) -> PeakFlops | None:
    """Adds up the manufacturers' peak FLOP/s of GPUs.

    `tf32` is whether float32 products use TF32 if the hardware supports it; None reads the setting
    of TensorFlow and the environment. The result is None if a GPU is not in the table or does not
    support the dtype.
    """
    if tf32 is None:
        tf32 = allows_tensor_float_32(Host())
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
    return PeakFlops(total, f"published: {', '.join(counts)}")


def measure_cpu_peak(dtype: str) -> PeakFlops:
    """Measures the highest FLOP/s of square matrix products on the CPU, in less than two seconds.

    The products use TensorFlow's threads in this
    process: one product at a time in the intra-op pool or, if that pool has fewer threads than
    cores, so many products at once that all cores are used. Matrices have 2048 columns, or fewer if
    that would take too long. Allocates up to 50 MB per product.
    """
    cores = available_cpu_count()
    pool = tf.config.threading.get_intra_op_parallelism_threads() or cores
    streams = max(1, cores // pool)
    cube = _matmul_seconds(_SIZES[-1], dtype, 2, streams) / _SIZES[-1] ** 3
    fitting = (size for size in _SIZES if 3 * cube * size**3 <= _BUDGET_SECONDS)
    size = next(fitting, _SIZES[-1])
    seconds = _matmul_seconds(size, dtype, _MAX_REPETITIONS, streams)
    at_once = f"{streams} x " if streams > 1 else ""
    source = f"measured: {at_once}matmul {size}x{size}x{size} {dtype}"
    return PeakFlops(streams * 2 * size**3 / seconds, source)


def gpu_name(device: str) -> str | None:
    """The driver's name of a TensorFlow GPU device, such as "NVIDIA H200"; None if unknown."""
    match = re.search(r"GPU:(\d+)$", device, re.IGNORECASE)
    cards = cards_of_gpus()
    if match is None or int(match.group(1)) >= len(cards):
        return None
    details = tf.config.experimental.get_device_details(cards[int(match.group(1))])
    name = details.get("device_name")
    return None if name is None else str(name)


def _matmul_seconds(size: int, dtype: str, repetitions: int, streams: int) -> float:
    """Times up to `repetitions` matrix products (`streams` at once). Returns the least seconds."""
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
