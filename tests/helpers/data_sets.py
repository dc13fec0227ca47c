"""Small data sets made as users make theirs, whose examples can be told apart."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import textwrap
import wave
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cnnbench.cli import main
from cnnbench.data import (
    CIFAR10,
    COCO,
    IMAGENET,
    LIBRISPEECH,
    RATINGS,
    Dataset,
    InputSpec,
    tfrecord,
)
from cnnbench.data.dataset import TowerBatch
from cnnbench.models.elements import resolve_sizes


def write_cifar10(directory, images, labels, *, subset="train", form="python", files=5):
    """Writes images as data_batch_* or test_batch files.

    Args:
      directory: created if missing.
      images: uint8 [n, 32, 32, 3].
      labels: integers [n] in [0, 255].
      subset: "train" or "validation" (one file).
      form: "python" or "binary".
      files: over how many files training images are spread; at most n.

    Returns:
      The paths written.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    names = ["test_batch"]
    if subset == "train":
        names = [f"data_batch_{i + 1}" for i in range(min(files, len(images)))]
    flat = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    written = []
    for name, rows, values in zip(
        names, np.array_split(flat, len(names)), np.array_split(labels, len(names)), strict=True
    ):
        path = directory / (name if form == "python" else f"{name}.bin")
        path.write_bytes(_pickled(name, rows, values) if form == "python" else _bytes(rows, values))
        written.append(path)
    return written


def write_random_cifar10(directory, **counts):
    """Writes so many random images for each subset, as `train=24`."""
    draw = np.random.default_rng(1)
    for subset, count in counts.items():
        images = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        write_cifar10(directory, images, draw.integers(0, 10, count), subset=subset)


def _pickled(name, rows, labels):
    batch = {
        b"batch_label": name.encode(),
        b"labels": [int(label) for label in labels],
        b"data": np.ascontiguousarray(rows),
        b"filenames": [f"{name}_{i}.png".encode() for i in range(len(rows))],
    }
    return pickle.dumps(batch, protocol=2)


def _bytes(rows, labels):
    return np.concatenate([labels.astype(np.uint8)[:, None], rows], axis=1).tobytes()


def input_spec(
    dataset: Dataset, image_size: int, subset: str = "train", **fields: Any
) -> InputSpec:
    """An `InputSpec` for one image on one device, unless `fields` ask for more."""
    values = {"batch_per_device": 1, "num_devices": 1, **fields}
    return InputSpec(dataset=dataset, subset=subset, image_size=image_size, **values)


@dataclass(frozen=True)
class Small:
    """A data set of a few examples.

    Attributes:
      dataset: which one.
      source: writes what users have before they make the data set, into a folder.
      options: of the command that makes it.
      examples: those of each subset, as `of` tells them apart.
      of: the examples of a batch. Those that training adds to the ones in the files are left out.
      size: of the images.
      per_epoch: training examples of an epoch; as many as are in the files unless given.
      fields: of every `InputSpec`.
    """

    dataset: Dataset
    source: Callable[[Path], object]
    options: tuple[str, ...]
    examples: Mapping[str, Sequence[Hashable]]
    of: Callable[[TowerBatch], list[Hashable]]
    size: int = 0
    per_epoch: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)

    def make(self, source: Path, out: Path) -> Path:
        """Makes the data set of a source; its folder."""
        if self.dataset is CIFAR10:
            return source
        arguments = [f"make-{self.dataset.name}", str(source), str(out), *self.options]
        assert main(["data", *arguments]) == 0
        return out

    def spec(
        self, folder: Path, subset: str = "train", towers: int = 1, batch: int = 1, **fields: Any
    ) -> InputSpec:
        """What reads it."""
        own = {"image_size": self.size, **self.fields, **fields}
        return input_spec(
            self.dataset,
            subset=subset,
            **{"data_dir": str(folder), "batch_per_device": batch, "num_devices": towers, **own},
        )

    def count(self, subset: str) -> int:
        """Examples of an epoch."""
        return (
            self.per_epoch if self.per_epoch and subset == "train" else len(self.examples[subset])
        )


# ImageNet: a class of its own for each image --------------------------------------------------


def noise(number: int, *shape: int) -> np.ndarray:
    """Random pixels."""
    return np.random.default_rng(number).integers(0, 255, shape, np.uint8)


def jpeg(number: int) -> bytes:
    """24 x 32 random pixels."""
    import tensorflow as tf

    return bytes(tf.io.encode_jpeg(noise(number, 24, 32, 3)).numpy())


def imagenet_source(root: Path) -> None:
    for subset, count in (("train", 16), ("validation", 8)):
        for number in range(1, count + 1):
            folder = root / subset / f"c{number:02d}"
            folder.mkdir(parents=True)
            (folder / "0.jpg").write_bytes(jpeg(number))


def labels_of(batch: TowerBatch) -> list[Hashable]:
    return [int(label) for label in batch.labels]


# CIFAR-10: the first pixel tells the image ------------------------------------------------------

