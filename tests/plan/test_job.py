"""Which job the flags and the environment describe, and how a process joins it."""

from __future__ import annotations

import json
import sys

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params, parse_args
from cnnbench.plan import check_flags, join_job, parse_run
from cnnbench.plan.identity import facts_to_agree_on
from cnnbench.plan.job import locate_job
from cnnbench.plan.make import plan_before_plugins

TF_CONFIG = {
    "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"], "ps": ["c:3"]}, '
    '"task": {"type": "worker", "index": 1}}'
}


def test_the_job_of_an_environment_is_that_of_the_same_flags():
    found, _ = locate_job(Params(cluster="tf_config"), TF_CONFIG)
    flags = Params(job_name="worker", task_index=1, worker_hosts="a:1,b:2", ps_hosts="c:3")
    assert check_flags(found).place.job == check_flags(flags).place.job
    assert found.replace(cluster="flags") == flags
    assert locate_job(found, {})[0] is found  # once
    assert locate_job(flags, TF_CONFIG)[0] is flags
    assert facts_to_agree_on(found.as_dict()) == facts_to_agree_on(flags.as_dict())


def test_an_evaluator_and_a_process_without_others_run_alone():
    evaluator = {"TF_CONFIG": TF_CONFIG["TF_CONFIG"].replace('"worker", "index": 1', '"evaluator"')}
    alone = {"TF_CONFIG": '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief"}}'}
    flags = Params(cluster="tf_config", eval=True, train_dir="d")
    for environ, word in ((evaluator, "evaluator"), (alone, "only this process")):
        assert locate_job(flags, environ) == (flags, ())
        found, (notice,) = locate_job(flags, environ, ("cluster", "eval", "train_dir"))
        assert found is flags
        assert word in notice
    with pytest.raises(FlagError, match=r"^--cluster=tf_config: .*--eval, --train_dir"):
        locate_job(Params(cluster="tf_config"), evaluator)
    ps = {"TF_CONFIG": TF_CONFIG["TF_CONFIG"].replace('"worker", "index": 1', '"ps", "index": 0')}
    served, notices = locate_job(Params(cluster="tf_config"), ps, ("cluster",))
    assert (served.job_name, served.task_index, notices) == ("ps", 0, ())


def test_a_cluster_that_cannot_be_read_is_no_reason_to_join_it():
    sparse = {"worker": {"0": "a:1"}, "ps": ["b:1"]}
    environ = {"TF_CONFIG": json.dumps({"sparseCluster": sparse, "task": {"type": "worker"}})}
    _, (notice,) = locate_job(Params(), environ, ())
    assert notice.startswith("this run is a job of one process, because of the environment")
    assert "--cluster=tf_config joins" not in notice


def open_mpi(rank, size, local_rank, local_size=1):
    numbers = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in numbers.items()}


def test_ranks_of_mpi_exchange_their_addresses(monkeypatch):
    asked = []

    def exchange(ranks, rendezvous, timeout, tell):
        asked.append((rendezvous, timeout, tell))
        return ["a:1", "b:2", "c:3"]

    monkeypatch.setattr("cnnbench.base.rendezvous.exchange_addresses", exchange)
    environ = open_mpi(1, 3, 0)
    params = Params(cluster="mpi", cluster_ps=1, device="cpu", rendezvous="h:9", cluster_timeout=7)
    plan = check_flags(params, environ)
    joined = join_job(plan, environ, print)
    assert (joined.params.worker_hosts, joined.params.ps_hosts) == ("a:1,b:2", "c:3")
    assert joined.place.job.worker_addresses == ("a:1", "b:2")
    assert (joined.explicit_flags, joined.notices) == (plan.explicit_flags, plan.notices)
    assert asked == [("h:9", 7, print)]


def test_processes_of_a_machine_get_gpus_of_their_own():
    environ = {**open_mpi(0, 1, 1), "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    for params, gpus in (
        (Params(num_gpus=2), "6,7"),
        (Params(num_gpus=3), "4,5,6,7"),
        (Params(num_gpus=2, device="cpu"), "4,5,6,7"),
        (Params(num_gpus=2, gpu_indices="1,0"), "4,5,6,7"),
    ):
        own = dict(environ)
        plan = check_flags(params.replace(cluster="mpi"), own)
        assert join_job(plan, own, print) is plan  # one process exchanges no addresses
        assert not plan.params.worker_hosts
        assert own["CUDA_VISIBLE_DEVICES"] == gpus
    plan = check_flags(params)
    assert join_job(plan, {}, print) is plan


