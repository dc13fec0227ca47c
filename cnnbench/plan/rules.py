"""Refuses flags of a run that contradict each other, and finds flags without effect.

Most rules are declared by their owners: the groups of flags (`cnnbench.flags.groups`) and the
modes. This module collects them, and has the rules about flags that the network or the data set
refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cnnbench.base import plugins
from cnnbench.base.rules import FlagRule, Names, always, notices_about, refuse, refuse_any_value
from cnnbench.base.text import count_text, format_bytes
from cnnbench.errors import UsageError
from cnnbench.flags import FLAGS, SPECS, RunFacts, RunPart, names_of_flags
from cnnbench.flags.groups import (
    cluster,
    data,
    model,
    optimizer,
    output,
    run,
    runtime,
    strategies,
    variable_update,
)
from cnnbench.models.elements import elements_of_role
from cnnbench.models.model import Model
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.checkpoints import find_latest_checkpoint
from cnnbench.records.files import refuse_shared_outputs
from cnnbench.variable_mgr.modes import Mode

# If two flags name the same path, the one that comes later here is refused. Inputs and folders come
# first, so an output is refused. Folders of logs or caches are not listed: several flags may name
# the same.
_PATHS = (
    plugins.FLAG,
    *(spec.name for spec in FLAGS if spec.takes_urls and spec.name != "eval_dir"),
    *(spec.name for spec in FLAGS if spec.path == "file" and spec.name != plugins.FLAG),
)


def _refuse_shared(p: RunFacts) -> None:
    """Raises FlagError if two flags name the same file."""
    refuse_shared_outputs(
        (flag, path)
        for flag in _PATHS
        # Without --use_chrome_trace_format, --trace_file names a folder, which may also contain
        # checkpoints.
        if flag != "trace_file" or p.params.use_chrome_trace_format
        for value in [SPECS[flag].text(getattr(p.params, flag) or "")]
        for path in (value.split(",") if flag == plugins.FLAG else [value])
        if path
    )


def _needs_reason(p: RunFacts) -> str:
    """Returns which flag the mode needs and the run lacks; "" if it lacks none."""
    needs = p.place.mode.needs.items()
    missing = (f"--{name}={value}" for name, value in needs if getattr(p.params, name) is None)
    example = next(missing, "")
    return f"needs {example.partition('=')[0]}, such as {example}" if example else ""


def rules_of_run(mode: Mode) -> tuple[FlagRule[RunFacts], ...]:
    """All rules about the flags of runs in a mode, in the order of their priority.

    The job and the mode come first, then flags that exclude each other, then all other rules by
    group of flags. If several rules refuse flags, the first rule is reported. If a flag has no
    effect for several reasons, the first rule gives the reason.

    Raises:
      UsageError: a mode of a plug-in names a flag that does not exist.
    """
    for name in (*(name for rule in mode.rules for name in rule.flags), *mode.needs):
        if name not in SPECS:
            declared = f"the declaration of mode {mode.name} names --{name}"
            raise UsageError(f"{declared}, which is not a flag")
    return (
        *cluster.RULES,
        *mode.rules,
        refuse_any_value("variable_update", always, _needs_reason),
        *cluster.CONFLICTS,
        *run.CONFLICTS,
        *model.CONFLICTS,
        *variable_update.CONFLICTS,
        *strategies.CONFLICTS,
        *runtime.CONFLICTS,
        *run.RULES,
        *model.RULES,
        *optimizer.rules_of_constants(),
        *optimizer.RULES,
        *variable_update.RULES,
        *strategies.RULES,
        *runtime.RULES,
        *data.RULES,
        *output.RULES,
        refuse(_PATHS, always, _refuse_shared),
    )


def unused_flag_notices(plan: RunPlan, explicit_flags: Iterable[str]) -> tuple[str, ...]:
    """Returns notices about flags of the command line without effect, one notice for each reason.

    Flags that are set to their default are ignored if the default is false, zero or empty.
    """
    explicit = [
        name
        for name in explicit_flags
        # A plan has no values of the flags of absl.app, which cnnbench run also accepts, so they
        # are kept.
        if name not in SPECS
        or (value := getattr(plan.params, name))
        or value != SPECS[name].default
    ]
    return notices_about(rules_of_run(plan.place.mode), plan, explicit)


# Rules about flags that a network or a data set refuses.

_LARGEST_GRAPH = 2**31 - 2**26
"""Bytes of weights in a graph: the limit of protocol buffers, minus space for the operations."""

_MIXING = names_of_flags(FLAGS, RunPart.MIXING)


def _metrics_text(p: RunPlan) -> str:
    names = ", ".join(p.network.model.metric_names)
    return f"its metrics are {names}" if names else "it has other metrics"


def _has_backbone(p: RunPlan) -> bool:
    """Whether the network has variables of a backbone, which --backbone_model_path restores."""
    prefix = p.network.model.backbone
    return bool(prefix) and any(v.name.startswith(f"{prefix}/") for v in p.network.spec.variables)


def _example_mismatch(p: RunPlan) -> str:
    """Returns why the model cannot use the examples of the data set, or "" if it can."""
    if type(p.network.model).preprocess is not Model.preprocess:
        return ""
    offered_elements = {
        element.name: (element.shape, element.dtype) for element in p.network.examples
    }
    for element in p.network.spec.elements:
        if offered_elements.get(element.name) != (element.shape, element.dtype):
            offered = ", ".join(
                f"{name} {shape} {dtype}" for name, (shape, dtype) in offered_elements.items()
            )
            taken = f"takes {element.name} {element.shape} {element.dtype} of an example"
            return f"{taken}, but data set {p.network.dataset.name} gives {offered}"
    return ""


def _trains_on_files(p: RunPlan) -> bool:
    return bool(p.params.data_dir) and not p.work.only_forward


def _classifies_images(p: RunPlan) -> bool:
    """Whether the examples are images with one class each, and the loss is a softmax loss."""
    features, labels = (
        elements_of_role(p.network.spec.elements, role) for role in ("feature", "label")
    )
    kinds = [(one.role, len(one.shape), one.is_real) for one in (*features, *labels)]
    own = kinds == [("feature", 3, True), ("label", 0, False)]
    return own and p.network.model.has_softmax_loss()


def _class_mismatch(p: RunPlan) -> str:
    """Returns why a Keras model's outputs do not fit the data set's classes, or "" if they do."""
    dataset, outputs = p.network.dataset, p.network.spec.num_classes
    # In ImageNet and CIFAR-10, one label has no examples, so a model may have one output less.
    if not p.params.data_dir or outputs in (dataset.num_classes, dataset.num_classes - 1):
        return ""
    return f"has {outputs} outputs, and data set {dataset.name} {dataset.num_classes} classes"


def _frozen_bytes(p: RunPlan) -> int:
    """Bytes of all weights in a frozen graph, which contains one copy of them per device."""
    bytes_per_weight = 4 if p.params.precision == "fp32" else 2
    return bytes_per_weight * p.network.spec.parameters * len(p.place.job.own_towers)


def _sharding_fault(p: RunPlan) -> str:
    """Returns why --auto_shard_policy=file cannot divide files among workers, or "" if it can."""
    dataset, workers = p.network.dataset, p.place.job.num_workers
    files = len(dataset.files_by_subset(p.params.data_dir or "")["train"])
    if not dataset.skips_bad_records:
        return f"every worker reads the files of data set {dataset.name} whole; use data or off"
    few = count_text(files, "training file", "training files")
    return f"{few} for {workers} workers; use data or off" if files < workers else ""


def _unsupported(flags: Names, when: Callable[[RunPlan], object], why: str) -> FlagRule[RunPlan]:
    """Makes a rule that refuses flags because of the network; `why` gives the reason."""
    return refuse(flags, when, lambda p: f"--model={p.params.model} {why}; leave the flag out")


RULES_OF_NETWORK: tuple[FlagRule[RunPlan], ...] = (
    _unsupported("aux_head", lambda p: p.network.model.aux_head is None, "has no auxiliary head"),
    _unsupported(
        "recompute",
        lambda p: p.network.spec.recomputed_flops_per_image is None,
        "declares no blocks (net.block in build())",
    ),
    _unsupported(
        "keras_layers", lambda p: p.network.model.keras_layers is None, "is not a Keras model"
    ),
    refuse(
        "keras_layers",
        lambda p: p.work.trains and p.params.bn_stats == "sync",
        "Keras' own batch norm uses the moments of one device; --bn_stats=sync needs fused",
    ),
    refuse(
        "data_format",
        lambda p: p.network.model.data_format not in ("auto", p.params.data_format),
        lambda p: f"--model={p.params.model} has only {p.network.model.data_format} layers",
    ),
    refuse_any_value("model", lambda p: p.network.model.keras_layers is not None, _class_mismatch),
    refuse(
        "label_smoothing",
        lambda p: p.work.trains and not p.network.model.has_softmax_loss(),
        lambda p: (
            f"needs a softmax loss, but --model={p.params.model} has its own loss; leave the "
            "flag out"
        ),
    ),
    refuse(
        _MIXING,
        lambda p: _trains_on_files(p) and not _classifies_images(p),
        lambda p: (
            f"mixes images with one class each, for a softmax loss, but --model={p.params.model} "
            "has other examples or its own loss; leave the flag out"
        ),
    ),
    refuse(
        _MIXING,
        lambda p: _trains_on_files(p) and p.length.batch_per_device % 2,
        lambda p: (
            "mixes pairs of images, so the batch of each device must be even, "
            f"not {p.length.batch_per_device}"
        ),
    ),
    refuse(
        "print_training_accuracy",
        lambda p: p.work.trains and "top_1" not in p.network.model.metric_names,
        lambda p: (
            f"model {p.network.model.name} has no top-1 accuracy; {_metrics_text(p)}: leave "
            "the flag out"
        ),
    ),
    _unsupported(
        "collect_eval_results_async",
        lambda p: p.work.evaluates and not p.network.model.has_host_metrics(),
        "has no metrics that are computed in a separate process",
    ),
    refuse_any_value(
        "input_preprocessor",
        lambda p: p.params.input_preprocessor not in p.network.dataset.preprocessors,
        lambda p: (
            f"data set {p.network.dataset.name} takes "
            f"{' or '.join(p.network.dataset.preprocessors)}"
        ),
    ),
    refuse(
        "on_bad_record",
        lambda p: p.params.data_dir and not p.network.dataset.skips_bad_records,
        lambda p: (
            f"the files of data set {p.network.dataset.name} are read as a whole, "
            "so no record can be left out; use fail"
        ),
    ),
    refuse(
        "on_bad_record",
        lambda p: (
            (p.place.coordinated or p.place.asynchronous)
            and p.params.data_dir
            and p.params.on_bad_record == "skip"
        ),
        lambda p: (
            "reads damaged files in Python, which asynchronous workers of "
            f"--variable_update={p.place.mode.name} cannot do; use fail"
        ),
    ),
    refuse(
        "augment",
        lambda p: p.params.data_dir and not p.network.dataset.augments,
        lambda p: (
            f"the pipeline of data set {p.network.dataset.name} has no augmentation; use none"
        ),
    ),
    refuse(
        "backbone_model_path",
        lambda p: p.work.trains and not _has_backbone(p),
        lambda p: f"--model={p.network.model.name} has no backbone",
    ),
    refuse(
        "backbone_model_path",
        lambda p: (
            p.work.trains and find_latest_checkpoint(p.params.backbone_model_path or "") is None
        ),
        "there is no checkpoint",
    ),
    refuse_any_value("model", always, _example_mismatch),
    refuse(
        "freeze_when_forward_only",
        lambda p: p.numerics.frozen and _frozen_bytes(p) >= _LARGEST_GRAPH,
        lambda p: (
            f"{p.params.model} on {len(p.place.job.own_towers)} devices has "
            f"{format_bytes(_frozen_bytes(p))} of weights, and a graph must have less than "
            "2 GiB; use fewer devices or a 16-bit --precision"
        ),
    ),
    refuse(
        "auto_shard_policy",
        lambda p: (
            p.params.auto_shard_policy == "file"
            and p.place.job.num_workers > 1
            and p.params.data_dir
            and not p.params.eval
        ),
        _sharding_fault,
    ),
)
