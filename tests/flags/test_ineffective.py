import pytest

from cnnbench.flags import FLAGS, parse_args
from cnnbench.flags.ineffective import UNUSED

DURING = "--eval_during_training_every_n_steps=5"

# A flag, flags beside which it does nothing, flags beside which it does something.
MULTI_WORKER = "--variable_update=multi_worker_mirrored_strategy"
WORKERS = "--worker_hosts=a:1,b:1"
MIRRORED = ["--variable_update=mirrored_strategy", "--num_gpus=2"]
CASES = [
    (f"--{flag}", idle, ["--train_dir=d"])
    for flag in ("save_model_secs=9", "save_model_steps=9", "max_ckpts_to_keep=2")
    for idle in ([], ["--train_dir=d", "--eval"])
]
CASES += [
    ("--aux_head", ["--forward_only"], []),
    ("--save_model_steps=9", ["--forward_only"], ["--train_dir=d"]),
    ("--train_dir=d", ["--forward_only"], []),
    ("--optimizer=adam", ["--data_dir=d", "--input_only"], []),
    ("--save_model_steps=9", ["--data_dir=x", "--input_only", "--train_dir=d"], ["--train_dir=d"]),
    ("--train_dir=d", ["--forward_only"], ["--eval"]),
    ("--warmup=auto", ["--eval", "--train_dir=d"], []),
    ("--max_warmup_batches=99", [], ["--warmup=auto"]),
    ("--max_warmup_batches=99", ["--eval", "--train_dir=d", "--warmup=auto"], ["--warmup=auto"]),
    ("--eval_interval_secs=9", [], ["--eval", "--train_dir=d"]),
    ("--collect_eval_results_async", [], [DURING]),
    (
        "--collect_eval_results_async",
        ["--eval", "--train_dir=d"],
        ["--eval", "--train_dir=d", "--eval_interval_secs=9"],
    ),
    ("--eval_interval_secs=9", [DURING], ["--eval", "--train_dir=d"]),
    ("--num_eval_batches=9", [], ["--eval", "--train_dir=d"]),
    ("--num_eval_epochs=9", ["--forward_only"], [DURING]),
    ("--eval_batch_size=9", [], ["--eval_during_training_at_specified_epochs=0.5"]),
    ("--fp16_loss_scale=9", [], ["--use_fp16"]),
    ("--fp16_loss_scale=9", ["--precision=bf16"], ["--precision=fp16"]),
    ("--fp16_loss_scale=9", ["--precision=fp16", "--forward_only"], ["--precision=fp16"]),
    ("--fp16_enable_auto_loss_scale", [], ["--precision=fp16"]),
    (
        "--fp16_inc_loss_scale_every_n=5",
        ["--precision=fp16"],
        ["--precision=fp16", "--fp16_enable_auto_loss_scale"],
    ),
    ("--distort_color_in_yiq", [], ["--data_dir=d", "--distortions"]),
    ("--nodistort_color_in_yiq", ["--data_dir=d"], ["--data_dir=d", "--distortions"]),
    (
        "--resize_method=area",
        ["--data_dir=d", "--input_preprocessor=official_models_imagenet"],
        ["--data_dir=d"],
    ),
    ("--momentum=0.5", ["--optimizer=rmsprop"], ["--optimizer=momentum"]),
    ("--rmsprop_decay=0.5", [], ["--optimizer=rmsprop"]),
    ("--adam_beta1=0.5", [], ["--optimizer=adam"]),
    ("--num_learning_rate_warmup_epochs=5", [], ["--init_learning_rate=0"]),
    (
        "--learning_rate_schedule=staircase",
        ["--init_learning_rate=1"],
        ["--init_learning_rate=1", "--num_epochs_per_decay=1", "--learning_rate_decay_factor=0.5"],
    ),
    ("--resnet_base_lr=0.5", ["--init_learning_rate=0"], []),
    ("--gradient_reduction=mean", ["--variable_update=independent"], ["--num_gpus=2"]),
    ("--gradient_reduction=sum", ["--num_gpus=1"], ["--num_gpus=2"]),
    ("--bn_stats=mean", ["--num_gpus=1"], ["--num_gpus=2"]),
    *(
        (
            "--check_replica_consistency=5",
            idle,
            ["--num_gpus=2", "--variable_update=replicated"],
        )
        for idle in (
            ["--variable_update=replicated"],
            ["--num_gpus=2"],
            ["--num_gpus=2", "--variable_update=independent"],
            ["--num_gpus=2", "--variable_update=replicated", "--forward_only"],
        )
    ),
    ("--local_parameter_device=cpu", ["--variable_update=independent"], []),
    ("--local_parameter_device=cpu", MIRRORED, []),
    (
        "--input_distribution=strategy",
        MIRRORED,
        [*MIRRORED, "--data_dir=d", "--data_name=cifar10"],
    ),
    (
        "--input_distribution=strategy",
        [*MIRRORED, "--data_dir=d", "--data_name=cifar10", "--eval", "--train_dir=t"],
        [*MIRRORED, "--data_dir=d", "--data_name=cifar10"],
    ),
    ("--bytes_per_pack=9", [*MIRRORED, "--cross_device_ops=hierarchical_copy"], MIRRORED),
    ("--bytes_per_pack=9", [MULTI_WORKER], [MULTI_WORKER, "--job_name=worker", WORKERS]),
    ("--all_reduce_spec=xring", [MULTI_WORKER], ["--variable_update=replicated", "--num_gpus=2"]),
    ("--local_parameter_device=cpu", [MULTI_WORKER], []),
    ("--num_packs=9", MIRRORED, [*MIRRORED, "--cross_device_ops=hierarchical_copy"]),
    ("--cross_device_ops=ring", ["--variable_update=mirrored_strategy"], MIRRORED),
    ("--cross_device_ops=ring", [*MIRRORED, "--forward_only"], MIRRORED),
    ("--all_reduce_spec=xring", MIRRORED, ["--variable_update=replicated", "--num_gpus=2"]),
    ("--gradient_repacking=2", MIRRORED, ["--variable_update=replicated", "--num_gpus=2"]),
    ("--local_parameter_device=cpu", ["--variable_update=replicated", "--forward_only"], []),
    ("--local_parameter_device=cpu", ["--variable_update=replicated"], ["--forward_only"]),
    ("--print_training_accuracy", ["--forward_only"], []),
    ("--print_training_accuracy", ["--eval", "--train_dir=d"], []),
    ("--allow_nonfinite", ["--eval", "--train_dir=d"], ["--forward_only"]),
    (
        "--eval_dir=d",
        ["--summary_verbosity=1"],
        ["--summary_verbosity=1", "--eval", "--train_dir=d"],
    ),
    (
        "--eval_dir=d",
        ["--eval", "--train_dir=d"],
        ["--summary_verbosity=1", "--eval", "--train_dir=d"],
    ),
    ("--save_summaries_steps=2", ["--train_dir=d"], ["--train_dir=d", "--summary_verbosity=1"]),
    *(
        ("--save_summaries_steps=2", idle, ["--train_dir=d", "--summary_verbosity=1"])
        for idle in (
            ["--summary_verbosity=1"],
            ["--forward_only", "--train_dir=d", "--summary_verbosity=1"],
        )
    ),
    ("--summary_verbosity=1", ["--save_summaries_steps=2"], ["--eval", "--train_dir=d"]),
    ("--summary_verbosity=1", ["--train_dir=d"], ["--train_dir=d", "--save_summaries_steps=2"]),
    ("--nouse_chrome_trace_format", [], ["--trace_file=t"]),
    ("--profile_steps=9", [], ["--profile_json=p"]),
    ("--benchmark_test_id=t", [], ["--benchmark_log_dir=d"]),
    ("--xla_cache_dir=d", [], ["--xla_compile"]),
    ("--xla_cache_dir=d", ["--input_only", "--data_dir=d"], ["--xla"]),
    ("--freeze_when_forward_only", [], ["--forward_only"]),
    ("--ml_perf_compliance_logging", ["--forward_only"], []),
    ("--graph_file=g", ["--eval", "--train_dir=d"], ["--forward_only"]),
    ("--peak_flops=1e12", [], ["--result_json=r"]),
    ("--peak_flops=1e12", [], ["--result_csv=r"]),
]
JOB = ["--job_name=worker", "--worker_hosts=a:1,b:1", "--ps_hosts=c:1"]
CASES += [
    ("--ps_strategy=round_robin", [], JOB),
    ("--variable_caching=cpu", [], JOB),
    ("--nocross_replica_sync", [], JOB),
    ("--nocross_replica_sync", [*JOB, "--forward_only"], JOB),
]
REDUCING = ["--variable_update=replicated", "--num_gpus=2"]
CASES += [
    (f"--{flag}", idle, [*REDUCING, *needed])
    for flag, needed in (
        ("all_reduce_spec=xring", []),
        ("hierarchical_copy", []),
        ("gradient_repacking=2", []),
        ("compact_gradient_transfer", ["--use_fp16"]),
        ("nocompact_gradient_transfer", ["--precision=bf16"]),
        ("agg_small_grads_max_bytes=99", []),
        ("agg_small_grads_max_group=9", ["--agg_small_grads_max_bytes=99"]),
        ("noall_reduce_share_memory", ["--all_reduce_spec=xring"]),
        ("variable_consistency=relaxed", []),
        ("sparse_to_dense_grads", []),
        ("communication_hint=ring", ["--all_reduce_spec=collective"]),
        ("network_topology=dgx1", ["--hierarchical_copy"]),
        ("network_topology=dgx1", ["--all_reduce_spec=hierarchical_copy"]),
        ("all_reduce_group_size=1", ["--all_reduce_spec=copy/xring"]),
    )
    for idle in (
        [],
        ["--variable_update=independent", "--num_gpus=2"],
        *([REDUCING] if needed else []),
        *([] if "consistency" in flag else [["--variable_update=replicated"]]),
    )
]
UPDATING = [*REDUCING, "--all_reduce_spec=xring", "--use_fp16", "--train_dir=d"]
CASES += [
    (f"--{flag}", [*UPDATING, mode], UPDATING)
    for mode in ("--eval", "--forward_only")
    for flag in (
        "all_reduce_spec=xring",
        "gradient_repacking=2",
        "nocompact_gradient_transfer",
        "agg_small_grads_max_bytes=99",
        "variable_consistency=relaxed",
        "gradient_clip=3",
        "gradient_reduction=sum",
        "bn_stats=mean",
        "optimizer=momentum",
        "weight_decay=0.1",
        "label_smoothing=0.1",
        "backbone_model_path=b",
        "init_learning_rate=0.1",
        "piecewise_learning_rate_schedule=0.3;10;0.2",
        "resnet_base_lr=0.1",
        "fp16_loss_scale=4",
    )
]
CASES += [
    ("--staged_vars", ["--forward_only"], []),
    ("--staged_vars", ["--eval", "--train_dir=d"], []),
]
FOUR = ["--variable_update=replicated", "--num_gpus=4"]
CASES += [
    ("--local_parameter_device=cpu", [*REDUCING, "--all_reduce_spec=xring"], REDUCING),
    ("--local_parameter_device=cpu", [*REDUCING, "--hierarchical_copy"], REDUCING),
    (
        "--local_parameter_device=cpu",
        [*REDUCING, "--all_reduce_spec=xring/copy"],
        [*FOUR, "--all_reduce_spec=xring/copy", "--all_reduce_group_size=2"],
    ),
    *(
        ("--all_reduce_spec=copy/xring", [*FOUR, f"--all_reduce_group_size={size}"], busy)
        for size in (0, 1, 4, 9)
        for busy in (
            [*FOUR, "--all_reduce_group_size=2"],
            [*FOUR, "--all_reduce_group_size=3"],
        )
    ),
    (
        "--all_reduce_group_size=4",
        [*FOUR, "--all_reduce_spec=copy/xring"],
        ["--variable_update=replicated", "--num_gpus=5", "--all_reduce_spec=copy/xring"],
    ),
    *(
        ("--noall_reduce_share_memory", [*REDUCING, idle], [*REDUCING, "--all_reduce_spec=tree"])
        for idle in (
            "--all_reduce_spec=copy",
            "--all_reduce_spec=collective",
            "--all_reduce_spec=copy/xring",
        )
    ),
    (
        "--noall_reduce_share_memory",
        [*REDUCING, "--all_reduce_spec=tree", "--device=gpu"],
        [*REDUCING, "--all_reduce_spec=tree", "--device=cpu"],
    ),
    ("--allreduce_merge_scope=1", ["--variable_update=replicated"], REDUCING),
    (
        "--sparse_to_dense_grads",
        [*REDUCING, "--variable_consistency=relaxed"],
        [*REDUCING, "--variable_consistency=strong"],
    ),
    (
        "--agg_small_grads_max_bytes=99",
        [*REDUCING, "--agg_small_grads_max_group=1"],
        [*REDUCING, "--agg_small_grads_max_group=2"],
    ),
    ("--hierarchical_copy", [*REDUCING, "--all_reduce_spec=xring"], REDUCING),
    ("--variable_consistency=relaxed", [], ["--variable_update=replicated"]),
]
CASES += [
    (f"--{flag}", [], ["--data_dir=d"])
    for flag in (
        "resize_method=bilinear",
        "distortions",
        "nofuse_decode_and_crop",
        "input_preprocessor=default",
        "ml_perf",
        "datasets_use_prefetch",
        "datasets_prefetch_buffer_size=2",
        "multi_device_iterator_max_buffer_size=2",
        "datasets_num_private_threads=0",
        "datasets_use_caching",
        "datasets_repeat_cached_sample",
        "datasets_parallel_interleave_cycle_length=2",
        "datasets_parallel_interleave_prefetch=2",
        "datasets_sloppy_parallel_interleave",
        "on_bad_record=fail",
    )
]
CASES += [
    (f"--{flag}", ["--device=cpu"], others)
    for flag in (
        "gpu_indices=0",
        "gpu_thread_mode=gpu_private",
        "per_gpu_thread_count=2",
        "noallow_growth",
        "use_unified_memory",
        "winograd_nonfused",
        "nobatchnorm_persistent",
    )
    for others in ([], ["--device=gpu"])
]


