"""A program of a user for scripts/typecheck: mypy reports each wrong line, and no other.

A comment without an error is an error, too. The types of flags that also take text or lists are in
cnnbench/flags/declare.py.
"""

from collections.abc import Mapping

from cnnbench import BenchmarkCNN, Params
from cnnbench.arrays import Array, Tensor
from cnnbench.models import Model
from cnnbench.variable_mgr.all_reduce import AllReduceSpec, parse_all_reduce_spec

params = Params(model="resnet50", num_gpus=2, num_epochs=2, momentum=0.5, train_dir=None)
Params(modle="resnet50")  # type: ignore[call-arg]
Params(num_gpus="2")  # type: ignore[arg-type]
Params(num_gpus=None)  # type: ignore[arg-type]
Params(momentum="0.5")  # type: ignore[arg-type]
Params(learning_rate=0.5)  # type: ignore[call-arg]

Params(all_reduce_spec="xring#2")
Params(all_reduce_spec=parse_all_reduce_spec("xring#2"))
Params(all_reduce_spec=2)  # type: ignore[arg-type]
Params(display_every="10s", stop_at="top_1:0.7", piecewise_learning_rate_schedule="0.3;10;0.2")
Params(display_every=10.5)  # type: ignore[arg-type]
Params(eval_during_training_at_specified_steps="1,2")
Params(eval_during_training_at_specified_steps=[1, 2])
Params(eval_during_training_at_specified_epochs=(1, 2.5), plugin="a.py,b.py")
Params(eval_during_training_at_specified_steps=("1", "2"))  # type: ignore[arg-type]
Params(plugin=[1])  # type: ignore[list-item]

Params(constants={"my_momentum": 0.5})
Params(constants={"my_momentum": "x"})  # type: ignore[dict-item]
Params(my_momentum=0.5)  # type: ignore[call-arg]

larger = params.replace(batch_size=64, all_reduce_spec="xring")
size: int = larger.batch_size
params.replace(batchsize=64)  # type: ignore[call-arg]
params.replace(batch_size="64")  # type: ignore[arg-type]
Params.from_dict({"batch_size": "64"})

spec: AllReduceSpec | None = params.all_reduce_spec
steps: tuple[int, ...] = params.eval_during_training_at_specified_steps
text: str = params.all_reduce_spec  # type: ignore[assignment]
print(params.batchsize)  # type: ignore[attr-defined]
params.num_gpus = 2  # type: ignore[misc]
steps_per_second: float = BenchmarkCNN(larger).run().summary().images_per_sec / size


class Own(Model):
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs - labels

    def host_metrics(self, rows: Mapping[str, Array]) -> Mapping[str, float]:
        return {"mean": float(rows["told"].mean())}

    def host_rows(self, features: Tensor, outputs: Tensor) -> int:  # type: ignore[override]
        return 0
