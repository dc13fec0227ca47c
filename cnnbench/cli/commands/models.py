"""``cnnbench models``: list the models with their sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cnnbench.base import plugins
from cnnbench.base.document import Row, TableCell, make_table, numeric_cell
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.escapes import dump_json
from cnnbench.base.tables import dataclasses_to_csv, natural_key
from cnnbench.base.terminal import print_result, print_warning
from cnnbench.cli.commands import PluginFlags
from cnnbench.data.dataset import find_dataset
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import flag, parse_flags, redeclare_flag, specs_of
from cnnbench.flags.groups.data import DataParams
from cnnbench.models import registry
from cnnbench.models.declaration import bytes_per_image, declare
from cnnbench.records.codec import encode, json_document


@dataclass(frozen=True, kw_only=True)
class ModelsFlags(PluginFlags):
    """Flags of `cnnbench models`."""

    data_name: str | None = redeclare_flag(DataParams, "data_name")
    format: str = flag(
        "table",
        "What to print. csv and json contain all digits.",
        choices=("table", "csv", "json"),
    )


@dataclass(frozen=True)
class ModelSizes:
    """Sizes and FLOPs of a model, with the same names as in the record of a run.

    Attributes:
      input_shape: default size of an image, or shape or names of other elements.
      batch_size: default images per step and device.
      parameters, trainable_parameters, statistics: numbers of weights, of the updated ones, and of
        moving averages of batch norm.
      forward_flops_per_image, training_flops_per_image: FLOPs of one image, of the forward pass
        and of forward and backward pass.
      memory_bytes_per_image: estimated bytes of memory for each further image of a training batch.
    """

    dataset: str
    model: str
    input_shape: str
    batch_size: int
    parameters: int
    trainable_parameters: int
    statistics: int
    forward_flops_per_image: int
    training_flops_per_image: int
    memory_bytes_per_image: int


@json_document("cnnbench models --format=json", name="models")
@dataclass(frozen=True)
class ModelsDocument:
    """Output of ``cnnbench models --format=json``."""

    models: tuple[ModelSizes, ...]


_ABOUT = """\
Usage: cnnbench models [--data_name=NAME] [--plugin=FILE] [--format=table|csv|json]

Lists the models by data set: image size in pixels, default batch size per device, trainable
parameters, GFLOPs per image (1 multiply-add = 2 FLOPs) forward and for a training step, and
the memory that a training step takes for each image of the batch, in float32, as estimated.
"""


HELP = (_ABOUT, [("Flags", specs_of(ModelsFlags))])


def main(argv: Sequence[str]) -> int:
    """Prints the models of each data set."""
    options = ModelsFlags(**parse_flags(argv, specs_of(ModelsFlags)))
    plugins.load_plugins_of_flags(vars(options))
    names = registry.datasets()
    if options.data_name:
        names = (find_dataset(options.data_name, None).name,)
    models = tuple(_list_models(names))
    if options.format == "table":
        print_result(_tables(models))
    elif options.format == "csv":
        print_result(dataclasses_to_csv(ModelSizes, models))
    else:
        print_result(dump_json(encode(ModelsDocument(models)), indent=1))
    return ExitCode.OK


def _list_models(datasets: Sequence[str]) -> Iterator[ModelSizes]:
    for dataset_name in datasets:
        try:
            dataset = find_dataset(dataset_name, None)
        except UsageError:
            missing = "there is no data set of that name"
            print_warning(f"models for {dataset_name} are left out: {missing}", "models")
            continue
        for name in sorted(registry.model_names(dataset.name), key=natural_key):
            try:
                with plugins.reporting_plugin_errors(UsageError):
                    model = registry.get_model(name, dataset.name)
                    spec = declare(model, dataset.num_classes)
            except Exception as error:  # A defective plug-in must not hide the other models.
                reason = " ".join(str(error).split())
                print_warning(f"model {name} is left out: {reason}", "models")
                continue
            yield ModelSizes(
                dataset.name,
                name,
                spec.input_shape,
                model.batch_size,
                spec.parameters,
                spec.trainable_parameters,
                spec.statistics,
                spec.forward_flops_per_image,
                spec.training_flops_per_image,
                bytes_per_image(model, spec),
            )


def _tables(models: Sequence[ModelSizes]) -> str:
    groups = itertools.groupby(models, lambda model: model.dataset)
    tables = (
        make_table(map(_model_row, rows), title=f"{name}:", indent=2) for name, rows in groups
    )
    return sections_to_text([block] for block in tables)


def _model_row(model: ModelSizes) -> Row:
    return {
        "model": model.model,
        "image": TableCell(model.input_shape, kinds="number"),
        "batch/device": numeric_cell(model.batch_size),
        "parameters": numeric_cell(model.trainable_parameters),
        "GFLOPs forward": numeric_cell(model.forward_flops_per_image, scale=1e-9),
        "GFLOPs training": numeric_cell(model.training_flops_per_image, scale=1e-9),
        "MiB": numeric_cell(model.memory_bytes_per_image, scale=2**-20),
    }
