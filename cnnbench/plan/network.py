"""Network and data set of a run, and what the flags need of them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import partial

from cnnbench.base import plugins
from cnnbench.base.files import is_url, place
from cnnbench.base.text import binary
from cnnbench.data.dataset import Dataset, Preprocess, find_dataset
from cnnbench.errors import FlagError
from cnnbench.flags.params import FLAGS, Params
from cnnbench.machine.cpu import Host, processor
from cnnbench.models import model as registry
from cnnbench.models.declaration import declare
from cnnbench.models.model import Model
from cnnbench.models.spec import Element, ModelSpec, resolve
from cnnbench.plan.place import Rule, always, needed, refuse, refused
from cnnbench.plan.setup import Setup
from cnnbench.records import files as checkpoint_folder

FILE_SYSTEMS = "cnnbench.file_systems"
"""Group of entry points that register file systems with TensorFlow."""

_ANSWER_SECONDS = 60.0
_LARGEST_GRAPH = 2**31 - 2**26  # limit of protocol buffers, less room for operations

# Without one of these a product of 8-bit integers overflows the 16 bits of its sums.
_INT8_INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "amx_int8")


@dataclass(frozen=True, kw_only=True)
class NetworkPlan:
    """Network and data set.

    Attributes:
      spec: variables and FLOPs of the network.
      examples: elements of an example of the data set, with resolved sizes.
      backbone: path of the checkpoint from which the backbone of the model is read, or None.
    """

    dataset: Dataset
    model: Model
    spec: ModelSpec
    examples: tuple[Element, ...]
    backbone: str | None

    @classmethod
    def resolved(cls, setup: Setup) -> NetworkPlan:
        """The network that the flags name.

        FlagError for unknown names, unreachable URLs, and what network or data set lack.
        """
        flags = setup.params
        _check_urls(flags)
        dataset = find_dataset(flags.data_name, flags.data_dir, flags.model)
        model = registry.get_model(flags.model, dataset.name)
        if flags.aux_head and model.aux_head is not None:
            model.aux_head = True
        network = cls(
            dataset=dataset,
            model=model,
            spec=declare(model, dataset.num_classes),
            examples=resolve(dataset.elements, model, dataset.num_classes),
            backbone=flags.backbone_model_path,
        )
        refuse(_RULES, SetupWithNetwork(**vars(setup), network=network))
        return network

    def preprocess(self, *, training: bool) -> Preprocess | None:
        """The model's preprocessing of an example; None if the model has none."""
        if type(self.model).preprocess is Model.preprocess:
            return None
        return partial(self.model.preprocess, training=training)


def model_gradients(name: str, data_name: str | None) -> tuple[Model, tuple[tuple[int, ...], ...]]:
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


def _check_urls(flags: Params) -> None:
    """Refuses URLs that TensorFlow does not reach; loads it if there are any."""
    for flag in (spec.name for spec in FLAGS if spec.takes_urls):
        if not is_url(path := getattr(flags, flag) or ""):
            continue
        for prepare in plugins.before_loading:
            prepare()
        import tensorflow as tf

        if path.partition(":")[0] not in tf.io.gfile.get_registered_schemes():
            plugins.load_entry_points(FILE_SYSTEMS)
        if reason := _unreachable(path):
            raise FlagError(flag, path, f"cannot be reached: {reason}")


def _unreachable(path: str) -> str:
    """The reason why a URL is not reached, or ""."""
    reasons = [f"no answer within {_ANSWER_SECONDS:g} s"]

    def ask() -> None:
        try:
            place(path).exists()
            reasons.append("")
        except OSError as error:
            reasons.append(str(error.strerror))

    # In a thread: TensorFlow retries for many minutes, in which no signal would be handled.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    return reasons[-1]


@dataclass(frozen=True, kw_only=True)
class SetupWithNetwork(Setup):
    """A setup and its network, on which rules depend that need both."""

    network: NetworkPlan


def _metrics(p: SetupWithNetwork) -> str:
    names = ", ".join(p.network.model.metric_names)
    return f"its metrics are {names}" if names else "it has other metrics"


def _has_backbone(p: SetupWithNetwork) -> bool:
    prefix = p.network.model.backbone
    return bool(prefix) and any(v.name.startswith(f"{prefix}/") for v in p.network.spec.variables)


