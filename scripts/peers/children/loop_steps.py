"""Training loops of TensorFlow, one for each mode of cnnbench, over the same networks.

--strategy is a strategy of tf.distribute in one process, or one of three values for which this
program starts several processes. `workers` uses MultiWorkerMirroredStrategy; only worker 0 prints.
`controller` is a process whose tf.function runs on all workers and sends the same tensors as
`--all_reduce_spec=copy`. `coordinator` is a ClusterCoordinator with ParameterServerStrategy and a
ps task.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bare_network import (  # type: ignore[import-not-found] # the file beside this
    MODELS,
    BareNetwork,
    make_step,
    make_step_by_hand,
    network,
    update_averages,
)
from steps import measure, parse, tell, tell_step  # type: ignore[import-not-found] # likewise

from cnnbench.base.ports import ReservedPorts

Hosts = Mapping[str, Sequence[str]]
"""Addresses of tasks, by the name of their job."""

SPAWN = multiprocessing.get_context("spawn")


def serve(hosts: Hosts, job: str, index: int) -> None:
    """Runs the TensorFlow server of one task."""
    import tensorflow as tf

    tf.distribute.Server(tf.train.ClusterSpec(hosts), job_name=job, task_index=index).join()


@contextlib.contextmanager
def cluster(
    own: str, run: Callable[..., None] = serve, *arguments: object, **tasks: int
) -> Iterator[Hosts]:
    """Starts the tasks of a cluster in child processes, which end with the ``with`` statement.

    Args:
      own: the job whose first task is this process.
      run: function that the other tasks call with `arguments`, the hosts, and their job and index.
      tasks: number of tasks of each job.
    """
    with ReservedPorts(sum(tasks.values())) as ports:
        numbers = iter(ports.numbers)
        hosts = {
            job: [f"localhost:{next(numbers)}" for _ in range(count)]
            for job, count in tasks.items()
        }
        others = [(job, index) for job in tasks for index in range(job == own, tasks[job])]
        started = [SPAWN.Process(target=run, args=(*arguments, hosts, *one)) for one in others]
        try:
            for process in started:
                process.start()
            yield hosts
        finally:
            for process in started:
                process.kill()
                process.join()  # Only then does its CPU time count for this process.


def one_process(args: argparse.Namespace) -> None:
    """Measures a strategy in this process, on one or two devices."""
    from cnnbench.run.runtime.devices import configure_devices

    count = 1 if args.strategy == "one_device_strategy" else 2
    # Threads and devices are configured as in a run of cnnbench.
    devices = configure_devices(network(args.model, count)).job.own_tower_devices
    import tensorflow as tf

    made = {
        "mirrored_strategy": lambda: tf.distribute.MirroredStrategy(devices),
        "central_storage_strategy": lambda: tf.distribute.experimental.CentralStorageStrategy(
            list(devices), devices[0]
        ),
        "one_device_strategy": lambda: tf.distribute.OneDeviceStrategy(devices[0]),
    }
    measure(args, make_step(args, made[args.strategy]()), tf)


def worker(args: argparse.Namespace, hosts: Hosts, job: str, index: int) -> None:
    """Measures one worker of MultiWorkerMirroredStrategy; only the first worker prints."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(hosts), task_type=job, task_id=index, rpc_layer="grpc"
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    # As in Keras, each replica reduces all gradients as one tensor.
    step = make_step(args, strategy, first=index, in_replica=True)
    with contextlib.redirect_stdout(None if index else sys.stdout):
        measure(args, step, tf)


def workers(args: argparse.Namespace) -> None:
    """Measures all workers of MultiWorkerMirroredStrategy."""
    with cluster("worker", worker, args, worker=args.workers) as hosts:
        worker(args, hosts, "worker", 0)


def controller(args: argparse.Namespace) -> None:
    """Measures one tf.function over all workers, which adds each gradient on one of them."""
    import tensorflow as tf

    devices = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(args.workers)]

    def means(number: int, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.device(devices[number % len(devices)]):
            return [tf.add_n(gradients) / float(len(devices))] * len(devices)

    with cluster("worker", worker=args.workers) as hosts:
        spec = tf.train.ClusterSpec(hosts)
        tf.config.experimental_connect_to_cluster(spec, job_name="worker", task_index=0)
        step = make_step_by_hand(args, devices, means)
        measure(args, step, tf)


def coordinator(args: argparse.Namespace) -> None:
    """Measures ParameterServerStrategy with workers and one ps task.

    Two updates per worker are in flight.
    """
    import tensorflow as tf

    count = args.workers
    with cluster("chief", worker=count, ps=1, chief=1) as hosts:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(hosts), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        schedule = make_schedule(args, tf.distribute.ParameterServerStrategy(resolver))
        run(schedule, args.warmup, count)
        start = time.perf_counter()
        part = args.batch_size // count
        run(schedule, args.batches, count, lambda number, took: tell_step(number, part / took))
        # Updates end in bursts, so the times between them are replaced by their mean.
        seconds = [(time.perf_counter() - start) / args.batches] * args.batches
        tell(part, seconds, tf)


def run(
    schedule: Callable[[], Any],
    updates: int,
    workers: int,
    done: Callable[[int, float], None] = lambda number, seconds: None,
) -> None:
    """Schedules updates, and reads their losses; waits until all updates are complete.

    Args:
      done: called with the number of each update and the seconds since the one before.
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
    """Creates a function that schedules one SGD update on a worker's part of the batch."""
    import tensorflow as tf

    net, images = BareNetwork(args), args.batch_size // args.workers
    with strategy.scope():
        variables = net.variables()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def batches() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(net.rows(0, images)).cache().repeat()

    iterator = iter(coordinator.create_per_worker_dataset(batches))

    def update(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, found, moments = net.loss_and_gradients(variables, images, labels)
        for declared, gradient in zip(net.trained, found, strict=True):
            variable = variables[declared.name]
            with tf.device(variable.device):
                net.descend(declared, variable, gradient)
        update_averages(variables, moments)
        return loss

    @tf.function(autograph=False)
    def step(iterator: Any) -> tf.Tensor:
        return strategy.run(update, args=next(iterator))

    return lambda: coordinator.schedule(step, args=(iterator,))


STRATEGIES = {
    "mirrored_strategy": one_process,
    "central_storage_strategy": one_process,
    "one_device_strategy": one_process,
    "workers": workers,
    "controller": controller,
    "coordinator": coordinator,
}

if __name__ == "__main__":
    arguments = parse(MODELS, strategy=STRATEGIES)
    STRATEGIES[arguments.strategy](arguments)
    sys.stdout.flush()
    os._exit(0)  # Otherwise TensorFlow would wait for the servers.
