"""Wrong use of every command: a table of command lines and of the flag that each error names.

Each is an error: exit code 2 and a single line on stderr. It prints nothing else, and changes no
file. The sentences stand in golden/refusals.txt.

Tests cnnbench/plan/rules.py, cnnbench/plan/place.py, cnnbench/plan/network.py,
cnnbench/plan/length.py, cnnbench/lab/all_reduce/plan.py, cnnbench/cli/commands/*.py, and the rules
of cnnbench/flags/groups/*.py.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from golden import sentences
from short_runs import NETWORKS
from step_profiles import Profiles

from cnnbench.base.rules import FlagRule, Severity
from cnnbench.cli import main
from cnnbench.cli.overview import COMMANDS
from cnnbench.errors import FlagError
from cnnbench.plan import place as tasks
from cnnbench.plan.rules import RULES_OF_NETWORK, rules_of_run
from cnnbench.variable_mgr.modes import BUILT_IN

GOLDEN = Path(__file__).parent / "golden" / "refusals.txt"
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("quick_answers")]


SHORT = {
    "TWO_CPUS": "--model=lenet --num_gpus=2 --batch_size=4 --device=cpu",
    "TINY": "--model=trivial --data_name=cifar10 --device=cpu",
    "DECAY": "--num_epochs_per_decay=2 --learning_rate_decay_factor=0.5",
    "PIECEWISE": "'--piecewise_learning_rate_schedule=1;3;.1'",
    "COSINE": "--learning_rate_schedule=cosine",
    "DURING": "--eval_during_training_every_n_steps=5",
    "WORKERS": "--worker_hosts=a:1,b:1",
    "ME": "--job_name=worker --worker_hosts=a:1,b:1",
    "ALL_REDUCE": "--variable_update=distributed_all_reduce",
    "FOUR": "--variable_update=distributed_all_reduce --num_gpus=4 --device=cpu",
    "REPLICATED": "--variable_update=replicated --num_gpus=2",
    "MIRRORED": "--variable_update=mirrored_strategy --num_gpus=2",
    "SPLIT": "--variable_update=mirrored_strategy --num_gpus=2 --input_distribution=strategy",
    "CENTRAL": "--variable_update=central_storage_strategy --num_gpus=2",
    "MULTI_WORKER": "--variable_update=multi_worker_mirrored_strategy",
    "COORDINATED": "--variable_update=parameter_server_strategy",
    "CHIEF": "--job_name=controller --worker_hosts=a:1 --ps_hosts=c:1 --controller_host=d:1",
    "ASYNCHRONOUS": "--ps_hosts=c:1 --nocross_replica_sync",
    "GROUPS": "--all_reduce_group_size=2",
    "PER_REPLICA": "--input_replication=per_replica",
    "MANUAL": "--input_sharding=manual",
    "RING": "--variable_update=distributed_all_reduce --all_reduce_spec=xring",
    "PARTS": "--device=gpu --num_gpus=2 --gpus_per_card=2",
    "RINGS": "--variable_update=replicated --all_reduce_spec=collective",
    "MAKE": "make-imagenet images out",
    "FROZEN": "--model=trivial --forward_only --freeze_when_forward_only",
    "NO_WARMUP": "--num_warmup_batches=0",
    "DETECTOR": f"--plugin={NETWORKS} --model=detector",
    "ORACLE": f"--plugin={NETWORKS} --model=oracle",
    "LIMITED": f"--plugin={NETWORKS} --model=limited",
    "POINTS": f"--plugin={NETWORKS} --model=points",
    "CIFAR10": "--model=trivial --data_dir=cifar10",
}
"""Words of the table that stand for several flags."""

# A command line | the first flag that the error names, or else the argument or command
TABLE = r"""

# The command line
import | import
import old.log | --results
import nowhere.log --results=out | nowhere.log
import old.log --results=out --strict | --strict
import old.log --results=out --reader=results_csv | --reader
import old.log --results=out --label=commit | --label
run resnet50 | resnet50
run --model=lenet -- x | x
run --xla True | --xla
run -distortions False --num_gpus=2 | False
run --xla maybe | --xla
run --batchsize=3 | --batchsize
run -batchsize=3 | -batchsize
run -x | -x
run --nowinograd | --nowinograd
run --num_gpus=1_0 | --num_gpus
run --num_gpus=١ | --num_gpus
run --num_gpus=1.5 | --num_gpus
run --num_gpus= | --num_gpus
run --weight_decay=1_0 | --weight_decay
run --weight_decay=NaN | --weight_decay
run --num_epochs=1e999 | --num_epochs
run --eval_during_training_at_specified_steps=1,,2 | --eval_during_training_at_specified_steps
run --eval_during_training_at_specified_epochs=1,x | --eval_during_training_at_specified_epochs
run --result_json= | --result_json
run --model=trivial --data_name=cifar10 --data_dir=cifar10 --batch_size=1 --device=cpu \
    --num_batches=1 --result_json=cifar10/data_batch_1.bin | --result_json
