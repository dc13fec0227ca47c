"""The optimizer "momentum": gradient descent with Nesterov momentum, as in tf_cnn_benchmarks."""

from cnnbench.optimizers.builtin.sgd import MLPERF
from cnnbench.optimizers.spec import Constant, OptimizerSpec, Slot

MOMENTUM = Constant("momentum", 0.9, "Momentum", minimum=0, maximum=1)

OPTIMIZER = OptimizerSpec(
    name="momentum",
    formula="a = momentum a + g, w -= lr (g + momentum a), which is Nesterov's",
    operation="ResourceApplyMomentum",
    slots=(Slot("momentum", "accum"),),
    constants={"momentum": MOMENTUM},
    fixed={"use_nesterov": True},
    mlperf_name="sgd",
    mlperf={**MLPERF, "sgd_opt_momentum": "momentum"},
)
