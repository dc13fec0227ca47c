"""Keras models: a small one with every kind of variable, and some that are refused."""

import keras
import tensorflow as tf

from cnnbench.models import register_keras_model


class Penalty(keras.layers.Layer):
    """Adds a loss of its inputs."""

    def call(self, inputs):
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


class LateVariable(keras.layers.Layer):
    """Makes a variable when it is called."""

    def call(self, inputs):
        return inputs * (tf.Variable(1.0) if tf.inside_function() else 1.0)


class Inner(keras.Model):
    """A model by subclassing, which does not pass on that it trains."""

    def __init__(self):
        super().__init__()
        self.convolution = keras.layers.Conv2D(5, 3, padding="same")
        self.norm = keras.layers.BatchNormalization(momentum=0.8)
        self.pool = keras.layers.GlobalAveragePooling2D()
        self.drop = keras.layers.Dropout(0.3)
        self.head = keras.layers.Dense(11)

    def call(self, images, training=None):
        return self.head(self.drop(self.pool(self.norm(self.convolution(images)))))


def every_kind():
    """Batch norm, dropout, an added loss, a regularizer, a shared layer, a frozen one, softmax."""
    images = keras.Input((32, 32, 3))
    decayed = keras.regularizers.L2(0.01)
    x = keras.layers.Conv2D(6, 3, strides=4, use_bias=False, kernel_regularizer=decayed)(images)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Activation("relu")(x)
    x = keras.layers.SeparableConv2D(8, 3)(Penalty()(x))
    x = keras.layers.BatchNormalization(scale=False)(x)
    x = keras.layers.Flatten()(x)
    narrow = keras.layers.Dense(16, name="narrow", trainable=False)(x)
    shared = keras.layers.Dense(16, activation="tanh", name="shared")
    block = keras.Sequential([keras.Input((16,)), keras.layers.Dropout(0.4)], name="block")
    x = keras.layers.LayerNormalization()(block(shared(shared(narrow))))
    return keras.Model(images, keras.layers.Dense(11, activation="softmax")(x))


def headed(*layers):
    """A model of some layers with logits behind them."""
    pooled = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(11)]
    return keras.Sequential([keras.Input((32, 32, 3)), *layers, *pooled])


def ragged():
    """A model of a ragged tensor."""
    images = keras.Input((32, 32, 3), ragged=True, name="photos")
    return keras.Model(images, keras.layers.Dense(11)(keras.layers.Flatten()(images)))


def compiled():
    """A model with an optimizer."""
    model = headed()
    model.compile("sgd", "mse")
    return model


def register(name, build, **options):
    """Registers a model for CIFAR-10."""
    register_keras_model(name, build, dataset="cifar10", **options)


class Untold(Inner):
    """One whose layers never learn that it trains, as in `fit`."""

    def call(self, images):
        return super().call(images)


def plain():
    """A model without random numbers."""
    convolution = keras.layers.Conv2D(6, 3, strides=2, activation="relu")
    depthwise = keras.layers.Conv2D(12, 3, groups=6)
    return headed(convolution, keras.layers.BatchNormalization(), depthwise)


register("every_kind", every_kind)
register("plain", plain)
register("untold", Untold, image_size=32)
register("by_subclassing", Inner, image_size=32)
register("late", lambda: headed(LateVariable(name="slow")))
register("ragged", ragged)
register("compiled", compiled)
register("no_model", lambda: keras.layers.Dense(3))
register("broken", lambda: 1 // 0)
