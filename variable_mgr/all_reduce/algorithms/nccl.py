"""All-reduce with NVIDIA's library NCCL between the GPUs of one process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce.context import ReduceContext, is_gpu, process_of_device
from cnnbench.variable_mgr.all_reduce.registry import register

# Dtypes for which TensorFlow 2.21 has a kernel of NcclAllReduce.
_DTYPES = ("float16", "float32", "float64")

_reductions = itertools.count()


def refuse_shared_card(context: ReduceContext, instead: str) -> None:
    """Raises ValueError if devices are parts of one GPU, between which NCCL does not work."""
    if context.shared_cards:
        raise ValueError(f"NCCL refuses two devices on one card (--gpus_per_card); use {instead}")


def _check(context: ReduceContext) -> None:
    context.refuse_shards("nccl")
    refuse_shared_card(context, "xring")
    for device in context.devices:
        if not is_gpu(device):
            raise ValueError(f"nccl sums only on GPUs, but {device} is not a GPU")
    processes = sorted(set(map(process_of_device, context.devices)))
    if len(processes) > 1:
        raise ValueError(
            f"nccl reduces between the GPUs of one process, but these are in {len(processes)}: "
            f"{', '.join(processes)}; use two levels, such as nccl/xring"
        )


@register(
    "nccl",
    check=_check,
    tuned_on=("gpu",),
    within_process=True,
)
class Nccl:
    """All-reduce with one NcclAllReduce operation on each GPU, whose results must all be used.

    TensorFlow has no kernel for bfloat16. Such a tensor is sent as float32, which represents every
    bfloat16 number exactly but doubles the bytes.
    """

    runs_together = True

    def __init__(self, context: ReduceContext) -> None:
        if not nccl_kernel_exists():
            raise ValueError(f"TensorFlow {tf.__version__} was built without NCCL")
        self._devices = context.devices

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """Sums one tensor, with a separate copy for every GPU; see `Algorithm.__call__`."""
        if tensors[0].shape.num_elements() == 0:
            return list(tensors)
        dtype = tensors[0].dtype
        is_supported = dtype.name in _DTYPES
        # In a run of the graph, TensorFlow finds the operations of the other GPUs by `shared_name`.
        name = f"cnnbench_nccl_{next(_reductions)}"
        sums = []
        for device, tensor in zip(self._devices, tensors, strict=True):
            with tf.device(device):
                total = tf.raw_ops.NcclAllReduce(
                    input=tensor if is_supported else tf.cast(tensor, tf.float32),
                    reduction="sum",
                    num_devices=len(self._devices),
                    shared_name=name,
                )
                sums.append(total if is_supported else tf.cast(total, dtype))
        return sums


def nccl_kernel_exists() -> bool:
    """Whether this TensorFlow build contains the kernel of NcclAllReduce.

    The function requests a kernel on the CPU, which does not exist. TensorFlow's error message
    lists the kernels that exist.
    """
    try:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            tf.raw_ops.NcclAllReduce(
                input=0.0, reduction="sum", num_devices=1, shared_name="cnnbench_nccl_probe"
            )
    except tf.errors.OpError as error:
        # If the error message is unknown, the kernel is assumed to exist; if it does not, the run
        # will fail.
        return not any(text in str(error) for text in ("no registered kernels", "not registered"))
    return True
