"""Steps of bare training loops with a network of cnnbench.

The network, its images and its initial values are cnnbench's, so that nothing but the engine
differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

MODELS = ("resnet20", "resnet50", "trivial")
SEED = 1234


def network(model: str, devices: int = 1, device: str = "cpu") -> Any:
    """Flags of cnnbench for a network on some devices of a kind."""
    from cnnbench.flags import Params

    data = "imagenet" if model == "resnet50" else "cifar10"
    return Params(model=model, data_name=data, device=device, num_gpus=devices)


def loss_and_gradients(
    model: Any,
    spec: Any,
    variables: Mapping[str, Any],
    images: Any,
    labels: Any,
    moments: list[Any] | None = None,
    data_format: Literal["NHWC", "NCHW"] = "NHWC",
) -> tuple[Any, list[Any]]:
    """Mean loss of a batch, and its gradients by the trained variables in their order.

    Args:
      variables: by name, each read once.
      moments: takes those of the batch-norm layers, in `cnnbench.models.batch_norm.Moments`.
    """
    import tensorflow as tf

    from cnnbench.models.graph import forward

    values: dict[str, Any] = {}
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def read(declared: Any, dtype: tf.DType) -> tf.Tensor:
            if declared.name not in values:
                values[declared.name] = tf.identity(variables[declared.name])
                tape.watch(values[declared.name])
            return values[declared.name]

        made = forward(
            model,
            spec.num_classes,
            tf.identity(images),
            read,
            training=True,
            data_format=data_format,
            compute_dtype=tf.float32,
        )
        loss = tf.reduce_mean(model.loss(made.outputs, tf.identity(labels)))
    if moments is not None:
        moments.extend(made.moments)
    return loss, tape.gradient(loss, [values[v.name] for v in spec.variables if v.trainable])


def copies_of(spec: Any) -> dict[str, Any]:
    """New variables with cnnbench's initial values, by name, on the current device."""
    import tensorflow as tf

    from cnnbench.variable_mgr.base import initial_value

    return {
        v.name: tf.Variable(initial_value(v, SEED), trainable=v.trainable) for v in spec.variables
    }


def descend(args: argparse.Namespace, declared: Any, variable: Any, gradient: Any) -> Any:
    """Plain SGD with weight decay: the update of one variable."""
    if declared.weight_decay:
        gradient += args.weight_decay * variable
    return variable.assign_sub(args.learning_rate * gradient)


def update_averages(variables: Mapping[str, Any], moments: Sequence[Any]) -> None:
    """Moves the averages of batch norm towards the moments of a batch, where they are."""
    import tensorflow as tf

    for layer in moments:
        batch = {layer.mean_spec: layer.batch_mean, layer.variance_spec: layer.batch_variance}
        for declared, value in batch.items():
            average = variables[declared.name]
            with tf.device(average.device):
                average.assign_sub((average - value) * (1.0 - layer.decay))


def make_step(
    args: argparse.Namespace,
    strategy: Any,
    *,
    first: int = 0,
    in_replica: bool = False,
    device: str = "cpu",
) -> Callable[[], float]:
    """Makes a step of plain SGD over all replicas; the first call traces it.

    Args:
      args: the command line, see `steps.parse`; --batch_size is that of all replicas.
      in_replica: whether replicas reduce by `all_reduce`; otherwise their gradients meet in
        `merge_call` and are reduced to where each variable is.
    """
    import tensorflow as tf

    from cnnbench.run.driver.plan import make_plan

    plan = make_plan(network(args.model, device=device))
    data_format: Literal["NHWC", "NCHW"] = "NCHW" if device == "gpu" else "NHWC"
    model, spec, replicas = plan.model, plan.spec, strategy.num_replicas_in_sync
    devices = strategy.extended.worker_devices
    inputs = batches(devices, plan, args.batch_size // replicas, first)
    with strategy.scope():
        variables = copies_of(spec)
    trained = [v for v in spec.variables if v.trainable]

    def update(strategy: Any, found: Any) -> None:
        extended = strategy.extended
        if not in_replica:
            pairs = zip(found, (variables[v.name] for v in trained), strict=True)
            found = extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, list(pairs))
        for declared, gradient in zip(trained, found, strict=True):

            def apply(variable: Any, total: tf.Tensor, declared: Any = declared) -> Any:
                return descend(args, declared, variable, total / float(replicas))

            extended.update(variables[declared.name], apply, args=(gradient,))

    def of_replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        number = int(tf.get_static_value(context.replica_id_in_sync_group))
        images, labels = inputs[number - first]
        loss, found = loss_and_gradients(
            model, spec, variables, images, labels, data_format=data_format
        )
        if in_replica:
            found = context.all_reduce(tf.distribute.ReduceOp.SUM, found)
        context.merge_call(update, (found,))
        return loss

    def step() -> tf.Tensor:
        losses = strategy.experimental_local_results(strategy.run(of_replica))
        return tf.add_n(list(losses)) / float(len(losses))

    traced = tf.function(step, autograph=False)
    return lambda: float(traced())


def make_step_by_hand(
    args: argparse.Namespace,
    devices: Sequence[str],
    means: Callable[[int, list[Any]], Sequence[Any]],
    *,
    device: str = "cpu",
) -> Callable[[], Any]:
    """Makes one tf.function with a copy of the variables on each device, without tf.distribute.

    On GPUs it updates the moving averages of batch norm, of the first copy.

    Args:
      args: the command line, see `steps.parse`; --batch_size is that of all devices.
      means: takes the number of a variable and its gradients; returns their mean for each device.
      device: the kind of the devices.
    """
    import tensorflow as tf

    from cnnbench.run.driver.plan import make_plan

    plan = make_plan(network(args.model, device=device))
    data_format: Literal["NHWC", "NCHW"] = "NCHW" if device == "gpu" else "NHWC"
    model, spec = plan.model, plan.spec
    trained = [v for v in spec.variables if v.trainable]
    inputs = batches(devices, plan, args.batch_size // len(devices))
    copies = []
    for place in devices:
        with tf.device(place):
            copies.append(copies_of(spec))

    def step() -> tf.Tensor:
        losses, gradients = [], []
        moments: list[Any] = []
        for place, variables, (images, labels) in zip(devices, copies, inputs, strict=True):
            with tf.device(place):
                found = loss_and_gradients(
                    model, spec, variables, images, labels, moments, data_format
                )
            losses.append(found[0])
            gradients.append(found[1])
        for number, declared in enumerate(trained):
            own = means(number, [of_tower[number] for of_tower in gradients])
            for place, variables, mean in zip(devices, copies, own, strict=True):
                with tf.device(place):
                    descend(args, declared, variables[declared.name], mean)
        with tf.device(devices[0]):
            if device == "gpu":
                update_averages(copies[0], moments[: len(moments) // len(devices)])
            return tf.add_n(losses) / float(len(losses))

    traced: Callable[[], Any] = tf.function(step, autograph=False)
    return traced


def batches(devices: Sequence[str], plan: Any, batch: int, first: int = 0) -> list[list[Any]]:
    """Synthetic images and labels in variables on each device.

    Args:
      batch: images on each.
    """
    import tensorflow as tf

    from cnnbench.data.synthetic import synthetic_rows

    made = []
    for replica, device in enumerate(devices, first):
        with tf.device(device):
            numbers = tf.range(replica * batch, (replica + 1) * batch)
            rows = synthetic_rows(numbers, SEED, plan.examples)
            made.append([tf.Variable(rows[e.name], trainable=False) for e in plan.spec.elements])
    return made
