"""The network and the data set of a run, and the flags that they refuse."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from cnnbench.base import plugins
from cnnbench.base.files import is_url, local_or_url_path
from cnnbench.base.rules import FlagRule, Names, always, refuse, refuse_any_value
from cnnbench.base.text import count_text, format_bytes
from cnnbench.data.dataset import Dataset, Preprocess, find_dataset
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.declare import RunPart, names_of_flags
from cnnbench.flags.facts import RunFacts
from cnnbench.flags.params import FLAGS, Params
from cnnbench.machine.cpu import ONEDNN, Host, processor_facts
from cnnbench.models import model as registry
from cnnbench.models.declaration import declare
from cnnbench.models.model import Model
from cnnbench.models.spec import Element, ModelSpec, elements_of_role, resolve_sizes
from cnnbench.records import files as checkpoint_folder

FILE_SYSTEMS = "cnnbench.file_systems"
"""Group of the Python entry points that register file systems with TensorFlow."""

_ANSWER_SECONDS = 60.0
_ACCESS_THREAD = "access to a URL"


@dataclass(frozen=True, kw_only=True)
class NetworkPlan:
    """The network and the data set of a run.

    Attributes:
      spec: variables and FLOPs of the network.
      examples: elements of an example of the data set, with resolved sizes.
      own_sizes: names of the flags, --image_size or --num_classes, that equal the model's default.
    """

    dataset: Dataset
    model: Model
    spec: ModelSpec
    examples: tuple[Element, ...]
    own_sizes: tuple[str, ...] = ()

    @classmethod
    def resolved(cls, flags: Params) -> NetworkPlan:
        """Resolves the network and the data set that the flags select.

        FlagError for unknown names and unreachable URLs.
        """
        _check_urls(flags)
        dataset = find_dataset(flags.data_name, flags.data_dir, flags.model)
        model = registry.get_model(flags.model, dataset.name)
        own = {
            "image_size": getattr(model, "image_size", None),
            "num_classes": model.num_classes or dataset.num_classes,
        }
        with _errors_naming_size_flag(flags):
            model.resize(flags.image_size, flags.num_classes)
        dataset = replace(dataset, num_classes=flags.num_classes or dataset.num_classes)
        if flags.aux_head and model.aux_head is not None:
            model.aux_head = True
        if model.keras_layers is not None:
            model.keras_layers = flags.keras_layers
        # Only --image_size can make the output size of a layer impossible, such as negative.
        resized = flags.image_size is not None
        with _errors_naming_size_flag(flags) if resized else contextlib.nullcontext():
            spec = declare(model, dataset.num_classes)
        return cls(
            dataset=dataset,
            model=model,
            spec=spec,
            examples=resolve_sizes(dataset.elements, model, dataset.num_classes),
            own_sizes=tuple(n for n, size in own.items() if size == getattr(flags, n)),
        )

    def preprocess(self, *, training: bool) -> Preprocess | None:
        """Returns the model's function that preprocesses an example; None if it has none."""
        if type(self.model).preprocess is Model.preprocess:
            return None
        return partial(self.model.preprocess, training=training)


def model_and_gradient_shapes(
    name: str, data_name: str | None
) -> tuple[Model, tuple[tuple[int, ...], ...]]:
    """A model and the shapes of its gradients, in the order of its trainable variables.

    Without --data_name its data set is used. FlagError if it is unknown or cannot be declared.
    """
    dataset = find_dataset(data_name, None, name)
    model = registry.get_model(name, dataset.name)
    spec = declare(model, dataset.num_classes)
    shapes = tuple(variable.shape for variable in spec.variables if variable.trainable)
    if not shapes:
        raise FlagError("model", name, "has no gradients to reduce")
    return model, shapes


@contextlib.contextmanager
def _errors_naming_size_flag(flags: Params) -> Iterator[None]:
    """A context that turns errors of layers into FlagErrors about --image_size or --num_classes."""
    try:
        yield
    except FlagError:
        raise
    except UsageError as error:
        name = "num_classes" if flags.image_size is None else "image_size"
        reason = f"--model={flags.model} does not take it: {error}"
        raise FlagError(name, getattr(flags, name), reason) from error


