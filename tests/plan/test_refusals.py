"""Flags of a run that do not go together, and what reduces its gradients.

Tests cnnbench/plan/rules.py and the rules of cnnbench/flags/groups/*.py.
"""

from __future__ import annotations

import itertools

import pytest
from other_values import other
from targets import framed

from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.flags.params import SPECS
from cnnbench.optimizers import SCHEDULES
from cnnbench.plan import check_flags, make_plan, parse_run, rules

AUTO_SCALE = "--precision=fp16 --fp16_enable_auto_loss_scale"
TWO = {"variable_update": "replicated", "num_gpus": 2}
FOUR = {"variable_update": "distributed_all_reduce", "num_gpus": 4, "device": "cpu"}
REPLICATED = "--variable_update=replicated --num_gpus=2 --device=cpu"
SPEC = "--variable_update=distributed_all_reduce --num_gpus=4 --device=cpu --all_reduce_spec"
NCCL = "--variable_update=collective_all_reduce --communication_hint=nccl"
PIECEWISE = "--piecewise_learning_rate_schedule"
SCALE = "--precision=fp16 --fp16_loss_scale"
COORDINATED = "--variable_update=parameter_server_strategy"
CHIEF = "--job_name=controller --worker_hosts=a:1 --ps_hosts=c:1 --controller_host=d:1"
DURING = (
    "--eval_during_training_every_n_steps=5",
    "--eval_during_training_every_n_epochs=0.5",
    "--eval_during_training_at_specified_steps=5,9",
    "--eval_during_training_at_specified_epochs=0.5",
)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        (name, flag)
        for (name, spec), flag in itertools.product(SCHEDULES.items(), SCHEDULES.constants)
        if flag not in spec.flags
    ],
)
def test_a_schedule_takes_its_own_constants(name, flag):
    given = {"init_learning_rate": 1.0, "learning_rate_schedule": name, flag: other(SPECS[flag])}
    given |= {needed: other(SPECS[needed]) for needed in SCHEDULES[name].needs}
    with pytest.raises(FlagError, match=f"^--{flag}=.*--learning_rate_schedule={name}, which"):
        check_flags(Params(**given))


@pytest.mark.parametrize(
    "line",
    [
        "--eval --train_dir=d",
        "--forward_only --print_training_accuracy",
        "--num_batches=3 --num_eval_epochs=1",
        "--num_warmup_batches=0",
        *(
            f"{AUTO_SCALE} --variable_update={mode}"
            for mode in ("parameter_server", "replicated", "independent", "mirrored_strategy")
        ),
        *(f"{flag} --stop_at_top_1_accuracy=0.7" for flag in DURING),
        *(f"{SCALE}={scale}" for scale in (2.0**-126, 0.5, 2.0**126)),
        *(f"{PIECEWISE}={text}" for text in ("1", "1;0;.1", "0.3;10;0.2;25;0.1")),
        f"{PIECEWISE}=1;3;.1 --num_learning_rate_warmup_epochs=1",
        "--init_learning_rate=0.1 --num_epochs_per_decay=2 --learning_rate_decay_factor=0.5 "
        "--minimum_learning_rate=0.01",
        "--init_learning_rate=0",
        f"{REPLICATED} --gradient_repacking=500",
        f"{REPLICATED} --gradient_repacking=501 --forward_only",
        "--data_format=NCHW",
        "--device=gpu --data_format=NCHW",
        "--device=cpu --data_format=NCHW",
        "--device=cpu --data_format=NHWC --num_gpus=4",
        "--per_gpu_thread_count=3 --gpu_thread_mode=gpu_shared",
        "--gpu_indices=3,1 --num_gpus=2",
        "--save_model_secs=60",
        "--save_model_steps=10",
        "--result_json=a --result_csv=b",
        "--result_csv=a",
        # What only the run can tell of its devices.
        f"{SPEC}=nccl --device=gpu",
        f"{SPEC}=nccl --device=auto",
        f"{SPEC}=collective --communication_hint=nccl --device=auto",
        f"{SPEC}=xring --communication_hint=nccl",
        f"{SPEC}=pscpu#4 --device=auto",
        f"{SPEC}=tree#9",
        f"{NCCL} --num_gpus=4",
        f"{NCCL} --job_name=worker --worker_hosts=a:1,b:2",
        # Nothing is reduced, and nothing is wrong with that.
        f"{SPEC}=nccl --forward_only",
        f"{SPEC}=nccl --eval --train_dir=d",
        f"{SPEC}=nccl --num_gpus=1",
        f"{SPEC}=nccl --variable_update=independent",
        f"{REPLICATED} --num_gpus=8 --hierarchical_copy --network_topology=gcp_v100",
        # The topology is of a copy that the spec has replaced.
        f"{SPEC}=xring --hierarchical_copy --network_topology=gcp_v100",
        # From the README of tf_cnn_benchmarks, with other addresses.
        "--local_parameter_device=cpu --num_gpus=8 --batch_size=64 --model=resnet50 "
        "--variable_update=distributed_replicated --job_name=ps --ps_hosts=a:50000,b:50000 "
        "--worker_hosts=a:50001,b:50001 --task_index=1",
        "--variable_update=multi_worker_mirrored_strategy --job_name=worker --worker_hosts=a:1,b:2 "
        "--bn_stats=sync --summary_verbosity=1 --train_dir=d --save_summaries_steps=2",
        "--job_name=controller --controller_host=c:50002 --worker_hosts=a:1,b:1 "
        "--variable_update=distributed_all_reduce --all_reduce_spec=pscpu:32k:xring",
    ],
)
def test_accepted(line):
    parse_run(line.split())