run --zzzzzz | --zzzzzz
run '--num_batches 3' | --num_batches
compare --zzzzzz | --zzzzzz
run --nonum_gpus | --nonum_gpus
run --batch_size | --batch_size
run --flagfile | --flagfile
compare -o | -o
run --xla=maybe | --xla
run --num_gpus -1 | --num_gpus
run --optimizer=ftrl | --optimizer
run --optimizer=momentun | --optimizer
run --variable_update=replicate | --variable_update
run --data_format=nhcw | --data_format
run --learning_rate_schedule=cosin | --learning_rate_schedule
run --model=resnet49 | --model
run --device=gpu --num_gpus=99 | --num_gpus
run --data_dir=/nowhere | --data_dir
run --result_csv=/proc/none/r.csv | --result_csv
run --flagfile=nowhere | --flagfile
run --flagfile=circle | --flagfile
run --flagfile=latin | --flagfile
# What is run
run --eval | --eval
run --eval --train_dir=d --forward_only | --forward_only
run --num_batches=3 --num_epochs=1 | --num_batches
run --find_batch_size TINY | --find_batch_size
run --find_batch_size --eval --train_dir=d | --find_batch_size
run --find_batch_size TINY --train_dir=new | --find_batch_size
run --find_batch_size --eval_batch_size=2 | --find_batch_size
ab --b=--find_batch_size -- TINY | --find_batch_size
launch --ps=1 -- TINY --find_batch_size | --find_batch_size
roofline lenet --find_batch_size | --find_batch_size
run --max_seconds=3 --num_epochs=1 | --max_seconds
run --max_seconds=3 --eval --train_dir=/tmp | --max_seconds
run --max_seconds=0 | --max_seconds
run --num_eval_batches=3 --num_eval_epochs=1 | --num_eval_batches
run --stop_at_top_1_accuracy=1 | --stop_at_top_1_accuracy
run --stop_at=loss:2 | --stop_at
run DURING --stop_at=top_1 | --stop_at
run DURING --stop_at=0.759 | --stop_at
run DURING --stop_at=:0.759 | --stop_at
run DURING --stop_at=top_1: | --stop_at
run DURING --stop_at=top_1:high | --stop_at
run DURING --stop_at=loss:nan | --stop_at
run DURING --model=resnet50 --stop_at=map:0.2 | --stop_at
run DURING --model=ncf --stop_at=top_1_accuracy:0.6 | --stop_at
run DURING --model=deepspeech2 --stop_at_top_1_accuracy=0.6 | --stop_at_top_1_accuracy
run DURING --model=resnet50 --stop_at=top_1:75.9 | --stop_at
run DURING --model=ssd300 --stop_at=map:21.2 | --stop_at
run DURING --model=resnet50 --stop_at=top_1:0.7 \
    --stop_at_top_1_accuracy=0.7 | --stop_at_top_1_accuracy
run DURING --eval_during_training_every_n_epochs=1 | --eval_during_training_every_n_epochs
run DURING --eval_during_training_at_specified_steps=5,9 | --eval_during_training_at_specified_steps
run DURING --eval_during_training_at_specified_epochs=1 | --eval_during_training_at_specified_epochs
run --eval_during_training_every_n_epochs=1 \
    --eval_during_training_at_specified_steps=5 | --eval_during_training_at_specified_steps
run --eval_during_training_every_n_epochs=1 \
    --eval_during_training_at_specified_epochs=1 | --eval_during_training_at_specified_epochs
run --eval_during_training_at_specified_steps=5 \
    --eval_during_training_at_specified_epochs=1 | --eval_during_training_at_specified_epochs
run DURING --forward_only | --eval_during_training_every_n_steps
run DURING --eval --train_dir=d | --eval_during_training_every_n_steps
run --input_only | --input_only
run --input_only --data_dir=d --forward_only | --input_only
run --input_only --data_dir=d --eval --train_dir=t | --input_only
run --input_only --data_dir=d DURING | --eval_during_training_every_n_steps
run --save_model_secs=60 --save_model_steps=10 | --save_model_steps
run --result_json=- | --result_json
run --train_dir=- | --train_dir
run --result_json=a --result_csv=b/../a | --result_csv
run --result_label=commit | --result_label
run --result_label==abc | --result_label
run --result_label=commit= | --result_label
run --result_label=1st=2 | --result_label
run '--result_label=a b=c' | --result_label
run --result_label=a=1,a=2 | --result_label
run --quiet_conditions=noise | --quiet_conditions
run --quiet_conditions=lod | --quiet_conditions
# Outputs
run --graph_file=none/x.pb | --graph_file
run --partitioned_graph_file_prefix=none/x | --partitioned_graph_file_prefix
run --trace_file=none/x | --trace_file
run --profile_json=none/x | --profile_json
run --nouse_chrome_trace_format --trace_file=ff/below | --trace_file
run --benchmark_log_dir=ff/below | --benchmark_log_dir
run --xla --xla_cache_dir=ff/below | --xla_cache_dir
run --eval --train_dir=. --summary_verbosity=1 --eval_dir=ff | --eval_dir
run --train_dir=/proc/none/ckpt | --train_dir
run --train_dir=model.ckpt-12 | --train_dir
run --export_dir=ff | --export_dir
run --export_dir=ff/below | --export_dir
run --export_dir=. | --export_dir
run --train_dir=d --export_dir=d | --export_dir
run --graph_file=a.json --result_json=./a.json | --graph_file
run --profile_json=x --result_json=x | --profile_json
run --partitioned_graph_file_prefix=a.txt --result_json=a1.txt | --partitioned_graph_file_prefix
# Profilers need warm-up steps
run --partitioned_graph_file_prefix=x NO_WARMUP | --partitioned_graph_file_prefix
run --profile_json=x NO_WARMUP | --profile_json
run --trace_file=x NO_WARMUP | --trace_file
run --profile_json=x --trace_file=y | --profile_json
run --profile_json=x --partitioned_graph_file_prefix=y | --profile_json
run --profile_json=x --profile_steps=0 | --profile_steps
# Flags that a model or a data set does not support
run --data_name=cifar10 --data_dir=. --input_preprocessor=official_models_imagenet \
    --model=trivial | --input_preprocessor
run --model=trivial --collect_eval_results_async DURING | --collect_eval_results_async
run --model=trivial --backbone_model_path=. | --backbone_model_path
run DETECTOR --backbone_model_path=none | --backbone_model_path
run ORACLE --label_smoothing=0.1 | --label_smoothing
run ORACLE --data_name=imagenet --data_dir=. --mixup_alpha=0.2 | --mixup_alpha
run --model=ncf --data_name=ratings --data_dir=. --cutmix_alpha=1 | --cutmix_alpha
run --model=ncf --data_name=ratings --data_dir=. --augment=randaugment | --augment
run CIFAR10 --mixup_alpha=0.2 --batch_size=3 | --mixup_alpha
run CIFAR10 --on_bad_record=skip | --on_bad_record
run CIFAR10 MULTI_WORKER ME --input_distribution=strategy \
    --auto_shard_policy=file | --auto_shard_policy
run LIMITED --data_dir=cifar10 | --model
run LIMITED --data_format=NCHW | --data_format
run LIMITED REPLICATED --keras_layers=own --bn_stats=sync | --keras_layers
run TINY --keras_layers=own | --keras_layers
run TINY --aux_head | --aux_head
run --model=ncf --print_training_accuracy | --print_training_accuracy
run POINTS | --model
run --augment=autoaugment | --augment
run --mixup_alpha=-1 | --mixup_alpha
# Runs that cannot be frozen or computed in integers
run FROZEN --train_dir=d | --freeze_when_forward_only
run FROZEN --model=vgg16 --num_gpus=4 | --freeze_when_forward_only
# Sizes
run --model=trivial --warmup=auto --num_warmup_batches=40 \
    --max_warmup_batches=30 | --max_warmup_batches
