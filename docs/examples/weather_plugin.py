"""Two inputs, two outputs: cnnbench --plugin=docs/examples/weather_plugin.py.

--model=forecast --data_name=weather tells from 24 hours of measurements and the number of the
station whether it will rain and how warm it will be. Without --data_dir the data is synthetic;
otherwise train.npz and validation.npz hold an array of examples for each element below.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cnnbench.arrays import Array, Tensor
from cnnbench.data import Dataset, InputSpec, register_dataset
from cnnbench.data.folder import Findings
from cnnbench.errors import DataError, FlagError
from cnnbench.models import Draw, Element, LearningRateSpec, Model, Network, T, register_model

STATIONS = 50

ELEMENTS = (
    Element("hours", (24, 3), "feature", "float32", Draw.normal()),
    Element("station", (), "feature", "int64", Draw.integers(0, STATIONS)),
    Element("rain", (), "label", "int64", Draw.integers(0, "num_classes")),
    Element("degrees", (), "label", "float32", Draw.uniform(-10, 30)),
)


class Forecast(Model):
    """A hidden layer that sees the hours and a learned vector for the station."""

    name, dataset, batch_size = "forecast", "weather", 32
    elements = ELEMENTS
    metric_names = ("rain_hits", "degrees_off")
    host_metric_names = ("median_off",)
    lower_is_better = ("degrees_off", "median_off")
    learning_rate = LearningRateSpec(0.01)

    def build(self, net: Network[T], features: Mapping[str, T]) -> Mapping[str, T]:
        """Returns the logits of dry and wet, and degrees by the ten."""
        place = net.embedding(features["station"], STATIONS, 8)
        x = net.affine(net.concat([net.flatten(features["hours"]), place]), 64)
        return {"rain": net.logits(x), "degrees": net.affine(x, 1, None)}

    def loss(self, outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy of the rain and squared error of the degrees, per example."""
        import tensorflow as tf

        rain = tf.nn.sparse_softmax_cross_entropy_with_logits(labels["rain"], outputs["rain"])
        return rain + tf.square(outputs["degrees"][:, 0] - labels["degrees"] / 10.0)

    def metrics(
        self, outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """What evaluation prints and records means of."""
        import tensorflow as tf

        hits = tf.equal(tf.argmax(outputs["rain"], axis=1), labels["rain"])
        off = tf.abs(10.0 * outputs["degrees"][:, 0] - labels["degrees"])
        return {"rain_hits": tf.cast(hits, tf.float32), "degrees_off": off}

    def host_rows(
        self,
        features: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        labels: Mapping[str, Tensor],
    ) -> Mapping[str, Tensor]:
        """What `host_metrics` gets of every example."""
        return {"told": 10.0 * outputs["degrees"][:, 0], "true": labels["degrees"]}

    def host_metrics(self, rows: Mapping[str, Array]) -> Mapping[str, float]:
        """A median is no mean over examples."""
        return {"median_off": float(np.median(np.abs(rows["told"] - rows["true"])))}


def find(data_dir: str, subset: str) -> Sequence[Path]:
    """The file of a subset, or a FlagError that says what is missing."""
    path = Path(data_dir) / f"{subset}.npz"
    if not path.is_file():
        raise FlagError("data_dir", data_dir, f"contains no {path.name}")
    return [path]


def load(path: Path) -> list[Array]:
    """An array per element; all that can be wrong with a file ends in a DataError."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return [arrays[one.name].astype(one.dtype) for one in ELEMENTS]
    except Exception as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def count(files: Sequence[Path], subset: str) -> int:
    """Examples of a subset: the length of an epoch."""
    return sum(len(load(path)[0]) for path in files)


def open_files(spec: InputSpec) -> Any:
    """The pipeline of a run. TensorFlow is imported here and not above: refusals stay fast."""
    from cnnbench.data.pipeline import ArrayPipeline

    (path,) = find(str(spec.data_dir), spec.subset)
    return ArrayPipeline(spec, *load(path))


def check(files: Sequence[Path], num_classes: int) -> Findings:
    """What `cnnbench data check` prints: here, whether the files can be read."""
    return Findings(count(files, ""))


register_dataset(
    Dataset(
        name="weather",
        num_classes=2,
        examples={"train": 5000, "validation": 1000},
        files="train.npz and validation.npz",
        find=find,
        count=count,
        open=open_files,
        check=check,
        elements=ELEMENTS,
    )
)
register_model("forecast", "weather", Forecast)
