"""Network and data set of a run, and what the flags need of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cnnbench.base import plugins
from cnnbench.base.text.numbers import binary
from cnnbench.base.urls import is_url, place
from cnnbench.data.dataset import Dataset, find_dataset, load_plugin
from cnnbench.data.spec import Preprocess
from cnnbench.errors import FlagError
from cnnbench.flags.params import FLAGS, Params
from cnnbench.machine.cpu import processor
from cnnbench.machine.host import Host
from cnnbench.models import registry
from cnnbench.models.declaration import declare
from cnnbench.models.elements import Element, resolve
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec
from cnnbench.plan.setup import Setup
from cnnbench.records import checkpoint_folder

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
      plugins: files that register model and data set, or None for each.
    """

    dataset: Dataset
    model: Model
    spec: ModelSpec
    examples: tuple[Element, ...]
    backbone: str | None
    plugins: tuple[str | None, str | None]

    @classmethod
    def resolved(cls, setup: Setup) -> NetworkPlan:
        """The network that the flags name; loads plug-ins.

        FlagError for unknown names, unreachable URLs, and what network or data set lack.
        """
        flags = setup.params
        if flags.dataset_plugin:
            load_plugin(flags.dataset_plugin)
        if flags.model_plugin:
            registry.load_plugin(flags.model_plugin)
        _check_urls(flags)
        dataset = find_dataset(flags.data_name, flags.data_dir, flags.model)
        model = registry.get_model(flags.model, dataset.name)
        if flags.aux_head:
            _check_aux_head(flags, model)
            model.aux_head = True
        _check_model(setup, model)
        _check_input(flags, dataset)
        spec = declare(model, dataset.num_classes)
        if flags.backbone_model_path is not None and setup.work.trains:
            _check_backbone(flags.backbone_model_path, model, spec)
        examples = resolve(dataset.elements, model, dataset.num_classes)
        _check_elements(spec, model, dataset, examples)
        if setup.numerics.frozen:
            _check_frozen(setup, spec)
        if flags.precision == "int8":
            _check_int8(model, spec)
        _check_shards(setup, dataset)
        return cls(
            dataset=dataset,
            model=model,
            spec=spec,
            examples=examples,
            backbone=flags.backbone_model_path,
            plugins=(flags.model_plugin, flags.dataset_plugin),
        )

    def preprocess(self, *, training: bool) -> Preprocess | None:
        """The model's preprocessing of an example; None if the model has none."""
        if type(self.model).preprocess is Model.preprocess:
            return None
        return partial(self.model.preprocess, training=training)


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


def _check_model(setup: Setup, model: Model) -> None:
    """Refuses flags that need a property that the model lacks."""
    params, trains = setup.params, setup.work.trains
    if params.label_smoothing and trains and not model.has_softmax_loss():
        raise FlagError(
            "label_smoothing",
            params.label_smoothing,
            f"needs a softmax loss, but --model={params.model} has one of its own; leave it out",
        )
    if params.print_training_accuracy and trains and "top_1" not in model.metric_names:
        metrics = ", ".join(model.metric_names)
        has = f"its metrics are {metrics}" if metrics else "it has other metrics"
        reason = f"model {model.name} has no top-1 accuracy; {has}: leave the flag out"
        raise FlagError("print_training_accuracy", "true", reason)
    if params.collect_eval_results_async and setup.work.evaluates and not model.has_host_metrics():
        raise FlagError(
            "collect_eval_results_async",
            "true",
            f"--model={params.model} has no metrics that need a process; leave it out",
        )


def _check_input(params: Params, dataset: Dataset) -> None:
    """Refuses flags that need a property that the data set lacks."""
    if params.input_preprocessor not in dataset.preprocessors:
        choices = " or ".join(dataset.preprocessors)
        reason = f"data set {dataset.name} takes {choices}"
        raise FlagError("input_preprocessor", params.input_preprocessor, reason)
    if params.on_bad_record == "skip" and params.data_dir and not dataset.skips_bad_records:
        reason = f"the files of data set {dataset.name} are read whole; use fail"
        raise FlagError("on_bad_record", "skip", reason)


def _check_frozen(setup: Setup, spec: ModelSpec) -> None:
    """Refuses weights that a frozen graph cannot hold."""
    params, towers = setup.params, len(setup.place.job.own_towers)
    size = {"fp32": 4, "int8": 5}.get(params.precision, 2) * spec.parameters * towers
    if size >= _LARGEST_GRAPH:
        raise FlagError(
            "freeze_when_forward_only",
            "true",
            f"{params.model} on {towers} devices has {binary(size)} of weights, and a "
            "graph holds less than 2 GiB; use fewer devices or a 16-bit --precision",
        )


def _check_int8(model: Model, spec: ModelSpec) -> None:
    """Refuses a model or a machine without convolutions in 8-bit integers."""
    if not any(len(one.shape) == 4 for one in spec.variables):
        raise FlagError("precision", "int8", f"{model.name} has no convolution to run in 8 bits")
    found = processor(Host()).get("cpu_isa")
    if not isinstance(found, list) or not set(found) & set(_INT8_INSTRUCTIONS):
        reason = f"this CPU has none of {', '.join(_INT8_INSTRUCTIONS)}; use bf16 or fp32"
        raise FlagError("precision", "int8", reason)
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        raise FlagError(
            "precision", "int8", "its kernels are oneDNN's; unset TF_ENABLE_ONEDNN_OPTS"
        )


def _check_shards(setup: Setup, dataset: Dataset) -> None:
    """Refuses sharding by files where files cannot be shared out or are too few."""
    params, workers = setup.params, setup.place.job.num_workers
    policy = params.auto_shard_policy
    if policy != "file" or workers == 1 or params.data_dir is None or params.eval:
        return
    files = len(dataset.subsets_in(params.data_dir)["train"])
    if not dataset.skips_bad_records:
        reason = f"every worker reads the files of data set {dataset.name} whole; use data or off"
    elif files < workers:
        reason = f"there are {files} training files for {workers} workers; use data or off"
    else:
        return
    raise FlagError("auto_shard_policy", policy, reason)


def _check_aux_head(params: Params, model: Model) -> None:
    """Refuses a model without an auxiliary head."""
    if model.aux_head is None:
        reason = f"--model={params.model} has no auxiliary head to switch on; leave it out"
        raise FlagError("aux_head", "true", reason)


def _check_elements(
    spec: ModelSpec, model: Model, dataset: Dataset, examples: Sequence[Element]
) -> None:
    """Refuses a model with elements that the data set does not provide.

    Raises:
      FlagError: names the first such element.
    """
    if type(model).preprocess is not Model.preprocess:
        return
    given = {one.name: (one.shape, one.dtype) for one in examples}
    for one in spec.elements:
        if given.get(one.name) != (one.shape, one.dtype):
            offered = ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in given.items())
            raise FlagError(
                "model",
                model.name,
                f"takes {one.name} {one.shape} {one.dtype} of an example, but data set "
                f"{dataset.name} gives {offered}",
            )


def _check_backbone(path: str, model: Model, spec: ModelSpec) -> None:
    """Refuses a model without a backbone, and a folder without a checkpoint."""
    within = [v for v in spec.variables if v.name.startswith(f"{model.backbone}/")]
    if not model.backbone or not within:
        raise FlagError("backbone_model_path", path, f"--model={model.name} has no backbone")
    if checkpoint_folder.latest(path) is None:
        raise FlagError("backbone_model_path", path, "there is no checkpoint")