run --model=trivial --autotune_threshold=9999 | --autotune_threshold
run --warmup=auto --max_warmup_batches=19 | --max_warmup_batches
run TINY --eval --train_dir=. --num_eval_epochs=1e9 | --num_eval_epochs
run TINY --num_epochs=1e30 | --num_epochs
run TINY --eval_during_training_every_n_epochs=1e-9 | --eval_during_training_every_n_epochs
run TINY --num_batches=1000000 \
    --eval_during_training_every_n_steps=1 | --eval_during_training_every_n_steps
run TINY --weight_decay=1e300 | --weight_decay
# Precision
run --precision=fp16 --fp16_loss_scale=1e-39 | --fp16_loss_scale
run --precision=bf16 --use_fp16 | --use_fp16
run --precision=fp16 --nouse_fp16 | --use_fp16
run --conv_gradients=fastest --device=gpu | --device
run --conv_gradients=fastest --xla | --xla
run --conv_gradients=fastest --data_format=NCHW | --data_format
run --recompute=blocks --xla | --xla
run --recompute=blocks --xla_compile | --xla_compile
run --recompute=blocks --model=lenet | --recompute
run --recompute=all | --recompute
run --conv_gradients=fast | --conv_gradients
run --fp16_vars | --fp16_vars
run --fp16_vars --use_fp16 --optimizer=adam | --fp16_vars
run --fp16_vars --use_fp16 --optimizer=rmsprop --rmsprop_epsilon=1e-5 | --rmsprop_epsilon
# The learning rate
run PIECEWISE --init_learning_rate=0 | --init_learning_rate
run PIECEWISE --num_epochs_per_decay=2 | --num_epochs_per_decay
run PIECEWISE COSINE | --learning_rate_schedule
run DECAY | --num_epochs_per_decay
run --init_learning_rate=1 --learning_rate_decay_factor=1 | --learning_rate_decay_factor
run --init_learning_rate=1 --num_epochs_per_decay=1 | --num_epochs_per_decay
run --minimum_learning_rate=0.01 | --minimum_learning_rate
run --init_learning_rate=1 --minimum_learning_rate=0.01 | --minimum_learning_rate
run --learning_rate_schedule=exponential --init_learning_rate=1 | --learning_rate_schedule
run COSINE --minimum_learning_rate=0.1 | --learning_rate_schedule
run COSINE --init_learning_rate=1 DECAY | --num_epochs_per_decay
run COSINE --init_learning_rate=1 --minimum_learning_rate=2 | --minimum_learning_rate
run DECAY --init_learning_rate=1 --minimum_learning_rate=2 | --minimum_learning_rate
run DECAY --init_learning_rate=1 --minimum_learning_rate=2 --learning_rate_schedule=exponential \
    | --minimum_learning_rate
run --piecewise_learning_rate_schedule=high | --piecewise_learning_rate_schedule
run '--piecewise_learning_rate_schedule=1;3' | --piecewise_learning_rate_schedule
run '--piecewise_learning_rate_schedule=-1;3;.1' | --piecewise_learning_rate_schedule
run '--piecewise_learning_rate_schedule=1;1.5;.1' | --piecewise_learning_rate_schedule
run '--piecewise_learning_rate_schedule=1;5;.1;5;.01' | --piecewise_learning_rate_schedule
# Modes
run --staged_vars --variable_update=replicated | --staged_vars
run --bn_stats=sync --variable_update=independent | --bn_stats
run --bn_stats=sync --xla_compile | --bn_stats
run --variable_update=one_device_strategy --num_gpus=2 | --num_gpus
run REPLICATED --cross_device_ops=ring | --cross_device_ops
run CENTRAL --cross_device_ops=ring | --cross_device_ops
run CENTRAL --num_packs=2 | --num_packs
run MIRRORED --num_gpus=3 --cross_device_ops=hierarchical_copy | --cross_device_ops
run MIRRORED --cross_device_ops=nccl --device=cpu | --cross_device_ops
run MULTI_WORKER --num_gpus=2 --device=cpu | --num_gpus
run MULTI_WORKER --cross_device_ops=reduction_to_one_device | --cross_device_ops
run MULTI_WORKER --num_packs=2 | --num_packs
run MULTI_WORKER --num_gpus=2 --gpu_indices=1,0 | --gpu_indices
run MULTI_WORKER ME --summary_verbosity=2 --bn_stats=sync | --summary_verbosity
run MIRRORED --data_dir=d MANUAL | --input_sharding
run MIRRORED --data_dir=d --noprefetch_on_device | --prefetch_on_device
run REPLICATED --input_distribution=strategy | --input_distribution
run SPLIT --input_only --data_dir=d | --input_distribution
run CENTRAL --input_distribution=strategy | --input_sharding
run SPLIT --auto_shard_policy=hint | --auto_shard_policy
run SPLIT --auto_shard_policy=data MANUAL | --auto_shard_policy
run SPLIT PER_REPLICA | --input_replication
run SPLIT PER_REPLICA MANUAL --prefetch_on_device | --prefetch_on_device
run CENTRAL --input_distribution=strategy PER_REPLICA MANUAL | --input_replication
run MULTI_WORKER --data_dir=d --input_distribution=strategy PER_REPLICA MANUAL | --input_replication
# All-reduces
run ALL_REDUCE | --variable_update
run REPLICATED --all_reduce_spec=copy:1K:xring | --all_reduce_spec
run --gradient_repacking=2 --gradient_bucket_bytes=9 | --gradient_bucket_bytes
run REPLICATED --gradient_repacking=501 | --gradient_repacking
run REPLICATED --hierarchical_copy --network_topology=gcp_v100 | --network_topology
run FOUR --all_reduce_spec=nccl | --all_reduce_spec
run FOUR --all_reduce_spec=copy:2048:nccl/xring GROUPS | --all_reduce_spec
run FOUR --all_reduce_spec=copy/nccl GROUPS | --all_reduce_spec
run FOUR --all_reduce_spec=copy#2 --device=auto | --all_reduce_spec
run FOUR --all_reduce_spec=collective#3 | --all_reduce_spec
run FOUR --all_reduce_spec=copy/collective --communication_hint=nccl GROUPS | --all_reduce_spec
run FOUR --all_reduce_spec=collective#2 --communication_hint=nccl --device=gpu | --all_reduce_spec
run FOUR --all_reduce_spec=xring#5 | --all_reduce_spec
run FOUR --all_reduce_spec=pscpu#2 --device=gpu | --all_reduce_spec
run FOUR --all_reduce_spec=copy/psgpu#3 GROUPS | --all_reduce_spec
run FOUR --all_reduce_spec=hierarchical_copy --network_topology=gcp_v100 | --all_reduce_spec
run FOUR --variable_update=collective_all_reduce --communication_hint=nccl | --communication_hint
run --variable_update=collective_all_reduce ME --device=cpu \
    --communication_hint=nccl | --communication_hint
