"""A bare loop of a ClusterCoordinator over tf.distribute.ParameterServerStrategy.

Gradients and moving averages of batch normalisation go to the ps task.

Workers and a ps task, which it starts itself; two updates for each worker are under way. The
network, its images and its initial values are cnnbench's.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Callable
from typing import Any

from steps import (  # type: ignore[import-not-found] # the file beside this
    free_hosts,
    leave,
    parse,
    serve,
    tasks_of,
    tell,
    tell_step,
)
from strategy_loop import (  # type: ignore[import-not-found] # likewise
    MODELS,
    copies_of,
    descend,
    loss_and_gradients,
    network,
    update_averages,
)

_SEED = 1234


def main() -> int:
    """Entry point."""
    serve()
    import tensorflow as tf

    args = parse(MODELS, of_workers=True)
    workers = args.workers
    addresses = free_hosts(workers + 2)
    hosts = {"worker": addresses[:workers], "ps": addresses[workers:-1], "chief": addresses[-1:]}
    with tasks_of(hosts, [*(("worker", index) for index in range(workers)), ("ps", 0)]):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(hosts), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        schedule = make_schedule(args, tf.distribute.ParameterServerStrategy(resolver))
        run(schedule, args.warmup, workers)
        start = time.perf_counter()
        part = args.batch_size // workers
        run(schedule, args.batches, workers, lambda number, took: tell_step(number, part / took))
        # Updates end in bursts, so that single distances say little.
        seconds = [(time.perf_counter() - start) / args.batches] * args.batches
        tell(args.batch_size // workers, seconds, f"tensorflow {tf.__version__}")
    leave()
    return 0


def run(
    schedule: Callable[[], Any],
    updates: int,
    workers: int,
    done: Callable[[int, float], None] = lambda number, seconds: None,
) -> None:
    """Schedules updates and reads the loss of each; none is in flight before and after.

    Args:
      done: takes the number of each and the seconds since the one before.
    """
    waiting: collections.deque[Any] = collections.deque()
    last = time.perf_counter()
    for number in range(1, updates + 1):
        while len(waiting) < min(2 * workers, updates - number + 1):
            waiting.append(schedule())
        float(waiting.popleft().fetch())
        now = time.perf_counter()
        done(number, now - last)
        last = now


def make_schedule(args: argparse.Namespace, strategy: Any) -> Callable[[], Any]:
    """A function that schedules an update of plain SGD on a worker's part of the batch."""
    import tensorflow as tf

    from cnnbench.data.synthetic import synthetic_rows
    from cnnbench.run.driver.plan import make_plan

    plan = make_plan(network(args.model))
    model, spec = plan.model, plan.spec
    with strategy.scope():
        variables = copies_of(spec)
    trained = [v for v in spec.variables if v.trainable]
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def batches() -> tf.data.Dataset:
        rows = synthetic_rows(tf.range(args.batch_size // args.workers), _SEED, plan.examples)
        of_elements = tuple(rows[element.name] for element in spec.elements)
        return tf.data.Dataset.from_tensors(of_elements).cache().repeat()

    iterator = iter(coordinator.create_per_worker_dataset(batches))

    def update(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        moments: list[Any] = []
        loss, found = loss_and_gradients(model, spec, variables, images, labels, moments)
        for declared, gradient in zip(trained, found, strict=True):
            variable = variables[declared.name]
            with tf.device(variable.device):
                descend(args, declared, variable, gradient)
        update_averages(variables, moments)
        return loss

    @tf.function(autograph=False)
    def step(iterator: Any) -> tf.Tensor:
        return strategy.run(update, args=next(iterator))

    return lambda: coordinator.schedule(step, args=(iterator,))


if __name__ == "__main__":
    sys.exit(main())
