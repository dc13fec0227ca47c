"""From the flags of a run to the description of its job."""

from __future__ import annotations

from cnnbench.flags.declare import specs_of
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.params import FLAGS, Params
from cnnbench.machine.host import Host
from cnnbench.machine.software import packages
from cnnbench.runtime.job import LOCAL, Job, Task, split_hosts

CLIENT_PER_WORKER = ("collective_all_reduce", "multi_worker_mirrored_strategy")
"""The modes in which every worker builds and runs the step of its own towers."""

SINGLE_CONTROLLER = ("parameter_server", "distributed_replicated", "distributed_all_reduce")
"""The modes in which one process builds the step of all towers of a job, and drives it."""

USES_PS = ("parameter_server", "distributed_replicated", "parameter_server_strategy")
"""The modes that keep the variables of a job on ps tasks."""

ONE_PROCESS = ("replicated", "independent", "mirrored_strategy", "central_storage_strategy")
"""The modes that know no other process."""

_VERSIONS = ("cnnbench_version", "tensorflow_version")

_OWN = {
    # The handshake compares the addresses themselves.
    *("job_name", "task_index", "cluster", "cluster_timeout", "rendezvous"),
    *("worker_hosts", "ps_hosts", "controller_host"),
    # Machines may keep data in different places and have different GPUs.
    *("data_dir", "gpu_indices"),
    *(spec.name for spec in specs_of(OutputParams)),
}
"""Flags that each process of a job may have for itself."""


def agreed_facts(params: Params) -> dict[str, str]:
    """What all processes of a job must have alike, for `cnnbench.cluster.handshake.meet`.

    Args:
      params: validated.

    Returns:
      Texts by name; flags with two dashes.
    """
    versions = packages(Host())
    flags = {f"--{s.name}": s.text(getattr(params, s.name)) for s in FLAGS if s.name not in _OWN}
    return {**{name: str(versions[name]) for name in _VERSIONS}, **flags}


def job_of(params: Params) -> Job:
    """The job that the flags describe.

    Args:
      params: values each checked by itself.

    Returns:
      It, with towers on CPU devices where --device=auto leaves their kind open.

    Raises:
      FlagError: for addresses or a task that cannot be.
    """
    return Job(
        task=Task(params.job_name or LOCAL, params.task_index),
        worker_hosts=split_hosts(params.worker_hosts),
        ps_hosts=split_hosts(params.ps_hosts),
        controller_host=params.controller_host or None,
        client_per_worker=params.variable_update in CLIENT_PER_WORKER,
        towers_per_worker=params.num_gpus,
        device="gpu" if params.device == "gpu" else "cpu",
    )