# Devices and jobs
run --per_gpu_thread_count=3 --gpu_thread_mode=global | --per_gpu_thread_count
run --gpu_indices=0,x --num_gpus=2 | --gpu_indices
run --gpu_indices=1,1 --num_gpus=2 | --gpu_indices
run --gpu_indices=0,1,2 --num_gpus=2 | --gpu_indices
run PARTS --gpus_per_card=0 | --gpus_per_card
run PARTS --allow_growth | --allow_growth
run ME RING --device=gpu --num_gpus=3 --gpus_per_card=2 | --gpus_per_card
run PARTS --variable_update=replicated --all_reduce_spec=nccl | --all_reduce_spec
run PARTS --variable_update=replicated --all_reduce_spec=nccl/xring | --all_reduce_spec
run PARTS --variable_update=mirrored_strategy --cross_device_ops=nccl | --cross_device_ops
run PARTS RINGS --communication_hint=nccl | --all_reduce_spec
run ME --variable_update=parameter_server | --ps_hosts
run --job_name=worker --ps_hosts=c:1 | --worker_hosts
run --job_name=worker ALL_REDUCE --all_reduce_spec=copy | --job_name
run ME ALL_REDUCE --all_reduce_spec=copy --task_index=2 | --task_index
run --task_index=1 | --task_index
run ME MULTI_WORKER --controller_host=c:1 | --controller_host
run ME ALL_REDUCE --all_reduce_spec=copy --ps_hosts=c:1 | --ps_hosts
run ME ALL_REDUCE --all_reduce_spec=copy/collective | --all_reduce_spec
run ME ALL_REDUCE --all_reduce_spec=nccl --num_gpus=2 --device=gpu | --all_reduce_spec
run WORKERS --ps_hosts=c:1 | --job_name
run WORKERS --cluster=slurm | --worker_hosts
run ME MULTI_WORKER --input_only --data_dir=d | --input_only
run ME --ps_hosts=a:1 | --worker_hosts
run ME --ps_hosts=c | --ps_hosts
run --rendezvous=nohost | --rendezvous
run --rendezvous=localhost:2² | --rendezvous
run COORDINATED | --variable_update
run COORDINATED ME --controller_host=d:1 | --ps_hosts
run COORDINATED ME --ps_hosts=c:1 | --controller_host
run COORDINATED CHIEF --num_gpus=2 | --num_gpus
run COORDINATED CHIEF --data_dir=x --num_inter_threads=3 | --num_inter_threads
run COORDINATED CHIEF --data_dir=. --data_name=imagenet --on_bad_record=skip | --on_bad_record
run ME ASYNCHRONOUS --data_dir=. --data_name=imagenet --on_bad_record=skip | --on_bad_record
run COORDINATED CHIEF --eval --train_dir=x | --eval
run COORDINATED CHIEF --forward_only | --forward_only
run COORDINATED CHIEF --input_only --data_dir=x | --input_only
run COORDINATED CHIEF --train_dir=x --summary_verbosity=1 \
    --save_summaries_steps=2 | --save_summaries_steps
run COORDINATED CHIEF --gradient_accumulation_steps=2 | --gradient_accumulation_steps
run ME ASYNCHRONOUS --gradient_accumulation_steps=2 | --gradient_accumulation_steps
run --gradient_accumulation_steps=2 --forward_only | --gradient_accumulation_steps
run --gradient_accumulation_steps=2 --eval --train_dir=x | --gradient_accumulation_steps
run --gradient_accumulation_steps=2 --staged_vars | --gradient_accumulation_steps
run --gradient_accumulation_steps=2 --variable_update=independent | --gradient_accumulation_steps
run COORDINATED CHIEF --steps_per_execution=2 | --steps_per_execution
run ME ASYNCHRONOUS --steps_per_execution=2 | --steps_per_execution
run --steps_per_execution=2 --eval --train_dir=x | --steps_per_execution
run --steps_per_execution=2 --input_only --data_dir=x | --steps_per_execution
run --steps_per_execution=2 --profile_json=x | --steps_per_execution
run --steps_per_execution=2 --partitioned_graph_file_prefix=x | --steps_per_execution
run --steps_per_execution=0 | --steps_per_execution
run COORDINATED CHIEF --ema_decay=0.9 | --ema_decay
run ME ASYNCHRONOUS --ema_decay=0.9 | --ema_decay
run --ema_decay=0.9 --precision=fp16 --fp16_vars | --ema_decay
run --ema_decay=1 | --ema_decay
run --gradient_accumulation_steps=0 | --gradient_accumulation_steps
run --batch_size=4 --global_batch_size=8 | --global_batch_size
run --image_size=30 --model=vit_b16 | --image_size
run --num_classes=3 --model=ncf | --num_classes
run COORDINATED CHIEF --staged_vars | --staged_vars
run COORDINATED CHIEF --input_distribution=strategy | --input_distribution
run COORDINATED CHIEF --use_fp16 --fp16_enable_auto_loss_scale | --fp16_enable_auto_loss_scale
run ME ASYNCHRONOUS --variable_update=distributed_replicated | --cross_replica_sync
run ME ASYNCHRONOUS --use_fp16 --fp16_enable_auto_loss_scale | --fp16_enable_auto_loss_scale
run ME --ps_hosts=c:1 --server_protocol=grpc+verbs | --server_protocol
run ME MULTI_WORKER --ps_hosts=c:1 | --ps_hosts
run ME --variable_update=replicated | --variable_update
run ME --variable_update=mirrored_strategy | --variable_update