def _missing_element(p: SetupWithNetwork) -> str:
    """The reason why the model cannot take the examples of the data set, or ""."""
    if type(p.network.model).preprocess is not Model.preprocess:
        return ""
    given = {one.name: (one.shape, one.dtype) for one in p.network.examples}
    for one in p.network.spec.elements:
        if given.get(one.name) != (one.shape, one.dtype):
            offered = ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in given.items())
            taken = f"takes {one.name} {one.shape} {one.dtype} of an example"
            return f"{taken}, but data set {p.network.dataset.name} gives {offered}"
    return ""


def _frozen_bytes(p: SetupWithNetwork) -> int:
    """Size of the weights in a frozen graph."""
    each = {"fp32": 4, "int8": 5}.get(p.params.precision, 2)
    return each * p.network.spec.parameters * len(p.place.job.own_towers)


def _fault_of_int8(p: SetupWithNetwork) -> str:
    """The reason why model or machine have no convolutions in 8-bit integers, or ""."""
    if p.params.precision != "int8":
        return ""
    if not any(len(one.shape) == 4 for one in p.network.spec.variables):
        return f"{p.network.model.name} has no convolution to run in 8 bits"
    found = processor(Host()).get("cpu_isa")
    if not isinstance(found, list) or not set(found) & set(_INT8_INSTRUCTIONS):
        return f"this CPU has none of {', '.join(_INT8_INSTRUCTIONS)}; use bf16 or fp32"
    without = os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"
    return "its kernels are oneDNN's; unset TF_ENABLE_ONEDNN_OPTS" if without else ""


def _fault_of_shards(p: SetupWithNetwork) -> str:
    """The reason why the files cannot be shared out between the workers, or ""."""
    dataset, workers = p.network.dataset, p.place.job.num_workers
    files = len(dataset.subsets_in(p.params.data_dir or "")["train"])
    if not dataset.skips_bad_records:
        return f"every worker reads the files of data set {dataset.name} whole; use data or off"
    few = f"there are {files} training files for {workers} workers; use data or off"
    return few if files < workers else ""


_RULES: tuple[Rule[SetupWithNetwork], ...] = (
    refused(
        "aux_head",
        lambda p: p.network.model.aux_head is None,
        lambda p: f"--model={p.params.model} has no auxiliary head to switch on; leave it out",
    ),
    refused(
        "label_smoothing",
        lambda p: p.work.trains and not p.network.model.has_softmax_loss(),
        lambda p: (
            f"needs a softmax loss, but --model={p.params.model} has one of its own; leave it out"
        ),
    ),
    refused(
        "print_training_accuracy",
        lambda p: p.work.trains and "top_1" not in p.network.model.metric_names,
        lambda p: (
            f"model {p.network.model.name} has no top-1 accuracy; {_metrics(p)}: leave the flag out"
        ),
    ),
    refused(
        "collect_eval_results_async",
        lambda p: p.work.evaluates and not p.network.model.has_host_metrics(),
        lambda p: f"--model={p.params.model} has no metrics that need a process; leave it out",
    ),
    needed(
        "input_preprocessor",
        lambda p: p.params.input_preprocessor not in p.network.dataset.preprocessors,
        lambda p: (
            f"data set {p.network.dataset.name} takes "
            f"{' or '.join(p.network.dataset.preprocessors)}"
        ),
    ),
    refused(
        "on_bad_record",
        lambda p: p.params.data_dir and not p.network.dataset.skips_bad_records,
        lambda p: f"the files of data set {p.network.dataset.name} are read whole; use fail",
    ),
    refused(
        "backbone_model_path",
        lambda p: p.work.trains and not _has_backbone(p),
        lambda p: f"--model={p.network.model.name} has no backbone",
    ),
    refused(
        "backbone_model_path",
        lambda p: p.work.trains and checkpoint_folder.latest(p.network.backbone or "") is None,
        "there is no checkpoint",
    ),
    needed("model", always, _missing_element),
    refused(
        "freeze_when_forward_only",
        lambda p: p.numerics.frozen and _frozen_bytes(p) >= _LARGEST_GRAPH,
        lambda p: (
            f"{p.params.model} on {len(p.place.job.own_towers)} devices has "
            f"{binary(_frozen_bytes(p))} of weights, and a graph holds less than 2 GiB; use fewer "
            "devices or a 16-bit --precision"
        ),
    ),
    refused("precision", always, _fault_of_int8),
    refused(
        "auto_shard_policy",
        lambda p: (
            p.params.auto_shard_policy == "file"
            and p.place.job.num_workers > 1
            and p.params.data_dir
            and not p.params.eval
        ),
        _fault_of_shards,
    ),
)
