"""NASNet-A against its definition as a table of operations (Zoph et al., figure 4).

Tests models/networks/nasnet.py.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from covering import slow_if
from residual_networks import InOrder, relative_error

from cnnbench.models.networks.nasnet import NasNet, NasNetCifar10, NasNetSize

# Pairs to add, in order: an operation and the state it takes. States 0 and 1 are the inputs of the
# cell, the following ones the sums. What no pair takes is the output.
NORMAL = [
    ("separable 5", 0, "separable 3", 1),
    ("separable 5", 1, "separable 3", 1),
    ("avg", 0, "none", 1),
    ("avg", 1, "avg", 1),
    ("separable 3", 0, "none", 0),
]
REDUCTION = [
    ("separable 5", 0, "separable 7", 1),
    ("max", 0, "separable 7", 1),
    ("avg", 0, "separable 5", 1),
    ("none", 3, "avg", 2),
    ("separable 3", 2, "max", 0),
]
NORMAL_OUTPUT, REDUCTION_OUTPUT = (1, 2, 3, 4, 5, 6), (3, 4, 5, 6)


class Reference(InOrder):
    """The network with plain functions in float64."""

    def ones(self, x, filters):
        return tf.nn.conv2d(x, self.take("/kernel", 1, 1, x.shape[3], filters), 1, "SAME")

    def separable(self, x, size, filters, stride):
        for one in (stride, 1):
            depthwise = self.take("depthwise_kernel", size, size, x.shape[3], 1)
            x = tf.nn.depthwise_conv2d(tf.nn.relu(x), depthwise, [1, one, one, 1], "SAME")
            x = tf.nn.conv2d(x, self.take("pointwise_kernel"), 1, "SAME")
            x = self.norm(x)
        return x

    def apply(self, operation, x, filters, stride):
        kind, _, size = operation.partition(" ")
        if kind == "separable":
            return self.separable(x, int(size), filters, stride)
        if kind == "none":
            return x if x.shape[3] == filters else self.norm(self.ones(tf.nn.relu(x), filters))
        pool = tf.nn.max_pool2d if kind == "max" else tf.nn.avg_pool2d
        x = pool(x, 3, stride, "SAME")
        return x if x.shape[3] == filters else self.norm(self.ones(x, filters))

    def cell(self, x, previous, filters, stride):
        second = previous
        if previous is None:
            second = x
        elif previous.shape[1] != x.shape[1]:
            y = tf.nn.relu(previous)
            shifted = tf.pad(y, [[0, 0], [0, 1], [0, 1], [0, 0]])[:, 1:, 1:]
            halves = [self.ones(z[:, ::2, ::2], filters // 2) for z in (y, shifted)]
            second = self.norm(tf.concat(halves, 3))
        elif previous.shape[3] != filters:
            second = self.norm(self.ones(tf.nn.relu(previous), filters))
        states = [self.norm(self.ones(tf.nn.relu(x), filters)), second]
        table, output = (NORMAL, NORMAL_OUTPUT) if stride == 1 else (REDUCTION, REDUCTION_OUTPUT)
        for left, i, right, j in table:
            strides = [stride if state < 2 else 1 for state in (i, j)]
            sides = zip((left, right), (i, j), strides, strict=True)
            a, b = (self.apply(name, states[s], filters, one) for name, s, one in sides)
            states.append(a + b)
        parts = [states[i] for i in output]
        same = [p if p.shape[3] == filters else self.norm(self.ones(p, filters)) for p in parts]
        return tf.concat(same, 3)

    def auxiliary(self, x):
        """Logits of the head that slim puts before the second reduction."""
        x = tf.nn.avg_pool2d(tf.nn.relu(x), 5, 3, "VALID")
        x = tf.nn.relu(self.norm(self.ones(x, 128)))
        kernel = self.take("/kernel", *x.shape[1:], 768)
        x = tf.nn.relu(self.norm(tf.nn.conv2d(x, kernel, 1, "VALID")))
        return x[:, 0, 0] @ self.take("affine0/kernel") + self.take("affine0/bias")

    def __call__(self, images, model):
        """Logits, and those of the auxiliary head if there is one."""
        imagenet = model.stem_reductions == 2
        stride, padding = (2, "VALID") if imagenet else (1, "SAME")
        size, filters = model.size, model.size.filters
        second_head = None
        x = tf.cast(images, tf.float64)
        x = self.norm(tf.nn.conv2d(x, self.take("conv0/kernel"), stride, padding))
        outputs = [None, x]
        for share in (4, 2) if imagenet else ():
            outputs.append(self.cell(outputs[-1], outputs[-2], filters // share, 2))
        for cell in range(size.cells):
            before = outputs[-2]
            if cell in (size.cells // 3, 2 * size.cells // 3):
                if cell == 2 * size.cells // 3 and model.aux_head:
                    second_head = self.auxiliary(outputs[-1])
                filters *= 2
                outputs.append(self.cell(outputs[-1], outputs[-2], filters, 2))
            second = before if size.skip_reduction else outputs[-2]
            outputs.append(self.cell(outputs[-1], second, filters, 1))
        x = tf.reduce_mean(tf.nn.relu(outputs[-1]), [1, 2])
        logits = x @ self.take("affine0/kernel") + self.take("affine0/bias")
        self.done()
        return logits, second_head


def small_cifar10():
    model = NasNetCifar10()
    model.size = NasNetSize(cells=3, filters=4, stem=12, keep=0.6)
    return model


def small_mobile():
    return NasNet("nasnet", NasNetSize(cells=6, filters=8, stem=6), 63, 2)


def small_large():
    return NasNet("nasnetlarge", NasNetSize(3, 8, 12, skip_reduction=True, keep=0.7), 67, 2)


@pytest.mark.parametrize(
    "make", slow_if([small_mobile, small_large], [small_cifar10, small_mobile, small_large])
)
def test_equals_the_table_of_operations(make, check_logits):
    model = make()
    check_logits(
        model,
        lambda values: lambda images: Reference(values, model.batch_norm.epsilon)(images, model)[0],
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [small_cifar10, small_mobile])
def test_auxiliary_head(make, check_logits):
    model = make()
    model.size = model.size._replace(keep=1.0)
    model.aux_head = True
    if model.image_size != 32:
        model.image_size = 123  # 8 pixels before the second reduction
    heads = []

    def reference(values):
        def logits(images):
            made = Reference(values, model.batch_norm.epsilon, training=True)(images, model)
            heads.append(made[1])
            return made[0]

        return logits

    ((ours, weight),) = check_logits(model, reference, count=4, training=True).auxiliaries
    assert weight == 0.4
    assert relative_error(ours, heads[0]) < 1e-4