models --data_name=mnist | --data_name
models --plugin=nowhere.py | --plugin
models --format=xml | --format
models --batch_size=3 | --batch_size
models resnet50 | resnet50

data | data
data chek | chek
data check | check
data check x y | check
data check x --data_name=mnist | --data_name
data check /nowhere | /nowhere
data make-imagenet /nowhere out | /nowhere
data make-imagenet images records/0.json | records/0.json
data check '' | argument
data MAKE --labels=nowhere | --labels
data MAKE --labels=pipe | --labels
data MAKE --labels=hidden | --labels
data make-imagenet broken out | broken
data make-imagenet escaped out | escaped

allreduce --sizes=4Q | --sizes
allreduce --sizes= | --sizes
allreduce --sizes=-4 | --sizes
allreduce --sizes=4K,,8K | --sizes
allreduce --sizes=4K:1K:x2 | --sizes
allreduce --sizes=1K:4K:2 | --sizes
allreduce --sizes=1K:4K:x1 | --sizes
allreduce --sizes=1K:4K:+0 | --sizes
allreduce --sizes=4K*0 | --sizes
allreduce --sizes=4K*2*3 | --sizes
allreduce --sizes=4:100M:+4 | --sizes
allreduce --sizes=6 | --sizes
allreduce --sizes=4:16:+2 | --sizes
allreduce --sizes=5 --dtype=bfloat16 | --sizes
allreduce --sizes=1K:4K | --sizes
allreduce --all_reduce_spec=xring,copy:4K | --all_reduce_spec
allreduce --all_reduce_spec=ring | --all_reduce_spec
allreduce --device=cpu --all_reduce_spec=xring#3 --num_gpus=3,2 --sizes=1K | --all_reduce_spec
allreduce --device=cpu --num_gpus=2 --all_reduce_spec=nccl | --all_reduce_spec
allreduce --device=gpu --gpus_per_card=2 --all_reduce_spec=nccl | --all_reduce_spec
allreduce --num_gpus=1 | --num_gpus
allreduce 4K | 4K
allreduce --result_label=today | --result_label
allreduce --num_gpus=2 --all_reduce_spec=hierarchical_copy \
    --network_topology=gcp_v100 | --all_reduce_spec
allreduce --peers=nobody | --peers
allreduce --device=cpu --num_gpus=3 --peers=hierarchical_copy_all_reduce \
    --quiet_conditions=all | --peers
allreduce --model=resnet1 | --model
allreduce --dtype=float16 --wire_dtype=bfloat16 | --wire_dtype
allreduce --wire_dtype=int8 | --wire_dtype
allreduce --compact_gradient_transfer --wire_dtype=bfloat16 | --compact_gradient_transfer
allreduce --compact_gradient_transfer --dtype=float16 | --compact_gradient_transfer
allreduce --gradient_repacking=1,501 | --gradient_repacking
allreduce --agg_small_grads_max_bytes=64,x | --agg_small_grads_max_bytes
allreduce --gradient_bucket_bytes= | --gradient_bucket_bytes
allreduce --num_gpus=3 --gpu_indices=0,1 | --gpu_indices
allreduce --iters_per_step=0 | --iters_per_step
allreduce --iterations=2 --num_batches=3 | --iterations
allreduce --result_json=none/r.json | --result_json
allreduce --result_json=no --result_csv=no | --result_csv
allreduce --quiet_conditions=noise | --quiet_conditions
allreduce ME --num_gpus=1 --device=cpu --all_reduce_spec=collective,xring | --all_reduce_spec
allreduce ME --num_gpus=1 --device=cpu --all_reduce_spec=xring#3 | --all_reduce_spec
allreduce ME --num_gpus=1 --device=cpu --all_reduce_spec=nccl | --all_reduce_spec
allreduce ME --controller_host=c:1 --all_reduce_spec=collective | --controller_host
allreduce ME --task_index=2 | --task_index
allreduce --job_name=worker --worker_hosts=a:1,a:1 | --worker_hosts
allreduce WORKERS --job_name=ps | --job_name
allreduce WORKERS | --job_name

compare | compare
compare records | compare
compare records records records | compare
compare records records/nowhere | records/nowhere
compare records '' | argument
compare records empty | empty
compare records records --metrics=speed | --metrics
compare records records --metrics=througput | --metrics
compare records records --metrics= | --metrics
compare records records --format=pdf | --format
compare records records --output=records | --output
compare records records --output=records/0.json | --output
compare records records --output=records/0.json --format=json | --output
compare records/0.json records/0.json --output=records/0.json | --output
compare records records --allow_different=cpu_modle | --allow_different
compare records records --allow_different=iters_per_stop | --allow_different
compare records records --fail_on=step | --fail_on
compare records records --fail_on=never,slower | --fail_on
compare records records --fail_on=changed --allow_changed_work | --fail_on
compare records records --tresholds=1 | --tresholds

ab --resume | --resume
ab --resume --results=none | --results
ab --resume --results=nested | --results
compare a b --quiet_conditions=noise | --quiet_conditions
ab --a=--modell=lenet | --modell
ab "--a=--num_gpus='1" | --a
ab --a=--xla --model=lenet | --model
ab --a=--xla --num_batches | --num_batches
ab --nomodel | --nomodel
ab --noxla=1 | --noxla
ab lenet | lenet
ab --a_python=/nowhere/python | --a_python
ab --b_checkout=nothing-of-the-kind | --b_checkout
ab --b_checkout=--help | --b_checkout
ab --a_env=NAME | --a_env
ab --b_env=NAME --a_checkout=nothing | --b_env
ab "--a_env=''" --a_env=SECRET=x | --a_env
ab --a_env=X=1 MY_TOKEN=secret | MY_TOKEN
ab --a_env==secret | --a_env
ab --flagfile=variables | --a_env
ab --b=--train_dir=x | --train_dir
ab --b=--checkpoint_directory=x | --train_dir
ab "--b=-train_dir x" | --train_dir
ab --b=--flagfile=ff | --result_csv
ab --b=--flagfile=none | --flagfile
ab --b_checkout=images --b=--flagfile=../ff | --result_csv
ab --a_python=python3 --b=--flagfile=ff | --result_csv
ab --b=--model=nosuch | --model
ab --pairing=turns --b=--xla -- --device=gpu | --pairing
ab --allow_different=cpu_modell | --allow_different
ab -- --batch_size=-1 | --batch_size
ab -- --result_json=x.json | --result_json
ab -- run --model=nosuch | --model
ab -- --plugin=nosuch.py | --plugin
ab --b=--xla --output=out -- --model=lenet --graph_file=out | --output
ab --b=--xla --output=net.py -- --model=lenet --plugin=net.py | --output
ab --b="--plugin=net.py --plugin=other.py" --output=net.py -- --model=lenet | --output
ab --b=--data_dir=/nowhere | --data_dir
ab -- --peak_flops=1 | --peak_flops
ab --a=--workers=2 | --workers
ab -- --ps=1 | --ps
ab --workers=2 --b=--xla -- --variable_update=parameter_server | --ps
ab --workers=2 --b=--xla -- RING --job_name=ps | --job_name
ab --workers=2 --ps=1 --b=--variable_update=collective_all_reduce | --ps
ab --workers=2 --b=--xla --pairing=turns -- RING | --pairing
ab --b=--xla -- --graph_file=/proc/none/g | --graph_file

