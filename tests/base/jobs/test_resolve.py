"""The environments of TensorFlow, Slurm, Kubernetes and MPI, as they were seen.

Tests cnnbench/base/launcher.py and cnnbench/base/job.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from golden import sentences

from cnnbench.base.job import Job, Task
from cnnbench.base.launcher import (
    LauncherRanks,
    detect_launcher,
    first_node,
    mpi_ranks,
    ranks_of,
    resolve_job,
    slurm_ranks,
)
from cnnbench.errors import UsageError

GOLDEN = Path(__file__).parent / "golden" / "refusals.txt"

# As Kubeflow's operator sets it.
KUBEFLOW = {
    "cluster": {
        "chief": ["mnist-chief-0.kubeflow.svc:2222"],
        "ps": ["mnist-ps-0.kubeflow.svc:2222"],
        "worker": ["mnist-worker-0.kubeflow.svc:2222", "mnist-worker-1.kubeflow.svc:2222"],
    },
    "task": {"type": "worker", "index": 1},
    "environment": "cloud",
}
# As Vertex AI sets it: the index is a text there in some versions.
VERTEX = {
    "cluster": {
        "chief": ["cmle-training-workerpool0-ab-0:2222"],
        "worker": ["cmle-training-workerpool1-ab-0:2222"],
    },
    "environment": "cloud",
    "job": {"python_module": "trainer.task"},
    "task": {"cloud": "x", "index": "0", "trial": "1", "type": "chief"},
}

# srun --nodes=3 --ntasks=5, as `env | grep SLURM` shows it.
SLURM = {
    "SLURM_JOB_ID": "62814",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "gpu[07-08],login1",
    "SLURM_STEP_NODELIST": "gpu[07-08],login1",
    "SLURM_NTASKS": "5",
    "SLURM_NPROCS": "5",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}

KUBERNETES = {
    "HOSTNAME": "cnnbench-2",
    "JOB_COMPLETION_INDEX": "2",
    "CNNBENCH_SERVICE": "cnnbench-peers",
    "CNNBENCH_PROCESSES": "3",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
}

# mpirun -np 4 of Open MPI 4.1, and of MPICH 4.0 (hydra).
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_UNIVERSE_SIZE": "8",
    "PMIX_NAMESPACE": "1844117505",
    "PMIX_RANK": "2",
}
MPICH = {
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "3",
    "MPI_LOCALNRANKS": "4",
    "PMI_FD": "8",
}


def tf_config(changes=(), **parts):
    return {"TF_CONFIG": json.dumps({**KUBEFLOW, **dict(changes), **parts})}


def test_tf_config_with_parameter_servers_has_its_chief_as_controller():
    place, _ = resolve_job("tf_config", 0, tf_config())
    assert place.task == Task("worker", 1)
    assert place.worker_addresses == tuple(KUBEFLOW["cluster"]["worker"])
    assert place.ps_addresses == ("mnist-ps-0.kubeflow.svc:2222",)
    assert place.controller_address == "mnist-chief-0.kubeflow.svc:2222"
    chief, _ = resolve_job("tf_config", 0, tf_config(task={"type": "chief", "index": 0}))
    assert chief.task == Task("controller")
    assert resolve_job("tf_config", 0, tf_config(task={"type": "ps"}))[0].task == Task("ps", 0)


def test_tf_config_without_them_has_its_chief_as_first_worker():
    place, _ = resolve_job("tf_config", 0, {"TF_CONFIG": json.dumps(VERTEX)})
    assert place.task == Task("worker", 0)
    assert [host.split("-")[2] for host in place.worker_addresses] == ["workerpool0", "workerpool1"]
    worker = {**VERTEX, "task": {"type": "worker", "index": 0}}
    assert resolve_job("tf_config", 0, {"TF_CONFIG": json.dumps(worker)})[0].task == Task(
        "worker", 1
    )


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", " ", "{}", '{"cluster": {}, "environment": "cloud"}'),
        '{"task": {"type": "chief", "index": 0}, "job": {}, "trial": "1"}',
        '{"task": {"type": "worker", "index": "0"}}',
    ],
)
def test_a_job_of_one_replica_has_no_cluster(text):
    """Kubeflow sets no TF_CONFIG then, and others one without addresses."""
    assert resolve_job("tf_config", 0, {} if text is None else {"TF_CONFIG": text}) == (Job(), None)


def test_a_sparse_cluster_that_lists_all_workers_is_read():
    sparse = {"worker": {"1": "b:1", "0": "a:1"}, "ps": ["c:1"]}
    task = {"type": "worker", "index": 1}
    environ = {"TF_CONFIG": json.dumps({"sparseCluster": sparse, "task": task})}
    job, _ = resolve_job("tf_config", 0, environ)
    assert (job.task, job.worker_addresses) == (Task("worker", 1), ("a:1", "b:1"))
    assert job.ps_addresses == ("c:1",)


def without_cluster(job, index=0, **others):
    return json.dumps({"task": {"type": job, "index": index}, **others})


def test_an_evaluator_is_in_no_cluster():
    listed = {"cluster": {**KUBEFLOW["cluster"], "evaluator": ["e:2222"]}}
    assert resolve_job("tf_config", 0, tf_config(listed)) == resolve_job(
        "tf_config", 0, tf_config()
    )
    for given in (KUBEFLOW, listed, {"cluster": {}}):
        evaluator = tf_config(given, task={"type": "evaluator", "index": 0})
        job, _ = resolve_job("tf_config", 0, evaluator)
        assert (job.task, job.in_cluster) == (Task("evaluator"), False)


def test_slurm():
    """Only the address of the first task is known; each task says on which node it runs."""
    environ = {**SLURM, "SLURMD_NODENAME": "gpu08"}
    job, local_rank = resolve_job("slurm", 1, environ)
    assert (job.task, local_rank, len(job.ps_addresses)) == (Task("worker", 3), 1, 1)
    ranks = ranks_of("slurm", environ)
    assert ranks[:5] == ("Slurm", 3, 5, 1, None)
    first, _, port = ranks.place.rpartition(":")
    assert (first, ranks.node) == ("gpu07", "gpu08")
    assert 1024 < int(port) < 32768
    last = {**SLURM, "SLURM_PROCID": "4", "SLURM_LOCALID": "0"}
    assert resolve_job("slurm", 1, last)[0].task == Task("ps", 0)
    assert slurm_ranks(last).place == ranks.place
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"):
        assert slurm_ranks({**SLURM, name: "7"}).place != ranks.place


@pytest.mark.parametrize("distribution", ["cyclic", "plane=2", "block:cyclic"])
def test_slurm_distributes_tasks_in_any_order_but_an_arbitrary_one(distribution):
    there = {**SLURM, "SLURM_LOCALID": "0"}
    assert slurm_ranks({**there, "SLURM_DISTRIBUTION": distribution}).rank == 3
    with pytest.raises(UsageError, match=r"SLURM_DISTRIBUTION=arbitrary: .* another distribution"):
        slurm_ranks({**there, "SLURM_DISTRIBUTION": "arbitrary"})


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("n1", "n1"),
        ("n1,m2", "n1"),
        ("n[1-3]", "n1"),
        ("n[08-11,3],m", "n08"),
        ("r[1-2]n[01-02]", "r1n01"),
        ("n[1-2].site.org", "n1.site.org"),
        ("a-b[9-10]", "a-b9"),
    ],
)
def test_lists_of_nodes(text, node):
    assert first_node({"LIST": text}, "LIST") == node


def test_kubernetes():
    place, _ = resolve_job("kubernetes", 1, KUBERNETES)
    hosts = tuple(f"cnnbench-{i}.cnnbench-peers:2222" for i in range(3))
    assert (place.task, place.worker_addresses, place.ps_addresses) == (
        Task("ps"),
        hosts[:2],
        hosts[2:],
    )
    other = {**KUBERNETES, "HOSTNAME": "a-b-0", "CNNBENCH_PORT": "7"}
    assert resolve_job("kubernetes", 0, other)[0].worker_addresses[1] == "a-b-1.cnnbench-peers:7"


def test_jobs_are_told_apart(monkeypatch):
    """By what all processes on a machine see: for Slurm the step, else a launcher's process."""
    environ = {name: SLURM[name] for name in SLURM if "LIST" not in name}
    assert mpi_ranks(environ).job == "62814.0"
    assert mpi_ranks({**environ, "SLURM_STEP_ID": "1"}).job == "62814.1"
    assert mpi_ranks({**SLURM, **OPEN_MPI}).job == OPEN_MPI["PMIX_NAMESPACE"]
    monkeypatch.setattr("cnnbench.base.launcher._LAUNCHERS", "no such program")
    assert mpi_ranks(MPICH).job == ""
    monkeypatch.setattr("cnnbench.base.launcher._LAUNCHERS", ".*")
    assert mpi_ranks(MPICH).job == mpi_ranks(MPICH).job != ""


