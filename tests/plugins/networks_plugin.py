"""Networks small enough to do by hand, or with one property that a test needs."""

import math

from cnnbench.models import LABEL, Element, Initializer, LearningRateSpec, Model, register_model


class Small(Model):
    """What most of them have in common."""

    dataset, image_size, batch_size = "imagenet", 1, 2
    learning_rate = LearningRateSpec(base=0.0625)


class Oracle(Small):
    """loss = (4 mean(image) + 1) A B; helpers/oracle.py has its arithmetic."""

    name = "oracle"
    shape: tuple[int, ...] = ()

    def build(self, net, images):
        import tensorflow as tf

        a = net.variable("A", self.shape, Initializer.constant(1.0))
        b = net.variable("B", self.shape, Initializer.constant(2.0))

        def product(x, a, b):
            slope = 4.0 * tf.reduce_mean(x, axis=(1, 2, 3)) + 1.0
            return tf.tile((slope * tf.reshape(a * b, ()))[:, None], [1, net.num_classes])

        return net.apply(product, images, a, b, shape=(net.num_classes,))

    def loss(self, logits, labels):
        return logits[:, 0]


class OracleOfMatrices(Oracle):
    """The same of variables that have trust ratios of their own."""

    name, shape = "oracle_of_matrices", (1, 1)


class Linear(Small):
    """The gradient does not depend on the weight: loss = W mean(image)."""

    name = "linear"
    learning_rate = LearningRateSpec(base=0.25)

    def build(self, net, images):
        import tensorflow as tf

        weight = net.variable("W", (), Initializer.constant(1.0))

        def product(x, w):
            return tf.tile((w * tf.reduce_mean(x, axis=(1, 2, 3)))[:, None], [1, net.num_classes])

        return net.apply(product, images, weight, shape=(net.num_classes,))

    def loss(self, logits, labels):
        return logits[:, 0]


class Drift(Small):
    """The image gives the gradient: loss = mean(image) sum(slopes * weights)."""

    name = "drift"
    learning_rate = LearningRateSpec(0.005)
    weights = 60_000

    def build(self, net, images):
        import tensorflow as tf

        weights = net.variable("weights", (self.weights,), Initializer.constant(1.0))

        def product(x, weights):
            slopes = tf.sin(1.7 * tf.range(self.weights, dtype=tf.float32))
            scale = tf.reduce_mean(x, axis=(1, 2, 3))
            logits = scale * tf.reduce_sum(slopes * tf.cast(weights, tf.float32))
            return tf.tile(logits[:, None], [1, net.num_classes])

        return net.apply(product, images, weights, shape=(net.num_classes,))

    def loss(self, logits, labels):
        return logits[:, 0]


