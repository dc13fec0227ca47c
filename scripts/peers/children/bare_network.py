"""Training steps with networks of cnnbench, but without its harness.

The network, the images and the initial values are the same as in cnnbench, so that only the engine
differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MODELS = ("resnet20", "resnet50", "trivial")
SEED = 1234


def network(model: str, devices: int = 1, device: str = "cpu") -> Any:
    """Parameters of cnnbench for a network on a number of devices of one kind."""
    from cnnbench.flags import Params

    data = "imagenet" if model == "resnet50" else "cifar10"
    return Params(model=model, data_name=data, device=device, num_gpus=devices)


class BareNetwork:
    """A network of cnnbench, trained by plain SGD with weight decay.

    Args:
      args: the command line, see `steps.parse`.
      device: the kind of the devices.

    Attributes:
      trained: the declarations of the trained variables, in the order of gradients.
    """

    def __init__(self, args: argparse.Namespace, device: str = "cpu") -> None:
        from cnnbench.plan import make_plan
        from cnnbench.run.runtime.convolutions import resolve_conv_gradients

        self._args, self._plan = args, make_plan(network(args.model, device=device))
        self._data_format: Any = "NCHW" if device == "gpu" else "NHWC"
        self._conv_gradients = resolve_conv_gradients(self._plan, device)
        self.trained = [v for v in self._plan.network.spec.variables if v.trainable]

    def variables(self) -> dict[str, Any]:
        """Creates variables with cnnbench's initial values, by name, on the current device."""
        import tensorflow as tf

        from cnnbench.variable_mgr.base import initial_value

        declared = self._plan.network.spec.variables
        return {
            v.name: tf.Variable(initial_value(v, SEED), trainable=v.trainable) for v in declared
        }

    def rows(self, first: int, count: int) -> tuple[Any, ...]:
        """Synthetic images and labels, beginning with row `first`."""
        import tensorflow as tf

        from cnnbench.data.synthetic import draw_synthetic_rows

        rows = draw_synthetic_rows(
            tf.range(first, first + count), SEED, self._plan.network.examples
        )
        return tuple(rows[element.name] for element in self._plan.network.spec.elements)

    def batches(self, devices: Sequence[str], images: int, first: int = 0) -> list[list[Any]]:
        """Synthetic images, `images` per device, and labels, in variables on the device."""
        import tensorflow as tf

        made = []
        for replica, device in enumerate(devices, first):
            with tf.device(device):
                rows = self.rows(replica * images, images)
                made.append([tf.Variable(row, trainable=False) for row in rows])
        return made

    def loss_and_gradients(
        self, variables: Mapping[str, Any], images: Any, labels: Any
    ) -> tuple[Any, list[Any], list[Any]]:
        """Mean loss of a batch, gradients of `trained`, and batch-norm moments of each layer.

        Args:
          variables: by name, each read once.
        """
        import tensorflow as tf

        from cnnbench.models.graph import GraphNetwork

        model, values = self._plan.network.model, {}
        with tf.GradientTape(watch_accessed_variables=False) as tape:

            def read(declared: Any, dtype: tf.DType) -> tf.Tensor:
                if declared.name not in values:
                    values[declared.name] = tf.identity(variables[declared.name])
                    tape.watch(values[declared.name])
                return values[declared.name]

            network = GraphNetwork(
                model,
                self._plan.network.spec.num_classes,
                read,
                training=True,
                data_format=self._data_format,
                conv_gradients=self._conv_gradients,
                compute_dtype=tf.float32,
            )
            outputs = network.forward(tf.identity(images))
            loss = tf.reduce_mean(model.loss(outputs, tf.identity(labels)))
        return loss, tape.gradient(loss, [values[v.name] for v in self.trained]), network.updates

    def descend(self, declared: Any, variable: Any, gradient: Any) -> Any:
        """Updates one variable by plain SGD."""
        if declared.weight_decay:
            gradient += self._args.weight_decay * variable
        return variable.assign_sub(self._args.learning_rate * gradient)


def update_averages(variables: Mapping[str, Any], moments: Sequence[Any]) -> None:
    """Moves the moving averages of batch norm towards a batch's moments, on their devices."""
    import tensorflow as tf

    for declared, value, decay in moments:
        average = variables[declared.name]
        with tf.device(average.device):
            average.assign_sub((average - value) * (1.0 - decay))


def make_step(
    args: argparse.Namespace,
    strategy: Any,
    *,
    first: int = 0,
    in_replica: bool = False,
    device: str = "cpu",
) -> Callable[[], Any]:
    """Creates a step of plain SGD over all replicas; the first call traces the step.

    Args:
      args: the command line, see `steps.parse`; --batch_size is that of all replicas.
      in_replica: whether replicas reduce by `all_reduce`; otherwise gradients are merged in
        `merge_call` and reduced to the device of each variable.
    """
    import tensorflow as tf

    net, replicas = BareNetwork(args, device), strategy.num_replicas_in_sync
    inputs = net.batches(strategy.extended.worker_devices, args.batch_size // replicas, first)
    with strategy.scope():
        variables = net.variables()

    def update(strategy: Any, found: Any) -> None:
        extended = strategy.extended
        if not in_replica:
            pairs = zip(found, (variables[v.name] for v in net.trained), strict=True)
            found = extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, list(pairs))
        for declared, gradient in zip(net.trained, found, strict=True):

            def apply(variable: Any, total: tf.Tensor, declared: Any = declared) -> Any:
                return net.descend(declared, variable, total / float(replicas))

            extended.update(variables[declared.name], apply, args=(gradient,))

    def of_replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        number = int(tf.get_static_value(context.replica_id_in_sync_group))
        loss, found, _ = net.loss_and_gradients(variables, *inputs[number - first])
        if in_replica:
            found = context.all_reduce(tf.distribute.ReduceOp.SUM, found)
        context.merge_call(update, (found,))
        return loss

    def step() -> tf.Tensor:
        losses = strategy.experimental_local_results(strategy.run(of_replica))
        return tf.add_n(list(losses)) / float(len(losses))

    traced: Callable[[], Any] = tf.function(step, autograph=False)
    return traced


def make_step_by_hand(
    args: argparse.Namespace,
    devices: Sequence[str],
    means: Callable[[int, list[Any]], Sequence[Any]],
    *,
    device: str = "cpu",
) -> Callable[[], Any]:
    """Creates one tf.function with a copy of the variables per device, without tf.distribute.

    On GPUs it updates the moving averages of batch norm, of the first copy.

    Args:
      args: the command line, see `steps.parse`; --batch_size is that of all devices.
      means: takes the number of a variable and its gradients; returns their mean for each device.
      device: the kind of the devices.
    """
    import tensorflow as tf

    net, copies = BareNetwork(args, device), []
    inputs = net.batches(devices, args.batch_size // len(devices))
    for place in devices:
        with tf.device(place):
            copies.append(net.variables())

    def step() -> tf.Tensor:
        found = []
        for place, variables, batch in zip(devices, copies, inputs, strict=True):
            with tf.device(place):
                found.append(net.loss_and_gradients(variables, *batch))
        losses, gradients, moments = zip(*found, strict=True)
        for number, declared in enumerate(net.trained):
            own = means(number, [of_tower[number] for of_tower in gradients])
            for place, variables, mean in zip(devices, copies, own, strict=True):
                with tf.device(place):
                    net.descend(declared, variables[declared.name], mean)
        with tf.device(devices[0]):
            if device == "gpu":
                update_averages(copies[0], moments[0])
            return tf.add_n(list(losses)) / float(len(losses))

    traced: Callable[[], Any] = tf.function(step, autograph=False)
    return traced