def test_a_wrapper_script_with_the_name_of_a_launcher_is_no_launcher(monkeypatch):
    """Each rank has its own."""
    names = ("bash", "mpirun_env.sh", "mpiexec.sh", "hydra_pmi_proxy", "mpiexec.mpich")
    parents = [
        SimpleNamespace(name=lambda name=name: name, pid=pid, create_time=lambda: 0.5)
        for pid, name in enumerate(names)
    ]
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(parents=lambda: parents))
    assert mpi_ranks(MPICH).job == "3 0.5"


def test_mpi():
    ranks = mpi_ranks(OPEN_MPI)
    assert ranks == LauncherRanks("Open MPI", 2, 4, 0, 2, "1844117505")
    assert mpi_ranks(MPICH).local_size == 4
    mpich = mpi_ranks({**SLURM, **MPICH})
    assert (mpich.launcher, mpich.local_rank, mpich.local_size) == ("MPICH", 3, 4)
    assert mpi_ranks(SLURM).launcher == "Slurm"
    assert mpi_ranks({**SLURM, **HOROVOD}) == LauncherRanks("Horovod", 1, 2, 1, 2, "41234")
    assert mpi_ranks({}) is None
    job, local_rank = resolve_job("mpi", 1, {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "3"})
    assert (job.task, local_rank) == (Task("ps"), 0)


