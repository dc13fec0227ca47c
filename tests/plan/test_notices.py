"""Flags that change nothing: a notice beside some flags, and none beside others.

The sentences stand in golden/notices.txt.

Tests cnnbench/plan/rules.py, cnnbench/flags/facts.py and the rules of
cnnbench/flags/groups/*.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import sentences

from cnnbench.base.rules import Severity, notices_about
from cnnbench.flags import FLAGS
from cnnbench.flags.params import SPECS
from cnnbench.optimizers import OPTIMIZERS
from cnnbench.plan import parse_run
from cnnbench.plan.rules import rules_of_run
from cnnbench.variable_mgr.registry import find_mode

GOLDEN = Path(__file__).parent / "golden" / "notices.txt"
UNUSED = [
    rule for rule in rules_of_run(find_mode("replicated")) if rule.severity is Severity.NOTICE
]
SHORT = {
    "EVAL": "--eval --train_dir=d",
    "DURING": "--eval_during_training_every_n_steps=5",
    "TRAIN": "--train_dir=d",
    "SUMMARIES": "--train_dir=d --summary_verbosity=1 --save_summaries_steps=2",
    "REDUCING": "--variable_update=replicated --num_gpus=2",
    "INDEPENDENT": "--variable_update=independent --num_gpus=2",
    "FOUR": "--variable_update=replicated --num_gpus=4",
    "LEVELS": "--all_reduce_spec=copy/xring --all_reduce_group_size=2",
    "MIRRORED": "--variable_update=mirrored_strategy --num_gpus=2",
    "MULTI_WORKER": "--variable_update=multi_worker_mirrored_strategy",
    "COORDINATED": "--variable_update=parameter_server_strategy",
    "WORKER": "--job_name=worker --worker_hosts=a:1,b:1",
    "CHIEF": "--controller_host=d:1",
    "JOB": "--job_name=worker --worker_hosts=a:1,b:1 --ps_hosts=c:1",
    "OFFICIAL": "--data_dir=d --input_preprocessor=official_models_imagenet",
    "INPUT": "--data_dir=x --input_only",
}
"""Words of the table that stand for several flags."""

# A flag | flags beside which it has no effect | flags beside which it has one; - for none
TABLE = """
--optimizer=adam | INPUT |
--print_training_accuracy | INPUT |
--aux_head | INPUT |
--bn_stats=mean | INPUT | --num_gpus=2
--cross_device_ops=ring | INPUT MIRRORED | MIRRORED
--weight_decay=0.1 | --forward_only |
--gradient_reduction=sum | --num_gpus=2 --forward_only | --num_gpus=2
--save_model_steps=9 | INPUT TRAIN | TRAIN
--ema_decay=0.9 | --input_only --data_dir=x | EVAL
--ema_decay=0.9 | --forward_only | --forward_only TRAIN
--xla_cache_dir=d | INPUT | --xla
--xla_cache_dir=d | | --xla_compile
--save_model_secs=9 | | TRAIN
--max_ckpts_to_keep=2 | EVAL | TRAIN
--nouse_chrome_trace_format | | --trace_file=t
--profile_steps=9 | | --profile_json=p
--eval_dir=d | SUMMARIES | --summary_verbosity=1 EVAL
--eval_dir=d | EVAL | --summary_verbosity=1 EVAL
--collect_eval_results_async | | DURING
--collect_eval_results_async | EVAL | EVAL --eval_interval_secs=9
--save_summaries_steps=2 | TRAIN | SUMMARIES
--save_summaries_steps=2 | --summary_verbosity=1 | SUMMARIES
--save_summaries_steps=2 | --forward_only SUMMARIES | SUMMARIES
--summary_verbosity=1 | --save_summaries_steps=2 | EVAL
--summary_verbosity=1 | --forward_only TRAIN | SUMMARIES
--summary_verbosity=1 | TRAIN | SUMMARIES
--train_dir=d | --forward_only | --eval
--aux_head | --forward_only |
--conv_gradients=library | --forward_only |
--recompute=blocks | --forward_only |
--warmup=auto | EVAL |
--num_batches=9 | --steps_per_execution=4 | --steps_per_execution=3
--num_warmup_batches=9 | --steps_per_execution=4 | --steps_per_execution=3
--max_warmup_batches=99 | | --warmup=auto
--max_warmup_batches=99 | EVAL --warmup=auto | --warmup=auto
--eval_interval_secs=9 | DURING | EVAL
--eval_timeout_secs=9 | EVAL | EVAL --eval_interval_secs=9
--num_eval_batches=9 | | EVAL
--num_eval_epochs=9 | --forward_only | DURING
--fp16_loss_scale=9 | --precision=bf16 | --use_fp16
--fp16_loss_scale=9 | --use_fp16 --forward_only | --use_fp16
--fp16_inc_loss_scale_every_n=5 | --use_fp16 | --use_fp16 --fp16_enable_auto_loss_scale
--local_parameter_device=cpu | REDUCING --forward_only | --forward_only
--print_training_accuracy | --forward_only |
--benchmark_test_id=t | | --benchmark_log_dir=d
--freeze_when_forward_only | | --forward_only
--ml_perf_compliance_logging | --forward_only | DURING
--ml_perf_compliance_logging | | DURING
--allow_nonfinite | EVAL | --forward_only
--graph_file=g | EVAL | --forward_only
--distortions | | --data_dir=d
--augment=randaugment | | INPUT
--augment=randaugment | EVAL --data_dir=x | --data_dir=d
--mixup_alpha=0.2 | | INPUT
--cutmix_alpha=1 | --forward_only --data_dir=d | --data_dir=d
--input_distribution=strategy | MIRRORED | MIRRORED --data_dir=x
--input_distribution=strategy | MIRRORED --data_dir=x EVAL | MIRRORED --data_dir=x
--resize_method=area | OFFICIAL | --data_dir=d
--nodistort_color_in_yiq | --data_dir=d | --data_dir=d --distortions
--learning_rate_schedule=staircase | --init_learning_rate=1 \
    | --init_learning_rate=1 --num_epochs_per_decay=1 --learning_rate_decay_factor=0.5