@pytest.mark.parametrize(
    ("flags", "running"),
    [
        (TWO, "copy"),
        ({**TWO, "hierarchical_copy": True}, "hierarchical_copy"),
        ({**TWO, "hierarchical_copy": True, "all_reduce_spec": "xring#2"}, "xring#2"),
        ({**FOUR, "all_reduce_spec": "copy:2048:pscpu/xring"}, "copy:2K:pscpu"),
        ({**FOUR, "all_reduce_spec": "pscpu/xring#2", "all_reduce_group_size": 2}, "pscpu/xring#2"),
        ({**FOUR, "all_reduce_spec": "pscpu/xring#2", "all_reduce_group_size": 1}, "xring#2"),
        ({**TWO, "num_gpus": 1}, None),
        ({**TWO, "forward_only": True}, None),
        ({**TWO, "eval": True, "train_dir": "d"}, None),
        ({**TWO, "variable_update": "independent"}, None),
        ({**TWO, "variable_update": "parameter_server", "all_reduce_spec": "xring"}, None),
    ],
)
def test_what_runs(flags, running):
    found = check_flags(Params.from_dict(flags)).exchange.running
    assert (None if found is None else str(found)) == running


def refused_flag(**flags):
    """The flag that is refused; None if none is."""
    try:
        make_plan(Params(**flags))
    except FlagError as error:
        return error.flag
    return None


def test_each_worker_needs_a_file_where_files_are_divided(tmp_path):
    data, files = tmp_path / "imagenet", 3
    data.mkdir()
    names = [f"train-{number:05}-of-00003" for number in range(files)]
    for name in (*names, "validation-00000-of-00001"):
        (data / name).write_bytes(framed(b"x"))
    whole = tmp_path / "cifar10"
    whole.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (whole / f"{name}.bin").write_bytes(bytes(3073))
    usual = {"variable_update": "multi_worker_mirrored_strategy", "job_name": "worker"}
    for workers, policy, flag in (
        (files, "file", None),
        (files + 1, "file", "auto_shard_policy"),
        (files + 1, "data", None),
        (1, "file", None),
    ):
        hosts = ",".join(f"h{number}:1" for number in range(workers))
        job = {**usual, "input_distribution": "strategy", "auto_shard_policy": policy}
        job["worker_hosts"] = hosts
        assert refused_flag(model="lenet", batch_size=2, data_dir=str(data), **job) == flag
    # The files of this data set are read as a whole.
    job["worker_hosts"], job["auto_shard_policy"] = "a:1,b:1", "file"
    assert refused_flag(model="resnet20", data_dir=str(whole), **job) == "auto_shard_policy"
    assert refused_flag(model="resnet20", **job) is None
    # Pairs of images are mixed only by a training that reads images.
    odd = {"model": "resnet20", "mixup_alpha": 0.2, "batch_size": 3}
    assert refused_flag(**odd, data_dir=str(whole)) == "mixup_alpha"
    for others in ({"data_dir": str(whole), "forward_only": True}, {}):
        assert refused_flag(**odd, **others) is None
    assert refused_flag(**{**odd, "batch_size": 4}, data_dir=str(whole)) is None


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        ({"trace_file": "t", "result_json": "t"}, "trace_file"),
        ({"trace_file": "t", "result_json": "u"}, None),
        # Then the trace file is a folder for files of TensorFlow's profiler.
        ({"trace_file": "t", "result_json": "t", "use_chrome_trace_format": False}, None),
        ({"graph_file": "t", "result_json": "t", "use_chrome_trace_format": False}, "graph_file"),
        ({"graph_file": "a,b", "result_json": "a,b"}, "graph_file"),
        ({"graph_file": "a,b", "result_json": "b"}, None),
    ],
)
def test_outputs_have_files_of_their_own(flags, flag):
    assert refused_flag(model="lenet", **flags) == flag


@pytest.mark.parametrize(
    ("bytes_per_weight", "flags"), [(4, {}), (2, {"precision": "bf16"}), (8, {"num_gpus": 2})]
)
def test_a_frozen_graph_contains_less_than_two_gigabytes(bytes_per_weight, flags, monkeypatch):
    weights = make_plan(Params(model="lenet")).network.spec.parameters
    frozen = {"model": "lenet", "forward_only": True, "freeze_when_forward_only": True, **flags}
    monkeypatch.setattr(rules, "_LARGEST_GRAPH", bytes_per_weight * weights + 1)
    assert refused_flag(**frozen) is None
    monkeypatch.setattr(rules, "_LARGEST_GRAPH", bytes_per_weight * weights)
    assert refused_flag(**frozen) == "freeze_when_forward_only"
    assert refused_flag(**{**frozen, "freeze_when_forward_only": False}) is None


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        # The job, the mode, flags that exclude each other, and then other rules by group.
        (f"{COORDINATED} --eval --train_dir=d", "variable_update"),
        (f"{COORDINATED} {CHIEF} --eval --train_dir=d --max_seconds=3", "eval"),
        ("--max_seconds=3 --num_epochs=1 --stop_at_top_1_accuracy=0.5", "max_seconds"),
        ("--prefetch_on_device --input_replication=per_replica --eval", "input_replication"),
        ("--steps_per_execution=2 --eval --train_dir=d --fp16_vars", "steps_per_execution"),
        ("--fp16_vars --gpu_indices=0,1,2 --num_gpus=2", "fp16_vars"),
        ("--gpu_indices=0,1,2 --num_gpus=2 --result_json=a --result_csv=a", "gpu_indices"),
    ],
)
def test_one_of_several_refusals_is_reported(line, flag):
    with pytest.raises(FlagError) as caught:
        parse_run(line.split())
    assert caught.value.flag == flag
