"""ImageNet, or any set of labelled images, from TFRecord files."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from cnnbench.data import imagenet_records
from cnnbench.data.image import eval_image, train_image
from cnnbench.data.records import RecordPipeline, require


class ImageNetPipeline(RecordPipeline):
    """Decodes, crops and resizes JPEGs."""

    def decode(self, record: tf.Tensor, position: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """See `RecordPipeline.decode`."""
        spec = self.spec
        jpeg, label, boxes = imagenet_records.parse(record)
        # Fails for data that are no JPEG.
        shape = tf.io.extract_jpeg_shape(jpeg)
        sound = require(
            (label >= 0)
            & (label < spec.num_classes)
            & imagenet_records.is_usable_size(shape)
            & imagenet_records.are_inside(boxes),
            label,
        )
        with tf.control_dependencies([sound]):
            jpeg = tf.identity(jpeg)
        if spec.training:
            image = train_image(jpeg, shape, boxes, position, spec)
        else:
            image = eval_image(jpeg, position, spec)
        return {"image": image, "label": label}

    def examine(self, record: bytes) -> object:
        """See `RecordPipeline.examine`."""
        spec = self.spec
        min_size = spec.image_size if spec.resize_method == "crop" else 1
        return imagenet_records.examine(record, spec.num_classes, min_size)
