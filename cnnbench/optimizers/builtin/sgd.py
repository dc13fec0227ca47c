"""The optimizer "sgd": plain gradient descent without momentum."""

from cnnbench.optimizers.spec import OptimizerSpec

# MLPerf logs a momentum for every optimizer; cnnbench's sgd has none, so it is 0.
MLPERF = {
    "sgd_opt_base_learning_rate": "base_rate",
    "sgd_opt_end_learning_rate": "end_rate",
    "sgd_opt_weight_decay": "weight_decay",
}

OPTIMIZER = OptimizerSpec(
    name="sgd",
    formula="w -= lr g",
    operation="ResourceApplyGradientDescent",
    rate="alpha",
    gradient="delta",
    linear=True,
    mlperf={**MLPERF, "sgd_opt_momentum": 0.0},
)
