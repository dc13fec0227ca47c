"""What holds for every built-in network: its size, its defaults, and that it trains.

Tests models/networks/*.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from networks import CUT, cut, forward, images_for

from cnnbench.errors import FlagError, UsageError
from cnnbench.models import declare, get_model, model_names
from cnnbench.models.declaration import ShapeNetwork
from cnnbench.models.networks.nasnet import NasNetSize
from cnnbench.models.networks.swin import make_window_bias

CLASSES = {"imagenet": 1001, "cifar10": 11, "coco": 81}

# (model, data set): parameters, image size, batch size, base learning rate, and the billions of
# multiply-adds where they are published. The counts are those of the graphs that tf_cnn_benchmarks
# builds; the multiply-adds are those of torchvision's table of models, for inception4 timm's, for
# nasnet, regnety_800mf and regnety_8gf the paper's.
TABLE = {
    ("trivial", "imagenet"): (4_263_877, 227, 32, 0.005),
    ("lenet", "imagenet"): (2_173_353, 28, 32, 0.005),
    ("alexnet", "imagenet"): (61_842_345, 227, 512, 0.005),
    # keras.applications has 138,357,544 and 143,667,240, torchvision 132,863,336 for 1000 classes;
    # one class more is 4097 weights.
    ("vgg11", "imagenet"): (132_863_336 + 4_097, 224, 64, 0.005, 7.61),
    ("vgg16", "imagenet"): (138_357_544 + 4_097, 224, 64, 0.005, 15.47),
    ("vgg19", "imagenet"): (143_667_240 + 4_097, 224, 64, 0.005, 19.63),
    # By hand: 96 to 1024 filters of side 11, 5, 3, 3, 3; 6 * 6 * 1024 to 3072 to 4096 to 1001.
    ("overfeat", "imagenet"): (
        (34_944 + 614_656 + 1_180_160 + 4_719_616 + 9_438_208)
        + (36_864 * 3_072 + 3_072 + 3_072 * 4_096 + 4_096 + 4_097 * 1_001),
        231,
        32,
        0.005,
    ),
    # Caffe's bvlc_googlenet without its auxiliary classifiers has 6,998,552 for 1000 classes.
    ("googlenet", "imagenet"): (6_998_552 + 1_025, 224, 32, 0.005, 1.58),
    # keras.applications.InceptionV3 has 23,817,352 trainable ones for 1000 classes.
    ("inception3", "imagenet"): (23_817_352 + 2_049, 299, 32, 0.005, 5.71),
    # timm's inception_v4 has 42,679,816 for 1000 classes, 31,584 scales of batch norm among them.
    ("inception4", "imagenet"): (42_679_816 - 31_584 + 1_537, 299, 32, 0.005, 12.28),
    # Fewer multiply-adds than torchvision's, v1.5: a block strides in its first convolution.
    ("resnet50", "imagenet"): (25_559_081, 224, 64, 0.128, 3.858),
    ("resnet50_v1.5", "imagenet"): (25_559_081, 224, 64, 0.128, 4.09),
    ("resnet50_v2", "imagenet"): (25_536_361, 224, 64, 0.128, 3.858),
    # keras.applications has 5,289,978 and 88,753,150 trainable ones for 1000 classes.
    ("nasnet", "imagenet"): (5_289_978 + 1_057, 224, 32, 0.005, 0.564),
    ("nasnetlarge", "imagenet"): (88_753_150 + 4_033, 331, 16, 0.005, 23.8),
    # tf_cnn_benchmarks' with 11 classes.
    ("nasnet", "cifar10"): (3_347_307, 32, 32, 0.025),
    ("ssd300", "coco"): (19_972_534, 300, 32, 0.001),
    # torchvision's for 1000 classes.
    ("resnet18", "imagenet"): (11_689_512 + 513, 224, 64, 0.128, 1.81),
    ("resnet34", "imagenet"): (21_797_672 + 513, 224, 64, 0.128, 3.66),
    # torchvision's counts for 1000 classes, equal to those of keras.applications where it has the
    # network, and the weights of one class more.
    ("mobilenet", "imagenet"): (3_504_872 + 1_281, 224, 32, 0.005, 0.301),
    ("efficientnet_b0", "imagenet"): (5_288_548 + 1_281, 224, 64, 0.016, 0.386),
    ("efficientnet_b1", "imagenet"): (7_794_184 + 1_281, 240, 64, 0.016, 0.687),
    ("efficientnet_b2", "imagenet"): (9_109_994 + 1_409, 260, 64, 0.016),
    ("efficientnet_b3", "imagenet"): (12_233_232 + 1_537, 300, 32, 0.016, 1.83),
    ("efficientnet_b4", "imagenet"): (19_341_616 + 1_793, 380, 32, 0.016, 4.39),
    ("efficientnet_b5", "imagenet"): (30_389_784 + 2_049, 456, 16, 0.016, 10.27),
    ("efficientnet_b6", "imagenet"): (43_040_704 + 2_305, 528, 16, 0.016, 19.07),
    ("efficientnet_b7", "imagenet"): (66_347_960 + 2_561, 600, 8, 0.016, 37.75),
    ("efficientnetv2_s", "imagenet"): (21_458_488 + 1_281, 384, 32, 0.016, 8.37),
    ("convnext_tiny", "imagenet"): (28_589_128 + 769, 224, 64, 0.00025, 4.46),
    ("convnext_base", "imagenet"): (88_591_464 + 1_025, 224, 32, 0.00025, 15.36),
    ("regnety_400mf", "imagenet"): (4_344_144 + 441, 224, 128, 0.2, 0.402),
    # pycls and timm; torchvision's is wider, as is its regnet_y_8gf.
    ("regnety_800mf", "imagenet"): (6_263_168 + 769, 224, 128, 0.2, 0.8),
    ("regnety_1.6gf", "imagenet"): (11_202_430 + 889, 224, 64, 0.2, 1.61),
    ("regnety_3.2gf", "imagenet"): (19_436_338 + 1_513, 224, 64, 0.2, 3.18),
    ("regnety_8gf", "imagenet"): (39_180_068 + 2_017, 224, 32, 0.2, 8.0),
    ("regnety_16gf", "imagenet"): (83_590_140 + 3_025, 224, 32, 0.2, 15.91),
    ("regnety_32gf", "imagenet"): (145_046_770 + 3_713, 224, 16, 0.2, 32.28),
    ("vit_b16", "imagenet"): (86_567_656 + 769, 224, 32, 0.0001875, 17.56),
    ("swin_t", "imagenet"): (28_288_354 + 769, 224, 64, 0.00025, 4.49),
    # torchvision's and keras.applications'.
    **{
        (f"resnet101{version}", "imagenet"): (44_549_160 + 2_049, 224, 32, 0.128)
        for version in ("", "_v1.5")
    },
    # Norms before each block instead of after: scale and offset of 15/8 * 2048 channels fewer but
    # those of the stem, and no scales of the 30,528 inputs of blocks and of the last 2,048.
    ("resnet101_v2", "imagenet"): (44_551_209 - 7_680 + 128 - 30_528 - 2_048, 224, 32, 0.128),
    ("resnet152", "imagenet"): (60_194_857, 224, 32, 0.128),
    ("resnet152_v1.5", "imagenet"): (60_194_857, 224, 32, 0.128),
    ("resnet152_v2", "imagenet"): (60_139_369, 224, 32, 0.128),
    # timm's for 1000 classes, of which it has no multiply-adds at this size but for the first.
    ("resnet50_d", "imagenet"): (25_576_264 + 2_049, 224, 64, 0.128, 4.35),
    ("resnet101_d", "imagenet"): (44_568_392 + 2_049, 224, 32, 0.128),
    ("resnet152_d", "imagenet"): (60_212_040 + 2_049, 224, 32, 0.128),
    # By hand: 19 convolutions of 2.36 million, of which two take half as many channels.
    ("resnet20", "cifar10"): (269_787, 32, 128, 0.1, 0.04055),
    ("resnet20_v2", "cifar10"): (269_467, 32, 128, 0.1),
    # Each further block of every stage adds 97,216 parameters, of v2 97,104.
    **{
        (f"resnet{6 * blocks + 2}{version}", "cifar10"): (least + blocks * each, 32, 128, 0.1)
        for version, least, each in (("", -21_861, 97_216), ("_v2", -21_845, 97_104))
        for blocks in (5, 7, 9)
    },
    ("resnet110", "cifar10"): (1_728_027, 32, 128, 0.1),
    ("resnet110_v2", "cifar10"): (1_726_027, 32, 128, 0.1),
    ("densenet40_k12", "cifar10"): (357_491, 32, 64, 0.1),
    ("densenet100_k12", "cifar10"): (2_217_411, 32, 64, 0.1),
    # By hand: the stem, 32 layers of each block (norm, 3 x 3 convolution), two transitions of
    # 784 and 816 channels to 48, the last norm and layer.
    ("densenet100_k24", "cifar10"): (
        448 + (218 * (12_416 + 2 * 13_440) + 3 * 768) + 50 * (784 + 816) + 96 + 1_632 + 817 * 11,
        32,
        64,
        0.1,
    ),
    # By hand: 3072 + 1, 4096 + 4096, 4096 * 11 + 11.
    ("trivial", "cifar10"): (3_073 + 8_192 + 45_067, 32, 32, 0.005),
    # By hand: two 5 x 5 convolutions with biases, 8 * 8 * 64 to 384 to 192 to 11.
    ("alexnet", "cifar10"): (
        (75 * 64 + 64) + (1_600 * 64 + 64) + (4_096 * 384 + 384) + (384 * 192 + 192) + 193 * 11,
        32,
        128,
        0.1,
    ),
}


@pytest.mark.usefixtures("own_registry")
def test_every_network_has_a_row_here():
    """But for those in test_resnet.py; the other data sets have tests of their own."""
    names = {(name, dataset) for dataset in CLASSES for name in model_names(dataset)}
    assert {one for one in names if not one[0].startswith("official_")} == set(TABLE)


@pytest.mark.parametrize(("name", "dataset"), TABLE)
def test_it_declares_what_is_published(name, dataset):
    model = get_model(name, dataset)
    spec = declare(model, CLASSES[dataset])
    # All of a built-in network's parameters are trained; moving averages are not parameters.
    assert spec.parameters == spec.trainable_parameters
    found = (spec.parameters, model.image_size, model.batch_size, model.learning_rate.base)
    assert found == TABLE[name, dataset][:4]
    for giga in TABLE[name, dataset][4:]:
        assert spec.forward_flops_per_image == pytest.approx(2e9 * giga, rel=0.005)
    assert spec.input_shape == f"{model.image_size}x{model.image_size}x3"
    assert spec.num_classes == CLASSES[dataset]


class Noted(ShapeNetwork):
    """Notes the settings of layers that their shapes do not show."""

    def __init__(self, *of, **options):
        self.norms, self.dropouts, self.paths, self.responses = set(), [], [], set()
        super().__init__(*of, **options)

    def dropout(self, x, keep=0.5):
        self.dropouts.append(keep)
        return super().dropout(x, keep)

    def drop_path(self, x, keep, *, by_progress=False):
        self.paths.append(keep)
        return super().drop_path(x, keep, by_progress=by_progress)

    def _batch_norm(self, x, layer):
        settings = layer.settings
        assert settings.unbiased
        self.norms.add((settings.decay, settings.epsilon, settings.scale))
        return super()._batch_norm(x, layer)

    def lrn(self, x, **settings):
        self.responses.add(tuple(settings.values()))
        return super().lrn(x, **settings)


HALVES = [0.5, 0.5]
# Batch norm: decay, epsilon, scale. What is kept by dropout, and of the first and the last path.
SETTINGS = {
    ("alexnet", "imagenet"): ([], HALVES, []),
    ("overfeat", "imagenet"): ([], HALVES, []),
    ("vgg16", "imagenet"): ([], HALVES, []),
    ("trivial", "imagenet"): ([], [], []),
    ("googlenet", "imagenet"): ([], [], []),
    ("lenet", "imagenet"): ([], [], []),
    ("inception3", "imagenet"): ([(0.999, 0.001, False)], [], []),
    ("inception4", "imagenet"): ([(0.999, 0.001, False)], [0.8], []),
    ("resnet50", "imagenet"): ([(0.9, 1e-5, True)], [], []),
    ("resnet50_v2", "imagenet"): ([(0.9, 1e-5, False), (0.9, 1e-5, True)], [], []),
    ("official_resnet50", "imagenet"): ([(0.997, 1e-5, True)], [], []),
    ("official_resnet50_v2", "imagenet"): ([(0.997, 1e-5, True)], [], []),
    ("mobilenet", "imagenet"): ([(0.997, 0.001, True)], [0.8], [1.0, 1.0]),
    ("efficientnet_b0", "imagenet"): (
        [(0.99, 0.001, True)],
        [0.8],
        [1 - 0.2 * 2 / 16, 1 - 0.2 * 14 / 16],
    ),
    ("efficientnet_b1", "imagenet"): (
        [(0.99, 0.001, True)],
        [0.8],
        [1 - 0.2 * 1 / 23, 1 - 0.2 * 22 / 23],
    ),
    ("efficientnetv2_s", "imagenet"): ([(0.99, 0.001, True)], [0.8], [1.0, 1 - 0.2 * 39 / 40]),
    ("nasnet", "imagenet"): ([(0.9997, 0.001, True)], [], [1.0, 1.0]),
    ("nasnetlarge", "imagenet"): ([(0.9997, 0.001, True)], [], [1 - 0.3 / 22, 0.7]),
    ("nasnet", "cifar10"): ([(0.9, 1e-5, True)], [], [1 - 0.4 / 20, 0.6]),
    ("convnext_tiny", "imagenet"): ([], [], [1.0, 0.9]),
    ("convnext_base", "imagenet"): ([], [], [1.0, 0.5]),
    ("swin_t", "imagenet"): ([], [], [1.0, 0.8]),
    ("vit_b16", "imagenet"): ([], [], []),
    ("regnety_400mf", "imagenet"): ([(0.9, 1e-5, True)], [], []),
    ("resnet20", "cifar10"): ([(0.9, 1e-5, True)], [], []),
    ("resnet20_v2", "cifar10"): ([(0.9, 1e-5, False), (0.9, 1e-5, True)], [], []),
    ("densenet40_k12", "cifar10"): ([(0.9, 1e-5, True)], [], []),
    ("ssd300", "coco"): ([(0.997, 1e-4, True)], [], []),
    ("deepspeech2", "librispeech"): ([(0.997, 1e-5, True)], [], []),
}
KEPT_BY_DROPOUT = dict(enumerate((0.8, 0.8, 0.7, 0.7, 0.6, 0.6, 0.5, 0.5)))


@pytest.mark.parametrize(("name", "dataset"), SETTINGS)
def test_layers_have_the_settings_of_the_papers_and_of_tf_cnn_benchmarks(name, dataset):
    norms, dropouts, paths = SETTINGS[name, dataset]
    model = get_model(name, dataset)
    net = Noted(model, model.num_classes or CLASSES[dataset], training=True)
    net.forward()
    assert sorted(net.norms) == norms
    assert net.dropouts == dropouts
    assert [*net.paths[:1], *net.paths[-1:]] == pytest.approx(paths)


def test_larger_efficientnets_drop_more():
    kept = {n: get_model(f"efficientnet_b{n}", "imagenet").keep for n in KEPT_BY_DROPOUT}
    assert kept == KEPT_BY_DROPOUT


def test_the_response_of_cifar_alexnet_is_normalised_as_in_its_tutorial():
    net = Noted(get_model("alexnet", "cifar10"), 11, training=True)
    net.forward()
    assert net.responses == {(4, 1.0, 0.001 / 9.0, 0.75)}


# Standard deviations that networks name themselves, and initial values of variables of their own.
FIRST_VALUES = {
    ("convnext_tiny", "imagenet"): {"kernel": {0.02}, "scale": {1e-6}},
    ("swin_t", "imagenet"): {"kernel": {0.02}, "distances": {0.02}},
    ("vit_b16", "imagenet"): {"positions": {0.02}, "token": {0.0}},
    ("ncf", "ratings"): {"table": {0.01}},
    ("densenet40_k12", "cifar10"): {"conv0/kernel": {(2 / 9 / 12) ** 0.5, (2 / 9 / 24) ** 0.5}},
    ("alexnet", "cifar10"): {
        **{"conv0/kernel": {0.05}, "conv1/kernel": {0.05}, "conv0/bias": {0.0}},
        **{"affine0/kernel": {0.04}, "affine1/kernel": {0.04}, "conv1/bias": {0.1}},
        **{"affine0/bias": {0.1}, "affine1/bias": {0.1}},
    },
}


@pytest.mark.parametrize(("name", "dataset"), FIRST_VALUES)
def test_variables_begin_as_the_papers_say(name, dataset):
    model = get_model(name, dataset)
    variables = declare(model, model.num_classes or CLASSES[dataset]).variables
    for ending, values in FIRST_VALUES[name, dataset].items():
        first = [v.initializer for v in variables if f"/{v.name}".endswith(f"/{ending}")]
        drawn = {one.stddev for one in first if one.kind == "truncated_normal"}
        constants = {one.value for one in first if one.kind == "constant"}
        found = drawn | constants
        assert values <= found if ending.endswith("kernel") else values == found


def test_nasnets_drop_more_paths_the_deeper_they_are():
    shares = []

    class Recording(ShapeNetwork):
        def drop_path(self, x, keep, *, by_progress=False):
            assert by_progress
            shares.append(keep)
            return x

    model = get_model("nasnetlarge", "imagenet")
    Recording(model, 10, training=True).forward()
    # 22 cells, two of them in the stem; the last keeps 0.7 in the end.
    assert sorted(set(shares), reverse=True) == pytest.approx(
        [1 - 0.3 * cell / 22 for cell in range(1, 23)]
    )


@pytest.mark.parametrize(
    ("name", "epsilon"), [("swin_t", 1e-5), ("vit_b16", 1e-6), ("convnext_tiny", 1e-6)]
)
def test_layer_norms_have_the_epsilon_of_torchvision(name, epsilon):
    found = set()

    class Recording(ShapeNetwork):
        def _layer_norm(self, x, gamma, beta, epsilon):
            found.add(epsilon)
            return x

    Recording(get_model(name, "imagenet"), 10, training=False).forward()
    assert found == {epsilon}


def test_swin_shifts_windows_in_every_second_layer_unless_one_covers_the_image():
    layers = []

    class Recording(ShapeNetwork):
        def block(self, body, *xs, **how):
            layers.append(tuple(how[name] for name in ("side", "heads", "shifts_windows")))
            keeps.append(how["keep"])
            return super().block(body, *xs, **how)

    keeps = []
    Recording(get_model("swin_t", "imagenet"), 10, training=True).forward()
    assert layers == [
        *((56, 3, False), (56, 3, True)),
        *((28, 6, False), (28, 6, True)),
        *[(14, 12, False), (14, 12, True)] * 3,
        *[(7, 24, False)] * 2,
    ]
    assert keeps == pytest.approx([1 - 0.2 * layer / 11 for layer in range(12)])


@pytest.mark.parametrize(("window", "side", "shift"), [(2, 4, 0), (2, 4, 1), (3, 6, 1), (3, 6, 2)])
def test_the_attention_bias_of_windows_by_definition(window, side, shift):
    distances = 2 * window - 1
    table = np.random.default_rng(0).normal(size=(distances**2, 2)).astype(np.float32)
    found = make_window_bias(tf.constant(table), window, side, shift).numpy()
    count, tokens = side // window, range(window**2)
    expected = np.zeros((count, count, 2, window**2, window**2), np.float32)

    def wraps(row_of_windows, place):  # whether a row or column comes from the other end
        return row_of_windows * window + place + shift >= side

    for down, right, query, key in itertools.product(range(count), range(count), tokens, tokens):
        (a, b), (c, d) = divmod(query, window), divmod(key, window)
        bias = table[(a - c + window - 1) * distances + b - d + window - 1]
        apart = wraps(down, a) != wraps(down, c) or wraps(right, b) != wraps(right, d)
        expected[down, right, :, query, key] = bias - 100 * apart
    np.testing.assert_allclose(found, expected if shift else expected[0, 0], atol=1e-5)


# The global batch that the base rate is for, epochs of warm-up, boundaries in epochs and rates.
RESNETS = (30.0, 60.0, 80.0, 90.0)
RATES = {
    ("resnet152_v2", "imagenet"): (256, 5.0, RESNETS, (0.128, 0.0128, 0.00128, 1.28e-4, 1.28e-5)),
    ("official_resnet50", "imagenet"): (256, 0.0, RESNETS, (0.1, 0.01, 0.001, 1e-4, 1e-5)),
    ("resnet110_v2", "cifar10"): (None, 0.0, (82.0, 123.0, 300.0), (0.1, 0.01, 0.001, 0.0002)),
    ("densenet40_k12", "cifar10"): (None, 0.0, (150.0, 225.0, 300.0), (0.1, 0.01, 0.001, 1e-4)),
    ("alexnet", "cifar10"): (None, 0.0, (), [0.1]),  # and a decay
    ("ssd300", "coco"): (
        *(32, 5.0, (160_000 * 32 / 118_287, 200_000 * 32 / 118_287)),
        (0.001, 0.0001, 0.00001),
    ),
    ("mobilenet", "imagenet"): (None, 0.0, (), [0.005]),
    # Every 2.4 epochs of 350.
    ("efficientnet_b0", "imagenet"): (
        *(256, 5.0, [2.4 * k for k in range(1, 146)]),
        [0.016 * 0.97**k for k in range(146)],
    ),
}
# Epochs of a cosine, and of the warm-up before it.
COSINES = {
    "convnext_tiny": (300, 20.0),
    "swin_t": (300, 20.0),
    "vit_b16": (300, 32.0),
    "regnety_400mf": (100, 5.0),
}


@pytest.mark.parametrize("name", COSINES)
def test_learning_rates_of_later_papers_are_cosines(name):
    rate, (epochs, warmup) = get_model(name, "imagenet").learning_rate, COSINES[name]
    assert (rate.base_batch, rate.warmup_epochs) == (256, warmup)
    assert rate.boundaries_epochs == tuple(map(float, range(1, epochs)))


def test_rates_that_decay_or_change_in_whole_batches():
    rates = {
        (name, dataset): get_model(name, dataset).learning_rate
        for name, dataset in RATES | {("resnet20", "cifar10"): None}
    }
    decaying = {key: (rate.decay_epochs, rate.decay_factor) for key, rate in rates.items()}
    assert {key: decay for key, decay in decaying.items() if decay != (0.0, 1.0)} == {
        ("alexnet", "cifar10"): (100.0, 0.1)
    }
    assert {name for (name, _), rate in rates.items() if rate.whole_batches} == {
        *("resnet20", "resnet110_v2", "densenet40_k12")
    }


@pytest.mark.parametrize(("name", "dataset"), RATES)
def test_learning_rates_are_those_of_the_papers_and_of_tf_cnn_benchmarks(name, dataset):
    rate = get_model(name, dataset).learning_rate
    base_batch, warmup, boundaries, rates = RATES[name, dataset]
    assert (rate.base_batch, rate.warmup_epochs) == (base_batch, warmup)
    assert rate.boundaries_epochs == pytest.approx(tuple(boundaries))
    assert [rate.base * factor for factor in rate.factors] == pytest.approx(rates)


EVERY = [(name, owner) for owner in CLASSES for name in model_names(owner)]


def family(name, dataset):
    """What networks have in common that differ in depth and width."""
    model = get_model(name, dataset)
    return type(model), dataset, model.image_sizes


FIRST_OF_FAMILIES = [*{family(*key): key for key in reversed(EVERY)}.values()]


@pytest.mark.parametrize(("name", "dataset"), FIRST_OF_FAMILIES)
def test_sizes_of_images_that_a_network_declares_are_those_it_can_be_built_for(name, dataset):
    model = get_model(name, dataset)
    if "image_size" not in {size for one in model.elements for size in one.named_sizes}:
        with pytest.raises(FlagError, match=f"^--image_size=64: --model={name} takes no images"):
            model.resize(64, None)
        return
    least = model.image_sizes.start
    if len(model.image_sizes) > 1:
        model.resize(least, 7)
        assert declare(model, 7).num_classes == 7
        step = model.image_sizes.step
        largest = least + (16_384 - least) // step * step
        model.resize(largest, None)
        beyond = largest + step
        with pytest.raises(FlagError, match=f"^--image_size={beyond}: --model={name} takes"):
            model.resize(beyond, None)
    if least > 1:
        with pytest.raises(FlagError, match=f"^--image_size={least - 1}: --model={name} takes"):
            model.resize(least - 1, None)
    if least > 1 and len(model.image_sizes) > 1:
        model.image_size = least - 1
        with pytest.raises(UsageError):
            declare(model, 7)


def test_windows_that_do_not_fit_the_image_are_refused():
    model = get_model("swin_t", "imagenet")
    model.image_size = 232
    with pytest.raises(UsageError, match="reshape keeps the number of elements"):
        declare(model, 11)


# The size of the image. Of networks that differ in depth, width and size alone one is trained, cut
# to few blocks.
TRAINED = {
    **{("lenet", "imagenet"): 28, ("googlenet", "imagenet"): 64, ("nasnet", "cifar10"): 32},
    **{(name, "imagenet"): CUT[name]["image_size"] for name in CUT},
    **{(f"resnet20{version}", "cifar10"): 32 for version in ("", "_v2")},
    **{(name, "cifar10"): 32 for name in ("densenet40_k12", "trivial", "alexnet")},
}
SHALLOW = {
    **{f"resnet20{version}": {"blocks": (1, 1, 1)} for version in ("", "_v2")},
    "densenet40_k12": {"layers": 3},
    "nasnet": {"size": NasNetSize(cells=3, filters=4, stem=12, keep=0.6)},
}
PRECISIONS = ("float32", "bfloat16")  # which take turns
EVERYDAY = (("lenet", "imagenet"), ("resnet20", "cifar10"), ("vit_b16", "imagenet"))
"""The whole suite trains all; test_layers.py has the gradients of every kind of layer."""


def has_gradients_of_groups(dtype: str) -> bool:
    """Whether convolutions in groups can be trained in a dtype: only oneDNN has such kernels."""
    images, kernel = tf.zeros([1, 4, 4, 4], dtype), tf.zeros([3, 3, 2, 4], dtype)
    try:
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            total = tf.reduce_sum(tf.nn.conv2d(images, kernel, 1, "SAME"))
        tape.gradient(total, [images, kernel])
    except tf.errors.InvalidArgumentError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "dataset", "dtype"),
    slow_if(
        lambda case: case[:2] not in EVERYDAY,
        [(*key, dtype) for key, dtype in zip(TRAINED, itertools.cycle(PRECISIONS), strict=False)],
    ),
)
def test_one_step_down_the_gradient_lowers_the_loss(name, dataset, dtype, make_weights):
    if name.startswith("regnety") and not has_gradients_of_groups(dtype):
        pytest.skip(f"this CPU has no gradients of grouped convolutions in {dtype}")
    model = get_model(name, dataset)
    model.image_size = TRAINED[name, dataset]
    for attribute, value in SHALLOW.get(name, {}).items():
        setattr(model, attribute, value)
    cut(model)
    variables = declare(model, 11).variables
    weights = make_weights(variables)
    images = images_for(model, 4)
    labels = tf.constant([0, 3, 6, 9])
    trained = [v.name for v in variables if v.trainable]

    def loss(values):
        def read(spec, wanted):
            return tf.cast(values[spec.name], wanted)

        options = {"training": True, "compute_dtype": dtype, "seed": 1}
        logits = forward(model, 11, images, read, **options).outputs
        return tf.reduce_mean(model.loss(logits, labels))

    with tf.GradientTape() as tape:
        tape.watch([weights.values[n] for n in trained])
        before = loss(weights.values)
    gradients = tape.gradient(before, [weights.values[n] for n in trained])
    assert all(g is not None and g.dtype == tf.float32 for g in gradients)
    squared = float(tf.add_n([tf.reduce_sum(g * g) for g in gradients]))
    assert squared > 0
    # Short enough for the slope to hold: it foretells a tenth of the loss.
    rate = 0.1 * float(before) / squared
    moved = dict(weights.values)
    for variable, gradient in zip(trained, gradients, strict=True):
        moved[variable] = moved[variable] - rate * gradient
    assert float(loss(moved)) < float(before)


@pytest.mark.parametrize("layout", ["NCHW"])
@pytest.mark.parametrize("name", slow_if(lambda name: name not in ("mobilenet", "vit_b16"), CUT))
def test_cut_networks_in_nchw_equal_those_in_nhwc(name, layout, nchw, make_weights):
    model = cut(get_model(name, "imagenet"))
    weights = make_weights(declare(model, 11).variables)
    images = images_for(model)
    one, other = (
        forward(model, 11, images, weights.read, training=False, data_format=each).outputs
        for each in ("NHWC", layout)
    )
    assert float(tf.norm(one - other) / tf.norm(one)) < 1e-4
