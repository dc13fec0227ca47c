"""Creates ImageNet files from generated photographs: photos.py OUT COUNT.

A photograph consists of noise at several scales. It has 500 x 375 or 375 x 500 pixels, as a JPEG of
about 70 KB, so that decoding costs as much as with photographs of ImageNet.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tensorflow as tf

from cnnbench.cli import main as cnnbench

CLASSES = 8


def photo(index: int) -> tf.Tensor:
    """Generates one photograph, uint8 [height, width, 3]."""
    height, width = (375, 500) if index % 4 else (500, 375)
    image = tf.fill([height, width, 3], 128.0)
    for scale, strength in ((100, 40.0), (25, 30.0), (6, 20.0), (1, 8.0)):
        shape = [1, height // scale + 1, width // scale + 1, 3]
        noise = tf.random.stateless_normal(shape, [index, scale], stddev=strength)
        image += tf.image.resize(noise, [height, width], "bicubic")[0]
    return tf.cast(tf.clip_by_value(image, 0.0, 255.0), tf.uint8)


def main(out: str, count: int) -> int:
    """Writes the files; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        for index in range(count):
            path = Path(folder) / f"class{index % CLASSES}" / f"{index}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(tf.io.encode_jpeg(photo(index), quality=92).numpy())
        return cnnbench(["data", "make-imagenet", folder, out])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