def _check_urls(flags: Params) -> None:
    """Raises FlagError for a URL that TensorFlow cannot reach. Loads TensorFlow only for URLs."""
    for flag in (spec.name for spec in FLAGS if spec.takes_urls):
        if not is_url(path := getattr(flags, flag) or ""):
            continue
        for prepare in plugins.before_loading:
            prepare()
        import tensorflow as tf

        if path.partition(":")[0] not in tf.io.gfile.get_registered_schemes():
            plugins.load_entry_points(FILE_SYSTEMS)
        if reason := _explain_unreachable_url(path):
            raise FlagError(flag, path, f"cannot be reached: {reason}")


def _explain_unreachable_url(path: str) -> str:
    """Returns why TensorFlow cannot reach a URL, or "" if it can."""
    reasons = [f"no answer within {_ANSWER_SECONDS:g} s"]

    def access_url() -> None:
        try:
            local_or_url_path(path).exists()
            reasons.append("")
        except OSError as error:
            reasons.append(str(error.strerror))

    # In the main thread, TensorFlow's retries would block signals such as Ctrl-C for minutes.
    thread = threading.Thread(target=access_url, name=_ACCESS_THREAD, daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    return reasons[-1]


# Flags that the network or the data set refuses.


class _BatchFacts(Protocol):
    @property
    def batch_per_device(self) -> int: ...


class NetworkFacts(RunFacts, Protocol):
    """A plan of a run with its network, see `cnnbench.plan.RunPlan`."""

    @property
    def network(self) -> NetworkPlan: ...  # noqa: D102
    @property
    def length(self) -> _BatchFacts: ...  # noqa: D102


_LARGEST_GRAPH = 2**31 - 2**26
"""Bytes of weights in a graph: the limit of protocol buffers, minus space for the operations."""

# Without VNNI or AMX instructions, CPUs add 8-bit products in 16 bits, which overflow.
_INT8_INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "amx_int8")

_MIXING = names_of_flags(FLAGS, RunPart.MIXING)


def _metric_names_text(p: NetworkFacts) -> str:
    names = ", ".join(p.network.model.metric_names)
    return f"its metrics are {names}" if names else "it has other metrics"


def _network_has_backbone(p: NetworkFacts) -> bool:
    """Whether the network has variables of a backbone, which --backbone_model_path restores."""
    prefix = p.network.model.backbone
    return bool(prefix) and any(v.name.startswith(f"{prefix}/") for v in p.network.spec.variables)


def _explain_example_mismatch(p: NetworkFacts) -> str:
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


def _reads_training_data(p: NetworkFacts) -> bool:
    return bool(p.params.data_dir) and not p.work.only_forward


def _classifies_images(p: NetworkFacts) -> bool:
    """Whether the examples are images with one class each, and the loss is a softmax loss."""
    features, labels = (
        elements_of_role(p.network.spec.elements, role) for role in ("feature", "label")
    )
    kinds = [(one.role, len(one.shape), one.is_real) for one in (*features, *labels)]
    own = kinds == [("feature", 3, True), ("label", 0, False)]
    return own and p.network.model.has_softmax_loss()


def _explain_class_count_mismatch(p: NetworkFacts) -> str:
    """Returns why a Keras model's outputs do not fit the data set's classes, or "" if they do."""
    dataset, outputs = p.network.dataset, p.network.spec.num_classes
    # In ImageNet and CIFAR-10, one label has no examples, so a model may omit its output.
    if not p.params.data_dir or outputs in (dataset.num_classes, dataset.num_classes - 1):
        return ""
    return f"has {outputs} outputs, and data set {dataset.name} {dataset.num_classes} classes"


def _frozen_weight_bytes(p: NetworkFacts) -> int:
    """Bytes of all weights in a frozen graph, which contains one copy of them per device."""
    bytes_per_weight = {"fp32": 4, "int8": 5}.get(p.params.precision, 2)
    return bytes_per_weight * p.network.spec.parameters * len(p.place.job.own_towers)


