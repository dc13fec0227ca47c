"""A bare training step of several workers under one controller: one tf.function, written by hand.

It moves what `--all_reduce_spec=copy` moves: every gradient is added on a device in turn and its
sum sent back. The network, its images and its initial values are cnnbench's. It starts the other
workers itself.
"""

from __future__ import annotations

import sys
from typing import Any

from steps import (  # type: ignore[import-not-found] # the file beside this
    free_hosts,
    leave,
    measure,
    parse,
    serve,
    tasks_of,
)
from strategy_loop import (  # type: ignore[import-not-found] # likewise
    MODELS,
    loss_and_gradients,
    network,
)


def main() -> int:
    """Entry point."""
    serve()
    import tensorflow as tf

    args = parse(MODELS, of_workers=True)
    hosts = {"worker": free_hosts(args.workers)}
    with tasks_of(hosts, [("worker", index) for index in range(1, args.workers)]):
        spec = tf.train.ClusterSpec(hosts)
        tf.config.experimental_connect_to_cluster(spec, job_name="worker", task_index=0)
        step = _step(args)
        measure(args, lambda: float(step()), f"tensorflow {tf.__version__}")
    leave()
    return 0


def _step(args: Any) -> Any:
    import tensorflow as tf

    from cnnbench.data.synthetic import synthetic_rows
    from cnnbench.run.driver.plan import make_plan
    from cnnbench.variable_mgr.base import initial_value

    workers = args.workers
    devices = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(workers)]
    plan = make_plan(network(args.model))
    model, spec, batch = plan.model, plan.spec, args.batch_size // workers
    trained = [v for v in spec.variables if v.trainable]
    batches, copies = [], []
    for index, device in enumerate(devices):
        rows = synthetic_rows(tf.range(index * batch, (index + 1) * batch), 1234, plan.examples)
        values = [(v.name, initial_value(v, 1234), v.trainable) for v in spec.variables]
        with tf.device(device):
            batches.append([tf.Variable(rows[e.name], trainable=False) for e in spec.elements])
            copies.append({name: tf.Variable(v, trainable=train) for name, v, train in values})

    def step() -> tf.Tensor:
        losses, gradients = [], []
        for index, device in enumerate(devices):
            with tf.device(device):
                loss, found = loss_and_gradients(model, spec, copies[index], *batches[index])
            losses.append(loss)
            gradients.append(found)
        for number, declared in enumerate(trained):
            with tf.device(devices[number % workers]):
                mean = tf.add_n([of_tower[number] for of_tower in gradients]) / float(workers)
            decay = args.weight_decay if declared.weight_decay else 0.0
            for index, device in enumerate(devices):
                with tf.device(device):
                    variable = copies[index][declared.name]
                    variable.assign_sub(args.learning_rate * (mean + decay * variable))
        with tf.device(devices[0]):
            return tf.add_n(losses) / float(workers)

    return tf.function(step, autograph=False)


if __name__ == "__main__":
    sys.exit(main())
