"""Flags for network and precision."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.base.rules import (
    FlagRule,
    Severity,
    always,
    no_effect,
    no_effect_without,
    refuse,
    refuse_any_value,
)
from cnnbench.errors import FlagError
from cnnbench.flags.declare import ComparedBy, RunPart, flag
from cnnbench.flags.facts import (
    FORWARD,
    RunFacts,
    no_effect_forward,
    no_effect_input_only,
    runs_only_forward,
)
from cnnbench.models.model import LARGEST_IMAGE
from cnnbench.models.registry import all_model_names


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ModelParams:
    """Flags for network and precision."""

    model: str = flag(
        "trivial",
        "Network to run; `cnnbench models` lists all networks. keras:NAME is a network of "
        "keras.applications, such as keras:ResNet50V2. keras:FILE.keras is a network that "
        "model.save wrote.",
        known=all_model_names,
        part=RunPart.HEADER | RunPart.STEP_WORK,
    )
    image_size: int | None = flag(
        None,
        "Height and width of the images in pixels. If not given, the image size of the model is "
        "used. The flag is refused if the layers of the network do not support the size.",
        minimum=1,
        maximum=LARGEST_IMAGE,
    )
    num_classes: int | None = flag(
        None,
        "Number of outputs of the network. Labels must be smaller than this number. If not given, "
        "the number of classes of the data set is used. With ImageNet and CIFAR-10, one output is "
        "unused.",
        minimum=1,
        maximum=2**20,
    )
    aux_head: bool = flag(
        False,
        "Also train the auxiliary head of inception3 or of a nasnet; its loss has the weight 0.4.",
    )
    keras_layers: str = flag(
        "fused",
        "Operations of batch norms, convolutions and dense layers of a Keras model. fused: the "
        "operations that cnnbench uses in its own networks. own: the operations that Keras uses. "
        "Both result in the same losses.",
        choices=("fused", "own"),
        lower=True,
    )
    backbone_model_path: str | None = flag(
        None,
        "Checkpoint, or folder of checkpoints, of a trained network whose layers are the backbone "
        "of --model. Training starts from the weights of these layers. If --train_dir contains a "
        "checkpoint, that checkpoint is used instead.",
        path="file or URL",
        compared_by=ComparedBy.PRESENCE,
        part=RunPart.UPDATE,
    )
    recompute: str = flag(
        "none",
        "With blocks, a training step stores only the inputs of the network's blocks. The "
        "backward pass computes the values inside the blocks again, which needs less memory and "
        "more time. The losses are the same. The flag is refused for networks without blocks.",
        choices=("none", "blocks"),
        lower=True,
    )
    precision: str = flag(
        "fp32",
        "Number format of activations and gradients. Batch norm, softmax and loss are always "
        "computed in fp32. Variables and optimizer slots are stored in fp32, except with "
        "--fp16_vars.",
        choices=("fp32", "fp16", "bf16"),
        lower=True,
        part=RunPart.STEP_WORK,
    )
    use_fp16: bool = flag(False, "Old name of --precision=fp16.")
    fp16_loss_scale: float | None = flag(
        None,
        "With fp16: the loss is multiplied by this factor before gradients are computed, and the "
        "gradients are divided by it afterwards. If not given, the factor is 128 for every model. "
        "With --fp16_enable_auto_loss_scale, this is the first factor.",
        above=0,
        # Within these bounds, the loss scale and its inverse are normal float32 numbers (not
        # denormal, not infinite).
        fault=lambda scale: (
            "" if 2.0**-126 <= scale <= 2.0**126 else "must be from 2^-126 to 2^126; 128 is usual"
        ),
    )
    fp16_vars: bool = flag(
        False,
        "With fp16: also store variables and optimizer slots in fp16, except the variables of "
        "batch norm.",
    )
    fp16_enable_auto_loss_scale: bool = flag(
        False,
        "With fp16: if the gradients of a step are not finite, skip the step and halve the loss "
        "scale. After --fp16_inc_loss_scale_every_n consecutive steps with finite gradients, "
        "double the loss scale.",
    )
    fp16_inc_loss_scale_every_n: int = flag(
        1000,
        "With --fp16_enable_auto_loss_scale: number of consecutive steps with finite gradients "
        "after which the loss scale doubles.",
        minimum=1,
    )
    loss_type_to_report: str = flag(
        "total_loss",
        "Loss to print and record: with the L2 term (total_loss) or without (base_loss).",
        choices=("base_loss", "total_loss"),
        part=RunPart.HEADER,
    )


_XLA = ("xla", "xla_compile")
_LOSS_SCALE = ("fp16_loss_scale", "fp16_enable_auto_loss_scale", "fp16_inc_loss_scale_every_n")


def refuse_fp16_conflict(precision: str, use_fp16: bool) -> None:
    """Raises FlagError if the older flag --use_fp16 contradicts --precision."""
    if use_fp16 != (precision == "fp16"):
        reason = f"contradicts --precision={precision}; give one of the two"
        raise FlagError("use_fp16", use_fp16, reason)


CONFLICTS: tuple[FlagRule[RunFacts], ...] = (
    FlagRule(
        ("device", "data_format", *_XLA),
        lambda p, name: (
            p.params.conv_gradients == "fastest"
            and getattr(p.params, name) in ("gpu", "NCHW", True)
        ),
        Severity.REFUSAL,
        "cannot be used with --conv_gradients=fastest, which supports only NHWC on CPUs, without "
        "XLA",
    ),
    refuse(
        _XLA,
        lambda p: p.params.recompute == "blocks",
        "cannot be used with --recompute=blocks: XLA would merge both computations of a value",
    ),
)

RULES: tuple[FlagRule[RunFacts], ...] = (
    refuse_any_value(
        "use_fp16",
        always,
        lambda p: refuse_fp16_conflict(p.params.precision, p.params.use_fp16),
    ),
    refuse("fp16_vars", lambda p: p.params.precision != "fp16", "needs --precision=fp16"),
    refuse(
        "fp16_vars",
        lambda p: p.numerics.optimizer_spec.refuses_fp16 and not p.work.only_forward,
        lambda p: (
            f"cannot be used with --optimizer={p.numerics.optimizer_spec.name}: "
            f"{p.numerics.optimizer_spec.refuses_fp16}"
        ),
    ),
    # Notices.
    no_effect_input_only(("aux_head", "backbone_model_path", "recompute", *_LOSS_SCALE)),
    no_effect(_LOSS_SCALE, lambda p: p.params.precision != "fp16", "without --precision=fp16"),
    no_effect("aux_head", runs_only_forward, f"{FORWARD}: it is for the training loss"),
    no_effect("recompute", runs_only_forward, f"{FORWARD}: they compute no gradients"),
    no_effect_forward(("backbone_model_path", *_LOSS_SCALE)),
    no_effect_without("fp16_inc_loss_scale_every_n", "fp16_enable_auto_loss_scale"),
)