# What srun --mpi=pmi2 sets beside its own variables, and hydra where one process per node is
# started by srun: that process, not this one, is what Slurm's variables then number.
PMI2 = {**SLURM, "PMI_RANK": "3", "PMI_SIZE": "5"}
HYDRA = {**SLURM, "SLURM_NTASKS": "3", "PMI_RANK": "3", "PMI_SIZE": "6"}
MVAPICH = {
    f"MV2_COMM_WORLD_{name}": value
    for name, value in (("RANK", "3"), ("SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_SIZE", "2"))
}


# As horovodrun sets it, with Gloo; within an allocation of Slurm beside the variables of that.
HOROVOD = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "41234",
}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (PMI2, ("MPICH", 3, 5, 1, 2)),
        (
            {**PMI2, "PMI_RANK": "4", "SLURM_PROCID": "4", "SLURM_NODEID": "2"},
            ("MPICH", 4, 5, 1, 1),
        ),
        ({**PMI2, "SLURM_LOCALID": ""}, ("MPICH", 3, 5, None, 2)),
        ({**PMI2, "SLURM_NODEID": ""}, ("MPICH", 3, 5, 1, None)),
        (HYDRA, ("MPICH", 3, 6, None, None)),
        ({**HYDRA, "MPI_LOCALRANKID": "0"}, ("MPICH", 3, 6, 0, None)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ("MPICH", 1, 2, None, None)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, ("MPICH", 0, 1, 0, 1)),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": ""}, ("Open MPI", 2, 4, None, 2)),
        (MVAPICH, ("MVAPICH", 3, 4, 1, 2)),
        # What --ntasks-per-node asked for says nothing of where this step runs.
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "5"}, ("Slurm", 3, 5, 1, 2)),
    ],
)
def test_a_number_on_the_machine_is_that_of_this_process_or_unknown(environ, found):
    ranks = mpi_ranks(environ)
    seen = (ranks.launcher, ranks.rank, ranks.size, ranks.local_rank, ranks.local_size)
    assert seen == found
    assert resolve_job("mpi", 0, environ)[1] == found[3]


BATCH = {name: value for name, value in SLURM.items() if "STEP" not in name}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (HOROVOD, ("HOROVOD_SIZE", "2 processes", "mpi")),
        (OPEN_MPI, ("OMPI_COMM_WORLD_SIZE", "4 processes", "mpi")),
        (MVAPICH, ("MV2_COMM_WORLD_SIZE", "4 processes", "mpi")),
        (MPICH, ("PMI_SIZE", "4 processes", "mpi")),
        (SLURM, ("SLURM_STEP_NUM_TASKS", "5 processes", "slurm")),
        (KUBERNETES, ("CNNBENCH_PROCESSES", "3 processes", "kubernetes")),
        (tf_config(), ("TF_CONFIG", "4 processes", "tf_config")),
        (tf_config(task={"type": "evaluator"}), ("TF_CONFIG", "evaluator", "tf_config")),
    ],
)
def test_jobs_of_several_processes_are_seen(environ, found):
    text, cluster, is_malformed = detect_launcher(environ, False)
    assert not is_malformed
    variable, words, expected = found
    assert cluster == expected
    assert text.startswith(f"{variable} ")
    assert text.endswith(words)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": "{}"},
        BATCH,
        {**SLURM, "OMPI_COMM_WORLD_SIZE": "1"},
        tf_config(cluster={"worker": ["a:1"]}, task={"type": "worker"}),
    ],
)
def test_a_process_in_no_job_of_several_is_seen(environ):
    assert detect_launcher(environ, False) is None


