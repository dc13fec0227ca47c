"""A bare training loop of tf.distribute.MultiWorkerMirroredStrategy in several processes.

It starts the workers itself; worker 0 prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from steps import free_hosts, measure, parse  # type: ignore[import-not-found] # beside this
from strategy_loop import MODELS, make_step  # type: ignore[import-not-found] # likewise


def main() -> int:
    """Entry point."""
    if "CNNBENCH_PEER" not in os.environ:
        return _start(parse(MODELS, of_workers=True).workers)
    _work(json.loads(os.environ["CNNBENCH_PEER"]))
    return 0


def _start(workers: int) -> int:
    hosts = free_hosts(workers)
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
    args = parse(MODELS, of_workers=True)
    hosts, index = place["hosts"], place["index"]
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": hosts}),
        task_type="worker",
        task_id=index,
        rpc_layer="grpc",
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)

    # As Keras does it: each replica reduces, all gradients as one tensor.
    step = make_step(args, strategy, first=index, in_replica=True)
    measure(args, step, f"tensorflow {tf.__version__}")


if __name__ == "__main__":
    sys.exit(main())
