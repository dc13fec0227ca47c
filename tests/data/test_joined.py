"""Inputs of several workers as one, on logical devices of one process."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from data_sets import input_spec

from cnnbench.data import IMAGENET, make_input
from cnnbench.data.joined import JoinedInput
from cnnbench.data.pipeline import Pipeline
from cnnbench.data.prefetch import PipelineInput

BATCH = 2


class Numbers(Pipeline):
    """Seven images that hold their own number, in shards."""

    def __init__(self, spec):
        super().__init__(spec, 7)

    def tower_batches(self):
        spec = self.spec
        numbers = tf.data.Dataset.range(7).shard(spec.num_shards, spec.shard_index)
        if spec.training:
            numbers = numbers.repeat()
        examples = numbers.map(
            lambda i: {"image": tf.fill([9, 9, 3], tf.cast(i, tf.float32)), "label": i}
        )
        return examples.batch(spec.batch_per_device, drop_remainder=spec.training)


def specs(workers, towers, **fields):
    first = input_spec(
        IMAGENET, 9, batch_per_device=BATCH, num_devices=towers, num_shards=workers, **fields
    )
    return [dataclasses.replace(first, shard_index=index) for index in range(workers)]


def numbers(devices, subset):
    pairs = zip(
        specs(2, 2, data_dir="/numbers", subset=subset), (devices[:2], devices[2:]), strict=True
    )
    return JoinedInput([PipelineInput(spec, two, Numbers(spec)) for spec, two in pairs])


def test_synthetic_rows_are_those_of_one_process(cpu_devices):
    (whole,) = specs(1, 4)
    alone = make_input(whole, cpu_devices[:4])
    pairs = zip(specs(2, 2), (cpu_devices[:2], cpu_devices[2:4]), strict=True)
    joined = JoinedInput([make_input(*pair) for pair in pairs])
    assert joined.synthetic
    assert joined.signature == joined.next() == ()
    assert joined.devices == tuple(cpu_devices[:4])
    assert joined.spec.global_batch == 4 * BATCH
    for tower in range(4):
        ours, expected = (source.of_tower(tower, ()) for source in (joined, alone))
        np.testing.assert_array_equal(ours.features, expected.features)
        np.testing.assert_array_equal(ours.labels, expected.labels)


def test_every_tower_gets_the_batches_of_its_worker(cpu_devices):
    with numbers(cpu_devices[:4], "train") as source:

        @tf.function
        def step(*batches):
            return [source.of_tower(tower, batches).labels for tower in range(4)]

        labels = step.get_concrete_function(*source.signature)(*source.next())
        # Of 0 to 6, the even numbers are worker 0's, and begin again.
        assert np.concatenate(labels).tolist() == [0, 2, 4, 6, 1, 3, 5, 1]
        assert [b.features.device for b in source.next()] == list(cpu_devices[:4])
        assert source.wait_seconds > 0


@pytest.mark.parametrize("passes", [1, 2])
def test_an_evaluation_sees_every_example_once(cpu_devices, passes):
    with numbers(cpu_devices[:4], "validation") as source:
        for _ in range(passes):
            source.restart()
            seen = []
            for _ in range(source.steps_per_epoch):
                for batch in source.next():
                    seen += batch.labels.numpy()[batch.weights.numpy() > 0].tolist()
            assert sorted(seen) == list(range(7))
