"""The official ResNets: sizes from published counts, results from a reference."""

from __future__ import annotations

import pytest
from residual_networks import ResNet

from cnnbench.models import declare, get_model

# torchvision's for 1000 classes; timm's for 200. The official stage of 64 channels has a
# projection even where basic blocks need none.
PUBLISHED = {
    **{18: 11_689_512 + 64 * 64 + 2 * 64, 34: 21_797_672 + 64 * 64 + 2 * 64},
    **{50: 25_557_032, 101: 44_549_160, 152: 60_192_808, 200: 64_673_832},
}


@pytest.mark.parametrize("depth", PUBLISHED)
def test_sizes(depth):
    last = 512 if depth < 50 else 2048
    expected = PUBLISHED[depth] + last + 1  # the class "background"
    assert declare(get_model(f"official_resnet{depth}", "imagenet"), 1001).parameters == expected
    # v2 has a norm before each convolution instead of after it. Along the shortcuts they pair
    # off but for those of the four projections (scale and offset of 15/8 of the last width).
    v2 = declare(get_model(f"official_resnet{depth}_v2", "imagenet"), 1001)
    assert v2.parameters == expected - 2 * last * 15 // 8
    assert v2.parameters == v2.trainable_parameters


def test_hyperparameters():
    model = get_model("official_resnet101_v2", "imagenet")
    norm = model.batch_norm
    assert (norm.decay, norm.epsilon, norm.scale) == (0.997, 1e-5, True)
    sizes = [get_model(f"official_resnet{d}", "imagenet").batch_size for d in PUBLISHED]
    assert sizes == [32, 32, 128, 32, 32, 32]


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("official_resnet18", (2, 1)),
        ("official_resnet18_v2", (2, 1)),
        ("official_resnet50", (1, 2, 1)),
        ("official_resnet50_v2", (1, 2, 1)),
    ],
)
def test_equal_to_the_reference(name, strides, check_logits):
    model = get_model(name, "imagenet")
    model.image_size = 40  # odd and even extents below it: 20, 10, 5, 3, 2
    v2 = name.endswith("_v2")
    check_logits(
        model,
        lambda values: ResNet(values, model.blocks, strides, preactivation=v2, norms_stem=not v2),
    )