CIFAR10_IMAGES = noise(0, 22, 32, 32, 3)
CIFAR10_IMAGES[:, 0, 0, 0] = np.arange(22)


def cifar10_source(root: Path) -> None:
    for subset in ("train", "validation"):
        write_cifar10(root, CIFAR10_IMAGES, np.arange(22) % 10, subset=subset)


def first_pixels(batch: TowerBatch) -> list[Hashable]:
    import tensorflow as tf

    pixels = tf.cast(batch.features[:, 0, 0, 0], tf.float64).numpy()
    return [round(float(pixel + 1) * 127.5) for pixel in pixels]


# COCO: rectangles of colour on grey; the last image is empty ------------------------------------

COCO_SIZES = [(60, 80), (90, 50), (64, 64), (70, 100), (48, 90), (64, 80), (80, 64), (50, 50)]
COCO_COLOURS = {3: (250, 20, 20), 18: (20, 20, 250)}
_CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}]


def coco_source(root: Path) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    (root / "annotations").mkdir(parents=True)
    for name in ("train", "val"):
        (root / f"{name}2017").mkdir()
        images, annotations = [], []
        for number, (height, width) in enumerate(COCO_SIZES, start=100):
            pixels = np.full((height, width, 3), 128, np.uint8)
            file = {"id": number, "file_name": f"{number}.jpg", "height": height, "width": width}
            images.append(file)
            for category in () if number == 107 else (18, 3):
                top, left = rng.integers(0, 20, 2)
                down, across = rng.integers(12, 24, 2)
                pixels[top : top + down, left : left + across] = COCO_COLOURS[category]
                annotations.append(
                    {
                        "id": 10 * number + category,
                        "image_id": number,
                        "category_id": category,
                        "bbox": [float(left), float(top), float(across), float(down)],
                        "iscrowd": int(number == 101 and category == 3),
                    }
                )
            encoded = tf.io.encode_jpeg(pixels, quality=100, chroma_downsampling=False)
            (root / f"{name}2017" / f"{number}.jpg").write_bytes(encoded.numpy())
        content = {"images": images, "annotations": annotations, "categories": _CATEGORIES}
        coco_annotations(root, name).write_text(json.dumps(content))


def coco_annotations(root: Path, name: str = "train") -> Path:
    """The file of annotations of "train" or "val"."""
    return root / "annotations" / f"instances_{name}2017.json"


# LibriSpeech: another transcript for each utterance ---------------------------------------------

TEXTS = ["HELLO", "IT'S A BEE", "OF ALL", "SPEECH IS FINE", "NO", "YES", "A WORD", "THE END"]
FRAMES, LETTERS = 60, 16


