"""A tf.data pipeline on ImageNet files without cnnbench, written for speed.

It does the work of cnnbench's default pipeline for training: it interleaves files, shuffles
records, decodes only a random window of each JPEG, resizes it to 224 x 224 pixels, mirrors half of
the images, scales values to -1..1, and creates batches. It has no reproducible order, no checks,
and no list of the records that are being decoded.
"""

from __future__ import annotations

import time

import tensorflow as tf
from steps import parse, tell  # type: ignore[import-not-found] # the file beside this

SIZE = 224
SHUFFLED = 10_000


def image_and_label(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes one record: image, float32 [224, 224, 3], and label, int64 scalar."""
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(record, features)
    jpeg = example["image/encoded"]
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(jpeg),
        tf.zeros([1, 0, 4]),
        min_object_covered=0.1,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], extent[:2]], axis=0)
    image = tf.io.decode_and_crop_jpeg(jpeg, window, channels=3, dct_method="INTEGER_FAST")
    image = tf.image.resize(image, [SIZE, SIZE])
    image = tf.image.random_flip_left_right(image)
    return image / 127.5 - 1.0, example["image/class/label"]


def batches(data_dir: str, batch_size: int) -> tf.data.Dataset:
    """Creates a data set of endless batches."""
    files = tf.data.Dataset.list_files(f"{data_dir}/train-*", shuffle=True)
    records = files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=8,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    examples = records.shuffle(SHUFFLED).repeat()
    examples = examples.map(image_and_label, tf.data.AUTOTUNE, deterministic=False)
    return examples.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def main() -> None:
    """Measures the pipeline, and prints the measurement."""
    args = parse(("resnet50",))
    iterator = iter(batches(args.data_dir, args.batch_size))
    # From here on, batches are fetched without a pause, so that buffers do not hide the speed.
    for _ in range(args.warmup):
        next(iterator)
    start = time.perf_counter()
    for _ in range(args.batches):
        next(iterator)
    seconds = time.perf_counter() - start
    tell(args.batch_size, [seconds / args.batches] * args.batches, tf)


if __name__ == "__main__":
    main()
