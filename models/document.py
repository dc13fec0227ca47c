"""The table of docs/models.md, made from declarations.

``python -m cnnbench.models.document docs/models.md`` rewrites the table in place; a test fails
when it is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cnnbench.errors import UsageError
from cnnbench.models.declare import declare
from cnnbench.models.model import Model
from cnnbench.models.registry import get_model, model_names

BEGIN = "<!-- models: begin -->"
END = "<!-- models: end -->"

PACKAGE = "cnnbench.models."

# Outputs of the last layer: the classes of the data set, with one for "background".
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
    """A Markdown table of the models of each data set; FLOPs are per image."""
    rows = [_row(model) for model in _built_in()]
    align = ["---", "---", *["---:"] * (len(_HEADER) - 2)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (_HEADER, align, *rows))


def _built_in() -> list[Model]:
    """The models of this package, without those of plug-ins that happen to be there."""
    models = [get_model(name, dataset) for dataset in CLASSES for name in model_names(dataset)]
    return [model for model in models if type(model).__module__.startswith(PACKAGE)]


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


def with_table(text: str) -> str:
    """The document with what stands between its two markers replaced by the current table.

    Raises:
      UsageError: a marker is missing.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the document needs the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


def main(argv: list[str]) -> None:
    """Rewrites the table in each file named."""
    for name in argv:
        path = Path(name)
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
