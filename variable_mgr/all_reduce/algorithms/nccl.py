"""All-reduce with NVIDIA's library NCCL between the GPUs of one process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.spec import ReduceContext, register

# Dtypes that the kernel of NcclAllReduce supports in TensorFlow 2.21.
_DTYPES = (tf.float16, tf.float32, tf.float64)

_reductions = itertools.count()


@register("nccl")
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
        # Within a run of the graph, TensorFlow matches the GPUs' operations by `shared_name`.
        name = f"cnnbench_nccl_{next(_reductions)}"
        sums = []
        for device, tensor in zip(self._devices, tensors, strict=True):
            with tf.device(device):
                total = tf.raw_ops.NcclAllReduce(
                    input=tensor if dtype in _DTYPES else tf.cast(tensor, tf.float32),
                    reduction="sum",
                    num_devices=len(self._devices),
                    shared_name=name,
                )
                sums.append(total if dtype in _DTYPES else tf.cast(total, dtype))
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
        # For an unknown error message, assume that the kernel exists; the run may fail later.
        return not any(text in str(error) for text in ("no registered kernels", "not registered"))
    return True
