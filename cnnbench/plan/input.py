"""The input of a run: data and preprocessing."""

from __future__ import annotations

from typing import NamedTuple

from cnnbench.data.dataset import InputSpec
from cnnbench.flags.declare import names_of_flags
from cnnbench.flags.facts import WorkKind
from cnnbench.flags.params import FLAGS, Params
from cnnbench.flags.roles import RunPart
from cnnbench.plan.length import RunLength
from cnnbench.plan.network import NetworkPlan


class InputPlan(NamedTuple):
    """The inputs of one worker that reads all data, for training and for evaluation.

    The fields that depend on the worker, its devices and its threads have their defaults.
    """

    training: InputSpec
    validation: InputSpec


def plan_input(
    flags: Params, work: WorkKind, network: NetworkPlan, length: RunLength, towers: int, dtype: str
) -> InputPlan:
    """Resolves the input that the flags select.

    `towers` is the number of towers of one worker, `dtype` the type of real features.
    """
    # Forward passes do not mix images, because only a training loss uses mixed labels.
    unmixed = dict.fromkeys(names_of_flags(FLAGS, RunPart.MIXING), 0.0) if work.only_forward else {}

    def spec(training: bool) -> InputSpec:
        return InputSpec.from_flags(
            flags,
            **unmixed,
            dataset=network.dataset,
            subset="train" if training else "validation",
            batch_per_device=length.batch_per_device if training else length.eval_batch_per_device,
            num_devices=towers,
            passes=flags.gradient_accumulation_steps if training else 1,
            shard_files=training and flags.auto_shard_policy == "file",
            image_size=getattr(network.model, "image_size", 0),
            channels=network.model.channels,
            num_classes=network.dataset.num_classes,
            examples=network.examples,
            elements=network.spec.elements,
            preprocess=network.preprocess(training=training),
            seed=flags.tf_random_seed,
            dtype=dtype,
        )

    return InputPlan(training=spec(training=True), validation=spec(training=False))