gate | gate
gate main v1 x | gate
gate nothing-of-the-kind | nothing-of-the-kind
gate --resume | --resume
gate main --a_checkout=. | --a_checkout
gate main~ --results=records | --results
gate --init=travis | --init
gate --init=github --results=x | --results
gate main | main
gate --init=github main | --init
explain a.json | explain
explain a.json b.json --rounds=2 | --rounds
explain a.json none | none
explain /dev/zero b.json | /dev/zero
explain pipe b.json | pipe
explain pipes b.json | pipes
explain graph.json b.json | graph.json
explain huge.json b.json | huge.json
explain negative.json b.json | negative.json
explain flops.json b.json | flops.json
explain bytes.json b.json | bytes.json
explain deep.json b.json | deep.json
explain twice.json b.json | twice.json
explain a.json empty | empty
explain a.json x.json | x.json
explain a.json b.json --output=a.json | --output
explain -- --model=lenet | --a
explain --a=--model=lenet --b=--model=lenet | --a
explain --a=--display_every=5 --b=--tf_random_seed=1 | --a
explain --a_env=X=1 --b_env=X=1 | --a
explain --a_checkout=.. --b_checkout=.. | --a
explain --a_checkout=v1 --b_checkout=main | --a
explain --b=--profile_json=x -- --model=lenet | --profile_json
explain --b=--xla --output=out -- --model=lenet --graph_file=out | --output
explain --b=--xla --output=net.py -- --model=lenet --plugin=net.py | --output
explain --workers=2 --b=--xla -- --variable_update=parameter_server | --ps

bisect main | bisect
bisect nothing main | nothing
bisect main main | main
bisect main main~1 | main
bisect main~1 main --model=lenet | --model
bisect main~1 main --results=damaged-bisect --resume -- --model=lenet | damaged-bisect
bisect main~1 main --repository=/ | --repository
bisect main~1 main --python=/nowhere | --python
bisect main~1 main -- --train_dir=x | --train_dir

roofline | roofline
roofline lenet trivial | lenet
roofline nosuch | --model
roofline lenet --output=x.html | --output
roofline lenet --eval | --eval
roofline lenet --plot=a.txt | --plot
roofline lenet --warmup=auto | --warmup
roofline lenet --trace_file=t | --trace_file
roofline lenet --partitioned_graph_file_prefix=p | --partitioned_graph_file_prefix
roofline lenet --json=out --graph_file=out | --json
roofline lenet --csv=out --result_json=out | --csv
roofline lenet --output=net.py --plugin=net.py | --output
roofline lenet --worker_hosts=a:1,b:2 | --worker_hosts

tune TWO_CPUS --train_dir=d | --train_dir
tune TWO_CPUS --eval | --eval
tune TWO_CPUS --job_name=worker | --job_name
tune TWO_CPUS --cluster=slurm | --cluster
tune TWO_CPUS -- --ps_hosts=a:1 | --ps_hosts
tune TWO_CPUS --allow=speed | --allow
tune TWO_CPUS --list --write_flagfile=f | --write_flagfile
tune TWO_CPUS --resume --results=binary | binary
tune TWO_CPUS --resume --results=piped | --results
tune TWO_CPUS --resume --results=damaged | damaged
tune TWO_CPUS --resume | --resume
tune TWO_CPUS -- --minutes=3 | --minutes
tune TWO_CPUS --output=net.py -- --plugin=net.py | --output
tune TWO_CPUS --results=/proc/none | --results
tune TWO_CPUS fast | fast

sweep | sweep
sweep tiny.yaml other | sweep
sweep tinny | tinny
sweep tinny.yaml | tinny.yaml
sweep tiny.yaml --filter=b | --filter
sweep tiny.yaml '--filter=(' | --filter
sweep tiny.yaml -- --variable_update=replicated --all_reduce_spec=nccl | --all_reduce_spec
sweep tiny.yaml --results=tuned | --results
sweep tiny.yaml --results=damaged-sweep | damaged-sweep
sweep tiny.yaml --results=tiny.yaml/x | --results
sweep tiny.yaml -- --modle=x | --modle
sweep tiny.yaml -- x | x
sweep tiny.yaml -- --num_gpus=3 | --num_gpus
sweep tiny.yaml -- --result_json=x | --result_json
sweep typo.yaml | typo.yaml

