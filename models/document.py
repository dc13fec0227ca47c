"""Rewrites the table in docs/models.md: ``python -m cnnbench.models.document docs/models.md``."""

from __future__ import annotations

import sys

from cnnbench.base.terminal import markdown_table, rewrite
from cnnbench.models.declaration import declare
from cnnbench.models.model import Model, get_model, model_names

NAME = "models"

PACKAGE = "cnnbench.models."

# Number of outputs of the last layer: the classes of the data set, including "background".
CLASSES = {"imagenet": 1001, "cifar10": 11, "ratings": 2, "coco": 81, "librispeech": 29}

_HEADER = (
    "model",
    "data set",
    "image",
    "batch per device",
    "parameters",
    "moving averages",
    "forward GFLOP",
    "training GFLOP",
)


def table() -> str:
    """A Markdown table of the models for each data set. FLOPs are per image."""
    models = [get_model(name, dataset) for dataset in CLASSES for name in model_names(dataset)]
    # Only cnnbench's own models, not those of installed plug-ins.
    rows = [_row(model) for model in models if type(model).__module__.startswith(PACKAGE)]
    align = ["---", "---", *["---:"] * (len(_HEADER) - 2)]
    return markdown_table(_HEADER, align, rows)


def _row(model: Model) -> tuple[str, ...]:
    spec = declare(model, CLASSES[model.dataset])
    return (
        model.name,
        model.dataset,
        str(getattr(model, "image_size", spec.input_shape)),
        str(model.batch_size),
        f"{spec.parameters:,}",
        f"{spec.statistics:,}",
        f"{spec.forward_flops_per_image / 1e9:.4g}",
        f"{spec.training_flops_per_image / 1e9:.4g}",
    )


if __name__ == "__main__":
    rewrite(sys.argv[1:], NAME, table())
