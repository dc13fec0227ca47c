"""The optimizer RMSProp, with momentum."""

from cnnbench.optimizers.spec import Constant, OptimizerSpec, Slot

OPTIMIZER = OptimizerSpec(
    name="rmsprop",
    formula="s = decay s + (1 - decay) g^2, a = momentum a + lr g / sqrt(s + epsilon), w -= a; "
    "s is 1 at first",
    operation="ResourceApplyRMSProp",
    slots=(Slot("mean_square", "ms", 1.0), Slot("momentum", "mom")),
    constants={
        "rho": Constant("rmsprop_decay", 0.9, "Decay of the mean square", minimum=0, maximum=1),
        "momentum": Constant("rmsprop_momentum", 0.9, "Momentum", minimum=0, maximum=1),
        "epsilon": Constant(
            "rmsprop_epsilon", 1.0, "Added to the mean square inside the root", minimum=0
        ),
    },
    normal_in_fp16=("rmsprop_epsilon",),
)
