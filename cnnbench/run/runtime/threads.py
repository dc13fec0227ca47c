"""Sizes of the thread pools of TensorFlow and of the input."""

from __future__ import annotations

from cnnbench import lazy_tensorflow as tf
from cnnbench.base.text import count_text
from cnnbench.errors import FlagError
from cnnbench.machine.cpu import available_cpu_count
from cnnbench.plan.setup import MachineFlags


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
            # TensorFlow is already initialised, which is an error if the flag requests other sizes.
            have = getattr(tf.config.threading, f"get_{pool}_parallelism_threads")()
            if threads not in (None, have):
                number = count_text(have, "thread", "threads")
                reason = f"this process already runs TensorFlow with {number}"
                raise FlagError(flag, threads, reason) from None
