"""Tables of pages in docs/ that are made of declarations: metrics, models and modes.

``python -m cnnbench.cli.documents docs`` writes them into the pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cnnbench.base.terminal import markdown_table, with_table
from cnnbench.base.text import binary
from cnnbench.judge.metrics.measurement import Policy
from cnnbench.models.declaration import declare
from cnnbench.models.model import Model, get_model, model_names
from cnnbench.records.metric import ALL, RUN, Metric
from cnnbench.variable_mgr.modes import BUILT_IN, Mode

_METRICS = ("metric", "unit", "value", "better", "counts from", "")

_MODELS = (
    *("model", "data set", "image", "batch per device", "parameters", "moving averages"),
    *("forward GFLOP", "training GFLOP"),
)

_MODES = (
    *("mode", "copies of a variable", "gradients", "across processes", "ps tasks"),
    *("towers in sync", "class in `tf.distribute`"),
)

CLASSES = {"imagenet": 1001, "cifar10": 11, "ratings": 2, "coco": 81, "librispeech": 29}
"""Outputs of the last layer by data set: the classes, with one for "background"."""

_MODEL_PACKAGE = "cnnbench.models."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 99) -> str:
    align = ["---:" if place >= numbers_from else "---" for place in range(len(header))]
    return markdown_table(header, align, [*rows])


def metric_tables() -> dict[str, str]:
    """A table of the metrics of runs, and one of those of all-reduces, by name."""
    return {
        "runs": _table(_METRICS, (_metric(one) for one in ALL.values() if RUN in one.kinds)),
        "reductions": _table(
            _METRICS, (_metric(one) for one in ALL.values() if RUN not in one.kinds)
        ),
    }


def _metric(metric: Metric) -> tuple[str, ...]:
    judged = {*metric.judged.values()}
    if not judged and not metric.followed:  # no metric, but said of others
        return f"`{metric.name}`", metric.unit, metric.about, "", "", "in the record only"
    better = "higher" if metric.higher_is_better else "lower"
    key = metric.key
    remarks = [
        "by default" if metric.by_default else "",
        "exit code 1 by default" if metric.gates else "",
        *(f"`--metrics={name}`" for name in judged - {metric.name}),
        "" if judged else "not in `--metrics`",
        "" if metric.followed else "not in `--metric`",
        f"`{key}` in the record" if key not in ("", metric.name) else "",
        "not in the record" if not key else "",
    ]
    found = ", ".join(filter(None, remarks))
    return f"`{metric.name}`", metric.unit, metric.about, better, _threshold(metric), found


def _threshold(metric: Metric) -> str:
    if metric.threshold is None:
        return f"`--threshold`, {metric.change_text(Policy.threshold, signed=False)}"
    if metric.threshold == 0:
        return "any change"
    least = f" and {binary(metric.least)}" if metric.least else ""
    return metric.change_text(metric.threshold, signed=False) + least


def model_tables() -> dict[str, str]:
    """The models of each data set; FLOPs are per image."""
    models = [get_model(name, dataset) for dataset in CLASSES for name in model_names(dataset)]
    # Leave out models of plug-ins that happen to be loaded.
    own = (model for model in models if type(model).__module__.startswith(_MODEL_PACKAGE))
    return {"models": _table(_MODELS, map(_model, own), numbers_from=2)}


def _model(model: Model) -> tuple[str, ...]:
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


def mode_tables() -> dict[str, str]:
    """The built-in modes of --variable_update."""
    return {"modes": _table(_MODES, map(_mode, BUILT_IN))}


def _mode(mode: Mode) -> tuple[str, ...]:
    return (
        f"`{mode.name}`",
        mode.copies.value,
        mode.reduction.value,
        mode.processes.value,
        "yes" if mode.uses_ps else "no",
        "yes" if mode.in_sync else "no",
        f"`{mode.strategy}`" if mode.strategy else "",
    )


PAGES: Mapping[str, Callable[[], dict[str, str]]] = {
    "metrics.md": metric_tables,
    "models.md": model_tables,
    "modes.md": mode_tables,
}
"""The tables of a page, by the name of its file."""


if __name__ == "__main__":
    for page, tables in PAGES.items():
        path = Path(sys.argv[1], page)
        text = path.read_text(encoding="utf-8")
        for name, made in tables().items():
            text = with_table(text, name, made)
        path.write_text(text, encoding="utf-8")
