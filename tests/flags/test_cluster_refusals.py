"""Flags of a job that cannot be: one line that names the flag, before anything is loaded."""

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import parse_args

WORKERS = "--worker_hosts=a:1,b:1"
ME = ("--job_name=worker", WORKERS)
ALL_REDUCE = "--variable_update=distributed_all_reduce"


@pytest.mark.parametrize(
    ("flags", "flag", "words"),
    [
        (("--job_name=worker",), "ps_hosts", "needs tasks for variables"),
        (("--job_name=worker", "--ps_hosts=c:1"), "worker_hosts", "needs its workers"),
        (("--job_name=worker", ALL_REDUCE, "--all_reduce_spec=copy"), "job_name", "--worker_hosts"),
        ((*ME, ALL_REDUCE, "--all_reduce_spec=copy", "--task_index=2"), "task_index", "0 to 1"),
        ((WORKERS, "--ps_hosts=c:1"), "job_name", "--worker_hosts needs it"),
        ((*ME, "--ps_hosts=a:1"), "worker_hosts", "given to two tasks"),
        ((*ME, "--ps_hosts=c"), "ps_hosts", "is no host:port"),
        ((*ME, "--ps_hosts=c:1", "--server_protocol=grpc+verbs"), "server_protocol", "grpc"),
        ((*ME, "--variable_update=replicated"), "variable_update", "in one process only"),
        ((*ME, "--variable_update=independent"), "variable_update", "in one process only"),
        (ME, "ps_hosts", "needs tasks for variables"),
        (
            (*ME, ALL_REDUCE, "--all_reduce_spec=copy", "--ps_hosts=c:1"),
            "ps_hosts",
            "has no use for them",
        ),
        ((*ME, ALL_REDUCE, "--all_reduce_spec=copy/collective"), "all_reduce_spec", "drives"),
        (
            (*ME, ALL_REDUCE, "--all_reduce_spec=nccl", "--num_gpus=2", "--device=gpu"),
            "all_reduce_spec",
            "two levels",
        ),
    ],
)
def test_refused(flags, flag, words):
    with pytest.raises(FlagError, match=words) as error:
        parse_args(list(flags))
    assert error.value.flag == flag
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "flags",
    [
        # From the README of tf_cnn_benchmarks, with other addresses.
        (
            *("--local_parameter_device=cpu", "--num_gpus=8", "--batch_size=64"),
            *("--model=resnet50", "--variable_update=distributed_replicated"),
            *("--job_name=ps", "--ps_hosts=a:50000,b:50000", "--worker_hosts=a:50001,b:50001"),
            "--task_index=1",
        ),
        (
            *("--job_name=controller", "--controller_host=c:50002", WORKERS, ALL_REDUCE),
            "--all_reduce_spec=pscpu:32k:xring",
        ),
    ],
)
def test_old_command_lines_are_accepted(flags):
    assert parse_args(list(flags)).params.job_name in ("ps", "controller")
