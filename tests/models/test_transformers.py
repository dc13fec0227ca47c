"""The networks of tokens against their definitions in NumPy, at a size of their own."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.errors import UsageError
from cnnbench.models import declare, get_model
from cnnbench.models.graph import forward

CLASSES = 5


class Reference:
    """Layers in float64, their weights taken by name; remembers which."""

    def __init__(self, weights):
        self.values = {k: v.numpy().astype(np.float64) for k, v in weights.values.items()}
        self.used: set[str] = set()

    def get(self, name):
        self.used.add(name)
        return self.values[name]

    def norm(self, x, at, epsilon):
        spread = np.sqrt(x.var(-1, keepdims=True) + epsilon)
        return (x - x.mean(-1, keepdims=True)) / spread * self.get(f"{at}/gamma") + self.get(
            f"{at}/beta"
        )

    def affine(self, x, at, bias=True):
        return x @ self.get(f"{at}/kernel") + (self.get(f"{at}/bias") if bias else 0.0)

    def patches(self, images, side):
        """Each patch's pixels, row by row, times the kernel."""
        count = images.shape[1] // side
        kernel = self.get("conv0/kernel").reshape(side * side * 3, -1)
        rows = [
            images[:, i * side : (i + 1) * side, j * side : (j + 1) * side].reshape(len(images), -1)
            for i, j in itertools.product(range(count), repeat=2)
        ]
        return np.stack(rows, 1) @ kernel + self.get("conv0/bias")

    def perceptron(self, x, first, second):
        wide = self.affine(x, first)
        erf = np.vectorize(math.erf)
        return self.affine(wide * (1 + erf(wide / np.sqrt(2))) / 2, second)


def attend(query, keys, values, extra=0.0):
    """One head's answer to one query ``[n, d]``: shares of the values ``[n, tokens, d]``."""
    scores = np.einsum("nd,ntd->nt", query, keys) / np.sqrt(query.shape[1]) + extra
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return np.einsum("nt,ntd->nd", shares / shares.sum(1, keepdims=True), values)


def check(model, reference_of, make_weights, data_format):
    weights = make_weights(declare(model, CLASSES).variables)
    for name in weights.values:  # far from 0, so that tokens attend to some more than to others
        if name.endswith(("kernel", "distances", "positions")):
            weights.values[name] *= 20.0
    size = model.image_size
    images = np.random.default_rng(1).standard_normal((2, size, size, 3)).astype(np.float32)
    reference = Reference(weights)
    expected = reference_of(model, reference, images.astype(np.float64))
    assert reference.used == set(weights.values)
    ours = forward(
        model,
        CLASSES,
        tf.constant(images),
        weights.read,
        training=False,
        data_format=data_format,
    ).outputs
    assert float(np.linalg.norm(ours - expected) / np.linalg.norm(expected)) < 1e-4


# Vision transformer ---------------------------------------------------------------------------


def vit(model, ref, images):
    x = ref.patches(images, model.patch)
    token = np.broadcast_to(ref.get("token"), (len(x), 1, model.width))
    x = np.concatenate([token, x], 1) + ref.get("positions")
    d = model.width // model.heads
    for layer in range(model.layers):
        at = f"layer{layer}"
        qkv = ref.affine(ref.norm(x, f"{at}/layernorm0", 1e-6), f"{at}/affine0")
        out = np.zeros_like(x)
        for head, t in itertools.product(range(model.heads), range(x.shape[1])):
            q, k, v = (
                qkv[..., i * model.width + head * d : i * model.width + (head + 1) * d]
                for i in range(3)
            )
            out[:, t, head * d : (head + 1) * d] = attend(q[:, t], k, v)
        x = x + ref.affine(out, f"{at}/affine1")
        normed = ref.norm(x, f"{at}/layernorm1", 1e-6)
        x = x + ref.perceptron(normed, f"{at}/affine2", f"{at}/affine3")
    return ref.affine(ref.norm(x, "layernorm0", 1e-6)[:, 0], "affine0")


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_vision_transformer(layout, nchw, make_weights):
    model = get_model("vit_b16", "imagenet")
    model.image_size, model.patch, model.width, model.layers, model.heads = 12, 4, 12, 2, 3
    check(model, vit, make_weights, layout)


# Swin -------------------------------------------------------------------------------------------


def swin_attention(model, ref, x, side, heads, shift, at):
    """Each token attends to those of its window; windows moved by ``shift`` end at the border."""
    qkv = ref.affine(x, f"{at}/affine0")
    table = ref.get(f"{at}/distances")
    width = x.shape[2]
    d, w = width // heads, model.window
    out = np.zeros_like(x)
    grid = list(itertools.product(range(side), repeat=2))
    for t, (i, j) in enumerate(grid):
        window = ((i - shift) // w, (j - shift) // w)
        inside = [
            u for u, (k, m) in enumerate(grid) if ((k - shift) // w, (m - shift) // w) == window
        ]
        rows = [(i - grid[u][0] + w - 1) * (2 * w - 1) + (j - grid[u][1] + w - 1) for u in inside]
        for head in range(heads):
            q, k, v = (
                qkv[..., n * width + head * d : n * width + (head + 1) * d] for n in range(3)
            )
            out[:, t, head * d : (head + 1) * d] = attend(
                q[:, t], k[:, inside], v[:, inside], table[rows, head]
            )
    return ref.affine(out, f"{at}/affine1")


def swin(model, ref, images):
    x = ref.norm(ref.patches(images, 4), "layernorm0", 1e-5)
    side = images.shape[1] // 4
    for stage, (count, heads) in enumerate(zip(model.layers, model.heads, strict=True)):
        if stage > 0:
            at = f"stage{stage}"
            grid = x.reshape(len(x), side, side, -1)
            # The order of the paper's code: down first, then right.
            four = [grid[:, r::2, c::2] for c in (0, 1) for r in (0, 1)]
            side //= 2
            x = np.concatenate(four, -1).reshape(len(x), side * side, -1)
            x = ref.affine(ref.norm(x, f"{at}/layernorm0", 1e-5), f"{at}/affine0", bias=False)
        for layer in range(count):
            at = f"stage{stage}/layer{layer}"
            shift = model.window // 2 if layer % 2 and side > model.window else 0
            normed = ref.norm(x, f"{at}/layernorm0", 1e-5)
            x = x + swin_attention(model, ref, normed, side, heads, shift, at)
            normed = ref.norm(x, f"{at}/layernorm1", 1e-5)
            x = x + ref.perceptron(normed, f"{at}/affine2", f"{at}/affine3")
    return ref.affine(ref.norm(x, "layernorm1", 1e-5).mean(1), "affine0")


@pytest.mark.parametrize(
    # A window of three moves by one: what is wrapped around is narrower than what is not.
    ("window", "stages", "layout"),
    [(2, 3, "NHWC"), (2, 3, "NCHW"), (3, 2, "NHWC"), (4, 3, "NHWC")],
)
def test_swin(window, stages, layout, nchw, make_weights):
    model = get_model("swin_t", "imagenet")
    model.window, model.image_size, model.width = window, 16 * window, 6
    model.layers, model.heads = (2, 2, 1)[:stages], (1, 2, 3)[:stages]
    check(model, swin, make_weights, layout)


def test_windows_that_do_not_fit_the_image_are_refused():
    model = get_model("swin_t", "imagenet")
    model.image_size = 232
    with pytest.raises(UsageError, match="reshape keeps the number of elements"):
        declare(model, CLASSES)
