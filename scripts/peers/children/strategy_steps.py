"""A bare training loop of a strategy of tf.distribute in one process, on 2 devices or 1."""

from __future__ import annotations

import sys

from steps import measure, parse  # type: ignore[import-not-found] # the file beside this
from strategy_loop import (  # type: ignore[import-not-found] # likewise
    MODELS,
    make_step,
    network,
)

DEVICES = 2
STRATEGIES = ("mirrored_strategy", "central_storage_strategy", "one_device_strategy")


def main() -> int:
    """Entry point."""
    args = parse(MODELS, STRATEGIES)
    count = 1 if args.strategy == "one_device_strategy" else DEVICES
    from cnnbench.run.runtime.tensorflow import Settings, configure

    # Threads and devices as those of a run of cnnbench.
    devices = configure(Settings.of(network(args.model, count))).towers
    import tensorflow as tf

    made = {
        "mirrored_strategy": lambda: tf.distribute.MirroredStrategy(devices),
        "central_storage_strategy": lambda: tf.distribute.experimental.CentralStorageStrategy(
            list(devices), devices[0]
        ),
        "one_device_strategy": lambda: tf.distribute.OneDeviceStrategy(devices[0]),
    }
    measure(args, make_step(args, made[args.strategy]()), f"tensorflow {tf.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
