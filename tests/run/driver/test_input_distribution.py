"""--input_distribution=strategy: the same batches on the same devices as towers get.

Tests cnnbench/run/driver/inputs.py and cnnbench/data/strategy_input.py.
"""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import short_runs
import tensorflow as tf
from covering import slow_if
from data_sets import input_spec, write_cifar10

from cnnbench.data import CIFAR10
from cnnbench.data.strategy_input import InputDistribution
from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.plan import check_flags, make_plan
from cnnbench.run.driver.inputs import InputOnlyStep

pytestmark = pytest.mark.usefixtures("quick_start")

MIRRORED = {
    "variable_update": "mirrored_strategy",
    "cross_device_ops": "reduction_to_one_device",
    "num_gpus": 2,
}
MANUAL = {"input_distribution": "strategy", "input_sharding": "manual"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar10")
    images = np.random.default_rng(3).integers(0, 256, (50, 32, 32, 3), np.uint8)
    write_cifar10(folder, images, np.arange(50) % 10, files=2)
    return folder


@pytest.mark.parametrize(
    ("asked", "replication", "on_device"),
    [
        (None, "per_worker", True),
        (None, "per_replica", False),
        (False, "per_worker", False),
        (True, "per_replica", True),
    ],
)
@pytest.mark.parametrize("prefetch", [False, True])
def test_what_the_strategy_is_asked_for(
    monkeypatch, files, asked, replication, on_device, prefetch
):
    class Strategy:
        num_replicas_in_sync = 2

        def distribute_datasets_from_function(self, function, options):
            return [options]

    monkeypatch.setattr("cnnbench.data.strategy_input.clone_for_input", lambda strategy: strategy)
    flags = SimpleNamespace(
        **{"input_sharding": "manual", "input_replication": replication},
        **{"auto_shard_policy": "auto", "prefetch_on_device": asked},
    )
    distribution = InputDistribution(Strategy(), flags)
    ahead = {"datasets_use_prefetch": prefetch, "datasets_prefetch_buffer_size": 3}
    pipeline = SimpleNamespace(spec=input_spec(CIFAR10, 32, data_dir=str(files), **ahead))
    (options,) = distribution.make_iterator(pipeline)
    assert options.experimental_fetch_to_device == on_device
    assert options.experimental_replication_mode.name == replication.upper()
    assert options.experimental_per_replica_buffer_size == (3 if prefetch else 0)


def build(files, **flags):
    reading = {"data_name": "cifar10", "data_dir": str(files), "batch_size": 4}
    return short_runs.build("trivial", forward_only=True, **reading, **flags)


def batches(files, **flags):
    """The images of four steps, as a resumed run has them too, and the devices of the last."""
    built = build(files, **flags)
    steps = [built.inputs.next() for _ in range(4)]
    built.inputs.close()
    batch = sum(len(own.features) for own in steps[0])
    assert built.inputs.resume(3 * batch, batch)
    for batch, before in zip(built.inputs.next(), steps[3], strict=True):
        np.testing.assert_array_equal(batch.features, before.features)
    built.close()
    images = [batch.features.numpy() for step in steps for batch in step]
    labels = [batch.labels.numpy() for step in steps for batch in step]
    return [*images, *labels], [batch.features.device for batch in steps[-1]]


@pytest.fixture(scope="module")
def wanted(files):
    """The batches of so many towers without a strategy."""
    return functools.cache(
        lambda towers: batches(files, variable_update="replicated", num_gpus=towers)
    )


@pytest.mark.parametrize(
    "flags",
    slow_if(
        lambda flags: flags != {**MIRRORED, "input_distribution": "strategy"},
        [
            {
                "num_gpus": 1,
                "variable_update": "one_device_strategy",
                "input_distribution": "strategy",
            },
            {"num_gpus": 1, "variable_update": "multi_worker_mirrored_strategy", **MANUAL},
            {**MIRRORED, "input_distribution": "strategy"},
            {**MIRRORED, "input_distribution": "strategy", "auto_shard_policy": "file"}
            | {"prefetch_on_device": False},
            {**MIRRORED, **MANUAL, "datasets_use_prefetch": False},
            {"variable_update": "central_storage_strategy", "num_gpus": 2, **MANUAL},
        ],
    ),
    ids=lambda flags: "-".join(str(value) for value in flags.values()),
)
def test_d8_d9_d10_d11_every_distribution_gives_the_batches_of_towers(flags, files, wanted):
    # One worker reads everything whatever is sharded between workers.
    expected, devices = wanted(flags["num_gpus"])
    found, places = batches(files, **flags)
    assert places == devices
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_an_input_per_replica_leaves_later_ones_as_they_are(files, wanted):
    expected, devices = wanted(2)
    for more in ({"input_replication": "per_replica"}, {}):
        found, places = batches(files, **MIRRORED, **MANUAL, **more)
        assert places == devices
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_closed_or_begun_anew_it_starts_over(files):
    built = build(files, **MIRRORED, input_distribution="strategy")
    first = built.inputs.next()[0].labels.numpy()
    built.inputs.restart()
    np.testing.assert_array_equal(built.inputs.next()[0].labels.numpy(), first)
    built.close()


@pytest.mark.parametrize(
    ("data_name", "words"),
    [("imagenet", "2 training files for 3 workers"), ("cifar10", "reads the files of data set")],
)
def test_d9_files_are_shared_out_where_there_are_enough(data_name, words, files, tmp_path):
    for number in range(2):
        with tf.io.TFRecordWriter(str(tmp_path / f"train-{number:05d}-of-00002")) as writer:
            writer.write(b"")
    folder = tmp_path if data_name == "imagenet" else files
    flags = {"input_distribution": "strategy", "auto_shard_policy": "file", "data_dir": str(folder)}
    flags |= {"job_name": "worker", "worker_hosts": "a:1,b:1,c:1", "model": "trivial"}
    params = Params(
        variable_update="multi_worker_mirrored_strategy",
        data_name=data_name,
        num_batches=1,
        **flags,
    )
    check_flags(params)
    with pytest.raises(FlagError, match=words) as error:
        make_plan(params)
    assert error.value.flag == "auto_shard_policy"
    make_plan(params.replace(auto_shard_policy="off"))


@pytest.mark.parametrize(
    ("fields", "examples"),
    [
        ({}, 12),  # TensorFlow divides global batches
        ({"auto_shard_policy": "data"}, 12),
        ({"auto_shard_policy": "off"}, 8),  # every worker takes all batches of its replicas
        ({"auto_shard_policy": "file"}, 8),
        ({"input_sharding": "manual"}, 8),
    ],
    ids=str,
)
def test_what_a_step_takes_of_a_worker_s_stream(fields, examples):
    strategy = SimpleNamespace(num_replicas_in_sync=3)
    spec = input_spec(CIFAR10, 32, batch_per_device=4, num_devices=2)
    distribution = InputDistribution(strategy, Params(**fields))
    assert distribution.examples_per_step(spec) == examples


@pytest.mark.parametrize(("device", "waits"), [("/CPU:0", False), ("/GPU:0", True)])
def test_a_step_without_a_network_only_reads(device, waits, monkeypatch):
    events = []
    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: events.append("waits"))
    inputs = SimpleNamespace(devices=("/CPU:0", device), next=lambda: events.append("reads"))
    step = InputOnlyStep(inputs)
    result = step(0.1)
    assert events == ["reads", *["waits"] * waits]
    assert (float(result.loss), result.metrics) == (0.0, {})
    assert step.copy_result_to_host(result, None) is result
