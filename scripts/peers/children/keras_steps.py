"""Measures training steps of ``keras.applications`` with Keras 3's own ``train_step``.

The step is traced into one ``tf.function``, with the batch in memory. This is the fastest way to
call it, without data adapter and callbacks. XLA is off, because it is several times as slow on
CPUs.
"""

from __future__ import annotations

import argparse
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf
from steps import measure, parse  # type: ignore[import-not-found] # the file beside this

MODELS = {
    "resnet50": ("ResNet50", 224),
    "vgg16": ("VGG16", 224),
    "inception3": ("InceptionV3", 299),
}


def compiled(network: str, args: argparse.Namespace) -> keras.Model:
    """Creates a network and compiles it for plain SGD with weight decay."""
    name, size = MODELS[network]
    model = getattr(keras.applications, name)(
        weights=None, classes=1001, input_shape=(size, size, 3), classifier_activation=None
    )
    model.compile(
        optimizer=keras.optimizers.SGD(args.learning_rate, weight_decay=args.weight_decay),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def main() -> None:
    """Measures the steps, and prints the measurement."""
    args = parse(MODELS)
    keras.utils.set_random_seed(1)
    if args.dtype == "bf16":
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model, (_, size) = compiled(args.model, args), MODELS[args.model]
    images = tf.random.stateless_normal([args.batch_size, size, size, 3], [1, 2])
    labels = tf.random.stateless_uniform([args.batch_size], [3, 4], 0, 1001, tf.int32)
    model.optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=False)
    def step() -> tf.Tensor:
        return model.train_step((images, labels))["loss"]

    measure(args, step, keras, tf)


if __name__ == "__main__":
    main()
