"""The cluster of a job in TF_CONFIG, which TensorFlow's strategies also read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cnnbench.base.environ import NUMBER
from cnnbench.base.job import CONTROLLER, LARGEST_PORT, PS, WORKER, Task, is_address

EVALUATOR = "evaluator"

_TF_CONFIG = ("cluster", "task")
_SPARSE = "sparseCluster"
# Keys that Vertex AI and TensorFlow's ClusterResolver also know. They contain no addresses.
_TF_OTHERS = ("environment", "job", "trial", "model_dir", "rpc_layer")
_TF_CHIEFS = ("chief", "master")
_TF_JOBS = {WORKER, PS, CONTROLLER, *_TF_CHIEFS}


def fields_of_job(config: Any) -> dict[str, Any]:
    """Converts TF_CONFIG to the fields of `Job`. ValueError describes an invalid part.

    A chief becomes the first worker or, if there are parameter servers, the controller. Without a
    cluster, the job consists of this process, which must be its first task. As in tf.distribute, an
    evaluator is not in the cluster, even if TF_CONFIG lists it there.
    """
    cluster, me = (config.get(key, {}) if isinstance(config, dict) else None for key in _TF_CONFIG)
    if not isinstance(cluster, dict) or not isinstance(me, dict):
        raise ValueError('must contain "cluster" and "task", whose values are objects')
    if me.get("type") == EVALUATOR:
        return {"task": Task(EVALUATOR)}
    if not cluster and _SPARSE in config:
        cluster = _complete_cluster(config[_SPARSE])
    if not cluster:
        _check_only_task(config, me)
        return {}
    hosts: dict[str, list[str]] = {}
    for name, value in cluster.items():
        listed: list[Any] = value if isinstance(value, list) else [None]
        if not all(isinstance(host, str) and is_address(host.strip()) for host in listed):
            raise ValueError(f"cluster.{name} must be a list of host:port")
        hosts[str(name)] = [host.strip() for host in listed]
    hosts.pop(EVALUATOR, None)
    job, index = _task_of_config(me)
    unknown = sorted(({job} | hosts.keys()) - _TF_JOBS)
    if unknown:
        jobs = ", ".join(sorted(_TF_JOBS))
        raise ValueError(f"{unknown[0]!r} is not a job; must be one of {jobs}")
    if index >= len(hosts.get(job, ())):
        raise ValueError(f"cluster has no task {job}:{index}")
    chiefs = [host for name in _TF_CHIEFS for host in hosts.get(name, [])]
    controllers = hosts.get(CONTROLLER, [])
    workers, servers = hosts.get(WORKER, []), hosts.get(PS, [])
    if len(chiefs) + len(controllers) > 1:
        raise ValueError("cluster has more than one chief")
    if servers:
        controllers = controllers + chiefs
        job = CONTROLLER if job in _TF_CHIEFS else job
    else:
        index += len(chiefs) if job == WORKER else 0
        workers = chiefs + workers
        job = WORKER if job in _TF_CHIEFS else job
    return {
        "task": Task(job, index),
        "worker_addresses": tuple(workers),
        "ps_addresses": tuple(servers),
        "controller_address": controllers[0] if controllers else None,
    }


def _task_of_config(task: Mapping[str, Any]) -> tuple[str, int]:
    job, index = task.get("type"), task.get("index", 0)
    if isinstance(index, str) and re.fullmatch(NUMBER, index):
        index = int(index)
    if not isinstance(job, str) or type(index) is not int or not 0 <= index < LARGEST_PORT:
        reason = 'must contain a "type" (a string) and an "index" (a whole number from 0)'
        raise ValueError(f"task {reason}")
    return job, index


def _complete_cluster(sparse: Any) -> dict[str, list[Any]]:
    """Converts the value of `sparseCluster`, which maps numbers of workers to addresses, to the
    form of `cluster`.

    A Kubernetes operator writes it if workers may be added to a job. Its process then knows only
    itself and the parameter servers, so a single worker does not show that it is the only one.
    """
    workers = sparse.get(WORKER) if isinstance(sparse, dict) else None
    if not isinstance(workers, dict) or len(workers) < 2:
        raise ValueError(
            f'"{_SPARSE}" does not list all workers of the job; turn off enableDynamicWorker, or '
            "give the addresses as flags (--cluster=flags)"
        )
    numbers = [str(number) for number in range(len(workers))]
    if workers.keys() != set(numbers):
        raise ValueError(f"{_SPARSE}.worker must have the keys 0 to {len(workers) - 1}")
    return {**sparse, WORKER: [workers[number] for number in numbers]}


def _check_only_task(config: Mapping[str, Any], task: Mapping[str, Any]) -> None:
    """Raises ValueError if a TF_CONFIG without addresses is not that of a job of one process."""
    if unknown := sorted(config.keys() - {*_TF_CONFIG, *_TF_OTHERS}):
        raise ValueError(f'has no "cluster", and the key {unknown[0][:40]!r} is unknown')
    if task:
        job, index = _task_of_config(task)
        if job not in {WORKER, *_TF_CHIEFS} or index:
            raise ValueError(
                f'has no "cluster" with the addresses of the job, and {job[:40]}:{index} cannot be '
                "its only task"
            )
