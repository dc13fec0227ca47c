"""Inception: modules whose branches have one input and are joined along the channels.

``googlenet`` is v1 without its auxiliary classifiers, local response normalisation and
dropout; ``inception3`` and ``inception4`` normalise after each convolution.

Sources: Szegedy et al., arXiv:1409.4842 (v1), arXiv:1512.00567 (v3), arXiv:1602.07261 (v4).
"""

from __future__ import annotations

from cnnbench.models.blocks import aux_head
from cnnbench.models.model import Model
from cnnbench.models.network import Network, T
from cnnbench.models.registry import register_model
from cnnbench.models.spec import BatchNorm, LearningRateSpec
from cnnbench.models.window import Pair

# (1 x 1), (before 3 x 3, 3 x 3), (before 5 x 5, 5 x 5), (after pooling) of each module of
# GoogLeNet; a pooling halves the image between the groups (table 1 of the first paper).
GOOGLENET = (
    (
        (64, (96, 128), (16, 32), 32),
        (128, (128, 192), (32, 96), 64),
    ),
    (
        (192, (96, 208), (16, 48), 64),
        (160, (112, 224), (24, 64), 64),
        (128, (128, 256), (24, 64), 64),
        (112, (144, 288), (32, 64), 64),
        (256, (160, 320), (32, 128), 128),
    ),
    (
        (256, (160, 320), (32, 128), 128),
        (384, (192, 384), (48, 128), 128),
    ),
)

Layer = tuple[int, int | Pair]  # filters and kernel
ROW, COLUMN = (1, 7), (7, 1)


class GoogLeNet(Model):
    """Nine modules of four branches."""

    name = "googlenet"
    dataset = "imagenet"
    image_size = 224
    batch_size = 32
    learning_rate = LearningRateSpec(0.005)

    def build(self, net: Network[T], images: T) -> T:
        """Three convolutions, nine modules, mean over the image, logits."""
        x = net.max_pool(net.conv(images, 64, 7, 2), 3, 2, "SAME")
        x = net.conv(net.conv(x, 64, 1), 192, 3)
        for group in GOOGLENET:
            x = net.max_pool(x, 3, 2, "SAME")
            for ones, threes, fives, pooled in group:
                x = net.concat(
                    [
                        net.conv(x, ones, 1),
                        net.conv(net.conv(x, threes[0], 1), threes[1], 3),
                        net.conv(net.conv(x, fives[0], 1), fives[1], 5),
                        net.conv(net.max_pool(x, 3, 1, "SAME"), pooled, 1),
                    ]
                )
        return net.logits(net.global_avg_pool(x))


class NormalisedInception(Model):
    """Shared parts of versions 3 and 4: batch norm, the first layers, ends of branches."""

    dataset = "imagenet"
    image_size = 299
    batch_size = 32
    batch_norm = BatchNorm(decay=0.999, epsilon=1e-3, scale=False)
    learning_rate = LearningRateSpec(0.005)

    def _stem(self, net: Network[T], images: T) -> T:
        x = self._halve(net, images, 32)
        x = net.conv(x, 32, 3, padding="VALID", batch_norm=True)
        return self._convs(net, x, (64, 3))

    @staticmethod
    def _convs(net: Network[T], x: T, *layers: Layer) -> T:
        for filters, kernel in layers:
            x = net.conv(x, filters, kernel, batch_norm=True)
        return x

    @staticmethod
    def _halve(net: Network[T], x: T, filters: int) -> T:
        return net.conv(x, filters, 3, 2, "VALID", batch_norm=True)

    @staticmethod
    def _cross(net: Network[T], x: T, filters: int) -> list[T]:
        return [net.conv(x, filters, kernel, batch_norm=True) for kernel in ((1, 3), (3, 1))]

    @staticmethod
    def _averaged(net: Network[T], x: T, filters: int) -> T:
        """A 3 x 3 mean and a 1 x 1 convolution, which commute, the one with fewer outputs first."""
        y = net.conv(x, filters, 1, activation=None, bias=None)
        return net.batch_norm(net.avg_pool(y, 3, 1, "SAME"), activation="relu")