@pytest.mark.parametrize(("flag", "idle", "busy"), CASES)
def test_notice_where_a_flag_changes_nothing(flag, idle, busy):
    name = flag.split("=")[0].removeprefix("--")
    names = {spec.name for spec in FLAGS}
    known = name if name in names else name.removeprefix("no")
    about = [n for n in parse_args([flag, *idle]).notices if f"--{known} " in n]
    assert len(about) == 1
    assert "\n" not in about[0]
    assert all(f"--{known}" not in notice for notice in parse_args([flag, *busy]).notices)


def test_a_flag_of_another_command_never_has_an_effect():
    (notice,) = parse_args(["--iters_per_step=5"]).notices
    assert notice == "--iters_per_step has no effect in a run: it is for cnnbench allreduce"


def test_what_runs_of_two_levels_is_told():
    two_levels = [*REDUCING, "--all_reduce_spec=copy/xring"]
    assert parse_args(two_levels).notices == (
        "--all_reduce_spec has no second level where all devices are one group: a group size of "
        "less than --num_gpus makes several",
    )
    assert parse_args([*two_levels, "--all_reduce_group_size=1"]).notices == (
        "--all_reduce_spec has no first level where every device is a group of its own",
    )


def test_a_name_scope_is_only_a_name():
    (notice,) = parse_args([*REDUCING, "--allreduce_merge_scope=2"]).notices
    assert notice == (
        "--allreduce_merge_scope changes only the names of operations as profiles show them: "
        "--gradient_repacking joins gradients"
    )


