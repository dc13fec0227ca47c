"""How a run computes convolutions on its devices, and which of TensorFlow's results may be wrong.

This is the memory layout of images and, on a CPU, the algorithms of convolutions and their
gradients.
"""

from __future__ import annotations

from typing import Any, Literal

from cnnbench import lazy_tensorflow as tf
from cnnbench.base.job import is_cpu
from cnnbench.errors import FlagError
from cnnbench.machine.cpu import LIBRARY, MEASURED_KERNELS, Host, convolution_kernels
from cnnbench.plan import RunPlan


def resolve_data_format(layout: str, kind: str) -> Literal["NHWC", "NCHW"]:
    """Resolves --data_format: "auto" is NCHW on GPUs and NHWC on CPUs."""
    return "NCHW" if layout == "NCHW" or (layout == "auto" and kind == "gpu") else "NHWC"


def check_nchw_support(dtype: str) -> None:
    """Raises FlagError if convolutions of this dtype do not support NCHW on this CPU.

    Without oneDNN, convolutions of all dtypes need NHWC.
    """
    image, kernel = tf.zeros([1, 1, 4, 4], dtype), tf.zeros([3, 3, 1, 1], dtype)
    try:
        with tf.device("cpu:0"):
            tf.nn.conv2d(image, kernel, 1, "SAME", data_format="NCHW")
    except tf.errors.UnimplementedError:
        why = f"Conv2D of {dtype} supports only NHWC on this CPU; use NHWC or auto, or --device=gpu"
        raise FlagError("data_format", "NCHW", why) from None


def resolve_conv_gradients(plan: RunPlan, kind: str) -> str:
    """Resolves --conv_gradients to `LIBRARY`, or to CPU kernels with measured algorithms.

    With these kernels, a run uses the fastest measured algorithm for the gradients of each
    convolution. The result depends only on the machine and the flags, so runs on equal machines
    use equal algorithms.

    Raises:
      FlagError: `fastest` on a GPU, or on a CPU whose kernels were not measured.
    """
    flags = plan.params
    library = convolution_kernels(Host()) if kind == "cpu" else LIBRARY
    if flags.conv_gradients == "fastest" and library not in MEASURED_KERNELS:
        reason = "is for CPUs, and TensorFlow sees a GPU; use auto, or --device=cpu"
        if kind == "cpu":
            measured = ", ".join(MEASURED_KERNELS)
            reason = f"needs kernels that were measured: {measured}; use auto or library"
        raise FlagError("conv_gradients", "fastest", reason)
    channels_last = resolve_data_format(flags.data_format, kind) == "NHWC"
    applies = channels_last and plan.work.trains and not (flags.xla or flags.xla_compile)
    chosen = flags.conv_gradients != "library" and library in MEASURED_KERNELS
    return library if applies and chosen else LIBRARY


def uses_onednn_convolutions(plan: RunPlan) -> bool:
    """Whether TensorFlow computes convolutions on this CPU with oneDNN."""
    compiled = plan.params.xla or plan.params.xla_compile
    return not compiled and convolution_kernels(Host()).startswith("onednn")


def avoids_doubtful(plan: RunPlan) -> bool:
    """Whether steps replace the convolutions that oneDNN may compute wrongly.

    Only trainings with --conv_gradients=library measure TensorFlow's own operations.
    """
    library = plan.work.trains and plan.params.conv_gradients == "library"
    return uses_onednn_convolutions(plan) and not library


def doubtful_layer_notice(plan: RunPlan, device: str, graph: Any) -> str:
    """Returns a notice about the layer that TensorFlow may compute wrongly on a CPU; "" if there is
    none.
    """
    narrow = plan.numerics.dtype != "float32"
    if not (narrow and is_cpu(device) and uses_onednn_convolutions(plan)):
        return ""
    # Imported late, because this module loads TensorFlow.
    from cnnbench.models.cpu_operations import doubtful_layers

    layers = doubtful_layers(graph)
    if not layers:
        return ""
    remedy = "--precision=fp32"
    if plan.work.trains and plan.params.conv_gradients == "library":
        remedy = "--conv_gradients=auto"
    return (
        f"TensorFlow may compute {layers[0]} wrongly in 16 bits, because its result is one pixel "
        f"wide; use {remedy}"
    )
