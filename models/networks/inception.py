"""Inception networks: modules of parallel branches, whose output channels are concatenated.

``googlenet`` is version 1 without auxiliary classifiers, local response normalisation and dropout.
``inception3`` and ``inception4`` have batch norm after each convolution.

Sources: Szegedy et al., arXiv:1409.4842 (v1), arXiv:1512.00567 (v3), arXiv:1602.07261 (v4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cnnbench.models import BatchNorm, LearningRateSpec, Model, Network, T, register_model
from cnnbench.models.model import LARGEST_IMAGE
from cnnbench.models.network import Pair
from cnnbench.models.shared_blocks import add_aux_head

# Filters in GoogLeNet's modules (table 1 of the paper), in groups, before each of which pooling
# halves the image. The four branches of a module: 1 x 1; 1 x 1, then 3 x 3; 1 x 1, then 5 x 5;
# pooling, then 1 x 1.
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

Layer = tuple[Any, ...]
"""Description of one or two layers in a branch of an Inception module, versions 3 and 4:

* (filters, kernel, stride, padding) is a convolution with batch norm. By default, the stride is 1
  and the padding SAME.
* ("max", stride, padding) is a 3 x 3 max pooling.
* ("mean", filters) is a 3 x 3 average pooling and a 1 x 1 convolution.
"""
Module = Sequence[Sequence[Layer]]
"""Branches of an Inception module in versions 3 and 4."""

ROW, COLUMN = (1, 7), (7, 1)
HALVE = (3, 2, "VALID")
MAX = ("max", 2, "VALID")


def _v3_module_a(pool_filters: int) -> Module:
    return [
        [(64, 1)],
        [(48, 1), (64, 5)],
        [(64, 1), (96, 3), (96, 3)],
        [("mean", pool_filters)],
    ]


def _v3_module_c(width: int) -> Module:
    return [
        [(192, 1)],
        [(width, 1), (width, ROW), (192, COLUMN)],
        [(width, 1), (width, COLUMN), (width, ROW), (width, COLUMN), (192, ROW)],
        [("mean", 192)],
    ]


V3_B: Module = [[(384, *HALVE)], [(64, 1), (96, 3), (96, *HALVE)], [MAX]]
V3_D: Module = [
    [(192, 1), (320, *HALVE)],
    [(192, 1), (192, ROW), (192, COLUMN), (192, *HALVE)],
    [MAX],
]
V3_MODULES = (
    *map(_v3_module_a, (32, 64, 64)),
    V3_B,
    *map(_v3_module_c, (128, 160, 160, 192)),
)

V4_A: Module = [
    [("mean", 96)],
    [(96, 1)],
    [(64, 1), (96, 3)],
    [(64, 1), (96, 3), (96, 3)],
]
V4_B: Module = [
    [("mean", 128)],
    [(384, 1)],
    [(192, 1), (224, ROW), (256, COLUMN)],
    [(192, 1), (192, ROW), (224, COLUMN), (224, ROW), (256, COLUMN)],
]
V4_MODULES: Sequence[Module] = (
    *[V4_A] * 4,
    [[MAX], [(384, *HALVE)], [(192, 1), (224, 3), (256, *HALVE)]],
    *[V4_B] * 7,
    [
        [MAX],
        [(192, 1), (192, *HALVE)],
        [(256, 1), (256, ROW), (320, COLUMN), (320, *HALVE)],
    ],
)


class GoogLeNet(Model):
    """GoogLeNet (Inception version 1): nine modules with four branches."""

    name = "googlenet"
    dataset = "imagenet"
    image_size = 224
    batch_size = 32
    learning_rate = LearningRateSpec(0.005)

    def build(self, net: Network[T], images: T) -> T:
        """Builds three convolutions, nine modules, global average pooling and logits."""
        x = net.max_pool(net.conv(images, 64, 7, 2), 3, 2, "SAME")
        x = net.conv(net.conv(x, 64, 1), 192, 3)
        for group in GOOGLENET:
            x = net.max_pool(x, 3, 2, "SAME")
            for filters_1x1, filters_3x3, filters_5x5, pool_filters in group:
                filters = {
                    "filters_1x1": filters_1x1,
                    "filters_3x3": filters_3x3,
                    "filters_5x5": filters_5x5,
                    "pool_filters": pool_filters,
                }
                x = net.block(self._module, x, **filters)
        return net.logits(net.global_avg_pool(x))

    @staticmethod
    def _module(
        net: Network[T],
        x: T,
        filters_1x1: int,
        filters_3x3: Pair,
        filters_5x5: Pair,
        pool_filters: int,
    ) -> T:
        return net.concat(
            [
                net.conv(x, filters_1x1, 1),
                net.conv(net.conv(x, filters_3x3[0], 1), filters_3x3[1], 3),
                net.conv(net.conv(x, filters_5x5[0], 1), filters_5x5[1], 5),
                net.conv(net.max_pool(x, 3, 1, "SAME"), pool_filters, 1),
            ]
        )


class NormalisedInception(Model):
    """Base class of Inception versions 3 and 4: the first layers, and modules with batch norm."""

    dataset = "imagenet"
    image_size = 299
    image_sizes = range(75, LARGEST_IMAGE + 1)
    batch_size = 32
    batch_norm = BatchNorm(decay=0.999, epsilon=1e-3, scale=False)
    learning_rate = LearningRateSpec(0.005)

    def _stem(self, net: Network[T], images: T) -> T:
        return self._branch(net, images, (32, *HALVE), (32, 3, 1, "VALID"), (64, 3))

    def _module(self, net: Network[T], x: T, module: Module) -> T:
        return net.concat([self._branch(net, x, *layers) for layers in module])

    @staticmethod
    def _branch(net: Network[T], x: T, *layers: Layer) -> T:
        for kind, *how in layers:
            if kind == "max":
                x = net.max_pool(x, 3, *how)
            elif kind == "mean":
                # The convolution comes before the pooling, so that fewer channels must be pooled.
                x = net.conv(x, how[0], 1, activation=None, bias=None)
                x = net.batch_norm(net.avg_pool(x, 3, 1, "SAME"), activation="relu")
            else:
                x = net.conv(x, kind, *how, batch_norm=True)
        return x

    @staticmethod
    def _cross_convolutions(net: Network[T], x: T, filters: int) -> list[T]:
        return [net.conv(x, filters, kernel, batch_norm=True) for kernel in ((1, 3), (3, 1))]


class InceptionV3(NormalisedInception):
    """Inception version 3, with five kinds of modules, A to E."""

    name = "inception3"
    aux_head = False
    last_pooling: Sequence[Layer] = [("max", 1, "SAME"), (192, 1)]

    def build(self, net: Network[T], images: T) -> T:
        """Builds six layers, eleven modules, global average pooling and logits."""
        x = self._branch(net, self._stem(net, images), MAX, (80, 1), (192, 3, 1, "VALID"), MAX)
        for module in V3_MODULES:
            x = net.block(self._module, x, module=module)
        if self.aux_head:
            add_aux_head(net, x, conv_stddev=0.01, stddev=0.001)
        x = net.block(self._module, x, module=V3_D)
        for pooling in ([("mean", 192)], self.last_pooling):
            x = net.block(self._module_e, x, pooling=pooling)
        return net.logits(net.global_avg_pool(x))

    def _module_e(self, net: Network[T], x: T, pooling: Sequence[Layer]) -> T:
        ones = self._branch(net, x, (320, 1))
        threes = self._cross_convolutions(net, self._branch(net, x, (384, 1)), 384)
        doubles = self._cross_convolutions(net, self._branch(net, x, (448, 1), (384, 3)), 384)
        return net.concat([ones, *threes, *doubles, self._branch(net, x, *pooling)])


class InceptionV4(NormalisedInception):
    """Inception version 4, with three kinds of modules, A to C, and reductions between them."""

    name = "inception4"

    def build(self, net: Network[T], images: T) -> T:
        """Builds the stem, fourteen modules, two reductions, global average pooling and logits."""
        x = self._widening_layers(net, self._stem(net, images))
        for module in V4_MODULES:
            x = net.block(self._module, x, module=module)
        for _ in range(3):
            x = net.block(self._module_c, x)
        return net.logits(net.dropout(net.global_avg_pool(x), keep=0.8))

    def _widening_layers(self, net: Network[T], x: T) -> T:
        x = self._module(net, x, [[MAX], [(96, *HALVE)]])
        branches = (
            self._branch(net, x, (64, 1)),
            self._branch(net, x, (64, 1), (64, COLUMN), (64, ROW)),
        )
        x = net.concat([self._branch(net, y, (96, 3, 1, "VALID")) for y in branches])
        return self._module(net, x, [[(192, *HALVE)], [MAX]])

    def _module_c(self, net: Network[T], x: T) -> T:
        ones = [self._branch(net, x, ("mean", 256)), self._branch(net, x, (256, 1))]
        threes = self._branch(net, x, (384, 1))
        doubles = self._branch(net, x, (384, 1), (448, (1, 3)), (512, (3, 1)))
        crosses = (
            *self._cross_convolutions(net, threes, 256),
            *self._cross_convolutions(net, doubles, 256),
        )
        return net.concat([*ones, *crosses])


for _model in (GoogLeNet, InceptionV3, InceptionV4):
    register_model(_model.name, "imagenet", _model)