def test_every_entry_has_a_case():
    tried = {"iters_per_step"} | {
        case[0].split("=")[0].removeprefix("--").removeprefix("no") for case in CASES
    }
    assert [entry.flags for entry in UNUSED if not tried & set(entry.flags)] == []


def test_every_entry_is_about_flags():
    names = {spec.name for spec in FLAGS}
    assert [entry.flags for entry in UNUSED if not names.issuperset(entry.flags)] == []


def test_flags_with_one_reason_share_a_line():
    notices = parse_args(["--distortions", "--ml_perf", "--datasets_use_caching"]).notices
    assert notices == (
        "--distortions, --ml_perf and --datasets_use_caching have no effect without --data_dir",
    )
    assert parse_args(["--fp16_loss_scale=2", "--train_dir=d", "--forward_only"]).notices == (
        "--train_dir is only read from with --forward_only: it saves no checkpoints",
        "--fp16_loss_scale has no effect without --precision=fp16",
    )
    auto = ["--fp16_enable_auto_loss_scale", "--fp16_inc_loss_scale_every_n=5"]
    assert parse_args(auto).notices == (
        "--fp16_enable_auto_loss_scale and --fp16_inc_loss_scale_every_n have no effect "
        "without --precision=fp16",
    )


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--device=cpu", "--variable_update=independent", "--forward_only"],
        ["--nodistortions", "--save_model_secs=0", "--eval_interval_secs=0", "--eval_batch_size=0"],
        ["--device=cpu", "--gpu_indices=", "--per_gpu_thread_count=0"],
        ["--nocompact_gradient_transfer", "--use_fp16", *REDUCING],
        ["--all_reduce_spec=copy", "--allreduce_merge_scope=1", *REDUCING],
    ],
)
def test_nothing_to_say(argv):
    assert parse_args(argv).notices == ()