launch --wrokers=2 | --wrokers
launch lenet | lenet
launch -- --modle=lenet | --modle
launch --workers=2 -- --variable_update=parameter_server | --ps
launch --workers=2 -- --job_name=ps | --job_name
launch --ps=1 -- --task_index=1 | --task_index
launch --ps=1 -- --worker_hosts=a:1 | --worker_hosts
launch --ps=1 -- --ps_hosts=a:1 | --ps_hosts
launch --ps=1 -- --controller_host=a:1 | --controller_host
launch --ps=1 -- --cluster=mpi | --cluster
launch --ps=1 -- --rendezvous=a:1 | --rendezvous
launch --ps=1 --towers=3 -- --num_gpus=2 | --num_gpus
launch --workers=2 -- allreduce --sizes=x | --sizes
allreduce --cluster=slurm | --cluster
launch --ps=1 -- allreduce | --ps
launch --workers=2 -- --variable_update=replicated | --variable_update
launch --workers=2 --ps=1 -- --batch_size=-1 | --batch_size
launch --ps=1 -- ALL_REDUCE --all_reduce_spec=ring | --ps
launch --controller -- --variable_update=collective_all_reduce | --controller
launch --towers=2 --ps=1 -- --variable_update=parameter_server_strategy | --towers
launch --controller -- RING --data_name=cifar10 --model=ncf | --model
launch --controller -- RING --data_dir=nowhere | --data_dir
launch --controller -- ALL_REDUCE --all_reduce_spec=xrong | --all_reduce_spec
launch --controller -- RING --aux_head | --aux_head
launch --ps=1 --log_dir=/dev/null/x | --log_dir
launch --ps=1 -- --result_json=/proc/none/r | --result_json
launch --ps=1 -- --train_dir=/dev/null/x | --train_dir
launch --ps=1 -- --train_dir=ckpt-1 | --train_dir
launch --workers=2 -- allreduce --result_csv=/proc/none/r | --result_csv
launch --ps=256 --affinity | --affinity
launch --workers=2 -- --num_gpus=3 --gpus_per_card=2 RING | --gpus_per_card

report | report
report gone | gone
report empty | empty
report records --table=runs | --table
report records --format=csv --table=comparison | --table
report records --threshold=5 | --threshold
report records --commit_url=https://x.y/{commit} --format=csv | --commit_url
report records --commit_url=https://x.y/ | --commit_url
report records --output=/gone/x.html | --output
report records --format=markdown --output=records/0.json | --output
report records/0.json --format=markdown --output=records/0.json | --output
report records --fail_on=slower | --fail_on
report records --baseline=gone | --baseline
report records --baseline=empty | --baseline
report records --baseline=records --allow_different=tensorflow,cpu_modle | --allow_different