OF_TWO_GPUS = Params(cluster="mpi", num_gpus=2, variable_update="collective_all_reduce")


@pytest.fixture
def _without_mpi4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)


@pytest.mark.usefixtures("_without_mpi4py")
def test_processes_under_pmi2_get_gpus_of_their_own():
    gpus = []
    for rank in range(4):
        own = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "SLURM_LOCALID": str(rank % 2)}
        own |= {"PMI_RANK": str(rank), "PMI_SIZE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
        with pytest.raises(FlagError, match="--rendezvous"):  # only the GPUs are known by then
            join_job(check_flags(OF_TWO_GPUS, own), own, print)
        gpus.append(own["CUDA_VISIBLE_DEVICES"])
    assert gpus == ["0,1", "2,3"] * 2


@pytest.mark.usefixtures("_without_mpi4py")
def test_gpus_are_not_divided_among_processes_without_numbers():
    environ = {"PMI_RANK": "0", "PMI_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1,2"}

    def refusal(expected, **changes):
        own = dict(environ)
        plan = check_flags(OF_TWO_GPUS.replace(**changes), own)
        with pytest.raises(FlagError) as caught:
            join_job(plan, own, print)
        assert caught.value.flag == expected
        return str(caught.value)

    told = refusal("cluster")
    assert told.startswith("--cluster=mpi: the processes of this machine must divide 3 GPUs")
    assert "\n" not in told
    # Nothing to divide: all that are visible are this process's, it chooses, or it uses none.
    for changes in ({"num_gpus": 3}, {"gpu_indices": "2,1"}, {"device": "cpu"}):
        refusal("rendezvous", **changes)
    environ["PMI_RANK"] = "1"
    refusal("rendezvous", cluster_ps=1, variable_update="parameter_server")


MULTI_WORKER = "multi_worker_mirrored_strategy"


@pytest.mark.parametrize(
    ("words", "mode", "notices"),
    [
        ((), "collective_all_reduce", 1),
        (("--variable_update=parameter_server_strategy",), "", 0),
        ((f"--variable_update={MULTI_WORKER}",), MULTI_WORKER, 0),
        (("--cluster_ps=1",), "parameter_server", 0),
    ],
)
@pytest.mark.parametrize("of", ["slurm", "addresses"])
def test_a_job_without_parameter_servers_has_a_mode_that_works(of, words, mode, notices):
    environ = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1"}
    environ |= {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    place = ("--cluster=slurm",)
    if of == "addresses":
        ps = ("--ps_hosts=c:1",) if "--cluster_ps=1" in words else ()
        words = tuple(word for word in words if word != "--cluster_ps=1")
        place, environ = ("--job_name=worker", "--worker_hosts=a:1,b:1", *ps), {}
    argv = ("--model=lenet", "--device=cpu", *place, *words)
    if not mode:
        with pytest.raises(FlagError):
            parse_run(argv, environ)
        return
    plan = parse_run(argv, environ)
    assert plan.place.mode.name == plan.params.variable_update == mode
    told = [notice for notice in plan.notices if notice.startswith("--variable_update=")]
    assert len(told) == notices
    # Plug-ins are loaded after the same check.
    args = parse_args(argv)
    before = plan_before_plugins(args.params, environ, explicit=tuple(args.given))
    assert before.params.variable_update == mode


@pytest.mark.parametrize(("job", "device", "gpus"), [("ps", "cpu", 1), ("worker", "gpu", 2)])
def test_a_task_without_towers_has_one_cpu_device(job, device, gpus):
    params = Params(
        **{"model": "trivial", "device": "gpu", "num_gpus": 2, "gpu_indices": "1,0"},
        **{"job_name": job, "worker_hosts": "a:1", "ps_hosts": "c:3"},
        variable_update="parameter_server",
    )
    found = check_flags(params, {}).process_flags
    assert (found.device, found.num_gpus) == (device, gpus)
    assert (found.gpu_indices == "") == (job == "ps")
    alone = params.replace(job_name="", worker_hosts="", ps_hosts="")
    assert check_flags(alone, {}).process_flags.device == "gpu"