class Faint(Small):
    """One weight, whose first element has the gradient 2e-8: nothing in fp16."""

    name = "faint"
    learning_rate = LearningRateSpec(1.0)

    def build(self, net, images):
        import tensorflow as tf

        weight = net.variable("weight", (1, 7), Initializer.constant(0.0))

        def logits(x, weight):
            return tf.tile(weight, [x.shape[0], net.num_classes // 7])

        return net.apply(logits, images, weight, shape=(net.num_classes,))

    def loss(self, logits, labels):
        import tensorflow as tf

        return tf.cast(logits[:, 0], tf.float32) * 2e-8


# Times the loss scale of 128 each fits into fp16; the sum of two of the largest does not.
SLOPES = (1.0, 60.0, 70.0, 100.0, -300.0, 500.0)


class Steep(Small):
    """The gradients are `SLOPES` in every tower: of a kernel, and of one row of a table."""

    name = "steep"
    learning_rate = LearningRateSpec(1.0)

    def build(self, net, images):
        import tensorflow as tf

        width = len(SLOPES)
        kernel = net.variable("kernel", (width,), Initializer.constant(0.0))
        table = net.variable("table", (3, width), Initializer.constant(0.0))

        def logits(x, kernel, table):
            rows = tf.gather(table, tf.ones([x.shape[0]], tf.int32)) + kernel
            return tf.pad(rows, [[0, 0], [0, net.num_classes - width]])

        return net.apply(logits, images, kernel, table, shape=(net.num_classes,))

    def loss(self, logits, labels):
        import tensorflow as tf

        return tf.linalg.matvec(tf.cast(logits[:, : len(SLOPES)], tf.float32), SLOPES)


TARGETS = (0.3, -2.7, 1.9, 0.01, 5.3, -0.7, 0.9, 3.1)


class Curved(Small):
    """Gradients follow the weights, some of them beyond 1, in elements enough to round.

    `free` has no weight decay; no loss but the L2 loss depends on `detached`.
    """

    name, image_size = "curved", 2

    def build(self, net, images):
        import tensorflow as tf

        net.variable("detached", (2,), Initializer.constant(1.7))
        weights = net.variable("weights", (5,), Initializer.truncated_normal(0.9))
        free = net.variable("free", (3,), Initializer.constant(0.6), weight_decay=False)

        def logits(x, weights, free):
            steepness = 1.0 + tf.reduce_mean(x, axis=(1, 2, 3))
            rows = steepness[:, None] * tf.concat([weights, free], axis=0)
            return tf.pad(rows, [[0, 0], [0, net.num_classes - len(TARGETS)]])

        return net.apply(logits, images, weights, free, shape=(net.num_classes,))

    def loss(self, logits, labels):
        import tensorflow as tf

        errors = tf.cast(logits[:, : len(TARGETS)], tf.float32) - tf.constant(TARGETS)
        return tf.reduce_sum(tf.square(errors), axis=1) / 3.0


class Rows(Small):
    """Looks up a few rows of a table, whose gradient is sparse."""

    name, image_size = "rows", 2

    def build(self, net, images):
        import tensorflow as tf

        table = net.variable("table", (7, 5), Initializer.truncated_normal(0.5))

        def look_up(x, table):
            number = tf.cast(tf.math.abs(tf.reduce_sum(x, axis=(1, 2, 3))) * 10.0, tf.int32) % 7
            found = tf.gather(table, number)
            return tf.pad(found, [[0, 0], [0, net.num_classes - 5]])

        return net.apply(look_up, images, table, shape=(net.num_classes,))

    def loss(self, logits, labels):
        import tensorflow as tf

        return tf.reduce_mean(tf.square(logits[:, :5] - 1.0), axis=1)


NAN, INFINITY = 13, 14


class Poison(Small):
    """Gradients, but not the loss, are spoilt by the labels NAN and INFINITY.

    The loss does not depend on the labels. An example with the label NAN makes every
    gradient NaN; one with the label INFINITY makes that of `lever` infinite and leaves all
    others as they are. `detached` is a weight that no loss but the L2 loss depends on.
    """

    name, image_size = "poison", 2

    def build(self, net, images):
        import tensorflow as tf

        net.variable("detached", (3,), Initializer.constant(2.0))
        lever = net.variable("lever", (), Initializer.constant(0.5))

        def with_lever(x, lever):
            """Puts the lever in place of the first logit."""
            return tf.concat([tf.fill([tf.shape(x)[0], 1], lever), x[:, 1:]], axis=1)

        x = net.conv(images, 3, 2, stddev=0.5, batch_norm=True)
        x = net.logits(net.flatten(x), stddev=0.5)
        return net.apply(with_lever, x, lever, shape=(net.num_classes,))

    def loss(self, logits, labels):
        import tensorflow as tf

        squares = tf.reduce_mean(tf.square(logits[:, 1:8] - 1.0), axis=1)
        losses = squares + _spoilt(logits[:, 0], labels, INFINITY, math.inf)
        return _spoilt(losses, labels, NAN, math.nan)


def _spoilt(values, labels, label, factor):
    """The unchanged values; gradients of the examples with `label` are multiplied by `factor`."""
    import tensorflow as tf

    @tf.custom_gradient
    def identity(values):
        def gradient(upstream):
            return upstream * tf.where(labels == label, factor, tf.ones_like(upstream))

        return tf.identity(values), gradient

    return identity(values)


class Normal(Small):
    """Batch norm in a row and beside itself, with scale and without."""

    name, image_size, batch_size = "normal", 4, 4
    filters = 4

    def build(self, net, images):
        x = net.conv(images, self.filters, 3, batch_norm=True)
        left = net.conv(x, 4, 1, batch_norm=True)
        right = net.conv(x, 4, 3, batch_norm=True)
        x = net.affine(net.flatten(net.add(left, right)), 4)
        x = net.logits(x, stddev=0.2)
        spare = net.variable("spare", (3,), Initializer.constant(2.0))
        return net.apply(lambda x, v: x, x, spare, shape=(net.num_classes,))


class Odd(Normal):
    """With six channels, which TensorFlow's fused batch norm and ReLU for inference refuses."""

    name, filters = "odd", 6


class FailsToRun(Small):
    """The second tower fails when it runs."""

    name, image_size = "fails_to_run", 2

    def build(self, net, images):
        x = net.conv(images, 3, 2, batch_norm=True)
        x = net.logits(net.flatten(x), stddev=0.5)
        return net.apply(self.fail, x, shape=(net.num_classes,))

    def fail(self, x):
        import tensorflow as tf

        works = "tower_1" not in tf.get_current_name_scope()
        # An operation with effects, so that each tower is traced.
        with tf.control_dependencies([tf.debugging.Assert(works, ["the second tower cannot run"])]):
            return tf.identity(x)


class Gate(Small):
    """Its input reads the file `gate` of the working directory per example.

    A FIFO in its place stalls the input, as a file system that hangs.
    """

    name, dataset, image_size = "gate", "cifar10", 32
    learning_rate = LearningRateSpec(base=0.001)

    def preprocess(self, example, seed, *, training):
        import tensorflow as tf

        # Name and label depend on the example and on the file, or it is read once or never.
        path = "gate" + tf.strings.substr(tf.strings.as_string(seed[0] + seed[1]), 0, 0)
        length = tf.strings.length(tf.io.read_file(path))
        return {**example, "label": example["label"] + tf.cast(length, example["label"].dtype)}

    def build(self, net, images):
        return net.logits(net.global_avg_pool(images))


class Classifier(Small):
    """Two convolutions and a classifier."""

    name, dataset, image_size = "classifier", "cifar10", 8
    filters = 3

    def features(self, net, images):
        return net.conv(net.conv(images, self.filters, 3, batch_norm=True), 4, 3)

    def build(self, net, images):
        return net.logits(net.global_avg_pool(self.features(net, images)))


class Wide(Classifier):
    """Another number of filters."""

    name, filters = "wide", 5


class Detector(Classifier):
    """The layers of the classifier in a scope, as a backbone, and another head."""

    name, backbone = "detector", "trunk"

    def build(self, net, images):
        with net.scope("trunk"):
            x = self.features(net, images)
        return net.logits(net.flatten(x))


class Limited(Classifier):
    """The limits of a Keras model: one layout, layers of its own, and a number of outputs."""

    name, keras_layers, data_format, num_classes = "limited", "fused", "NHWC", 7


class Points(Small):
    """Other features than the images of its data set."""

    name, elements = "points", (Element("image", (3,), "feature"), LABEL)

    def build(self, net, points):
        return net.logits(points)


for model in (
    *(Oracle, OracleOfMatrices, Linear, Drift, Faint, Steep, Curved, Rows, Poison, Normal, Odd),
    *(FailsToRun, Gate, Classifier, Wide, Detector, Limited, Points),
):
    register_model(model.name, model.dataset, model)
