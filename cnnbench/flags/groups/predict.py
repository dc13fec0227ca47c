"""The flags of ``cnnbench allreduce --predict``."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.flags.declare import FlagSpec, flag, specs_of


@dataclass(frozen=True, kw_only=True)
class PredictParams:
    """Flags for predictions: links, devices and computation."""

    predict: bool = flag(
        False,
        "Measure nothing; predict from a cost model how the reduction of --model scales. "
        "Needs --link.",
    )
    devices: str = flag(
        "8..16384",
        "Numbers of devices to predict for: 8,12,16, or 8..16384 for 8 and its doubles.",
    )
    link: str | None = flag(
        None,
        "Link of every device: a preset such as nvlink3, pcie4, tcp100, roce100, hdr, or "
        "alpha=SECONDS,bandwidth=BYTES_PER_SECOND[,gamma=SECONDS_PER_BYTE_ADDED], or a preset "
        "with some of these changed, as in hdr,alpha=5e-6.",
    )
    inter_link: str | None = flag(
        None,
        "Link that the devices of a node share towards other nodes, as --link; --link is then "
        "the link within a node.",
    )
    devices_per_node: int = flag(
        8,
        "With --inter_link: consecutive devices that share a node.",
        minimum=1,
        only_with="inter_link",
    )
    step_seconds: float | None = flag(
        None, "Time of a training step on one device, without any reduction.", above=0
    )
    record: str | None = flag(
        None,
        "Run record of one device, to take the mean step time and the batch size from.",
        path="file",
    )
    batch_size: int | None = flag(
        None,
        "Images per device and step. If not given or 0: the batch size of --record or of --model.",
        minimum=0,
        only_with="step_seconds,record",
    )
    plot: str | None = flag(
        None,
        "Draw predictions into this .svg, .png or .pdf file.",
        path="file",
    )
    plot_devices: int | None = flag(
        None,
        "Number of devices in the plot of time over size; if not given, the largest of --devices.",
        minimum=2,
        only_with="plot",
    )


PREDICT_FLAGS: tuple[FlagSpec, ...] = specs_of(PredictParams)