--num_learning_rate_warmup_epochs=5 | | --init_learning_rate=0
--resnet_base_lr=0.5 | --init_learning_rate=0 |
--gradient_reduction=mean | INDEPENDENT | --num_gpus=2
--all_reduce_spec=xring | INDEPENDENT | REDUCING
--gradient_repacking=2 | MIRRORED | REDUCING
--sparse_to_dense_grads | INDEPENDENT | REDUCING
--local_parameter_device=cpu | MIRRORED |
--gradient_reduction=sum | --num_gpus=1 | --num_gpus=2
--bn_stats=mean | --num_gpus=1 | --num_gpus=2
--cross_device_ops=ring | MIRRORED --num_gpus=1 | MIRRORED
--cross_device_ops=ring | MIRRORED --forward_only | MIRRORED
--nocross_replica_sync | COORDINATED JOB CHIEF | JOB
--ps_strategy=round_robin | COORDINATED JOB CHIEF | JOB
--check_replica_consistency=5 | REDUCING --num_gpus=1 | REDUCING
--check_replica_consistency=5 | --num_gpus=2 | REDUCING
--check_replica_consistency=5 | INDEPENDENT | REDUCING
--check_replica_consistency=5 | REDUCING --forward_only | REDUCING
--bytes_per_pack=9 | MIRRORED --cross_device_ops=hierarchical_copy | MIRRORED
--bytes_per_pack=9 | MULTI_WORKER | MULTI_WORKER WORKER
--num_packs=9 | MIRRORED | MIRRORED --cross_device_ops=hierarchical_copy
--local_parameter_device=cpu | REDUCING --all_reduce_spec=xring | REDUCING
--local_parameter_device=cpu | REDUCING --hierarchical_copy | FOUR LEVELS
--all_reduce_spec=copy/xring | FOUR | FOUR LEVELS
--all_reduce_spec=copy/xring | FOUR --all_reduce_group_size=4 | FOUR LEVELS
--all_reduce_spec=copy/xring | FOUR --all_reduce_group_size=1 | FOUR LEVELS
--noall_reduce_share_memory | REDUCING --all_reduce_spec=tree --device=gpu \
    | REDUCING --all_reduce_spec=tree --device=cpu
--noall_reduce_share_memory | REDUCING --all_reduce_spec=copy \
    | REDUCING --all_reduce_spec=tree --device=cpu
