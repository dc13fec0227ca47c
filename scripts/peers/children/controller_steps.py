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
    batches,
    copies_of,
    descend,
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

    from cnnbench.run.driver.plan import make_plan

    workers = args.workers
    devices = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(workers)]
    plan = make_plan(network(args.model))
    model, spec = plan.model, plan.spec
    trained = [v for v in spec.variables if v.trainable]
    inputs = batches(devices, plan, args.batch_size // workers)
    copies = []
    for device in devices:
        with tf.device(device):
            copies.append(copies_of(spec))

    def step() -> tf.Tensor:
        losses, gradients = [], []
        for index, device in enumerate(devices):
            with tf.device(device):
                loss, found = loss_and_gradients(model, spec, copies[index], *inputs[index])
            losses.append(loss)
            gradients.append(found)
        for number, declared in enumerate(trained):
            with tf.device(devices[number % workers]):
                mean = tf.add_n([of_tower[number] for of_tower in gradients]) / float(workers)
            for index, device in enumerate(devices):
                with tf.device(device):
                    descend(args, declared, copies[index][declared.name], mean)
        with tf.device(devices[0]):
            return tf.add_n(losses) / float(workers)

    return tf.function(step, autograph=False)


if __name__ == "__main__":
    sys.exit(main())