history | history
history records more | records
history gone | gone
history empty | empty
history records --metric=speed | --metric
history records --since=yesterday | --since
history records --plot=x.jpg | --plot
history records --plot=/gone/x.svg | --plot
history records --format=csv --output=p.svg --plot=./p.svg | --plot
history records --output=records/0.json --format=json | --output
history records --git=/gone | --git
history records --by=typo | --by
history records --by=comit | --by
history records --by= | --by
history records --by=model | --by
history records --machine=[ | --machine
history records --model=lenet --since=2027-01-01 | --since
history records --configuration=lenet --model=trivial | --model
history records --commit_url=https://x.y/{commit} | --commit_url
history records --commit_url=https://x.y/{commit} --plot=h.svg | --commit_url
history records --commit_url=https://x.y/ --plot=h.html | --commit_url
history records --commit_url=javascript:alert({commit}) --plot=h.html | --commit_url
history records '--commit_url=https://x.y/{commit}" onclick="x' --plot=h.html | --commit_url
history records --commit_url=https://x.y/{commit}) --plot=h.md | --commit_url

completion | completion
completion fish | fish

docs nosuch | nosuch
docs trouble | trouble
docs ../setup | ../setup
docs ab ci | docs
docs --page=ab | --page

env x | x
env --seconds=2 | --seconds
env --quiet_conditions=load | --quiet_conditions
env --check --quiet_conditions=lod | --quiet_conditions
env --check -- --num_gpus=0 | --num_gpus
env --check -- --model=nosuch | --model
"""

TIME = '"time": "2026-01-01T00:00:00+00:00"'
JOURNALS = {
    "binary": bytes(range(256)),
    "nested": b"[" * 100_000,
    "tuned": f'{{"event": "session", {TIME}, "campaign": "tune"}}\n'.encode(),
    "damaged": b'{"event": "session", "names": 7}\n',
}
"""Folders and the journals in them."""

FAULTY_PROFILES: dict[str, dict[str, object]] = {
    "graph": {"graph": {"Conv2D": "four"}},
    "huge": {"input_wait_seconds": [1e308] * 8},
    "negative": {"input_wait_seconds": [-1.0] * 8},
    "bytes": {"allocated_bytes": -1},
}
"""Files and what is wrong in each."""

SUITE = """
entries:
  - name: a
    flags: {model: trivial, device: cpu}
    matrix: {num_gpus: [1, 2]}
"""


def rows(command):
    """The command lines of a command, as in the table, and what the error of each names."""
    for line in TABLE.replace("\\\n", "").splitlines():
        if line.partition(" ")[0] == command:
            words, _, named = line.partition(" | ")
            yield " ".join(words.split()), named


def names(sentence, named):
    """Whether a sentence names an argument, or a flag before other flags."""
    if named.startswith("-"):
        found = re.search(r"(?<![\w-])--?[a-z]\w*", sentence)
        return bool(found) and found[0] == named
    return re.search(rf"(?<![\w-]){re.escape(named)}(?![\w-])", sentence) is not None


def stable(sentence, folder):
    """A sentence without the folder, hashes of commits, and lists that an addition extends."""
    for path, name in ((f"{folder}/", ""), (str(folder), "HERE"), (str(folder.parent), "ABOVE")):
        sentence = sentence.replace(path, name)
    sentence = re.sub(r"\b[0-9a-f]{12}\b", "HASH", sentence)
    names = r"[\w.-]+(?:, [\w.-]+)+(?: or [\w.-]+)?"
    return re.sub(rf"\b(of|are|takes|\w+:) {names}(?=[;:,?]|$)", r"\1 ...", sentence)


@pytest.fixture(scope="module")
def place(tmp_path_factory, lenet_runs, git):
    """A working directory with the files that the table names."""
    folder = tmp_path_factory.mktemp("place")
    make = lenet_runs()
    for name in ("records", "empty", "images/left"):
        (folder / name).mkdir(parents=True)
    for number, model in enumerate(("lenet", "trivial")):
        labels = {"model": model, "result_label": f"commit=c{number}"}
        (folder / "records" / f"{number}.json").write_text(make(flags=labels).to_json())
    for name in ("a", "b"):
        (folder / f"{name}.json").write_text(Profiles(make)(None).to_json())
    (folder / "x.json").write_text("{}")
    (folder / "cifar10").mkdir()
    (folder / "cifar10" / "data_batch_1.bin").write_bytes(bytes(3073 * 4))
    for name in ("net.py", "other.py"):
        (folder / name).write_text("INITIALISES_ONLY = True\n")
    (folder / "old.log").write_text("Model:       lenet\nno result\n")
    (folder / "images" / "left" / "0.jpg").touch()
    (folder / "tiny.yaml").write_text(SUITE)
    (folder / "typo.yaml").write_text("entries:\n - name: a\n   flags: {modle: x}\n")
    (folder / "ff").write_text("--result_csv=x\n")
    (folder / "variables").write_text("--a_env=NAME\n")
    (folder / "circle").write_text("--model=lenet\n--flagfile=circle\n")
    (folder / "latin").write_bytes(b"--model=caf\xe9\n")
    (folder / "hidden").write_text("left\x1b[31m\n")
    for images in ("broken/a\nb", "escaped/\x1b[31m\u202e"):
        (folder / images).mkdir(parents=True)
        (folder / images / "0.jpg").touch()
    for name, journal in JOURNALS.items():
        (folder / name).mkdir()
        (folder / name / "events.jsonl").write_bytes(journal)
    for name in ("sweep", "bisect"):
        (folder / f"damaged-{name}").mkdir()
        damaged = f'{{"event": "session", {TIME}}}\n{{"event": "session", "campaign": 1}}\n'
        (folder / f"damaged-{name}" / "events.jsonl").write_text(damaged)
    (folder / "piped").mkdir()
    os.mkfifo(folder / "piped" / "events.jsonl")
    profile = json.loads((folder / "a.json").read_text())
    negative = {"rows": [row | {"flops": -1} for row in profile["rows"]]}
    for name, changes in {**FAULTY_PROFILES, "flops": negative}.items():
        (folder / f"{name}.json").write_text(json.dumps(profile | changes))
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "twice.json").write_text('{"schema": 1, "schema": 1}')
    (folder / "pipes").mkdir()
    os.mkfifo(folder / "pipes" / "a.json")
    os.mkfifo(folder / "pipe")
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / ".git" / "info" / "exclude").write_text("*.py\n")  # no uncommitted changes
    for _ in range(2):
        git(folder, "commit", "--quiet", "--allow-empty", "-m", "x")
    git(folder, "tag", "v1")
    return folder


def contents(folder):
    """All files of a folder and its sub-folders."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _key(rule):
    """What identifies a rule, also if its table is made anew."""
    reason = rule.reason if isinstance(rule.reason, str) else rule.reason.__code__
    return rule.flags, reason


@pytest.fixture
def refusing(monkeypatch):
    """Keys of the rules about flags that have refused a flag."""
    explain, found = FlagRule.explain, set()

    def recorded(rule, facts):
        try:
            reason = explain(rule, facts)
        except FlagError:
            found.add(_key(rule))
            raise
        if reason:
            found.add(_key(rule))
        return reason

    monkeypatch.setattr(FlagRule, "explain", recorded)
    return found


@pytest.mark.usefixtures("quick_answers")
@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_use_is_one_line_and_changes_nothing(command, place, refusing, monkeypatch, capsys):
    monkeypatch.chdir(place)
    before = contents(place)
    wrong, told = [], {}
    for words, named in rows(command):
        long = " ".join(SHORT.get(word, word) for word in words.split(" "))
        status = main(shlex.split(long))
        out, err = capsys.readouterr()
        sentence = err.removeprefix("cnnbench: error: ").rstrip("\n")
        told[words] = stable(sentence, place)
        if (status, out, err) != (2, "", f"cnnbench: error: {sentence}\n") or "\n" in sentence:
            wrong.append(f"{long}: exit code {status}, {out}{err}")
        elif not names(sentence, named):
            wrong.append(f"{long}: {err}names not {named}")
    assert not wrong, "\n".join(wrong)
    assert contents(place) == before
    if command == "run":
        of_modes = (rules_of_run(mode) for mode in BUILT_IN)
        rules = itertools.chain(*of_modes, tasks.RULES, RULES_OF_NETWORK)
        refusals = {_key(rule): rule.flags for rule in rules if rule.severity is Severity.REFUSAL}
        untried = [flags for key, flags in refusals.items() if key not in refusing]
        # The rule about --use_fp16 is for Python; the parser refuses it on command lines.
        assert untried == [("use_fp16",)], f"{__file__}: TABLE needs a row for each of these flags"
    sentences(GOLDEN, told, {words for name in COMMANDS for words, _ in rows(name)})


def test_every_command_and_every_row_of_the_table_is_tried():
    lines = [line for line in TABLE.replace("\\\n", "").splitlines() if line.strip("# ")]
    asked = [line for line in lines if not line.startswith("#")]
    tried = {command: [words for words, _ in rows(command)] for command in COMMANDS}
    missing = [command for command, found in tried.items() if not found]
    assert not missing, f"tests/cli/test_refusals.py: TABLE needs wrong command lines of {missing}"
    assert len({words for found in tried.values() for words in found}) == len(asked)


@pytest.mark.parametrize(
    ("words", "flag", "right"),
    [
        ("ab --b=--batch_size=4 -- --model=trivial --pairs=6", "pairs", "ab ... --pairs=6 -- ..."),
        ("ab -- --nosequential", "nosequential", "ab ... --nosequential -- ..."),
        ("gate main -- --pairs=6", "pairs", "gate BASE HEAD --pairs=6 -- ..."),
        ("bisect a b -- --pairs=2", "pairs", "bisect GOOD BAD --pairs=2 -- ..."),
        ("explain -- --rounds=2", "rounds", "explain ... --rounds=2 -- ..."),
        ("sweep smoke -- --timeout=3", "timeout", "sweep SUITE --timeout=3 -- ..."),
        ("tune --model=trivial -- --minutes=2", "minutes", "tune --minutes=2 -- ..."),
        ("launch -- --towers=2", "towers", "launch --towers=2 -- ..."),
        ("env --check -- --seconds=2", "seconds", "env --seconds=2 -- ..."),
    ],
)
def test_a_flag_of_the_command_behind_the_flags_of_runs(call, words, flag, right):
    command = words.split()[0]
    done = call(*words.split(), code=2)
    assert f"--{flag} is a flag of cnnbench {command}, not of its runs: put flags of" in done.err
    assert f"before --, as in cnnbench {right}" in done.err
