"""Measures the speed of a square matrix product in TensorFlow on all threads.

Prints ``MEASURED {"flops_per_sec": ...}``. A product of n x n matrices is 2 n^3 FLOPs.
"""

from __future__ import annotations

import argparse
import statistics
import time

import tensorflow as tf
from steps import report  # type: ignore[import-not-found] # the file beside this


def main() -> None:
    """Measures matrix products, and prints the FLOPs per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure")
    args = parser.parse_args()
    dtype = tf.bfloat16 if args.dtype == "bf16" else tf.float32
    left = tf.cast(tf.random.stateless_normal([args.size, args.size], [1, 2]), dtype)
    right = tf.cast(tf.random.stateless_normal([args.size, args.size], [3, 4]), dtype)

    @tf.function
    def product() -> tf.Tensor:
        # Only one element is read, so that the time includes no copy of the result.
        return tf.linalg.matmul(left, right)[0, 0]

    def timed() -> float:
        start = time.perf_counter()
        float(product())
        return time.perf_counter() - start

    end = time.perf_counter() + args.seconds / 4
    while time.perf_counter() < end:
        timed()
    seconds = [timed()]
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        seconds.append(timed())
    rate = 2 * args.size**3 / statistics.median(seconds)
    report(flops_per_sec=rate, versions=f"tensorflow {tf.__version__}")


if __name__ == "__main__":
    main()