class InceptionV3(NormalisedInception):
    """Five kinds of modules, A to E."""

    name = "inception3"
    aux_head = False

    def build(self, net: Network[T], images: T) -> T:
        """Six layers, eleven modules, mean over the image, logits."""
        x = net.max_pool(self._stem(net, images), 3, 2)
        x = net.conv(self._convs(net, x, (80, 1)), 192, 3, padding="VALID", batch_norm=True)
        x = net.max_pool(x, 3, 2)
        for pooled in (32, 64, 64):
            x = self._a(net, x, pooled)
        x = self._b(net, x)
        for width in (128, 160, 160, 192):
            x = self._c(net, x, width)
        if self.aux_head:
            aux_head(net, x, conv_stddev=0.01, stddev=0.001)
        x = self._d(net, x)
        x = self._e(net, x, last=False)
        x = self._e(net, x, last=True)
        return net.logits(net.global_avg_pool(x))

    def _a(self, net: Network[T], x: T, pooled: int) -> T:
        return net.concat(
            [
                self._convs(net, x, (64, 1)),
                self._convs(net, x, (48, 1), (64, 5)),
                self._convs(net, x, (64, 1), (96, 3), (96, 3)),
                self._averaged(net, x, pooled),
            ]
        )

    def _b(self, net: Network[T], x: T) -> T:
        return net.concat(
            [
                self._halve(net, x, 384),
                self._halve(net, self._convs(net, x, (64, 1), (96, 3)), 96),
                net.max_pool(x, 3, 2),
            ]
        )

    def _c(self, net: Network[T], x: T, width: int) -> T:
        doubled = ((width, 1), (width, COLUMN), (width, ROW), (width, COLUMN), (192, ROW))
        return net.concat(
            [
                self._convs(net, x, (192, 1)),
                self._convs(net, x, (width, 1), (width, ROW), (192, COLUMN)),
                self._convs(net, x, *doubled),
                self._averaged(net, x, 192),
            ]
        )

    def _d(self, net: Network[T], x: T) -> T:
        return net.concat(
            [
                self._halve(net, self._convs(net, x, (192, 1)), 320),
                self._halve(net, self._convs(net, x, (192, 1), (192, ROW), (192, COLUMN)), 192),
                net.max_pool(x, 3, 2),
            ]
        )

    def _e(self, net: Network[T], x: T, *, last: bool) -> T:
        ones = self._convs(net, x, (320, 1))
        threes = self._cross(net, self._convs(net, x, (384, 1)), 384)
        doubles = self._cross(net, self._convs(net, x, (448, 1), (384, 3)), 384)
        if last:
            pooled = self._convs(net, net.max_pool(x, 3, 1, "SAME"), (192, 1))
        else:
            pooled = self._averaged(net, x, 192)
        return net.concat([ones, *threes, *doubles, pooled])


class InceptionV4(NormalisedInception):
    """Three kinds of modules, A to C, with reductions in between."""

    name = "inception4"

    def build(self, net: Network[T], images: T) -> T:
        """Stem, fourteen modules and two reductions, mean over the image, logits."""
        x = self._widen(net, self._stem(net, images))
        for _ in range(4):
            x = self._a(net, x)
        x = self._reduce_a(net, x)
        for _ in range(7):
            x = self._b(net, x)
        x = self._reduce_b(net, x)
        for _ in range(3):
            x = self._c(net, x)
        return net.logits(net.dropout(net.global_avg_pool(x), keep=0.8))

    def _widen(self, net: Network[T], x: T) -> T:
        x = net.concat([net.max_pool(x, 3, 2), self._halve(net, x, 96)])
        branches = (
            self._convs(net, x, (64, 1)),
            self._convs(net, x, (64, 1), (64, COLUMN), (64, ROW)),
        )
        x = net.concat([net.conv(y, 96, 3, padding="VALID", batch_norm=True) for y in branches])
        return net.concat([self._halve(net, x, 192), net.max_pool(x, 3, 2)])

    def _a(self, net: Network[T], x: T) -> T:
        return net.concat(
            [
                self._averaged(net, x, 96),
                self._convs(net, x, (96, 1)),
                self._convs(net, x, (64, 1), (96, 3)),
                self._convs(net, x, (64, 1), (96, 3), (96, 3)),
            ]
        )

    def _reduce_a(self, net: Network[T], x: T) -> T:
        return net.concat(
            [
                net.max_pool(x, 3, 2),
                self._halve(net, x, 384),
                self._halve(net, self._convs(net, x, (192, 1), (224, 3)), 256),
            ]
        )

    def _b(self, net: Network[T], x: T) -> T:
        doubled = ((192, 1), (192, ROW), (224, COLUMN), (224, ROW), (256, COLUMN))
        return net.concat(
            [
                self._averaged(net, x, 128),
                self._convs(net, x, (384, 1)),
                self._convs(net, x, (192, 1), (224, ROW), (256, COLUMN)),
                self._convs(net, x, *doubled),
            ]
        )

    def _reduce_b(self, net: Network[T], x: T) -> T:
        return net.concat(
            [
                net.max_pool(x, 3, 2),
                self._halve(net, self._convs(net, x, (192, 1)), 192),
                self._halve(net, self._convs(net, x, (256, 1), (256, ROW), (320, COLUMN)), 320),
            ]
        )

    def _c(self, net: Network[T], x: T) -> T:
        ones = [self._averaged(net, x, 256), self._convs(net, x, (256, 1))]
        threes = self._convs(net, x, (384, 1))
        doubles = self._convs(net, x, (384, 1), (448, (1, 3)), (512, (3, 1)))
        crosses = (*self._cross(net, threes, 256), *self._cross(net, doubles, 256))
        return net.concat([*ones, *crosses])


for _model in (GoogLeNet, InceptionV3, InceptionV4):
    register_model(_model.name, "imagenet", _model)
