"""The optimizer Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015).

The computation follows the end of section 2 of the paper, where epsilon is not bias-corrected.
"""

from cnnbench.optimizers.spec import Constant, OptimizerSpec, Slot

BETA1 = Constant("adam_beta1", 0.9, "Decay of the first moment", minimum=0, below=1)
BETA2 = Constant("adam_beta2", 0.999, "Decay of the second moment", minimum=0, below=1)
EPSILON = Constant("adam_epsilon", 1e-8, "Added to the denominator, outside the root", minimum=0)
POWERS = {"beta1_power": BETA1, "beta2_power": BETA2}
SLOTS = (Slot("m", "m"), Slot("v", "v"))
REFUSES_FP16 = "squares of gradients vanish in fp16"

OPTIMIZER = OptimizerSpec(
    name="adam",
    formula="m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, "
    "w -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon) in step t",
    operation="ResourceApplyAdam",
    slots=SLOTS,
    constants={"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON},
    powers=POWERS,
    refuses_fp16=REFUSES_FP16,
    mlperf={
        "opt_adam_beta_1": "adam_beta1",
        "opt_adam_beta_2": "adam_beta2",
        "opt_adam_epsilon": "adam_epsilon",
    },
)
