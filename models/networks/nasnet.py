"""NASNet-A: stacks of cells that were found by architecture search.

Source: Zoph et al., arXiv:1707.07012, figure 4 and appendix A; sizes and settings are the same
as in TF-slim.
"""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Tensor
from cnnbench.models import BatchNorm, LearningRateSpec, Model, Network, T
from cnnbench.models.model import LARGEST_IMAGE
from cnnbench.models.registry import register_variants
from cnnbench.models.shared_blocks import add_aux_head


class NasNetSize(NamedTuple):
    """Size of a NASNet, and settings of its cells.

    Attributes:
      cells: number of normal cells. They are in three groups with reductions between them.
      skip_reduction: which value is the second input of the cell after a reduction: True for the
        second input of the reduction, False for the first input of the reduction.
      keep: keep probability of drop path for the last cell at the end of training.
    """

    cells: int
    filters: int
    stem: int
    skip_reduction: bool = False
    keep: float = 1.0


class NasNet(Model):
    """NASNet for ImageNet, with two reductions in the stem."""

    dataset = "imagenet"
    image_sizes = range(3, LARGEST_IMAGE + 1)
    stem_reductions = 2
    aux_head = False
    batch_norm = BatchNorm(decay=0.9997, epsilon=1e-3)

    def __init__(self, name: str, size: NasNetSize, image_size: int, batch_size: int) -> None:
        self.name = name
        self.size = size
        self.image_size = image_size
        self.batch_size = batch_size
        self.learning_rate = LearningRateSpec(0.005)

    def build(self, net: Network[T], images: T) -> T:
        """Builds the stem, three groups of cells with reductions, average pooling and logits."""
        cells = iter(range(self.stem_reductions + self.size.cells + 2))
        previous = x = self._stem(net, images)
        for index in range(self.stem_reductions):
            filters = self.size.filters // 2 ** (self.stem_reductions - index)
            with net.scope(f"stem{index}"):
                how = {"filters": filters, "number": next(cells), "reduces": True}
                previous, x = x, net.block(self._add_cell, x, previous, **how)
        for group in range(3):
            filters = self.size.filters * 2**group
            if group > 0:
                if group == 2 and self.aux_head:
                    add_aux_head(net, net.relu(x))
                with net.scope(f"reduction{group - 1}"):
                    second = previous if self.size.skip_reduction else x
                    how = {"filters": filters, "number": next(cells), "reduces": True}
                    previous, x = second, net.block(self._add_cell, x, previous, **how)
            for index in range(self.size.cells // 3):
                with net.scope(f"group{group}"), net.scope(f"cell{index}"):
                    how = {"filters": filters, "number": next(cells), "reduces": False}
                    previous, x = x, net.block(self._add_cell, x, previous, **how)
        return net.logits(net.global_avg_pool(net.relu(x)))

    def _stem(self, net: Network[T], images: T) -> T:
        return net.conv(images, self.size.stem, 3, 2, "VALID", batch_norm=True, activation=None)

    def _add_cell(
        self, net: Network[T], x: T, previous: T, filters: int, number: int, reduces: bool
    ) -> T:
        cell = self._cell(net, filters, number)
        return cell.reduction(x, previous) if reduces else cell.normal(x, previous)

    def _cell(self, net: Network[T], filters: int, number: int) -> NasnetCell[T]:
        # The deeper a cell, the lower the probability with which its branches are kept.
        depth = (number + 1) / (self.stem_reductions + self.size.cells + 2)
        return NasnetCell(net, filters, 1 - depth * (1 - self.size.keep))


class NasNetCifar10(NasNet):
    """NASNet for 32 x 32 images, with a stem that does not change the image size."""

    dataset = "cifar10"
    image_sizes = range(1, LARGEST_IMAGE + 1)
    stem_reductions = 0
    batch_norm = BatchNorm(decay=0.9, epsilon=1e-5)

    def __init__(self) -> None:
        super().__init__("nasnet", NasNetSize(cells=18, filters=32, stem=96, keep=0.6), 32, 32)
        self.learning_rate = LearningRateSpec(0.025)

    def _stem(self, net: Network[T], images: T) -> T:
        return net.conv(images, self.size.stem, 3, batch_norm=True, activation=None)


class NasnetCell(Generic[T]):
    """A NASNet-A cell, which combines the outputs of the two previous cells.

    At the end of training, drop path keeps each branch except the identity with probability `keep`.
    """

    def __init__(self, net: Network[T], filters: int, keep: float) -> None:
        self.net = net
        self.filters = filters
        self.keep = keep

    def normal(self, x: T, previous: T) -> T:
        """Builds a cell that keeps height and width, and outputs 6 * ``filters`` channels."""
        net, drop = self.net, self._drop_path
        p = self._resize_previous(x, previous)
        h = self._conv_1x1(net.relu(x))
        active_h, active_p = net.relu(h), net.relu(p)
        sums = [
            net.add(self._separable_pair(active_h, 5), self._separable_pair(active_p, 3)),
            net.add(self._separable_pair(active_p, 5), self._separable_pair(active_p, 3)),
            net.add(drop(self._pool("avg", h)), self._project(p, active=True)),
        ]
        mean = self._pool("avg", p)
        sums.append(net.add(drop(self._project(mean)), drop(self._project(mean))))
        sums.append(net.add(self._separable_pair(active_h, 3), h))
        return net.concat([self._project(p), *sums])

    def reduction(self, x: T, previous: T) -> T:
        """Builds a cell that halves height and width, and outputs 4 * ``filters`` channels."""
        net, drop = self.net, self._drop_path
        p = self._resize_previous(x, previous)
        h = self._conv_1x1(net.relu(x))
        active_p = net.relu(p)
        largest = self._pool("max", h, 2)
        first = net.add(
            self._separable_pair(net.relu(h), 5, 2), self._separable_pair(active_p, 7, 2)
        )
        second = net.add(drop(largest), self._separable_pair(active_p, 7, 2))
        third = net.add(drop(self._pool("avg", h, 2)), self._separable_pair(active_p, 5, 2))
        fourth = net.add(second, drop(self._pool("avg", first)))
        fifth = net.add(self._separable_pair(net.relu(first), 3), drop(largest))
        return net.concat([second, third, fourth, fifth])

    def _resize_previous(self, x: T, previous: T) -> T:
        """Adapts a cell's second input, `previous`, to the image size of the first input, `x`.

        The result has `filters` channels, unless `previous` and `x` are the same value.
        """
        if previous is x:
            return x
        net = self.net
        height, width, channels = net.shape(previous)
        if (height, width) != net.shape(x)[:2]:
            # Two 1 x 1 convolutions, for even and for odd pixels, have half of the filters each.
            y = net.relu(previous)
            shape = (-(-height // 2), -(-width // 2), channels)
            pixels = (net.max_pool(y, 1, 2), net.apply(_odd_pixels, y, shape=shape))
            halves = [net.conv(z, self.filters // 2, 1, activation=None, bias=None) for z in pixels]
            return net.batch_norm(net.concat(halves))
        return previous if channels == self.filters else self._conv_1x1(self.net.relu(previous))

    def _conv_1x1(self, x: T) -> T:
        return self.net.conv(x, self.filters, 1, batch_norm=True, activation=None)

    def _project(self, x: T, *, active: bool = False) -> T:
        """Projects ``x`` to ``filters`` channels if it has another number of channels.

        If ``active``, a ReLU precedes the projection.
        """
        if self.net.shape(x)[2] == self.filters:
            return x
        return self._conv_1x1(self.net.relu(x) if active else x)

    def _separable_pair(self, active: T, kernel: int, stride: int = 1) -> T:
        net = self.net
        y = net.separable_conv(active, self.filters, kernel, stride, batch_norm=True)
        y = net.separable_conv(y, self.filters, kernel, batch_norm=True, activation=None)
        return self._drop_path(y)

    def _pool(self, kind: Literal["max", "avg"], x: T, stride: int = 1) -> T:
        pool = self.net.max_pool if kind == "max" else self.net.avg_pool
        return pool(x, 3, stride, "SAME")

    def _drop_path(self, x: T) -> T:
        return self.net.drop_path(x, self.keep, by_progress=True)


def _odd_pixels(images: Tensor) -> Tensor:
    """Selects the image rows and columns 1, 3, 5, ...; appends zeros if the image size is odd."""
    missing = [(0, size % 2) for size in images.shape[1:3]]
    return tf.pad(images[:, 1::2, 1::2], [(0, 0), *missing, (0, 0)])


MOBILE = NasNetSize(cells=12, filters=44, stem=32)
LARGE = NasNetSize(cells=18, filters=168, stem=96, skip_reduction=True, keep=0.7)

register_variants(NasNet, (("nasnet", MOBILE, 224, 32), ("nasnetlarge", LARGE, 331, 16)))
register_variants(NasNetCifar10, [()])
