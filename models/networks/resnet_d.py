"""ResNet-D for ImageNet: v1.5 with a stem of three 3 x 3 convolutions and pooled shortcuts.

A shortcut that halves the image averages 2 x 2 pixels before its 1 x 1 convolution, which would
ignore three quarters of them with a stride.

Source: He et al., arXiv:1812.01187, section 4 (ResNet-D and, for the stem, ResNet-C).
"""

from __future__ import annotations

from cnnbench.models.network import Network, T
from cnnbench.models.networks.resnet import ResNet
from cnnbench.models.registry import register_variants


class ResNetD(ResNet):
    """Bottleneck blocks of `ResNet` in the version D."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth, "v1.5")
        self.name = f"resnet{depth}_d"

    def _stem(self, net: Network[T], images: T) -> T:
        x = images
        for filters, stride in ((32, 2), (32, 1), (64, 1)):
            x = net.conv(x, filters, 3, stride, "SAME_RESNET", batch_norm=True)
        return net.max_pool(x, 3, 2, "SAME")

    def _shortcut(
        self, net: Network[T], x: T, active: T, filters: int, stride: int, project: bool
    ) -> T:
        if stride > 1:
            active = net.avg_pool(active, stride, stride, "SAME")
        return super()._shortcut(net, x, active, filters, 1, project or stride > 1)


register_variants(ResNetD, [(50,), (101,), (152,)])
