"""``cnnbench models``: the networks and how big they are, without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cnnbench.commands import notice
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import FLAGS, parse_flags
from cnnbench.text.table import aligned, natural_key
from cnnbench.text.terminal import print_result

if TYPE_CHECKING:
    from cnnbench.data.dataset import Dataset

_FLAGS = tuple(
    spec for spec in FLAGS if spec.name in ("data_name", "dataset_plugin", "model_plugin")
)
_HEADS = ("model", "image", "batch/device", "parameters", "GFLOPs forward", "GFLOPs training")

_ABOUT = """\
Usage: cnnbench models [--data_name=NAME] [--dataset_plugin=FILE] [--model_plugin=FILE]

Lists the models by data set: image size in pixels, default batch size per device, trainable
parameters, and GFLOPs per image (1 multiply-add = 2 FLOPs) forward and for a training step.
"""


HELP = (_ABOUT, [("Flags", _FLAGS)])


def main(argv: Sequence[str]) -> int:
    """Prints a table of models per data set.

    Raises:
      UsageError: a wrong flag, an unknown data set, or a plug-in that cannot be loaded.
    """
    given = parse_flags(argv, _FLAGS)
    from cnnbench.data.dataset import find_dataset, load_plugin
    from cnnbench.models import registry

    if given.get("dataset_plugin"):
        load_plugin(given["dataset_plugin"])
    if given.get("model_plugin"):
        registry.load_plugin(given["model_plugin"])
    names = registry.datasets()
    if given.get("data_name"):
        names = (find_dataset(given["data_name"], None).name,)
    for name in names:
        try:
            dataset = find_dataset(name, None)
        except UsageError:
            notice(f"models for {name} are left out: there is no data set of that name")
            continue
        table = (f"  {line}\n" for line in aligned([_HEADS, *_rows(dataset)]))
        print_result(f"{name}:\n{''.join(table)}\n")
    return ExitCode.OK


def _rows(dataset: Dataset) -> list[tuple[str, ...]]:
    from cnnbench.models import registry
    from cnnbench.models.declare import declare

    rows: list[tuple[str, ...]] = []
    for name in sorted(registry.model_names(dataset.name), key=natural_key):
        try:
            model = registry.get_model(name, dataset.name)
            spec = declare(model, dataset.num_classes)
        except Exception as error:  # a defective plug-in must not hide the other models
            notice(f"model {name} is left out: {' '.join(str(error).split())}")
            continue
        rows.append(
            (
                name,
                spec.input_shape,
                str(model.batch_size),
                f"{spec.trainable_parameters:,}",
                f"{spec.forward_flops_per_image / 1e9:.3f}",
                f"{spec.training_flops_per_image / 1e9:.3f}",
            )
        )
    return rows
