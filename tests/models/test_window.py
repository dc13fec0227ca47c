from __future__ import annotations

import pytest
import tensorflow as tf
from covering import covering_pairs

from cnnbench.models.window import Window


@pytest.mark.parametrize(
    ("padding", "image", "size", "stride"),
    covering_pairs(["SAME", "VALID"], [7, 8, 9], [1, 2, 3, 5], [1, 2, 3]),
)
def test_output_is_what_tensorflow_makes(padding, image, size, stride):
    window = Window.make((image, image + 1), (size, size), (stride, stride), padding)
    pooled = tf.nn.max_pool2d(tf.zeros([1, image, image + 1, 1]), size, stride, padding)
    assert window.output == tuple(pooled.shape[1:3])
    assert not window.explicit


@pytest.mark.parametrize(
    ("size", "zeros"), [(1, (0, 0)), (2, (0, 1)), (3, (1, 1)), (4, (1, 2)), (7, (3, 3))]
)
@pytest.mark.parametrize("image", [9, 10])
def test_same_resnet_pads_by_the_kernel_not_by_the_image(size, zeros, image):
    window = Window.make((image, image), (size, size), (2, 2), "SAME_RESNET")
    assert window.zeros == (zeros, zeros)
    assert window.padding == "VALID"
    assert window.output == ((image + 1) // 2,) * 2
    assert window.explicit == (size > 1)


def test_sides_are_settled_separately():
    window = Window.make((8, 8), (1, 7), (1, 2), "SAME_RESNET")
    assert window.zeros == ((0, 0), (3, 3))
    assert window.output == (8, 4)
