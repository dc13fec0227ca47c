"""Published peaks by name and type, and the measured rate of the CPU."""

import contextlib
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from cnnbench.run.runtime import peak_flops as module
from cnnbench.run.runtime.peak_flops import measure_cpu_peak, peak_flops, sum_published_peak_flops

# Dense TFLOP/s of float32, of float32 as TF32, of float16 and of bfloat16, as in data sheets.
# The longest name that fits counts, and float32 is TF32 where a GPU has it.
PUBLISHED = {
    "Tesla P100-PCIE-12GB": (9.3, 9.3, 18.7, None),
    "Tesla P100-PCIE-16GB": (9.3, 9.3, 18.7, None),
    "Tesla P100-SXM2-16GB": (10.6, 10.6, 21.2, None),
    "Tesla V100-PCIE-32GB": (14, 14, 112, None),
    "Tesla V100-SXM2-16GB": (15.7, 15.7, 125, None),
    "Tesla V100-SXM3-32GB-LS": (15.7, 15.7, 125, None),
    "Tesla V100S-PCIE-32GB": (16.4, 16.4, 130, None),
    "Tesla T4": (8.1, 8.1, 65, None),
    "NVIDIA A100-SXM4-40GB": (19.5, 156, 312, 312),
    "NVIDIA A100-SXM-64GB": (19.5, 156, 312, 312),
    "NVIDIA A100 80GB PCIe": (19.5, 156, 312, 312),
    "A100-PCIE-40GB": (19.5, 156, 312, 312),
    "NVIDIA A10": (31.2, 62.5, 125, 125),
    "NVIDIA A30": (10.3, 82, 165, 165),
    "NVIDIA L4": (30.3, 60, 121, 121),
    "NVIDIA L40": (90.5, 90.5, 181, 181),
    "NVIDIA L40S": (91.6, 183, 362, 362),
    "NVIDIA H100 80GB HBM3": (67, 989 / 2, 1979 / 2, 1979 / 2),
    "NVIDIA H100 PCIe": (51, 756 / 2, 1513 / 2, 1513 / 2),
    "NVIDIA H100 NVL": (60, 835 / 2, 1671 / 2, 1671 / 2),
    "NVIDIA GH200 480GB": (67, 989 / 2, 1979 / 2, 1979 / 2),
    "NVIDIA H200": (67, 989 / 2, 1979 / 2, 1979 / 2),
    "NVIDIA H200 NVL": (60, 835 / 2, 1671 / 2, 1671 / 2),
    "NVIDIA B200": (75, 2200 / 2, 4500 / 2, 4500 / 2),
    "NVIDIA GB200": (80, 2500 / 2, 5000 / 2, 5000 / 2),
    "NVIDIA GeForce RTX 3090": (35.6, 35.6, 71, 71),
    "NVIDIA GeForce RTX 4090": (82.6, 82.6, 165.2, 165.2),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rates_of_every_type(name):
    forms = (("float32", False), ("float32", True), ("float16", True), ("bfloat16", False))
    found = [sum_published_peak_flops([name], *form) for form in forms]
    rates = [one and one.flops_per_sec for one in found]
    assert rates == [rate and rate * 1e12 for rate in PUBLISHED[name]]


@pytest.mark.parametrize(
    "names",
    [
        # Similar names are not guessed.
        *(["NVIDIA A10G"], ["NVIDIA GeForce RTX 3090 Ti"], ["NVIDIA GeForce RTX 4090 Laptop GPU"]),
        *(["NVIDIA H20"], ["NVIDIA A100-SXM4-40GB MIG 1g.5gb"], ["AMD Instinct MI300X"], [""]),
        # One unknown GPU or type makes the sum unknown.
        *(["Tesla V100-SXM2-16GB"], ["NVIDIA H200", "NVIDIA X1"], []),
    ],
)
def test_what_is_not_published_is_unknown(names):
    assert sum_published_peak_flops(names, "bfloat16", True) is None


def test_several_gpus_add_up():
    rate, source = sum_published_peak_flops(
        ["NVIDIA H200", "NVIDIA H200", "NVIDIA L4"], "bfloat16", True
    )
    assert rate == pytest.approx((2 * 989.5 + 121) * 1e12)
    assert source == ("published: 2 x H200 SXM bfloat16 989.5 TFLOP/s, 1 x L4 bfloat16 121 TFLOP/s")


@pytest.mark.parametrize(
    ("dtype", "tf32", "override", "tflops"),
    [
        ("bfloat16", True, None, 989.5 + 121),
        ("float32", True, None, 494.5 + 60),
        ("float32", True, "1", 494.5 + 60),
        ("float32", False, None, 67 + 30.3),
        # NVIDIA's libraries then use no TF32, whatever TensorFlow says.
        ("float32", True, "0", 67 + 30.3),
    ],
)
def test_gpu_run_looks_up_the_names_of_its_devices(dtype, tf32, override, tflops, monkeypatch):
    names = {"a": {"device_name": "NVIDIA H200"}, "b": {"device_name": "NVIDIA L4"}}
    parts = {"a": [], "b": []}
    config = SimpleNamespace(
        get_visible_devices=lambda kind: [*names],
        get_logical_device_configuration=parts.__getitem__,
        experimental=SimpleNamespace(
            get_device_details=names.__getitem__, tensor_float_32_execution_enabled=lambda: tf32
        ),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    if override is not None:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    prefix = "/job:localhost/replica:0/task:0/device:GPU:"
    rate, source = peak_flops("gpu", [prefix + "0", prefix + "1"], dtype)
    assert rate == pytest.approx(tflops * 1e12)
    assert (" tf32 " in source) == (rate == (494.5 + 60) * 1e12)
    assert peak_flops("gpu", [prefix + "0", prefix + "2"], dtype) is None
    # Two logical devices on each card: the first of the second card is the third.
    parts.update(a=["one", "two"], b=["one", "two"])
    assert peak_flops("gpu", [prefix + "0", prefix + "2"], dtype) == (rate, source)


def test_user_value_is_per_device():
    assert peak_flops("gpu", ["g0", "g1"], "float32", 5e12) == (1e13, "given: --peak_flops")
    # CPU towers are parts of one machine.
    assert peak_flops("cpu", ["c0", "c1"], "float32", 5e9)[0] == 5e9
    # Zero leaves the measuring out.
    assert (
        peak_flops("cpu", ["c0"], "float32", 0) is peak_flops("gpu", ["g0"], "float32", 0) is None
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cpu_is_measured_in_the_dtype_of_the_run(dtype, limits):
    limits(module, _BUDGET_SECONDS=0.2)
    rate, source = peak_flops("cpu", ["/CPU:0", "/CPU:1"], dtype)
    # Slower than any pocket calculator or faster than any CPU would be a wrong formula.
    assert 1e6 < rate < 1e15
    assert re.match(r"measured: (\d+ x )?matmul ", source)
    assert source.endswith(f" {dtype}")


@pytest.mark.parametrize(
    ("probe_seconds", "size", "cores", "pool", "at_once"),
    # A product twice as wide takes eight times as long; three must fit 1.2 s.
    [
        (0.0001, 2048, 2, 0, 1),
        (0.4 / 530, 2048, 2, 2, 1),
        (0.4 / 500, 1024, 8, 1, 8),
        (0.4 / 60, 512, 8, 3, 2),
        (0.4 / 7, 256, 2, 4, 1),
        (9, 256, 2, 0, 1),
    ],
)
def test_the_rate_of_products_as_large_and_as_many_as_fit(
    monkeypatch, cpus, probe_seconds, size, cores, pool, at_once
):
    def seconds(width, dtype, repetitions, streams):
        assert (streams, repetitions) in ((at_once, 2), (at_once, 8))
        assert repetitions == 8 or width == 256
        return probe_seconds if repetitions == 2 else 1e-3

    monkeypatch.setattr(module, "_matmul_seconds", seconds)
    cpus(range(cores))
    threading = SimpleNamespace(get_intra_op_parallelism_threads=lambda: pool)
    config = SimpleNamespace(threading=threading)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    rate, source = measure_cpu_peak("float32")
    assert rate == pytest.approx(at_once * 2 * size**3 / 1e-3)  # multiply and add
    prefix = "" if at_once == 1 else f"{at_once} x "
    assert source == f"measured: {prefix}matmul {size}x{size}x{size} float32"


@pytest.mark.parametrize(
    ("spent", "products", "seconds"),
    [
        # Of at most eight products, and no further one after 1.2 s, the fastest counts.
        ([0.1, 0.2, 0.05, 0.1, 0.1, 0.1, 0.1, 0.1], 8, 0.05),
        ([0.6, 0.6, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1], 3, 0.5),
        ([1.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], 1, 1.5),
    ],
)
def test_the_fastest_product_counts(spent, products, seconds, monkeypatch, limits, cpus):
    limits(module, _SIZES=(16, 8))
    cpus(range(1))
    clock, made = [0.0], []

    def multiply(left, right):
        made.append(left.shape)
        if left.shape == (16, 16):
            clock[0] += spent[len(made) - 3]
        else:
            clock[0] += 1e-5

    def near_zero(shape, seed):
        return np.zeros(shape)

    linalg = SimpleNamespace(matmul=multiply)
    threading = SimpleNamespace(get_intra_op_parallelism_threads=lambda: 1)
    fake = SimpleNamespace(
        linalg=linalg,
        config=SimpleNamespace(threading=threading),
        device=lambda name: contextlib.nullcontext(),
        cast=lambda value, dtype: value,
        random=SimpleNamespace(stateless_uniform=near_zero),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    rate, _ = measure_cpu_peak("float32")
    assert made == [(8, 8)] * 2 + [(16, 16)] * products
    assert rate == pytest.approx(2 * 16**3 / seconds)
