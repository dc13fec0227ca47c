"""Flags that change nothing: a notice beside some flags, and none beside others."""

from __future__ import annotations

import pytest

from cnnbench.flags import FLAGS
from cnnbench.plan import parse_run
from cnnbench.plan.notices import UNUSED
from cnnbench.plan.place import no_effect_notices, rules_from_declarations

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

# A flag | flags beside which it has no effect | words of the reason | flags beside which it has one
TABLE = """
--optimizer=adam                | INPUT | no network is built |
--save_model_steps=9            | INPUT TRAIN | no network is built | TRAIN
--ema_decay=0.9                 | --input_only --data_dir=x | no network is built | EVAL
--ema_decay=0.9                 | --forward_only | without --train_dir | --forward_only TRAIN
--xla_cache_dir=d               | INPUT | no network is built | --xla
--xla_cache_dir=d               | | without --xla_compile | --xla_compile
--save_model_secs=9             | | without --train_dir | TRAIN
--max_ckpts_to_keep=2           | EVAL | they do not train | TRAIN
--nouse_chrome_trace_format     | | without --trace_file | --trace_file=t
--profile_steps=9               | | without --profile_json | --profile_json=p
--eval_dir=d                    | SUMMARIES | without an evaluation | --summary_verbosity=1 EVAL
--eval_dir=d                    | EVAL | without --summary_verb | --summary_verbosity=1 EVAL
--collect_eval_results_async    | | without an evaluation | DURING
--collect_eval_results_async    | EVAL | of one checkpoint | EVAL --eval_interval_secs=9
--save_summaries_steps=2        | TRAIN | without --summary_verb | SUMMARIES
--save_summaries_steps=2        | --summary_verbosity=1 | without --train_dir | SUMMARIES
--save_summaries_steps=2        | --forward_only SUMMARIES | summaries of a training | SUMMARIES
--summary_verbosity=1           | --save_summaries_steps=2 | without a training | EVAL
--summary_verbosity=1           | --forward_only TRAIN | without a training | SUMMARIES
--summary_verbosity=1           | TRAIN | --save_summaries_steps | SUMMARIES
--train_dir=d                   | --forward_only | is only read from | --eval
--aux_head                      | --forward_only | for the training loss |
--conv_gradients=library        | --forward_only | they compute no gradients |
--recompute=blocks              | --forward_only | they compute no gradients |
--warmup=auto                   | EVAL | it has no warm-up |
--num_batches=9                 | --steps_per_execution=4 | is rounded up to 12, | \
    --steps_per_execution=3
--num_warmup_batches=9          | --steps_per_execution=4 | is rounded up to 12, | \
    --steps_per_execution=3
--max_warmup_batches=99         | | without --warmup=auto | --warmup=auto
--max_warmup_batches=99         | EVAL --warmup=auto | it has no warm-up | --warmup=auto
--eval_interval_secs=9          | DURING | without --eval | EVAL
--eval_timeout_secs=9           | EVAL | without --eval_interval_secs | EVAL --eval_interval_secs=9
--num_eval_batches=9            | | add --eval | EVAL
--num_eval_epochs=9             | --forward_only | add --eval | DURING
--fp16_loss_scale=9             | --precision=bf16 | without --precision=fp16 | --use_fp16
--fp16_loss_scale=9             | --use_fp16 --forward_only | they do not train | --use_fp16
--fp16_inc_loss_scale_every_n=5 | --use_fp16 | fp16_enable_auto \
    | --use_fp16 --fp16_enable_auto_loss_scale
--local_parameter_device=cpu    | REDUCING --forward_only | has its own variables | --forward_only
--print_training_accuracy       | --forward_only | always print it |
--benchmark_test_id=t           | | --benchmark_log_dir | --benchmark_log_dir=d
--freeze_when_forward_only      | | without --forward_only | --forward_only
--ml_perf_compliance_logging    | --forward_only | with --eval | DURING
--ml_perf_compliance_logging    | | logs no eval_accuracy without evaluations | DURING
--allow_nonfinite               | EVAL | an evaluation never ends because of a loss | --forward_only
--graph_file=g                  | EVAL | the step of a training | --forward_only
--distortions                   | | without --data_dir | --data_dir=d
--augment=randaugment           | | without --data_dir | INPUT
--augment=randaugment           | EVAL --data_dir=x | they change training | --data_dir=d
--mixup_alpha=0.2               | | without --data_dir | INPUT
--cutmix_alpha=1                | --forward_only --data_dir=d | they do not train | --data_dir=d
--input_distribution=strategy   | MIRRORED | without --data_dir | MIRRORED --data_dir=x
--input_distribution=strategy   | MIRRORED --data_dir=x EVAL | for training batches \
    | MIRRORED --data_dir=x
--resize_method=area            | OFFICIAL | official_models_imagenet | --data_dir=d
--nodistort_color_in_yiq        | --data_dir=d | without --distortions | --data_dir=d --distortions
--momentum=0.5                  | --optimizer=rmsprop | =lars or momentum | --optimizer=lars
--adam_epsilon=0.5              | | --optimizer=adam or adamw | --optimizer=adamw
--lamb_epsilon=0.5              | --optimizer=adam | --optimizer=lamb | --optimizer=lamb
--lars_coefficient=0.5          | | --optimizer=lars | --optimizer=lars
--lion_beta1=0.5                | | --optimizer=lion | --optimizer=lion
--rmsprop_decay=0.5             | | --optimizer=rmsprop | --optimizer=rmsprop
--adam_beta1=0.5                | | --optimizer=adam, adamw or lamb | --optimizer=lamb
--learning_rate_schedule=staircase | --init_learning_rate=1 | --num_epochs_per_decay \
    | --init_learning_rate=1 --num_epochs_per_decay=1 --learning_rate_decay_factor=0.5
--num_learning_rate_warmup_epochs=5 | | model's own schedule | --init_learning_rate=0
--resnet_base_lr=0.5            | --init_learning_rate=0 | --init_learning_rate |
--gradient_reduction=mean       | INDEPENDENT | =independent | --num_gpus=2
--all_reduce_spec=xring         | INDEPENDENT | without --variable_upd | REDUCING
--gradient_repacking=2          | MIRRORED | without --variable_upd | REDUCING
--sparse_to_dense_grads         | INDEPENDENT | =independent | REDUCING
--local_parameter_device=cpu    | MIRRORED | TensorFlow decides |
--gradient_reduction=sum        | --num_gpus=1 | nothing to reduce | --num_gpus=2
--bn_stats=mean                 | --num_gpus=1 | nothing to reduce | --num_gpus=2
--cross_device_ops=ring         | MIRRORED --num_gpus=1 | nothing to reduce | MIRRORED
--cross_device_ops=ring         | MIRRORED --forward_only | they do not train | MIRRORED
--nocross_replica_sync          | COORDINATED JOB CHIEF | no worker waits | JOB
--ps_strategy=round_robin       | COORDINATED JOB CHIEF | round-robin | JOB
--check_replica_consistency=5   | REDUCING --num_gpus=1 | one copy of every | REDUCING
--check_replica_consistency=5   | --num_gpus=2 | keeps one copy of every | REDUCING
--check_replica_consistency=5   | INDEPENDENT | not keep the copies | REDUCING
--check_replica_consistency=5   | REDUCING --forward_only | they do not train | REDUCING
--bytes_per_pack=9              | MIRRORED --cross_device_ops=hierarchical_copy | =ring or auto \
    | MIRRORED
--bytes_per_pack=9              | MULTI_WORKER | nothing to reduce | MULTI_WORKER WORKER
--num_packs=9                   | MIRRORED | --cross_device_ops=hier \
    | MIRRORED --cross_device_ops=hierarchical_copy
--local_parameter_device=cpu    | REDUCING --all_reduce_spec=xring | only copy uses | REDUCING
--local_parameter_device=cpu    | REDUCING --hierarchical_copy | only copy uses | FOUR LEVELS
--all_reduce_spec=copy/xring    | FOUR | no second level | FOUR LEVELS
--all_reduce_spec=copy/xring    | FOUR --all_reduce_group_size=4 | no second level | FOUR LEVELS
--all_reduce_spec=copy/xring    | FOUR --all_reduce_group_size=1 | no first level | FOUR LEVELS
--noall_reduce_share_memory     | REDUCING --all_reduce_spec=tree --device=gpu | never share \
    | REDUCING --all_reduce_spec=tree --device=cpu
--noall_reduce_share_memory     | REDUCING --all_reduce_spec=copy | in either case \
    | REDUCING --all_reduce_spec=tree --device=cpu
--communication_hint=ring       | REDUCING | without collective \
    | REDUCING --all_reduce_spec=collective
--allreduce_merge_scope=2       | REDUCING | only the names | -
--sparse_to_dense_grads         | REDUCING --variable_consistency=relaxed | all gradients | REDUCING
--agg_small_grads_max_bytes=99  | REDUCING --agg_small_grads_max_group=1 | max_group=1 | REDUCING
--agg_small_grads_max_group=9   | REDUCING | max_bytes | REDUCING --agg_small_grads_max_bytes=99
--hierarchical_copy             | REDUCING --all_reduce_spec=xring | --all_reduce_spec | REDUCING
--network_topology=dgx1         | REDUCING | hierarchical copy | REDUCING --hierarchical_copy
--network_topology=dgx1         | REDUCING | hierarchical copy \
    | REDUCING --all_reduce_spec=hierarchical_copy
--all_reduce_group_size=1       | REDUCING | a two-level algorithm \
    | REDUCING --all_reduce_spec=copy/xring
--all_reduce_group_size=4       | FOUR --all_reduce_spec=copy/xring | so few devices \
    | FOUR --num_gpus=5 --all_reduce_spec=copy/xring
--variable_consistency=relaxed  | | without --variable_upd | REDUCING
--variable_caching=cpu          | | without --ps_hosts | JOB
--nocross_replica_sync          | | no other workers | JOB
--nocross_replica_sync          | JOB --forward_only | they update nothing | JOB
--compact_gradient_transfer     | REDUCING | --precision=fp32 | REDUCING --use_fp16
--iters_per_step=5              | | cnnbench allreduce | -
--noallow_growth                | --device=cpu | with --device=cpu | --device=gpu
--peak_flops=1e12               | | without --result_json | --result_csv=r
"""


