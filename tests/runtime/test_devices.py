"""Golden device strings and every refusal."""

from __future__ import annotations

import dataclasses

import pytest

from cnnbench.errors import FlagError
from cnnbench.runtime.devices import DeploymentConfig, GreedyByBytes, RoundRobin, device_string

LOCAL = "/job:localhost/replica:0/task:0/device:"


@pytest.mark.parametrize(
    ("fields", "towers", "scopes"),
    [
        ({"num_towers": 1, "device": "cpu"}, ["CPU:0"], [""]),
        ({"num_towers": 1, "device": "gpu"}, ["GPU:0"], [""]),
        ({"num_towers": 2, "device": "cpu"}, ["CPU:0", "CPU:1"], ["tower_0", "tower_1"]),
        (
            {"num_towers": 3, "device": "gpu"},
            ["GPU:0", "GPU:1", "GPU:2"],
            ["tower_0", "tower_1", "tower_2"],
        ),
    ],
)
def test_one_process(fields, towers, scopes):
    config = DeploymentConfig(**fields)
    assert config.tower_devices() == tuple(LOCAL + tower for tower in towers)
    assert [config.tower_scope(i) for i in range(config.num_towers)] == scopes
    assert config.inputs_device() == LOCAL + "CPU:0"
    assert config.optimizer_device() == LOCAL + "CPU:0"
    assert not config.in_cluster


@pytest.mark.parametrize(
    ("fields", "job"),
    [
        ({"num_ps": 1}, "/job:worker/replica:0/task:0/device:"),
        ({"num_workers": 3, "task": 2, "num_ps": 2}, "/job:worker/replica:0/task:2/device:"),
        (
            {"num_workers": 2, "task": 1, "num_ps": 1, "worker_job": "train", "ps_job": "keep"},
            "/job:train/replica:0/task:1/device:",
        ),
        (
            {"num_workers": 2, "task": 1, "shared_variables": False},
            "/job:worker/replica:0/task:1/device:",
        ),
    ],
)
def test_cluster(fields, job):
    config = DeploymentConfig(num_towers=2, device="gpu", **fields)
    assert config.in_cluster
    assert config.tower_devices() == (job + "GPU:0", job + "GPU:1")
    assert config.cpu_device() == config.inputs_device() == job + "CPU:0"
    assert config.optimizer_device() == job + "CPU:0"


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"num_towers": 0}, "num_gpus"),
        ({"num_towers": -1}, "num_gpus"),
        ({"num_workers": 0}, "worker_hosts"),
        ({"num_workers": -2}, "worker_hosts"),
        ({"num_ps": -1}, "ps_hosts"),
        ({"task": -1}, "task_index"),
        ({"task": 1}, "task_index"),
        ({"num_workers": 2, "num_ps": 1, "task": 2}, "task_index"),
        ({"num_workers": 2}, "ps_hosts"),
        ({"num_ps": 1, "worker_job": ""}, "worker_job"),
        ({"num_ps": 1, "ps_job": ""}, "ps_job"),
        ({"num_workers": 2, "shared_variables": False, "worker_job": ""}, "worker_job"),
        ({"num_workers": 2, "shared_variables": False, "ps_job": ""}, "ps_job"),
        ({"num_ps": 1, "ps_job": "worker"}, "ps_job"),
        ({"device": "tpu"}, "device"),
        ({"ps_strategy": "random"}, "ps_strategy"),
        ({"variable_caching": "disk"}, "variable_caching"),
    ],
)
def test_refusals_name_the_flag(fields, flag):
    with pytest.raises(FlagError) as error:
        DeploymentConfig(**fields)
    assert error.value.flag == flag
    assert "\n" not in str(error.value)


def test_job_names_do_not_matter_in_one_process():
    config = DeploymentConfig(worker_job="", ps_job="")
    assert config.tower_device(0) == LOCAL + "GPU:0"


@pytest.mark.parametrize("tower", [-1, 2])
@pytest.mark.parametrize("method", ["tower_device", "tower_scope"])
def test_no_such_tower(method, tower):
    with pytest.raises(ValueError, match=f"tower {tower}: there are 2 towers"):
        getattr(DeploymentConfig(num_towers=2), method)(tower)


def test_a_config_cannot_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DeploymentConfig().num_towers = 2


def test_without_ps_all_variables_are_on_the_worker_cpu():
    for strategy in ("round_robin", "greedy_bytes"):
        choose = DeploymentConfig(num_towers=2, ps_strategy=strategy).variables_device
        assert [choose(n) for n in (8, 0, 100)] == [LOCAL + "CPU:0"] * 3


def _tasks(config, sizes):
    return [config.variables_device(size) for size in sizes]


def _ps(*tasks):
    return [device_string("ps", task, "cpu", 0) for task in tasks]


def test_round_robin_over_ps_tasks_goes_on_where_it_stopped():
    config = DeploymentConfig(num_ps=2, ps_strategy="round_robin")
    assert _tasks(config, [1, 1, 1]) == _ps(0, 1, 0)
    assert _tasks(config, [1, 1]) == _ps(1, 0)
    assert config.variables_device is config.variables_device


def test_greedy_over_ps_tasks_remembers_the_load():
    config = DeploymentConfig(num_ps=3)
    assert _tasks(config, [10, 4, 4, 3]) == _ps(0, 1, 2, 1)
    assert _tasks(config, [1, 5, 2]) == _ps(2, 2, 1)


def test_two_runs_do_not_share_a_chooser():
    first, second = DeploymentConfig(num_ps=2), DeploymentConfig(num_ps=2)
    assert first == second
    assert _tasks(first, [1]) == _tasks(second, [1]) == _ps(0)


@pytest.mark.parametrize(
    ("num_ps", "policy", "expected"),
    [
        (0, "none", None),
        (0, "consumer", None),
        (0, "cpu", None),
        (1, "none", None),
        (1, "consumer", "/job:worker/replica:0/task:0/device:GPU:1"),
        (1, "cpu", "/job:worker/replica:0/task:0/device:CPU:0"),
    ],
)
def test_caching_device(num_ps, policy, expected):
    config = DeploymentConfig(num_towers=2, num_ps=num_ps, variable_caching=policy)
    assert config.caching_device(config.tower_device(1)) == expected


def test_greedy_by_bytes_takes_the_first_of_equals():
    choose = GreedyByBytes(["a", "b", "c"])
    sizes = [100, 10, 10, 10, 5, 0, 90, 90]
    assert [choose(size) for size in sizes] == ["a", "b", "c", "b", "c", "c", "c", "b"]


def test_greedy_load_differs_by_at_most_the_largest_variable():
    load = {"a": 0, "b": 0}
    choose = GreedyByBytes(list(load))
    sizes = [(7919 * i) % 1000 for i in range(200)]
    for size in sizes:
        load[choose(size)] += size
    assert abs(load["a"] - load["b"]) <= max(sizes)


def test_greedy_refuses_negative_sizes():
    with pytest.raises(ValueError, match="-1 bytes"):
        GreedyByBytes(["a"])(-1)


@pytest.mark.parametrize("chooser", [RoundRobin, GreedyByBytes])
def test_choosers_need_devices(chooser):
    with pytest.raises(ValueError, match="no devices"):
        chooser([])