def wav(samples: np.ndarray, rate: int = 16_000, channels: int = 1) -> bytes:
    """A file of 16-bit samples."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples, "<i2").tobytes())
    return content.getvalue()


def sound(samples: int, seed: int = 0) -> np.ndarray:
    """Noise."""
    return np.random.default_rng(seed).integers(-9000, 9000, samples)


def librispeech_source(root: Path) -> None:
    texts = {"train-clean-100": TEXTS[:3], "train-other-500": TEXTS[3:], "test-clean": TEXTS[:5]}
    for folder, some in texts.items():
        chapter = root / folder / "7" / "21"
        chapter.mkdir(parents=True)
        lines = []
        for i, text in enumerate(some):
            lines.append(f"7-21-{i:04d} {text}")
            (chapter / f"7-21-{i:04d}.wav").write_bytes(wav(sound(4800 + 700 * i, len(text))))
        (chapter / "7-21.trans.txt").write_text("\n".join(lines) + "\n")


class Sizes:
    """What a model says about utterances."""

    max_frames, min_frames, max_letters = FRAMES, 1, LETTERS


def utterances(**sizes: int) -> dict[str, Any]:
    """The field of an `InputSpec` for a model of these sizes."""
    own = type("Own", (Sizes,), sizes)
    return {"examples": resolve_sizes(LIBRISPEECH.elements, own(), 29)}


def transcripts(batch: TowerBatch) -> list[Hashable]:
    rows = zip(batch.labels["transcript"], batch.labels["transcript_length"], strict=True)
    return ["".join(map(chr, _letters(row[: int(length)]))) for row, length in rows]


def _letters(numbers: Any) -> list[int]:
    from cnnbench.data.librispeech import ALPHABET

    return [ALPHABET[int(number)] for number in numbers]


# Ratings: numbers as published, from 1, with gaps, in no order ----------------------------------

USERS, ITEMS = 6, 60


def ratings_table() -> np.ndarray:
    """(user, item, rating, time); user n has rated 8 + n items."""
    rng = np.random.default_rng(0)
    rows: list[tuple[int, ...]] = []
    for user in range(USERS):
        rated = rng.choice(ITEMS, 8 + user, replace=False)
        times = rng.permutation(len(rated)) + 1000
        pairs = zip(rated, times, strict=True)
        rows += [(3 * user + 1, 7 * item + 2, 4, when) for item, when in pairs]
    table = np.array(rows)
    return table[rng.permutation(len(table))]


def write_ratings(path: Path, table: np.ndarray) -> Path:
    """Writes the published form that the suffix says."""
    dat = path.suffix == ".dat"
    lines = [] if dat else ["userId,movieId,rating,timestamp"]
    lines += [("::" if dat else ",").join(map(str, row)) for row in table.tolist()]
    path.write_text("\n".join(lines) + "\n")
    return path


def rated_and_candidates() -> dict[str, list[Hashable]]:
    """What users rated but for their last item, and the users as often as they have candidates."""
    table = ratings_table()
    numbers = {item: number for number, item in enumerate(np.unique(table[:, 1]))}
    by_time = table[np.argsort(table[:, 3])]
    rated: list[Hashable] = []
    for user in range(USERS):
        own = [numbers[item] for item in by_time[by_time[:, 0] == 3 * user + 1][:, 1]]
        rated += [(user, int(number)) for number in own[:-1]]
    candidates: list[Hashable] = [user for user in range(USERS) for _ in range(10)]
    return {"train": rated, "validation": candidates}


def ratings_of(batch: TowerBatch) -> list[Hashable]:
    users = batch.features["user"].numpy().tolist()
    if batch.weights is not None:
        return users
    rows = zip(users, batch.features["item"].numpy().tolist(), batch.labels, strict=True)
    return [(user, item) for user, item, label in rows if label]


_RATED = rated_and_candidates()
SHARDS = ("--train_shards=3", "--validation_shards=2")
SMALL = {
    "imagenet": Small(
        *(IMAGENET, imagenet_source, SHARDS),
        {"train": range(1, 17), "validation": range(1, 9)},
        *(labels_of, 16),
    ),
    "cifar10": Small(
        *(CIFAR10, cifar10_source, ()),
        {"train": range(22), "validation": range(22)},
        *(first_pixels, 32),
    ),
    "coco": Small(
        *(COCO, coco_source, SHARDS),
        {"train": range(100, 107), "validation": range(100, 108)},
        lambda batch: [int(number) for number in batch.labels["source_id"]],
        32,
    ),
    "librispeech": Small(
        *(LIBRISPEECH, librispeech_source, SHARDS),
        {"train": [t.lower() for t in TEXTS], "validation": [t.lower() for t in TEXTS[:5]]},
        transcripts,
        fields=utterances(),
    ),
    "ratings": Small(
        RATINGS,
        lambda root: write_ratings(root / "ratings.dat", ratings_table()),
        ("--negatives=9", "--min_ratings=8"),
        *(_RATED, ratings_of),
        per_epoch=5 * len(_RATED["train"]),
    ),
}


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    """Writes a TFRecord file."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path


def damage(path: Path, record: int) -> None:
    """Changes a byte of the data of one record."""
    _, offset, length = list(tfrecord.locate_records(path))[record]
    content = bytearray(path.read_bytes())
    content[offset + length // 2] ^= 1
    path.write_bytes(content)


def examples(batches: Sequence[TowerBatch], of: Callable[[TowerBatch], list[Hashable]]) -> list:
    """Those of all towers that are no padding."""
    return list(itertools.chain.from_iterable(_weighted(batch, of) for batch in batches))


def _weighted(batch: TowerBatch, of: Callable[[TowerBatch], list[Hashable]]) -> list[Hashable]:
    if batch.weights is None:
        return of(batch)
    return list(itertools.compress(of(batch), batch.weights.numpy() > 0))


# The data set of docs/examples/weather_plugin.py ------------------------------------------------

WEATHER_PLUGIN = str(Path(__file__).parents[2] / "docs" / "examples" / "weather_plugin.py")
WEATHER = {"plugin": WEATHER_PLUGIN, "data_name": "weather", "model": "forecast"}
"""Flags of a run of its network."""

OWN_FORECAST = """
import os
from cnnbench.models import Element, Initializer, get_model, register_model
Forecast = type(get_model("forecast", "weather"))

class Own(Forecast):
    name = "own"
{body}
register_model("own", "weather", Own)
"""


def own_forecast(folder: Path, body: str) -> dict[str, str]:
    """Flags of a run of a network, written into `folder`, that has `body` besides the example's."""
    path = folder / "own.py"
    path.write_text(OWN_FORECAST.format(body=textwrap.indent(textwrap.dedent(body), "    ")))
    return {**WEATHER, "model": "own", "plugin": f"{WEATHER_PLUGIN},{path}"}


def write_weather(folder: Path, train: int, validation: int) -> Path:
    """Writes so many examples per subset, whose hours tell both answers; returns the folder."""
    rng = np.random.default_rng(3)
    for subset, count in (("train", train), ("validation", validation)):
        hours = rng.normal(size=(count, 24, 3)).astype(np.float32)
        np.savez(
            folder / f"{subset}.npz",
            hours=hours,
            station=rng.integers(0, 50, count),
            rain=(hours[:, 0, 1] > 0).astype(np.int64),
            degrees=10 + 8 * hours[:, :, 0].mean(axis=1),
        )
    return folder