def _explain_missing_int8_support(p: NetworkFacts) -> str:
    """Returns why this model or machine cannot run 8-bit convolutions, or "" if they can."""
    if p.params.precision != "int8":
        return ""
    if not any(len(variable.shape) == 4 for variable in p.network.spec.variables):
        return f"{p.network.model.name} has no convolution to run in 8 bits"
    if p.network.model.keras_layers is not None:
        return "Keras models run in fp32, bf16 and fp16"
    instructions = processor_facts(Host()).get("cpu_isa")
    if not isinstance(instructions, list) or not set(instructions) & set(_INT8_INSTRUCTIONS):
        return f"this CPU has none of {', '.join(_INT8_INSTRUCTIONS)}; use bf16 or fp32"
    without = os.environ.get(ONEDNN) == "0"
    return f"its kernels are oneDNN's; unset {ONEDNN}" if without else ""


def _explain_file_sharding_refusal(p: NetworkFacts) -> str:
    """Returns why --auto_shard_policy=file cannot divide files among workers, or "" if it can."""
    dataset, workers = p.network.dataset, p.place.job.num_workers
    files = len(dataset.files_by_subset(p.params.data_dir or "")["train"])
    if not dataset.skips_bad_records:
        return f"every worker reads the files of data set {dataset.name} whole; use data or off"
    few = count_text(files, "training file", "training files")
    return f"{few} for {workers} workers; use data or off" if files < workers else ""


def _unsupported(
    flags: Names, when: Callable[[NetworkFacts], object], why: str
) -> FlagRule[NetworkFacts]:
    """A rule that refuses flags because of a property of the network, which `why` describes."""
    return refuse(flags, when, lambda p: f"--model={p.params.model} {why}; leave the flag out")


RULES: tuple[FlagRule[NetworkFacts], ...] = (
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
    refuse_any_value(
        "model", lambda p: p.network.model.keras_layers is not None, _explain_class_count_mismatch
    ),
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
        lambda p: _reads_training_data(p) and not _classifies_images(p),
        lambda p: (
            f"mixes images with one class each, for a softmax loss, but --model={p.params.model} "
            "has other examples or its own loss; leave the flag out"
        ),
    ),
    refuse(
        _MIXING,
        lambda p: _reads_training_data(p) and p.length.batch_per_device % 2,
        lambda p: (
            "mixes pairs of images, so the batch of each device must be even, "
            f"not {p.length.batch_per_device}"
        ),
    ),
    refuse(
        "print_training_accuracy",
        lambda p: p.work.trains and "top_1" not in p.network.model.metric_names,
        lambda p: (
            f"model {p.network.model.name} has no top-1 accuracy; {_metric_names_text(p)}: leave "
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
        lambda p: p.work.trains and not _network_has_backbone(p),
        lambda p: f"--model={p.network.model.name} has no backbone",
    ),
    refuse(
        "backbone_model_path",
        lambda p: (
            p.work.trains
            and checkpoint_folder.find_latest_checkpoint(p.params.backbone_model_path or "") is None
        ),
        "there is no checkpoint",
    ),
    refuse_any_value("model", always, _explain_example_mismatch),
    refuse(
        "freeze_when_forward_only",
        lambda p: p.numerics.frozen and _frozen_weight_bytes(p) >= _LARGEST_GRAPH,
        lambda p: (
            f"{p.params.model} on {len(p.place.job.own_towers)} devices has "
            f"{format_bytes(_frozen_weight_bytes(p))} of weights, and a graph must have less than "
            "2 GiB; use fewer devices or a 16-bit --precision"
        ),
    ),
    refuse("precision", always, _explain_missing_int8_support),
    refuse(
        "auto_shard_policy",
        lambda p: (
            p.params.auto_shard_policy == "file"
            and p.place.job.num_workers > 1
            and p.params.data_dir
            and not p.params.eval
        ),
        _explain_file_sharding_refusal,
    ),
)
