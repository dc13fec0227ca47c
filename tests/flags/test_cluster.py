"""What flags say about the job."""

from __future__ import annotations

from cnnbench.flags import Params
from cnnbench.flags.cluster import agreed_facts, job_of, located, settled
from cnnbench.version import __version__


def test_processes_agree_on_what_is_measured_but_not_on_where_it_is_written():
    facts = agreed_facts(Params(model="lenet", num_batches=7))
    assert facts["cnnbench_version"] == __version__
    assert facts["tensorflow_version"].count(".") == 2
    assert facts["--model"] == "lenet"
    assert facts["--num_batches"] == "7"
    own = Params(model="lenet", num_batches=7, task_index=1, result_json="x", data_dir="/a")
    assert agreed_facts(own) == facts
    assert agreed_facts(own.replace(batch_size=3)) != facts


TF_CONFIG = {
    "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"], "ps": ["c:3"]}, '
    '"task": {"type": "worker", "index": 1}}'
}


def test_the_job_of_an_environment_is_that_of_the_same_flags():
    found = located(Params(cluster="tf_config"), TF_CONFIG)
    flags = Params(job_name="worker", task_index=1, worker_hosts="a:1,b:2", ps_hosts="c:3")
    assert job_of(found) == job_of(flags)
    assert found.replace(cluster="flags") == flags
    assert located(found, {}) is found  # once
    assert located(flags, TF_CONFIG) is flags
    assert agreed_facts(found) == agreed_facts(flags)


def test_processes_of_a_machine_get_gpus_of_their_own():
    environ = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
    }
    for params, gpus in (
        (Params(num_gpus=2), "6,7"),
        (Params(num_gpus=3), "4,5,6,7"),
        (Params(num_gpus=2, device="cpu"), "4,5,6,7"),
        (Params(num_gpus=2, gpu_indices="1,0"), "4,5,6,7"),
    ):
        own = dict(environ)
        mpi = located(params.replace(cluster="mpi"), own)
        assert mpi.worker_hosts == "rank-0:1"
        assert settled(mpi, own, print).worker_hosts.startswith("localhost:")
        assert own["CUDA_VISIBLE_DEVICES"] == gpus
    assert settled(params, {}, print) is params
