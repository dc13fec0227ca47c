"""Flags of a run that do not go together, and what reduces its gradients."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter

import pytest

from cnnbench import cli
from cnnbench.errors import FlagError
from cnnbench.flags import Params, mode_checks, parse_args, reductions, validate
from cnnbench.flags.groups.optimizer import PiecewiseSchedule, parse_piecewise
from cnnbench.flags.reductions import running_all_reduce
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec

DURING = {
    "eval_during_training_every_n_steps": 5,
    "eval_during_training_every_n_epochs": 0.5,
    "eval_during_training_at_specified_steps": (5, 9),
    "eval_during_training_at_specified_epochs": (0.5,),
}
DECAY = {
    "init_learning_rate": 0.1,
    "num_epochs_per_decay": 2.0,
    "learning_rate_decay_factor": 0.5,
}
COSINE = {"learning_rate_schedule": "cosine", "init_learning_rate": 0.1}
FP16_VARS = {"precision": "fp16", "fp16_vars": True}
PIECEWISE = {"piecewise_learning_rate_schedule": "1;3;.1"}
INT8 = {"precision": "int8", "forward_only": True, "freeze_when_forward_only": True}
AUTO_SCALE = {"precision": "fp16", "fp16_enable_auto_loss_scale": True}
FOUR = {"variable_update": "distributed_all_reduce", "num_gpus": 4, "device": "cpu"}
MIRRORED = {"variable_update": "mirrored_strategy", "num_gpus": 2}
MULTI_WORKER = {"variable_update": "multi_worker_mirrored_strategy"}
WORKERS = {"job_name": "worker", "worker_hosts": "a:1,b:1"}
DISTRIBUTED = {**MIRRORED, "input_distribution": "strategy"}
TWO = {"variable_update": "replicated", "num_gpus": 2}


def without(name):
    return {other: value for other, value in DECAY.items() if other != name}


# Parameters, the flag that the error names, and words of its reason.
REFUSED = [
    ({"eval": True}, "eval", "--train_dir"),
    ({"eval": True, "train_dir": "d", "forward_only": True}, "forward_only", "--eval"),
    ({"num_batches": 3, "num_epochs": 1.0}, "num_batches", "--num_epochs"),
    ({"num_eval_batches": 3, "num_eval_epochs": 1.0}, "num_eval_batches", "--num_eval_epochs"),
    ({"stop_at_top_1_accuracy": 0.7}, "stop_at_top_1_accuracy", "eval_during_training"),
    ({"stop_at_top_1_accuracy": 0.0}, "stop_at_top_1_accuracy", "eval_during_training"),
    *(
        ({first: DURING[first], second: DURING[second]}, second, f"--{first}")
        for first, second in itertools.pairwise(DURING)
    ),
    *(({name: DURING[name], "forward_only": True}, name, "out --forward_only") for name in DURING),
    *(({name: DURING[name], "eval": True, "train_dir": "d"}, name, "--eval") for name in DURING),
    *(
        ({"precision": "fp16", "fp16_loss_scale": scale}, "fp16_loss_scale", "2^-126 to 2^126")
        for scale in (1e-39, 1e38)
    ),
    ({"precision": "bf16", "use_fp16": True}, "use_fp16", "contradicts --precision=bf16"),
    *(
        ({**INT8, name: value}, name, "cannot go with --precision=int8")
        for name, value in {
            **{"device": "gpu", "data_format": "NCHW"},
            **{"xla": True, "xla_compile": True},
        }.items()
    ),
    ({"fp16_vars": True}, "fp16_vars", "needs --precision=fp16"),
    ({"fp16_vars": True, "precision": "bf16"}, "fp16_vars", "needs --precision=fp16"),
    ({**FP16_VARS, "optimizer": "adam"}, "fp16_vars", "cannot go with --optimizer=adam"),
    (
        {**FP16_VARS, "optimizer": "rmsprop", "rmsprop_epsilon": 1e-5},
        "rmsprop_epsilon",
        "at least 2^-14",
    ),
    *(
        ({**PIECEWISE, name: value}, name, "--piecewise_learning_rate_schedule")
        for name, value in {**DECAY, "minimum_learning_rate": 0.01}.items()
    ),
    ({**PIECEWISE, "init_learning_rate": 0.0}, "init_learning_rate", "--piecewise_learning"),
    (without("init_learning_rate"), "num_epochs_per_decay", "needs --init_learning_rate"),
    (without("num_epochs_per_decay"), "learning_rate_decay_factor", "needs --num_epochs_per"),
    (without("learning_rate_decay_factor"), "num_epochs_per_decay", "needs --learning_rate_decay"),
    (
        {"minimum_learning_rate": 0.01},
        "minimum_learning_rate",
        "needs --init_learning_rate and --num_epochs_per_decay and --learning_rate_decay_factor",
    ),
    (
        {"minimum_learning_rate": 0.01, "init_learning_rate": 0.1},
        "minimum_learning_rate",
        "needs --num_epochs_per_decay and --learning_rate_decay_factor",
    ),
    *(
        ({**PIECEWISE, "learning_rate_schedule": schedule}, "learning_rate_schedule", "--piecewise")
        for schedule in ("exponential", "cosine")
    ),
    (
        {"learning_rate_schedule": "exponential", "init_learning_rate": 0.1},
        "learning_rate_schedule",
        "needs --num_epochs_per_decay and --learning_rate_decay_factor",
    ),
    (
        {"learning_rate_schedule": "cosine", "minimum_learning_rate": 0.1},
        "learning_rate_schedule",
        "needs --init_learning_rate",
    ),
    (
        {**DECAY, "learning_rate_schedule": "cosine"},
        "num_epochs_per_decay",
        "cannot go with --learning_rate_schedule=cosine",
    ),
    (
        {**COSINE, "minimum_learning_rate": 0.2},
        "minimum_learning_rate",
        "must be at most --init_learning_rate=0.1",
    ),
    *(
        ({"staged_vars": True, "variable_update": mode}, "staged_vars", f"server, not {mode}")
        for mode in ("replicated", "independent")
    ),
    ({"bn_stats": "sync", "variable_update": "independent"}, "bn_stats", "independent"),
    ({"bn_stats": "sync", "xla_compile": True}, "bn_stats", "cannot go with --xla_compile"),
    *(
        ({**TWO, flag: value}, flag, "needs --variable_update=mirrored_strategy, not replicated")
        for flag, value in (("cross_device_ops", "ring"), ("bytes_per_pack", 9), ("num_packs", 2))
    ),
    (
        {"variable_update": "central_storage_strategy", "cross_device_ops": "ring"},
        "cross_device_ops",
        "needs --variable_update=mirrored_strategy",
    ),
    (
        {**MIRRORED, "cross_device_ops": "hierarchical_copy", "num_gpus": 3},
        "cross_device_ops",
        "leaves out the last of 3 devices",
    ),
    ({**MIRRORED, "cross_device_ops": "nccl", "device": "cpu"}, "cross_device_ops", "needs GPUs"),
    (
        {"variable_update": "one_device_strategy", "num_gpus": 2},
        "num_gpus",
        "needs --num_gpus=1",
    ),
    ({**MULTI_WORKER, "num_gpus": 2, "device": "cpu"}, "num_gpus", "must be 1 on CPUs"),
    *(
        ({**MULTI_WORKER, "cross_device_ops": ops}, "cross_device_ops", "has auto, ring, nccl")
        for ops in ("reduction_to_one_device", "hierarchical_copy")
    ),
    (
        {**MULTI_WORKER, "cross_device_ops": "nccl", "device": "cpu"},
        "cross_device_ops",
        "needs GPUs",
    ),
    ({**MULTI_WORKER, "num_packs": 2}, "num_packs", "use --bytes_per_pack"),
    ({**MULTI_WORKER, "num_gpus": 2, "gpu_indices": "1,0"}, "gpu_indices", "must ascend"),
    ({**MULTI_WORKER, "staged_vars": True}, "staged_vars", "not multi_worker_mirrored_strategy"),
    (
        {**MULTI_WORKER, **WORKERS, "ps_hosts": "c:1"},
        "ps_hosts",
        "has no use for them",
    ),
    (
        {**MULTI_WORKER, **WORKERS, "summary_verbosity": 2, "bn_stats": "sync"},
        "summary_verbosity",
        "must be at most 1 with --bn_stats=sync",
    ),
    *(
        (
            {**WORKERS, "variable_update": mode},
            "variable_update",
            "one process only; with --job_name use one of",
        )
        for mode in ("mirrored_strategy", "central_storage_strategy", "one_device_strategy")
    ),
    (
        {
            **MULTI_WORKER,
            "data_dir": "d",
            "input_distribution": "strategy",
            "input_sharding": "manual",
            "input_replication": "per_replica",
        },
        "input_replication",
        "needs --variable_update=mirrored_strategy",
    ),
    *(
        ({**MIRRORED, "data_dir": "d", flag: value}, flag, "needs --input_distribution=strategy")
        for flag, value in (
            ("input_sharding", "manual"),
            ("auto_shard_policy", "data"),
            ("input_replication", "per_replica"),
            ("prefetch_on_device", False),
        )
    ),
    (
        {"input_distribution": "strategy", "variable_update": "replicated"},
        "input_distribution",
        "needs a strategy, not --variable_update=replicated",
    ),
    (
        {**DISTRIBUTED, "input_only": True, "data_dir": "d"},
        "input_distribution",
        "--input_only",
    ),
    (
        {**DISTRIBUTED, "variable_update": "central_storage_strategy"},
        "input_sharding",
        "use --input_sharding=manual",
    ),
    ({**DISTRIBUTED, "auto_shard_policy": "hint"}, "auto_shard_policy", "needs a hint"),
    (
        {**DISTRIBUTED, "auto_shard_policy": "data", "input_sharding": "manual"},
        "auto_shard_policy",
        "cannot go with --input_sharding=manual",
    ),
    (
        {**DISTRIBUTED, "input_replication": "per_replica"},
        "input_replication",
        "needs --input_sharding=manual",
    ),
    (
        {
            **DISTRIBUTED,
            "input_replication": "per_replica",
            "input_sharding": "manual",
            "prefetch_on_device": True,
        },
        "prefetch_on_device",
        "cannot go with --input_replication=per_replica",
    ),
    (
        {
            **DISTRIBUTED,
            "variable_update": "central_storage_strategy",
            "input_replication": "per_replica",
            "input_sharding": "manual",
        },
        "input_replication",
        "needs --variable_update=mirrored_strategy",
    ),
    ({**MIRRORED, "staged_vars": True}, "staged_vars", "not mirrored_strategy"),
    ({"variable_update": "distributed_all_reduce"}, "variable_update", "needs --all_reduce_spec"),
    ({**TWO, "all_reduce_spec": "copy:1K:xring"}, "all_reduce_spec", "algorithms by size"),
    ({**TWO, "gradient_repacking": 501}, "gradient_repacking", "at most 500 packs"),
    (
        {**TWO, "hierarchical_copy": True, "network_topology": "gcp_v100"},
        "network_topology",
        "gcp_v100 is a topology of exactly 8 devices, and there are 2",
    ),
    ({"device": "cpu", "data_format": "NCHW"}, "data_format", "use NHWC or auto"),
    (
        {"per_gpu_thread_count": 3, "gpu_thread_mode": "global"},
        "per_gpu_thread_count",
        "--gpu_thread_mode=gpu_private",
    ),
    *(
        ({"gpu_indices": text, "num_gpus": 2}, "gpu_indices", "whole numbers")
        for text in ("0,x", "0,-1", "0,")
    ),
    ({"gpu_indices": "1,1", "num_gpus": 2}, "gpu_indices", "once"),
    ({"gpu_indices": "0,1,2", "num_gpus": 2}, "gpu_indices", "3 GPUs, but --num_gpus=2"),
    ({"save_model_secs": 60, "save_model_steps": 10}, "save_model_steps", "--save_model_secs"),
    *(
        ({"result_json": "a", "result_csv": other}, "result_csv", "--result_json")
        for other in ("a", "./a", "b/../a", os.path.abspath("a"))
    ),
    ({"result_label": "commit"}, "result_label", "commit"),
    ({"quiet_conditions": "noise"}, "quiet_conditions", "noise"),
]


@pytest.mark.parametrize(("changes", "flag", "words"), REFUSED)
def test_refused(changes, flag, words):
    with pytest.raises(FlagError) as caught:
        validate(Params.from_dict(changes))
    assert caught.value.flag == flag
    assert words in caught.value.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"eval": True, "train_dir": "d"},
        {"forward_only": True, "print_training_accuracy": True},
        {"num_batches": 3, "num_eval_epochs": 1.0},
        {"num_warmup_batches": 0},
        *({name: value, "stop_at_top_1_accuracy": 0.7} for name, value in DURING.items()),
        *({"precision": "fp16", "fp16_loss_scale": x} for x in (2.0**-126, 0.5, 2.0**126)),
        {**PIECEWISE, "num_learning_rate_warmup_epochs": 1},
        {**DECAY, "minimum_learning_rate": 0.01},
        {"init_learning_rate": 0.0},
        {**TWO, "gradient_repacking": 500},
        {**TWO, "gradient_repacking": 501, "forward_only": True},
        {"data_format": "NCHW"},
        {"device": "gpu", "data_format": "NCHW"},
        {"device": "cpu", "data_format": "NHWC", "num_gpus": 4},
        {"per_gpu_thread_count": 3, "gpu_thread_mode": "gpu_shared"},
        {"gpu_indices": "3,1", "num_gpus": 2},
        {"save_model_secs": 60},
        {"save_model_steps": 10},
        {"result_json": "a", "result_csv": "b"},
        {"result_csv": "a"},
    ],
)
def test_accepted(changes):
    validate(Params.from_dict(changes))


def test_automatic_loss_scale_needs_a_mode_that_supports_it():
    for mode in ("parameter_server", "replicated", "independent", "mirrored_strategy"):
        validate(Params(variable_update=mode, **AUTO_SCALE))
    unavailable = Params(variable_update="parameter_server_strategy", **AUTO_SCALE)
    reason = dict(mode_checks._check_mode(unavailable))["fp16_enable_auto_loss_scale"]
    assert "cannot go with --variable_update=parameter_server_strategy" in reason


@pytest.mark.parametrize(
    ("text", "rates", "boundaries"),
    [
        ("0.3;10;0.2;25;0.1", (0.3, 0.2, 0.1), (10, 25)),
        ("1", (1.0,), ()),
        ("1; 3; .1", (1.0, 0.1), (3,)),
        ("1;0;.1", (1.0, 0.1), (0,)),
    ],
)
def test_piecewise(text, rates, boundaries):
    assert parse_piecewise(text) == PiecewiseSchedule(rates, boundaries)
    validate(Params.from_dict({"piecewise_learning_rate_schedule": text}))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1;3", "odd number"),
        ("1;3;.1;5", "odd number"),
        ("x;3;.1", "'x' is not a learning rate"),
        ("-1;3;.1", "'-1' is not a learning rate"),
        ("nan;3;.1", "'nan' is not a learning rate"),
        ("1;1.5;.1", "'1.5' is not an epoch"),
        ("1;;.1", "'' is not an epoch"),
        ("1;5;.1;5;.01", "increase"),
        ("1;5;.1;3;.01", "increase"),
    ],
)
def test_piecewise_refuses(text, reason):
    with pytest.raises(FlagError, match=reason) as caught:
        validate(Params.from_dict({"piecewise_learning_rate_schedule": text}))
    assert caught.value.flag == "piecewise_learning_rate_schedule"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"all_reduce_spec": "nccl"}, "character 1, 'nccl': nccl sums on GPUs only"),
        (
            {"all_reduce_spec": "copy:2048:nccl/xring", "all_reduce_group_size": 2},
            "character 11, 'nccl/xring': nccl sums on GPUs only",
        ),
        ({"all_reduce_spec": "copy/nccl", "all_reduce_group_size": 2}, "the first level only"),
        ({"all_reduce_spec": "copy/nccl", "device": "gpu"}, "the first level only"),
        ({"all_reduce_spec": "copy#2"}, "copy takes no shards"),
        ({"all_reduce_spec": "copy#2", "device": "auto"}, "copy takes no shards"),
        ({"all_reduce_spec": "collective#3"}, "one or two rings, and not 3"),
        (
            {"all_reduce_spec": "copy/collective", "communication_hint": "nccl"}
            | {"all_reduce_group_size": 2},
            "NCCL needs GPUs, and /job:localhost/replica:0/task:0/device:CPU:0 is none; use ring",
        ),
        (
            {"all_reduce_spec": "collective#2", "communication_hint": "nccl", "device": "gpu"},
            "NCCL has no shards; leave them out, or use ring",
        ),
        ({"all_reduce_spec": "xring#5"}, "5 rings need as many devices in each process"),
        ({"all_reduce_spec": "pscpu#2", "device": "gpu"}, "2 shards need as many different"),
        ({"all_reduce_spec": "copy/psgpu#3", "all_reduce_group_size": 2}, "3 shards between 2 gr"),
        (
            {"all_reduce_spec": "hierarchical_copy", "network_topology": "gcp_v100"},
            "gcp_v100 is a topology of exactly 8 devices, and there are 4",
        ),
    ],
)
def test_all_reduces_that_the_devices_cannot_run(flags, message):
    with pytest.raises(FlagError, match=r"^--all_reduce_spec=") as caught:
        validate(Params.from_dict({**FOUR, **flags}))
    assert message in caught.value.reason
    assert caught.value.value == flags["all_reduce_spec"]


def test_nccl_between_cpus_is_refused_by_the_flag_that_asks_for_it():
    flags = {**FOUR, "variable_update": "collective_all_reduce", "communication_hint": "nccl"}
    for job in ({}, {"job_name": "worker", "worker_hosts": "a:1,b:2", "num_gpus": 1}):
        with pytest.raises(FlagError, match="NCCL needs GPUs") as caught:
            validate(Params.from_dict({**flags, **job}))
        assert str(caught.value).startswith("--communication_hint=nccl: NCCL")
        assert "\n" not in str(caught.value)
        validate(Params.from_dict({**flags, **job, "device": "auto"}))


@pytest.mark.parametrize(
    "flags",
    [
        {"all_reduce_spec": "nccl", "device": "gpu"},
        {"all_reduce_spec": "collective", "communication_hint": "nccl", "device": "auto"},
        {"all_reduce_spec": "xring", "communication_hint": "nccl"},
        {"all_reduce_spec": "nccl", "device": "auto"},
        {"all_reduce_spec": "pscpu#4", "device": "auto"},
        {"all_reduce_spec": "tree#9"},
        # Nothing is reduced, and nothing is wrong with that.
        {"all_reduce_spec": "nccl", "forward_only": True},
        {"all_reduce_spec": "nccl", "eval": True, "train_dir": "d"},
        {"all_reduce_spec": "nccl", "num_gpus": 1},
        {"all_reduce_spec": "nccl", "variable_update": "independent"},
        {
            "hierarchical_copy": True,
            "network_topology": "gcp_v100",
            "num_gpus": 8,
            "variable_update": "replicated",
        },
        # The topology is of a copy that the spec has replaced.
        {"hierarchical_copy": True, "network_topology": "gcp_v100", "all_reduce_spec": "xring"},
    ],
)
def test_all_reduces_that_are_left_to_the_run(flags):
    validate(Params.from_dict({**FOUR, "all_reduce_spec": "copy", **flags}))


@pytest.mark.parametrize(
    ("flags", "running"),
    [
        (TWO, "copy"),
        ({**TWO, "hierarchical_copy": True}, "hierarchical_copy"),
        ({**TWO, "hierarchical_copy": True, "all_reduce_spec": "xring#2"}, "xring#2"),
        ({**FOUR, "all_reduce_spec": "copy:2048:pscpu/xring"}, "copy:2K:pscpu"),
        (
            {**FOUR, "all_reduce_spec": "pscpu/xring#2", "all_reduce_group_size": 2},
            "pscpu/xring#2",
        ),
        ({**FOUR, "all_reduce_spec": "pscpu/xring#2", "all_reduce_group_size": 1}, "xring#2"),
        ({**TWO, "num_gpus": 1}, None),
        ({**TWO, "forward_only": True}, None),
        ({**TWO, "eval": True, "train_dir": "d"}, None),
        ({**TWO, "variable_update": "independent"}, None),
        ({**TWO, "variable_update": "parameter_server", "all_reduce_spec": "xring"}, None),
    ],
)
def test_what_runs(flags, running):
    found = running_all_reduce(Params.from_dict(flags))
    assert (None if found is None else str(found)) == running


def test_parsed_values_are_recorded_as_they_were_written():
    texts = {"all_reduce_spec": "Copy:2048:xring", "piecewise_learning_rate_schedule": "1; 3;.1"}
    texts["all_reduce_spec"] = texts["all_reduce_spec"].lower()
    params = Params.from_dict(texts)
    assert params.all_reduce_spec == parse_all_reduce_spec("copy:2K:xring")
    assert params.piecewise_learning_rate_schedule == PiecewiseSchedule((1.0, 0.1), (3,))
    assert {name: params.as_dict()[name] for name in texts} == texts
    assert parse_args([f"--{name}={text}" for name, text in texts.items()]).params == params
    assert Params(**texts) == params
    with pytest.raises(FlagError, match="must be of the type AllReduceSpec"):
        validate(Params(all_reduce_spec=3))
    with pytest.raises(FlagError, match="all_reduce_spec=xring:2: "):
        Params(all_reduce_spec="xring:2")


def test_a_run_parses_its_all_reduce_once_and_checks_its_flags_once(quick_start, capsys):
    counted = {
        function.__code__: function.__name__
        for function in (
            parse_all_reduce_spec,
            mode_checks._check_variable_update,
            reductions.check_spec,
        )
    }
    calls = Counter()

    def count(frame, event, _):
        if event == "call" and frame.f_code in counted:
            calls[counted[frame.f_code]] += 1

    argv = ["--model=trivial", "--device=cpu", "--num_gpus=2", "--num_batches=2"]
    argv += ["--num_warmup_batches=0", "--batch_size=2", "--quiet_conditions=all"]
    argv += ["--variable_update=distributed_all_reduce", "--all_reduce_spec=copy:1K:xring#2"]
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assert cli.main(argv) == 0
    finally:
        sys.setprofile(before)
    assert calls == dict.fromkeys(counted.values(), 1)
    assert "AllReduce:   copy:1K:xring#2" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["allreduce"], ["run", "--variable_update=replicated"]])
def test_devices_are_checked_without_tensorflow(command, alone):
    done = alone(*command, "--device=cpu", "--num_gpus=2", "--all_reduce_spec=nccl")
    assert done.status == 2
    assert "nccl sums on GPUs only" in done.err
    assert "tensorflow" not in done.loaded
