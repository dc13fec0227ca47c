"""A bare training loop of tf.distribute.MultiWorkerMirroredStrategy in several processes.

It starts the workers itself; worker 0 prints.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from steps import (  # type: ignore[import-not-found] # the file beside this
    free_hosts,
    measure,
    own_task,
    parse,
    tasks_of,
)
from strategy_loop import MODELS, make_step  # type: ignore[import-not-found] # likewise


def main() -> int:
    """Entry point."""
    args = parse(MODELS, of_workers=True)
    task = own_task()
    if task is None:
        return _start(args.workers)
    _work(args, *task)
    return 0


def _start(workers: int) -> int:
    hosts = {"worker": free_hosts(workers)}
    tasks = [("worker", index) for index in range(workers)]
    with tasks_of(hosts, tasks, lambda _, index: subprocess.DEVNULL if index else None) as started:
        return int(max(process.wait() for process in started))


def _work(args: argparse.Namespace, hosts: dict[str, list[str]], job: str, index: int) -> None:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(hosts),
        task_type=job,
        task_id=index,
        rpc_layer="grpc",
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)

    # As Keras does it: each replica reduces, all gradients as one tensor.
    step = make_step(args, strategy, first=index, in_replica=True)
    measure(args, step, f"tensorflow {tf.__version__}")


if __name__ == "__main__":
    sys.exit(main())