def test_notices_where_a_flag_changes_nothing_and_every_entry_gives_one():
    wrong, used = [], set()
    names = {spec.name for spec in FLAGS}
    for line in filter(None, TABLE.replace("\\\n", "").splitlines()):
        flag, idle, reason, busy = (
            " ".join(SHORT.get(word, word) for word in cell.split()) for cell in line.split("|")
        )
        name = flag.partition("=")[0]
        known = name if name[2:] in names else name.replace("--no", "--")
        parsed = parse_run([flag, *idle.split()])
        about = [line for line in parsed.notices if f"{known} " in line]
        needed = [] if busy == "-" else parse_run([flag, *busy.split()]).notices
        if len(about) != 1 or reason not in about[0] or "\n" in about[0] or known in str(needed):
            wrong.append((flag, idle, about, needed))
        given = parsed.explicit_flags
        used |= {n for n, entry in enumerate(UNUSED) if no_effect_notices([entry], parsed, given)}
    assert not wrong
    assert [entry.flags for n, entry in enumerate(UNUSED) if n not in used] == []
    assert all(names.issuperset(entry.flags) for entry in UNUSED)


def test_every_condition_of_a_declaration_is_a_rule():
    conditions = {condition for spec in FLAGS for condition in spec.effect_conditions}
    assert conditions
    assert rules_from_declarations(FLAGS).keys() == conditions


def test_flags_with_one_reason_share_a_line():
    assert parse_run(["--distortions", "--ml_perf", "--datasets_use_caching"]).notices == (
        "--distortions, --ml_perf and --datasets_use_caching have no effect without --data_dir",
    )
    assert parse_run(["--fp16_loss_scale=2", "--train_dir=d", "--forward_only"]).notices == (
        "--train_dir is only read from with --forward_only: it saves no checkpoints",
        "--fp16_loss_scale has no effect without --precision=fp16",
    )


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
