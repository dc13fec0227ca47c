"""A bare training loop of tf.distribute.MultiWorkerMirroredStrategy in several processes.

The network, its images and its initial values are cnnbench's, so that nothing but the engine
differs. It starts the workers itself; worker 0 prints.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from steps import measure, parse  # type: ignore[import-not-found] # the file beside this

WORKERS = 2
MODELS = ("resnet20", "resnet50", "trivial")


def main() -> int:
    """Entry point."""
    if "CNNBENCH_PEER" not in os.environ:
        return _start(WORKERS)
    _work(json.loads(os.environ["CNNBENCH_PEER"]))
    return 0


def _start(workers: int) -> int:
    sockets = [socket.socket() for _ in range(workers)]
    for one in sockets:
        one.bind(("localhost", 0))
    hosts = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    started = []
    try:
        for index in range(workers):
            place = json.dumps({"hosts": hosts, "index": index})
            environment = {**os.environ, "CNNBENCH_PEER": place, "CUDA_VISIBLE_DEVICES": ""}
            output = None if index == 0 else subprocess.DEVNULL
            started.append(
                subprocess.Popen([sys.executable, *sys.argv], env=environment, stdout=output)
            )
        return max(process.wait() for process in started)
    finally:
        for process in started:
            process.kill()


def _work(place: dict[str, Any]) -> None:
    args = parse(MODELS)
    hosts, index = place["hosts"], place["index"]
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": hosts}),
        task_type="worker",
        task_id=index,
        rpc_layer="grpc",
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)

    from cnnbench.data.synthetic import synthetic_rows
    from cnnbench.driver.plan import make_plan
    from cnnbench.flags import Params
    from cnnbench.models.graph import forward
    from cnnbench.variable_mgr.base import initial_value

    data = "imagenet" if args.model == "resnet50" else "cifar10"
    plan = make_plan(Params(model=args.model, data_name=data, device="cpu"))
    model, spec, batch = plan.model, plan.spec, args.batch_size // len(hosts)
    rows = synthetic_rows(tf.range(index * batch, (index + 1) * batch), 1234, plan.examples)
    images, labels = (tf.Variable(rows[e.name], trainable=False) for e in spec.elements)
    with strategy.scope():
        variables = {
            v.name: tf.Variable(initial_value(v, 1234), trainable=v.trainable)
            for v in spec.variables
        }
    trained = [v for v in spec.variables if v.trainable]

    def update(extended: Any, gradients: Any) -> None:
        for declared, gradient in zip(trained, gradients, strict=True):
            decay = args.weight_decay if declared.weight_decay else 0.0

            def apply(variable: Any, total: tf.Tensor, decay: float = decay) -> Any:
                complete = total / float(len(hosts)) + decay * variable
                return variable.assign_sub(args.learning_rate * complete)

            extended.update(variables[declared.name], apply, args=(gradient,))

    def of_replica() -> tf.Tensor:
        values: dict[str, tf.Tensor] = {}
        with tf.GradientTape(watch_accessed_variables=False) as tape:

            def read(declared: Any, dtype: tf.DType) -> tf.Tensor:
                if declared.name not in values:
                    values[declared.name] = tf.identity(variables[declared.name])
                    tape.watch(values[declared.name])
                return values[declared.name]

            outputs = forward(
                model,
                spec.num_classes,
                tf.identity(images),
                read,
                training=True,
                data_format="NHWC",
                compute_dtype=tf.float32,
            ).outputs
            loss = tf.reduce_mean(model.loss(outputs, tf.identity(labels)))
        context = tf.distribute.get_replica_context()
        found = tape.gradient(loss, [values[v.name] for v in trained])
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, found)
        context.merge_call(lambda strategy, grads: update(strategy.extended, grads), (total,))
        return loss

    step = tf.function(lambda: strategy.run(of_replica), autograph=False)
    measure(args, lambda: float(step()), f"tensorflow {tf.__version__}")


if __name__ == "__main__":
    sys.exit(main())