def worker_at(index, hosts='["a:1"]'):
    """TF_CONFIG of a worker, as text, with any index."""
    return f'{{"cluster": {{"worker": {hosts}}}, "task": {{"type": "worker", "index": {index}}}}}'


TWO_CHIEFS = {"worker": ["a:1"], "chief": ["b:1"], "master": ["c:1"]}
ONE = {"worker": ["a:1"]}
MALFORMED = {
    "TF_CONFIG": [
        *("{", "[" * 100_000, '{"task": {}, "task": {}}', "[]", '{"cluster": []}'),
        *(worker_at(0, hosts) for hosts in ('"a:1"', "[1]", '["a"]')),
        *(worker_at(index) for index in ("true", 1, '"²"', '"١"', -1, f'"{"1" * 6000}"')),
        worker_at("1" * 4000),
        json.dumps({"cluster": ONE}),
        *(json.dumps({"cluster": ONE, "task": {"type": job}}) for job in (1, "ps", "tester")),
        json.dumps({"cluster": TWO_CHIEFS, "task": {"type": "worker"}}),
        without_cluster("worker", 0, Cluster=ONE),
        *(without_cluster(job, index) for job, index in (("worker", 1), ("ps", 0), ("tester", 0))),
        without_cluster("worker", 0, sparseCluster=[]),
        # An operator lets each process know only itself and the parameter servers.
        without_cluster("worker", 0, sparseCluster={"worker": {"0": "a:1"}, "ps": ["b:1"]}),
        without_cluster("ps", 0, sparseCluster={"worker": {}, "ps": ["b:1"]}),
        without_cluster("worker", 0, sparseCluster={"worker": {"0": "a:1", "2": "b:1"}}),
        without_cluster("worker", 0, sparseCluster={"worker": {"0": "a:1", "1": 5}}),
    ],
    "SLURM_PROCID": ["", "x", "١", "5"],
    "SLURM_NTASKS": ["65536"],
    "SLURM_STEP_NODELIST": ["a:1,b,c", "gpu[", "n]", "n[]", "n[a]", ","],
    "HOSTNAME": ["pod", "a b-0", "cnnbench-3"],
    "CNNBENCH_SERVICE": ["", "a b"],
    "CNNBENCH_PROCESSES": ["0", "-1"],
    "CNNBENCH_PORT": ["http", "0", "70000"],
    "OMPI_COMM_WORLD_RANK": ["4"],
    "OMPI_COMM_WORLD_SIZE": ["many", "999999999"],
    "OMPI_COMM_WORLD_LOCAL_RANK": ["?"],
}
"""Values of each variable that are refused, with the sentences of golden/refusals.txt."""

ENVIRONMENTS = {
    **{"TF": ("tf_config", {}), "SLURM": ("slurm", SLURM), "OMPI": ("mpi", OPEN_MPI)},
    **{"HOSTNAME": ("kubernetes", KUBERNETES), "CNNBENCH": ("kubernetes", KUBERNETES)},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_variables(name):
    cluster, environ = ENVIRONMENTS[name.partition("_")[0]]
    told = {}
    for value in MALFORMED[name]:
        with pytest.raises(UsageError) as caught:
            resolve_job(cluster, 0, {**environ, name: value})
        message = str(caught.value)
        assert f" {name}" in message[:60]
        assert len(message) < max(400, len(value) + 200)
        if len(value) < 200:
            told[f"{name}={value}"] = message
    every = [f"{of}={value}" for of, values in MALFORMED.items() for value in values]
    sentences(GOLDEN, told, every)


@pytest.mark.parametrize(
    ("cluster", "ps", "environ", "words"),
    [
        ("mpi", 0, {}, "none of HOROVOD_RANK, OMPI_COMM_WORLD_RANK, .*, PMI_RANK, SLURM_PROCID"),
        ("tf_config", 1, tf_config(), "^--cluster_ps=1: "),
        ("kubernetes", 3, KUBERNETES, "^--cluster_ps=3: .* 3 processes"),
    ],
)
def test_environments_of_no_process(cluster, ps, environ, words):
    with pytest.raises(UsageError, match=words):
        resolve_job(cluster, ps, environ)