--communication_hint=ring | REDUCING | REDUCING --all_reduce_spec=collective
--allreduce_merge_scope=2 | REDUCING | -
--sparse_to_dense_grads | REDUCING --variable_consistency=relaxed | REDUCING
--agg_small_grads_max_bytes=99 | REDUCING --agg_small_grads_max_group=1 | REDUCING
--agg_small_grads_max_group=9 | REDUCING | REDUCING --agg_small_grads_max_bytes=99
--hierarchical_copy | REDUCING --all_reduce_spec=xring | REDUCING
--network_topology=dgx1 | REDUCING | REDUCING --hierarchical_copy
--network_topology=dgx1 | REDUCING | REDUCING --all_reduce_spec=hierarchical_copy
--all_reduce_group_size=1 | REDUCING | REDUCING --all_reduce_spec=copy/xring
--all_reduce_group_size=4 | FOUR --all_reduce_spec=copy/xring \
    | FOUR --num_gpus=5 --all_reduce_spec=copy/xring
--variable_consistency=relaxed | | REDUCING
--variable_caching=cpu | | JOB
--nocross_replica_sync | | JOB
--nocross_replica_sync | JOB --forward_only | JOB
--compact_gradient_transfer | REDUCING | REDUCING --use_fp16
--iters_per_step=5 | | -
--noallow_growth | --device=cpu | --device=gpu
--peak_flops=1e12 | | --result_csv=r
"""


def test_notices_where_a_flag_changes_nothing_and_every_entry_gives_one():
    wrong, used, told = [], set(), {}
    names = {spec.name for spec in FLAGS}
    for line in filter(None, TABLE.replace("\\\n", "").splitlines()):
        short = [" ".join(cell.split()) for cell in line.split("|")]
        flag, idle, busy = (
            " ".join(SHORT.get(word, word) for word in cell.split()) for cell in short
        )
        name = flag.partition("=")[0]
        known = name if name[2:] in names else name.replace("--no", "--")
        parsed = parse_run([flag, *idle.split()])
        about = [line for line in parsed.notices if f"{known} " in line]
        needed = [] if busy == "-" else parse_run([flag, *busy.split()]).notices
        if len(about) != 1 or "\n" in about[0] or known in str(needed):
            wrong.append((flag, idle, about, needed))
        told[" ".join(short[:2]).strip()] = " ".join(about)
        given = parsed.explicit_flags
        used |= {n for n, entry in enumerate(UNUSED) if notices_about([entry], parsed, given)}
    assert not wrong
    untried = [
        entry.flags
        for n, entry in enumerate(UNUSED)
        if n not in used and not {*entry.flags} <= {*OPTIMIZERS.constants}  # tried below
    ]
    assert not untried, "tests/plan/test_notices.py: TABLE needs a row for each of these flags"
    assert all(names.issuperset(entry.flags) for entry in UNUSED)
    sentences(GOLDEN, told, told)


@pytest.mark.parametrize("flag", OPTIMIZERS.constants)
def test_a_constant_of_an_optimizer_has_no_effect_without_it(flag):
    given = f"--{flag}={SPECS[flag].default / 2}"
    for name, optimizer in OPTIMIZERS.items():
        notices = parse_run([given, f"--optimizer={name}"]).notices
        about = [notice for notice in notices if f"--{flag} " in notice]
        assert len(about) == (flag not in optimizer.flags)
        assert all("--optimizer=" in notice for notice in about)


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("--distortions --ml_perf --datasets_use_caching", ["distortions ml_perf datasets_use"]),
        ("--train_dir=d --forward_only --fp16_loss_scale=2", ["fp16_loss_scale", "train_dir"]),
    ],
)
def test_flags_with_one_reason_share_a_line(line, flags):
    notices = parse_run(line.split()).notices
    assert len(notices) == len(flags)
    for notice, named in zip(notices, flags, strict=True):
        assert all(f"--{name}" in notice for name in named.split())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--device=cpu --variable_update=independent --forward_only",
        "--nodistortions --save_model_secs=0 --eval_interval_secs=0 --eval_batch_size=0",
        "--device=cpu --gpu_indices= --per_gpu_thread_count=0",
        "--nocompact_gradient_transfer --use_fp16 --variable_update=replicated --num_gpus=2",
        "--allreduce_merge_scope=1 --num_gpus=2 --variable_update=replicated",
    ],
)
def test_nothing_to_say(line):
    assert parse_run(line.split()).notices == ()
