"""Wrong use of every command: one table of command lines and of what their one line says.

Each is refused with exit code 2 and a single line on stderr, prints nothing else, and changes no
file. A reason that begins with a flag begins the line, so it is the flag that the error names;
* stands for any text.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
from pathlib import Path

import pytest
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN
from short_runs import NETWORKS
from step_profiles import Profiles

from cnnbench.cli import main
from cnnbench.cli.commands import COMMANDS

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("quick_answers")]


SHORT = {
    "TWO_CPUS": "--model=lenet --num_gpus=2 --batch_size=4 --device=cpu",
    "TINY": "--model=trivial --data_name=cifar10 --device=cpu",
    "DECAY": "--num_epochs_per_decay=2 --learning_rate_decay_factor=0.5",
    "PIECEWISE": "'--piecewise_learning_rate_schedule=1;3;.1'",
    "COSINE": "--learning_rate_schedule=cosine",
    "DURING": "--eval_during_training_every_n_steps=5",
    "INT8": "--precision=int8 --forward_only --freeze_when_forward_only",
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
    "PREDICT": "--predict --link=hdr",
    "MAKE": "make-imagenet images out",
    "FROZEN": "--model=trivial --forward_only --freeze_when_forward_only",
    "CPU8": "--device=cpu --precision=int8",
    "NO_WARMUP": "--num_warmup_batches=0",
    "LOCAL": f"'--a=--plugin={LOCAL_SGD_PLUGIN} --variable_update={LOCAL_SGD}'",
    "DETECTOR": f"--plugin={NETWORKS} --model=detector",
    "ORACLE": f"--plugin={NETWORKS} --model=oracle",
}
"""Words of the table that stand for several flags."""

TABLE = r"""
# The command line
import                                       | cnnbench import takes files or folders of results
import old.log                               | --results=DIR is missing: the folder for the records
import nowhere.log --results=out             | nowhere.log: no such file or folder
import old.log --results=out --strict        | old.log: line 2: 'no result' is not understood*
import old.log --results=out --reader=perf   | --reader=perf: must be one of *tf_cnn_benchmarks
import old.log --results=out --label=commit  | --label=commit: 'commit' is not a label
run resnet50                                 | stray argument 'resnet50': flags are written
run --model=lenet -- x                       | stray argument 'x': flags are written --flag=value
run --xla True                               | stray argument 'True' after --xla: write --xla=true
run -distortions False --num_gpus=2          | stray argument 'False' after --distortions
run --xla maybe                              | write --xla=true or --xla=false
run --batchsize=3                            | unknown flag --batchsize; did you mean --batch_size?
run -batchsize=3                             | unknown flag -batchsize; did you mean --batch_size?
run -x                                       | unknown flag -x; cnnbench run --help lists
run --nowinograd                             | did you mean --nowinograd_nonfused?
run --num_gpus=1_0                           | --num_gpus=1_0: must be an integer
run --num_gpus=١                             | --num_gpus=١: must be an integer
run --num_gpus=1.5                           | --num_gpus=1.5: must be an integer
run --num_gpus=                              | --num_gpus=: must be an integer
run --weight_decay=1_0                       | --weight_decay=1_0: must be a finite number
run --weight_decay=NaN                       | --weight_decay=NaN: must be a finite number
run --num_epochs=1e999                       | --num_epochs=1e999: must be a finite number
run --eval_during_training_at_specified_steps=1,,2 | *=1,,2: must be a comma-separated list of integ
run --eval_during_training_at_specified_epochs=1,x | *=1,x: must be a comma-separated list of numbe
run --result_json=                           | --result_json=: is empty; give a value or leave
run --model_plugin=net.py                    | --model_plugin was removed; use --plugin
models --dataset_plugin=data.py              | --dataset_plugin was removed; use --plugin
launch --workers=2 -- --variable_mgr_plugin=m | --variable_mgr_plugin was removed; use --plugin
ab --a=--model_plugin=net.py                 | --model_plugin was removed; use --plugin
run --zzzzzz                                 | unknown flag --zzzzzz; cnnbench run --help lists
run '--num_batches 3'                        | *must be followed by = and the value
compare --zzzzzz                             | unknown flag --zzzzzz; --help lists all flags
run --nonum_gpus                             | --nonum_gpus: only boolean flags can be
run --batch_size                             | --batch_size needs a value: write --batch_size=value
run --flagfile                               | --flagfile needs a value
compare -o                                   | -o needs a value: write -o=value
run --xla=maybe                              | --xla=maybe: must be true or false
run --num_gpus -1                            | --num_gpus=-1: must be from 1 to 1024
run --optimizer=ftrl                         | --optimizer=ftrl: must be one of adam, adamw, lamb,
run --variable_update=replicate              | --variable_update=replicate: must be one of parameter
run --model=resnet49                         | --model=resnet49: unknown
run --device=gpu --num_gpus=99               | --num_gpus=99: TensorFlow sees
run --data_dir=/nowhere                      | --data_dir=/nowhere: there is no
run --result_csv=/proc/none/r.csv            | --result_csv=/proc/none/r.csv: there is no
run --flagfile=nowhere                       | nowhere
run --flagfile=circle                        | --flagfile=circle: includes itself
run --flagfile=latin                         | --flagfile=*cannot be read: it is not UTF-8 text
# What is run
run --eval                                   | --eval=true: needs --train_dir
run --eval --train_dir=d --forward_only      | --forward_only=*--eval
run --num_batches=3 --num_epochs=1           | --num_batches=*--num_epochs
run --find_batch_size TINY                   | --find_batch_size=true: works only in cnnbench run
run --find_batch_size --eval --train_dir=d   | --find_batch_size=true: cannot be used with --eval
run --find_batch_size TINY --train_dir=new   | --find_batch_size=true: *used with --train_dir
run --find_batch_size --eval_batch_size=2    | --find_batch_size=*--eval_batch_size
ab --b=--find_batch_size -- TINY             | --find_batch_size=true: works only in cnnbench run
launch --ps=1 -- TINY --find_batch_size      | --find_batch_size=true: works only in cnnbench run
roofline lenet --find_batch_size             | --find_batch_size=true: works only in cnnbench run
run --max_seconds=3 --num_epochs=1           | --max_seconds=3: cannot be used with --num_epochs
run --max_seconds=3 --eval --train_dir=/tmp  | --max_seconds=3: cannot be used with --eval
run --max_seconds=0                          | --max_seconds=0: must be greater than 0
run --num_eval_batches=3 --num_eval_epochs=1 | --num_eval_batches=*--num_eval_epochs
run --stop_at_top_1_accuracy=1               | --stop_at_top_1_accuracy=*eval_during_training
run --stop_at=loss:2                         | --stop_at=loss:2: needs an evaluation to stop at
run DURING --stop_at=top_1                   | --stop_at=top_1: *METRIC:VALUE, as in top_1:0.759
run DURING --stop_at=0.759                   | --stop_at=0.759: *METRIC:VALUE, as in top_1:0.759
run DURING --stop_at=:0.759                  | --stop_at=:0.759: *METRIC:VALUE, as in top_1:0.759
run DURING --stop_at=top_1:                  | --stop_at=top_1:: *METRIC:VALUE, as in top_1:0.759
run DURING --stop_at=top_1:high              | --stop_at=top_1:high: *METRIC:VALUE, as in top_1
run DURING --stop_at=loss:nan                | --stop_at=loss:nan: *METRIC:VALUE, as in top_1:0.759
run DURING --model=resnet50 --stop_at=map:0.2 | --stop_at=map:0.2: model resnet50 has no \
metric map; its metrics are loss, top_1, top_5
run DURING --model=ncf --stop_at=top_1_accuracy:0.6 | --stop_at=top_1_accuracy:0.6: model ncf has \
no top-1 accuracy; its metrics are loss, hit_rate_10, ndcg_10
run DURING --model=deepspeech2 --stop_at_top_1_accuracy=0.6 | --stop_at_top_1_accuracy=0.6: *its \
metrics are loss, word_error_rate, letter_error_rate: use --stop_at=METRIC:VALUE
run DURING --model=resnet50 --stop_at=top_1:75.9 | --stop_at=top_1:75.9: *top_1 must be from 0
run DURING --model=ssd300 --stop_at=map:21.2 | --stop_at=map:21.2: *map must be from 0
run DURING --model=resnet50 --stop_at=top_1:0.7 --stop_at_top_1_accuracy=0.7 \
                                             | --stop_at_top_1_accuracy=*--stop_at
run DURING --eval_during_training_every_n_epochs=1 | --eval_during_training_every_n_epochs=*n_steps
run DURING --eval_during_training_at_specified_steps=5,9 | --eval_during*at_specified_steps
run DURING --eval_during_training_at_specified_epochs=1 | --eval_during_training_at_specified_epochs
run DURING --forward_only                    | --eval_during_training_every*out --forward_only
run DURING --eval --train_dir=d              | --eval_during_training_every_n_steps=*--eval
run --input_only                             | --input_only=true: needs --data_dir
run --input_only --data_dir=d --forward_only | --input_only=*builds no network*--forward_only
run --input_only --data_dir=d --eval --train_dir=t | --input_only=*leave out --eval
run --input_only --data_dir=d DURING         | needs training, so leave out --input_only
run --save_model_secs=60 --save_model_steps=10 | --save_model_steps=*--save_model_secs
run --result_json=-                          | --result_json=-: must be a path, not standard
run --train_dir=-                            | --train_dir=-: must be a path, not standard
run --result_json=a --result_csv=b/../a      | --result_csv=*--result_json
run --result_label=commit                    | --result_label=*commit
run --result_label==abc                      | --result_label==abc: '=abc' is not a label; write
run --result_label=commit=                   | --result_label=commit=: 'commit=' is not a label
run --result_label=1st=2                     | --result_label=1st=2: '1st=2' is not a label
run '--result_label=a b=c'                   | --result_label=a b=c: 'a b=c' is not a label
run --result_label=a=1,a=2                   | --result_label=a=1,a=2: a is given twice
run --quiet_conditions=noise                 | --quiet_conditions=*noise*load, steal,
run --quiet_conditions=lod                   | --quiet_conditions=lod: *did you mean load
# Outputs
run --graph_file=none/x.pb                   | --graph_file=none/x.pb: *no folder
run --partitioned_graph_file_prefix=none/x   | --partitioned_graph_file_prefix=*no folder
run --trace_file=none/x                      | --trace_file=none/x: *no folder
run --tfprof_file=none/x                     | --tfprof_file=none/x: *no folder
run --profile_json=none/x                    | --profile_json=none/x: *no folder
run --profile_layers=none/x.svg              | --profile_layers=none/x.svg: *no folder
run --profile_layers=x.txt,x.doc             | --profile_layers=x.doc: must end in one of .txt,
run --profile_layers=x.svg,                  | --profile_layers=: *must end in one of .txt, .csv,
run --nouse_chrome_trace_format --trace_file=ff/below | --trace_file=*must be a directory to write
run --benchmark_log_dir=ff/below             | --benchmark_log_dir=ff/below: must be a directory
run --xla --xla_cache_dir=ff/below           | --xla_cache_dir=ff/below: must be a directory
run --eval --train_dir=. --summary_verbosity=1 --eval_dir=ff | --eval_dir=ff: must be a directory
run --train_dir=/proc/none/ckpt              | --train_dir=/proc/none/ckpt
run --train_dir=model.ckpt-12                | --train_dir=model.ckpt-12: names a single checkpoint
run --export_dir=ff                          | --export_dir=ff: is not a folder
run --export_dir=ff/below                    | --export_dir=ff/below: *be a directory to write to
run --export_dir=.                           | --export_dir=.: contains files, but no saved_model.pb
run --train_dir=d --export_dir=d             | --export_dir=d: is also the path of --train_dir
run --graph_file=a.json --result_json=./a.json | --graph_file=a.json: *path of --result_json
run --profile_json=x --result_json=x         | is also the path of --
run --tfprof_file=a.txt --profile_layers=b.svg,a.txt | the path of --tfprof_file
run --partitioned_graph_file_prefix=a.txt --result_json=a1.txt \
              | --partitioned_graph_file_prefix=a1.txt: is also the path of --result_json
# Profilers need warm-up steps
run --partitioned_graph_file_prefix=x NO_WARMUP | --partitioned*leave out --num_warmup_batches=0
run --profile_json=x NO_WARMUP               | --profile_json=*leave out --num_warmup_batches=0
run --trace_file=x NO_WARMUP                 | --trace_file=*leave out --num_warmup_batches=0
run --tfprof_file=x NO_WARMUP                | --tfprof_file=*leave out --num_warmup_batches=0
run --profile_json=x --trace_file=y          | --profile_json=x: cannot be used with --trace_file
run --profile_json=x --profile_steps=0       | --profile_steps=0: must be at least 1
# Flags that a model or a data set does not support
run --data_name=cifar10 --data_dir=. --input_preprocessor=official_models_imagenet \
    --model=trivial   | --input_preprocessor=official_*: data set cifar10 takes default
run --model=trivial --collect_eval_results_async DURING \
      | --collect_eval_results_async=true: --model=trivial has no metrics that are computed
run --model=trivial --backbone_model_path=.  | --backbone_model_path=.: --model=trivial has no back
run DETECTOR --backbone_model_path=none      | --backbone_model_path=none: *there is no checkpoint
run ORACLE --label_smoothing=0.1 \
      | --label_smoothing=0.1: needs a softmax loss, but --model=oracle has its own loss
run ORACLE --data_name=imagenet --data_dir=. --mixup_alpha=0.2 \
      | --mixup_alpha=0.2: mixes images with one class each, for a softmax loss
run --model=ncf --data_name=ratings --data_dir=. --cutmix_alpha=1 \
      | --cutmix_alpha=1: mixes images with one class each, for a softmax loss
run --model=ncf --data_name=ratings --data_dir=. --augment=randaugment \
      | --augment=randaugment: the pipeline of data set ratings has no augmentation; use none
run --augment=autoaugment                    | --augment=autoaugment: must be one of none, rand
run --mixup_alpha=-1                         | --mixup_alpha=-1: must be from 0 to 1000
# Runs that cannot be frozen or computed in integers
run FROZEN --train_dir=d                     | --freeze_when_forward_only=*used with --train
run FROZEN --model=vgg16 --num_gpus=4        | --freeze*has 2.06 GiB of weights, and a graph
run CPU8 FROZEN                              | --precision=int8: *trivial has no convolution
run CPU8 --model=lenet --freeze_when_forward_only | --*--forward_only
run CPU8 --model=lenet --forward_only        | --precision=int8: needs --forward_only and
# Sizes
run --model=trivial --warmup=auto --num_warmup_batches=40 --max_warmup_batches=30 \
                                             | --max_warmup_batches=30: *the minimum of 40 warm-up
run --model=trivial --autotune_threshold=9999 | --autotune_threshold=9999: means 4.999e+08 warm-up
run --warmup=auto --max_warmup_batches=19    | --max_warmup_batches=19: *at least 20
run TINY --eval --train_dir=. --num_eval_epochs=1e9 | --num_eval_epochs=*must be at most
run TINY --num_epochs=1e30                   | --num_epochs=1e+30: must be at most 1374389,
run TINY --eval_during_training_every_n_epochs=1e-9 | *an epoch has 1,562 steps
run TINY --num_batches=1000000 --eval_during_training_every_n_steps=1 | means 1,000,000 evaluations
run TINY --weight_decay=1e300                | must not be larger than 3.4028235e+38
# Precision
run --precision=fp16 --fp16_loss_scale=1e-39 | --fp16_loss_scale=*2^-126 to 2^126
run --precision=bf16 --use_fp16              | --use_fp16=true: contradicts --precision=bf16
run --precision=fp16 --nouse_fp16            | --use_fp16=false: contradicts --precision=fp16
run INT8 --device=gpu                        | --device=*cannot be used with --precision=int8
run INT8 --data_format=NCHW                  | --data_format=*cannot be used with --precision=int8
run INT8 --xla                               | --xla=*cannot be used with --precision=int8
run INT8 --xla_compile                       | --xla_compile=*cannot be used with --precision=int8
run --conv_gradients=fastest --device=gpu    | --device=*used with --conv_gradients=fastest
run --conv_gradients=fastest --xla           | --xla=*cannot be used with --conv_gradients=fastest
run --conv_gradients=fastest --data_format=NCHW | --data_format=*used with --conv_gradients
run --recompute=blocks --xla                 | --xla=true: cannot be used with --recompute=blocks
run --recompute=blocks --xla_compile         | --xla_compile=*cannot be used with --recompute=blocks
run --recompute=blocks --model=lenet         | --recompute=blocks: --model=lenet declares no blocks
run --recompute=all                          | --recompute=all: must be one of none, blocks
run --conv_gradients=fast                    | --conv_gradients=fast: must be one of auto, library
run --fp16_vars                              | --fp16_vars=*needs --precision=fp16
run --fp16_vars --use_fp16 --optimizer=adam  | --fp16_vars=*cannot be used with --optimizer=adam
run --fp16_vars --use_fp16 --optimizer=rmsprop --rmsprop_epsilon=1e-5 | --rmsprop_epsilon=*2^-14
# The learning rate
run PIECEWISE --init_learning_rate=0         | --init_learning_rate=*--piecewise_learning_rate
run PIECEWISE --num_epochs_per_decay=2       | --num_epochs_per_decay=*--piecewise_learning_rate
run PIECEWISE COSINE                         | --learning_rate_schedule=*--piecewise_learning_rate
run DECAY                                    | --num_epochs_per_decay=*needs --init_learning_rate
run --init_learning_rate=1 --learning_rate_decay_factor=1 | --learning_rate_decay*needs --num_epochs
run --init_learning_rate=1 --num_epochs_per_decay=1 | --num_epochs_per*needs --learning_rate_decay
run --minimum_learning_rate=0.01             | needs --init*and --num_epochs*and --learning_rate
run --init_learning_rate=1 --minimum_learning_rate=0.01 | --minimum*needs --num_epochs*and --learn
run --learning_rate_schedule=exponential --init_learning_rate=1 | --learning*needs --num_epochs*and
run COSINE --minimum_learning_rate=0.1       | --learning_rate_schedule=*needs --init_learning_rate
run COSINE --init_learning_rate=1 DECAY      | --num_epochs_per_decay=*cannot be used with*=cosine
run COSINE --init_learning_rate=1 --minimum_learning_rate=2 | --minimum*at most --init*=1
run --piecewise_learning_rate_schedule=high  | --piecewise*'high' is not a learning rate
run '--piecewise_learning_rate_schedule=1;3' | --piecewise_learning_rate_schedule=*odd number
run '--piecewise_learning_rate_schedule=-1;3;.1' | --piecewise*'-1' is not a learning rate
run '--piecewise_learning_rate_schedule=1;1.5;.1' | --piecewise*'1.5' is not an epoch
run '--piecewise_learning_rate_schedule=1;5;.1;5;.01' | --piecewise*increase
# Modes
run --staged_vars --variable_update=replicated | --staged_vars=*server, not replicated
run --bn_stats=sync --variable_update=independent | --bn_stats=*independent
run --bn_stats=sync --xla_compile            | --bn_stats=*cannot be used with --xla_compile
run --variable_update=one_device_strategy --num_gpus=2 | --num_gpus=*needs --num_gpus=1
run REPLICATED --cross_device_ops=ring       | --cross_device_ops=*needs*mirrored_strategy, not repl
run CENTRAL --cross_device_ops=ring          | --cross_device_ops=*needs*mirrored_strategy
run MIRRORED --num_gpus=3 --cross_device_ops=hierarchical_copy | --cross*the last of 3 devices
run MIRRORED --cross_device_ops=nccl --device=cpu | --cross_device_ops=*needs GPUs
run MULTI_WORKER --num_gpus=2 --device=cpu   | --num_gpus=*must be 1 on CPUs
run MULTI_WORKER --cross_device_ops=reduction_to_one_device | --cross*use one of auto, ring, nccl
run MULTI_WORKER --num_packs=2               | --num_packs=*use --bytes_per_pack
run MULTI_WORKER --num_gpus=2 --gpu_indices=1,0 | --gpu_indices=*must ascend
run MULTI_WORKER ME --summary_verbosity=2 --bn_stats=sync | --summary_verbosity=*at most 1
run MIRRORED --data_dir=d MANUAL | --input_sharding=*needs --input_distribution
run MIRRORED --data_dir=d --noprefetch_on_device | --prefetch_on*needs --input_distribution
run REPLICATED --input_distribution=strategy | --input_distrib*needs a mode with a strategy*repl
run SPLIT --input_only --data_dir=d          | --input_distribution=*--input_only
run CENTRAL --input_distribution=strategy    | --input_sharding=*use --input_sharding=manual
run SPLIT --auto_shard_policy=hint           | --auto_shard_policy=*needs a SHARD_HINT
run SPLIT --auto_shard_policy=data MANUAL | --auto_shard*used with --input_sharding
run SPLIT PER_REPLICA    | --input_replication=*needs --input_sharding=manual
run SPLIT PER_REPLICA MANUAL --prefetch_on_device | --prefetch*used with
run CENTRAL --input_distribution=strategy PER_REPLICA MANUAL \
                                             | --input_replication=*needs*mirrored_strategy
run MULTI_WORKER --data_dir=d --input_distribution=strategy PER_REPLICA \
    MANUAL                  | --input_replication=*needs*mirrored_strategy
# All-reduces
run ALL_REDUCE                               | --variable_update=*needs --all_reduce_spec
run REPLICATED --all_reduce_spec=copy:1K:xring | --all_reduce_spec=*by tensor size
run --gradient_repacking=2 --gradient_bucket_bytes=9 | --gradient_bucket_bytes=9: *used with
run REPLICATED --gradient_repacking=501      | --gradient_repacking=*at most 500 packs
run REPLICATED --hierarchical_copy --network_topology=gcp_v100 | --network*exactly 8 devices
run FOUR --all_reduce_spec=nccl              | --all_reduce_spec=*character 1, 'nccl'*only on GPUs
run FOUR --all_reduce_spec=copy:2048:nccl/xring GROUPS | --all_red*character 11,
run FOUR --all_reduce_spec=copy/nccl GROUPS | --all_reduce*only be the first level
run FOUR --all_reduce_spec=copy#2 --device=auto | --all_reduce_spec=*copy takes no shards
run FOUR --all_reduce_spec=collective#3      | --all_reduce_spec=*one or two rings, not 3
run FOUR --all_reduce_spec=copy/collective --communication_hint=nccl GROUPS \
                                             | --all_reduce_spec=*NCCL needs GPUs*CPU:0 is not a GPU
run FOUR --all_reduce_spec=collective#2 --communication_hint=nccl --device=gpu | --all*no shards
run FOUR --all_reduce_spec=xring#5           | --all_reduce_spec=*5 rings need as many devices
run FOUR --all_reduce_spec=pscpu#2 --device=gpu | --all_reduce_spec=*2 shards need as many different
run FOUR --all_reduce_spec=copy/psgpu#3 GROUPS | --all*3 shards between 2 gr
run FOUR --all_reduce_spec=hierarchical_copy --network_topology=gcp_v100 | *exactly 8*not 4
run FOUR --variable_update=collective_all_reduce --communication_hint=nccl | --comm*needs GPUs
run --variable_update=collective_all_reduce ME --device=cpu --communication_hint=nccl \
                                             | --communication_hint=nccl: NCCL needs GPUs
# Devices and jobs
run --per_gpu_thread_count=3 --gpu_thread_mode=global | --per_gpu*--gpu_thread_mode=gpu_private
run --gpu_indices=0,x --num_gpus=2           | --gpu_indices=*whole numbers
run --gpu_indices=1,1 --num_gpus=2           | --gpu_indices=*once
run --gpu_indices=0,1,2 --num_gpus=2         | --gpu_indices=*3 GPUs, but --num_gpus=2
run PARTS --gpus_per_card=0                  | --gpus_per_card=0: must be from 1 to 64
run PARTS --allow_growth                     | --allow_growth=true: *used with --gpus_per_card
run PARTS --variable_update=replicated --all_reduce_spec=nccl | --all_reduce_spec=*use xring
run PARTS --variable_update=replicated --all_reduce_spec=nccl/xring | --all_reduce_spec=*one card
run PARTS --variable_update=mirrored_strategy --cross_device_ops=nccl | *NCCL refuses*use ring
run PARTS RINGS --communication_hint=nccl    | --all_reduce_spec=*NCCL refuses*hint=ring
run ME --variable_update=parameter_server    | --ps_hosts=*needs tasks*collective_all_reduce
run --job_name=worker --ps_hosts=c:1         | --worker_hosts=*needs the addresses of its workers
run --job_name=worker ALL_REDUCE --all_reduce_spec=copy | --job_name=*--worker_hosts
run ME ALL_REDUCE --all_reduce_spec=copy --task_index=2 | --task_index=*0 to 1
run ME ALL_REDUCE --all_reduce_spec=copy --ps_hosts=c:1 | --ps_hosts=*uses no parameter servers
run ME ALL_REDUCE --all_reduce_spec=copy/collective | --all_reduce_spec=*controls the others
run ME ALL_REDUCE --all_reduce_spec=nccl --num_gpus=2 --device=gpu | --all_reduce_spec=*two levels
run WORKERS --ps_hosts=c:1                   | --job_name=*missing; with --worker_hosts
run WORKERS --cluster=slurm                  | --worker_hosts=a:1,b:1: contradicts --cluster=slurm
run ME MULTI_WORKER --input_only --data_dir=d | --input_only=true: measures one process
run ME --ps_hosts=a:1                        | --worker_hosts=*given to two tasks
run ME --ps_hosts=c                          | --ps_hosts=*is not of the form host:port
run --rendezvous=nohost                      | --rendezvous=nohost: is not of the form host:port
run --rendezvous=localhost:2²                | --rendezvous=*: is not of the form host:port
run COORDINATED                              | --variable_update=*cnnbench launch
run COORDINATED ME --controller_host=d:1     | --ps_hosts=*needs tasks that store the variables
run COORDINATED ME --ps_hosts=c:1            | --controller_host=: *a process that coordinates
run COORDINATED CHIEF --num_gpus=2           | --num_gpus=*one device per worker
run COORDINATED CHIEF --data_dir=x --num_inter_threads=3 | --num_inter_threads=3: *at least 4
run COORDINATED CHIEF --data_dir=. --data_name=imagenet --on_bad_record=skip \
      | --on_bad_record=skip: *in Python
run COORDINATED CHIEF --eval --train_dir=x   | --eval=*only trains
run COORDINATED CHIEF --forward_only         | --forward_only=*only trains
run COORDINATED CHIEF --gradient_accumulation_steps=2 | --gradient_acc*update the variables together
run ME ASYNCHRONOUS --gradient_accumulation_steps=2 | --gradient_acc*update the variables together
run --gradient_accumulation_steps=2 --forward_only | --gradient_acc*needs updates, so leave out
run --gradient_accumulation_steps=2 --eval --train_dir=x | --gradient_acc*needs updates
run --gradient_accumulation_steps=2 --staged_vars | --gradient_acc*cannot be used with --staged_vars
run --gradient_accumulation_steps=2 --variable_update=independent | --gradient_acc*common model
run COORDINATED CHIEF --steps_per_execution=2 | --steps_per_exec*update the variables together
run ME ASYNCHRONOUS --steps_per_execution=2 | --steps_per_exec*update the variables together
run --steps_per_execution=2 --eval --train_dir=x | --steps_per_exec*needs steps of a training
run --steps_per_execution=2 --input_only --data_dir=x | --steps_per_exec*needs steps of a training
run --steps_per_execution=2 --profile_layers=x.txt | --steps_per_exec*divides a single step
run --steps_per_execution=2 --tfprof_file=x | --steps_per_exec*divides a single step
run --steps_per_execution=2 --partitioned_graph_file_prefix=x | --steps*writes a single step
run --steps_per_execution=0              | --steps_per_execution=0: must be from 1
run COORDINATED CHIEF --ema_decay=0.9        | --ema_decay=0.9: *update the variables together
run ME ASYNCHRONOUS --ema_decay=0.9          | --ema_decay=0.9: *update the variables together
run --ema_decay=0.9 --precision=fp16 --fp16_vars | --ema_decay=0.9: cannot be used with --fp16_vars
run --ema_decay=1                            | --ema_decay=1: must be at least 0 and less than 1
run --gradient_accumulation_steps=0      | --gradient_accumulation_steps=0: must be from 1
run --batch_size=4 --global_batch_size=8 | --global_batch_size=8: cannot be used with --batch_size
run --image_size=30 --model=vit_b16      | --image_size=30: *multiples of 16 from 16
run --num_classes=3 --model=ncf          | --num_classes=3: *2 outputs only
run COORDINATED CHIEF --staged_vars          | --staged_vars=*needs --variable_update=parameter
run COORDINATED CHIEF --input_distribution=strategy | --input_dist*read their own part
run COORDINATED CHIEF --use_fp16 --fp16_enable_auto_loss_scale | --fp16*cannot be used with
run ME ASYNCHRONOUS --variable_update=distributed_replicated | --cross_replica_sync=
run ME ASYNCHRONOUS --use_fp16 --fp16_enable_auto_loss_scale | --fp16_enable_auto_loss_scale=
run ME --ps_hosts=c:1 --server_protocol=grpc+verbs | --server_protocol=*grpc
run ME MULTI_WORKER --ps_hosts=c:1           | --ps_hosts=*uses no parameter servers
run ME --variable_update=replicated          | --variable_update=*in one process only
run ME --variable_update=mirrored_strategy   | --variable_update=*one process only*use one of

models --data_name=mnist                     | mnist
models --plugin=nowhere.py             | nowhere.py
models --format=xml                          | --format=xml: must be one of table, csv, json
models --batch_size=3                        | unknown flag --batch_size
models resnet50                              | stray argument 'resnet50'

data                                         | takes make-imagenet,*or check, not ''
data chek                                    | not 'chek'
data check                                   | cnnbench data check takes DIR, not 0 arguments
data check x y                               | cnnbench data check takes DIR, not 2 arguments
data check x --data_name=mnist               | --data_name=mnist: must be one of imagenet, cifar10
data check /nowhere                          | /nowhere: there is no such directory
data make-imagenet /nowhere out              | /nowhere: there is no such folder
data make-imagenet images records/0.json     | records/0.json: is not a folder
data check ''                                | an argument is empty
data MAKE --labels=nowhere                   | --labels=nowhere: cannot be read: No such file
data MAKE --labels=pipe                      | --labels=pipe: cannot be read: is a pipe without
data MAKE --labels=hidden                    | --labels=hidden: 'left\x1b?31m': its name has
data make-imagenet broken out                | broken: class folder 'a\nb': its name has characters
data make-imagenet escaped out               | escaped: class folder '*its name has characters

allreduce --sizes=4Q                         | --sizes=4Q: '4Q': must be bytes
allreduce --sizes=                           | --sizes=: is empty
allreduce --sizes=-4                         | --sizes=-4: '-4': must be bytes
allreduce --sizes=4K,,8K                     | --sizes=4K,,8K: '': must be bytes
allreduce --sizes=4K:1K:x2                   | --sizes=*must not end below its beginning
allreduce --sizes=1K:4K:2                    | --sizes=*a factor of 2 or more (x4) or a step (+64K)
allreduce --sizes=1K:4K:x1                   | --sizes=*must end in a factor
allreduce --sizes=1K:4K:+0                   | --sizes=*'0': must be bytes
allreduce --sizes=4K*0                       | --sizes=4K?0: '4K?0': ? must be followed by a number
allreduce --sizes=4K*2*3                     | --sizes=*must be followed by a number of tensors
allreduce --sizes=4:100M:+4                  | --sizes=*has more than 1000 sizes
allreduce --sizes=6                          | --sizes=6: *not a multiple of the 4 bytes of a float
allreduce --sizes=4:16:+2                    | --sizes=*6 bytes are not a multiple
allreduce --sizes=5 --dtype=bfloat16         | --sizes=*not a multiple of the 2 bytes of a bfloat16
allreduce --sizes=1K:4K                      | --sizes=1K:4K: '1K:4K': a range needs three parts
allreduce --all_reduce_spec=xring,copy:4K    | --all_reduce_spec=copy:4K: character 6, '4K'
allreduce --all_reduce_spec=ring             | --all_reduce_spec=ring: character 1, 'ring'
allreduce --device=cpu --all_reduce_spec=xring#3 --num_gpus=3,2 --sizes=1K | --all*'xring#3'
allreduce --device=cpu --num_gpus=2 --all_reduce_spec=nccl | --all_reduce_spec=*only on GPUs
allreduce --device=gpu --gpus_per_card=2 --all_reduce_spec=nccl | --all_reduce_spec=*use xring
allreduce --num_gpus=1                       | --num_gpus=1: must be at least 2
allreduce 4K                                 | stray argument '4K'
allreduce --result_label=today               | --result_label=today
allreduce --link=hdr                         | --link=hdr: is only for predictions; add
allreduce --num_gpus=2 --all_reduce_spec=hierarchical_copy --network_topology=gcp_v100 | --all*'hier
allreduce --peers=nobody                     | --peers=nobody: there is no 'nobody'; must be one of
allreduce --device=cpu --num_gpus=3 --peers=hierarchical_copy_all_reduce --quiet_conditions=all \
    | --peers=*leaves out the last of 3
allreduce --model=resnet1                    | --model=resnet1: unknown
allreduce --dtype=float16 --wire_dtype=bfloat16 | --wire_dtype=bfloat16: works only with
allreduce --wire_dtype=int8                  | --wire_dtype=int8: must be one or more of same
allreduce --compact_gradient_transfer --wire_dtype=bfloat16 | --compact*=true: means --wire_dtype
allreduce --compact_gradient_transfer --dtype=float16 | --compact*=true: works only with --dtype
allreduce --gradient_repacking=1,501         | --gradient_repacking=1,501: must be from 0 to 500
allreduce --agg_small_grads_max_bytes=64,x   | --agg*=64,x: must be sizes in bytes
allreduce --gradient_bucket_bytes=           | --gradient_bucket_bytes=: must be sizes in bytes
allreduce --num_gpus=3 --gpu_indices=0,1     | --gpu_indices=0,1: names 2 GPUs, but --num_gpus=3
allreduce --iters_per_step=0                 | --iters_per_step=0: must be from 1 to 100000
allreduce --iterations=2 --num_batches=3     | --iterations=2: contradicts --num_batches=3
allreduce --result_json=none/r.json          | --result_json=none/r.json: there is no folder
allreduce --result_json=no --result_csv=no   | --result_csv=no: is also the path of --result_json
allreduce --quiet_conditions=noise           | --quiet_conditions=noise: 'noise' is not the name of
allreduce ME --num_gpus=1 --device=cpu --all_reduce_spec=collective,xring | --all*in a job, every
allreduce ME --num_gpus=1 --device=cpu --all_reduce_spec=xring#3 | --all_reduce_spec=xring#3
allreduce ME --num_gpus=1 --device=cpu --all_reduce_spec=nccl | --all_reduce_spec=nccl
allreduce ME --controller_host=c:1 --all_reduce_spec=collective | --controller_host=c:1
allreduce ME --task_index=2                  | --task_index=2
allreduce --job_name=worker --worker_hosts=a:1,a:1 | --worker_hosts=a:1,a:1: a:1 is given to two
allreduce WORKERS --job_name=ps              | --job_name=ps: *no ps task
allreduce WORKERS                            | --job_name=
allreduce --predict                          | --predict needs --link=PRESET
allreduce PREDICT --inter_link=x             | --inter_link=x: there is no link 'x'; must be one of
allreduce --predict --link=nvlink33          | --link=nvlink33: there is no*did you mean nvlink3
allreduce --predict --link=                  | --link=: is empty
allreduce --predict --link=alpha=1e-6        | --link=alpha=1e-6: lacks bandwidth
allreduce --predict --link=bandwidth=1e9     | --link=bandwidth=1e9: lacks alpha
allreduce --predict --link=hdr,bandwidth=0   | --link=*bandwidth must be a finite*above 0, not '0'
allreduce --predict --link=hdr,alpha=-1      | --link=*alpha must be a finite*least 0, not '-1'
allreduce --predict --link=hdr,alpha=nan     | --link=*not 'nan'
allreduce --predict --link=hdr,alpha=x       | --link=*not 'x'
allreduce --predict --link=hdr,alpha=1,alpha=2 | --link=*'alpha=2' is given twice
allreduce --predict --link=hdr,beta=1        | --link=*'beta=1' must be alpha or bandwidth or gamma=
allreduce --predict --link=hdr,edr           | --link=*'edr' must be
allreduce PREDICT --devices=                 | --devices=: '' is not a number of devices
allreduce PREDICT --devices=8-16             | --devices=8-16: '8-16' is not a number of devices
allreduce PREDICT --devices=8..              | --devices=8..: '8..' is not a number of devices
allreduce PREDICT --devices=8,,9             | --devices=8,,9: '' is not a number of devices
allreduce PREDICT --devices=0                | --devices=0: '0' must be from 1 to 1000000
allreduce PREDICT --devices=16..8            | --devices=16..8: *and a range must increase
allreduce PREDICT --model=resnet51           | --model=resnet51: unknown
allreduce PREDICT --all_reduce_spec=ring     | --all_reduce_spec=ring*there is no algorithm 'ring'
allreduce PREDICT --plot=x.jpg               | --plot=x.jpg: must end in .svg, .png or .pdf
allreduce PREDICT --result_json=/            | --result_json=/: is a folder
allreduce PREDICT --result_csv=none/x.csv    | --result_csv=none/x.csv: there is no folder
allreduce PREDICT --record=nowhere           | --record=nowhere: cannot be read: No such file
allreduce PREDICT --record=records/0.json --step_seconds=1 | --step_seconds=1*contradicts --record
allreduce PREDICT --devices_per_node=4       | --devices_per_node=4: has no effect without --inter
allreduce PREDICT --plot_devices=4           | --plot_devices=4: has no effect without --plot
allreduce PREDICT --batch_size=4             | --batch_size=4: *without --step_seconds or --record
allreduce PREDICT --gradient_repacking=1,2   | --gradient_repacking=1,2: must be one value with
allreduce PREDICT --points=points.json       | --points was removed*--link=
allreduce PREDICT --sizes=4K                 | --sizes=4K: is only for measurements
allreduce PREDICT --num_gpus=2,4             | --num_gpus=2,4: is only for measurements
allreduce PREDICT --record=reduced.json --devices=4 --result_json=reduced.json | --result_j*input
allreduce PREDICT --record=reduced.json --devices=4 --result_json=measured.json | another kind

compare                                      | takes two arguments, BASE and NEW, not 0
compare records                              | takes two arguments, BASE and NEW, not 1
compare records records records              | not 3; quote patterns
compare records records/nowhere              | nowhere: no such file or folder
compare records ''                           | an argument is empty
compare records empty                        | empty: no run records; cnnbench run --result_json=
compare records records --metrics=speed      | --metrics=speed: takes one or more of throughput
compare records records --metrics=           | --metrics=: is empty; give a value or leave
compare records records --format=pdf         | --format=pdf: must be one of
compare records records --output=records     | --output=records: is a folder; name a file
compare records records --output=records/0.json | --output=records/0.json: is a file of another kind
compare records records --output=records/0.json --format=json | --output=*is a file of another kind
compare records/0.json records/0.json --output=records/0.json | --output=*is an input file
compare records records --allow_different=cpu_modle | did you mean cpu_model?
compare records records --allow_different=iters_per_stop | did you mean iters_per_step?
compare records records --baseline_aa=gone   | --baseline_aa=gone: no such file or folder
compare records records --baseline_aa=empty  | empty: no run records; cnnbench run
compare records records --fail_on=step       | --fail_on=step: must be one of slower, faster
compare records records --fail_on=never,slower | --fail_on=never,slower: must be one or more of
compare records records --fail_on=changed --allow_changed_work | --fail_on=changed: contradicts
compare records records --tresholds=1        | did you mean --threshold?

ab                                           | A and B are the same; use --a and --b
ab --a=--model=lenet --b=--model=lenet       | A and B are the same
ab --a=--display_every=5 --b=--tf_random_seed=1 | A and B are the same
ab --resume                                  | --resume=true: needs --results
ab --resume --results=none                   | --results=none: contains no experiment of cnnbench ab
ab --resume --results=nested                 | --results=nested: contains no experiment
ab --a_env=X=1 --b_env=X=1                   | A and B are the same
ab --a_checkout=.. --b_checkout=..           | A and B are the same: .. and .. are
ab --a_checkout=v1 --b_checkout=main         | A and B are the same: v1 and main are both
ab --aa --b=--xla                            | --b=--xla: --aa measures side A twice
ab --aa --confirm                            | --confirm=true: with --aa, there is no verdict
compare a b --quiet_conditions=noise         | --quiet_conditions=noise: 'noise' is not the name of
ab --a=--modell=lenet                        | unknown flag --modell; did you mean --model?
ab "--a=--num_gpus='1"                       | --a=--num_gpus='1: is not a list of flags
ab --a=--xla --model=lenet                   | --model is a flag of cnnbench run, not of ab: put
ab --a=--xla --num_batches                   | --num_batches is a flag of cnnbench run, *--b
ab --nomodel                                 | --nomodel is a flag of cnnbench run, not of ab: put
ab --noxla=1                                 | --noxla is a flag of cnnbench run, *-- --noxla=1;
ab lenet                                     | stray argument 'lenet': put flags of both A and B
ab --a_python=/nowhere/python                | --a_python=/nowhere/python: is not a program
ab --b_checkout=nothing-of-the-kind          | is neither a folder nor a revision
ab --b_checkout=--help                       | is neither a folder nor a revision
ab --a_env=NAME                              | --a_env=...: must be NAME=VALUE
ab --b_env=NAME --a_checkout=nothing         | --b_env=...: must be NAME=VALUE
ab "--a_env=''" --a_env=SECRET=x              | --a_env=...: must be NAME=VALUE
ab --a_env=X=1 MY_TOKEN=secret               | stray argument 'MY_TOKEN=...': put flags
ab --a_env==secret                           | --a_env=...: must be NAME=VALUE
ab --flagfile=variables                      | --a_env=...: must be NAME=VALUE
ab --b=--train_dir=x                         | --train_dir=x: cannot be used here, because
ab --b=--checkpoint_directory=x              | --train_dir=x: cannot be used here, because
ab "--b=-train_dir x"                        | --train_dir=x: cannot be used here, because
ab --b=--flagfile=ff                         | --result_csv=x: cannot be used here, because
ab --b=--flagfile=none                       | --flagfile=none: cannot be read: No such file
ab --b_checkout=images --b=--flagfile=../ff  | --result_csv=x: cannot be used here, because
ab --a_python=python3 --b=--flagfile=ff      | --result_csv=x: cannot be used here, because
ab --b=--model=nosuch                        | --model=nosuch: unknown; models for imagenet
ab --pairing=turns --b=--xla LOCAL -- --device=gpu | --pairing=*side A: on GPUs*growth
ab --allow_different=cpu_modell              | no such fact; did you mean cpu_model?
ab --baseline_aa=nowhere                     | nowhere: no such file or folder
ab -- --batch_size=-1                        | --batch_size=-1: must be
ab -- --result_json=x.json                   | --result_json=x.json: cannot be used here, because
ab -- run --model=nosuch                     | --model=nosuch: unknown; models for imagenet
ab -- --plugin=nosuch.py               | --plugin=nosuch.py: cannot be read
ab --b=--data_dir=/nowhere                   | --data_dir=/nowhere:
ab -- --peak_flops=1                         | --peak_flops=1*: must be 0 or at least
ab --a=--workers=2                           | --workers is not a flag of a run, but of cnnbench
ab -- --ps=1                                 | --ps is not a flag of a run, but of cnnbench launch
ab --workers=2 --b=--xla -- --variable_update=parameter_server | --ps=0: *needs tasks
ab --workers=2 --b=--xla -- RING --job_name=ps | --job_name=ps: is set by launch
ab --workers=2 --ps=1 --b=--variable_update=collective_all_reduce | --ps=1: *uses no parameter serv
ab --workers=2 --b=--xla --pairing=turns -- RING | --pairing=*: a job of several processes
ab --b=--xla -- --graph_file=/proc/none/g    | --graph_file=/proc/none/g: there is no folder

gate                                         | cnnbench gate takes one or two commits, BASE and HEAD
gate main v1 x                               | not 3 arguments
gate nothing-of-the-kind                     | nothing-of-the-kind HEAD:
gate --resume                                | --resume=true: needs --results
gate main --a_checkout=.                     | unknown flag --a_checkout
gate main~ --results=records                 | --results=records: is not empty; name another folder
gate --init=travis                           | --init=travis: must be one of github, gitlab, jenkins
gate --init=github --results=x              | --results: --init writes files for gates of all
gate main                                    | main HEAD: main contains all commits of HEAD
gate --init=github main                      | main: --init writes files for gates of all changes
explain a.json                               | takes two profiles, of A and of B, not 1
explain a.json b.json --rounds=2             | --rounds=2: has an effect only on new processes
explain a.json none                          | none: cannot be read
explain /dev/zero b.json                     | /dev/zero: cannot be read: is a device
explain pipe b.json                          | pipe: cannot be read: is a pipe without
explain pipes b.json                         | pipes/a.json: cannot be read: is a pipe without
explain graph.json b.json                    | graph.json: not a profile: graph.Conv2D: expected
explain huge.json b.json                     | huge.json: not a profile: 1e+308 is not a time
explain negative.json b.json                 | negative.json: not a profile: -1.0 is not a time
explain flops.json b.json                    | flops.json: not a profile: rows.flops: -1 is not in
explain bytes.json b.json                    | bytes.json: not a profile: allocated_bytes: -1 is
explain deep.json b.json                     | deep.json: not JSON: nested too deeply
explain twice.json b.json                    | twice.json: not JSON: duplicate key 'schema'
explain a.json empty                         | empty: no profiles; cnnbench run
explain a.json x.json                        | x.json: not a profile:
explain a.json b.json --output=a.json        | --output=a.json: is an input file
explain -- --model=lenet                     | A and B are the same; use --a
explain --b=--profile_json=x -- --model=lenet | --profile_json=x: cannot be used here, because
explain --workers=2 --b=--xla -- --variable_update=parameter_server | --ps=0: *needs tasks

bisect main                                  | takes two revisions, GOOD and BAD, not 1
bisect nothing main                          | GOOD 'nothing': is not a revision of
bisect main main                             | are the same commit
bisect main main~1                           | BAD is an ancestor of GOOD; swap GOOD and
bisect main~1 main --model=lenet             | --model is a flag of cnnbench run, not of bisect
bisect main~1 main --results=damaged-bisect --resume -- --model=lenet \
                                             | damaged-bisect/bisect.jsonl: line 2 is damaged
bisect main~1 main --repository=/            | --repository=/: must be in a git repository
bisect main~1 main --python=/nowhere         | --python=/nowhere: is not a program
bisect main~1 main -- --train_dir=x          | --train_dir=x: cannot be used with bisect

roofline                                     | name one model
roofline lenet trivial                       | lenet, trivial
roofline nosuch                              | --model=nosuch
roofline lenet --eval                        | --eval
roofline lenet --plot=a.txt                  | --plot=a.txt: must end in .svg
roofline lenet --warmup=auto                 | --warmup=auto
roofline lenet --worker_hosts=a:1,b:2        | --worker_hosts
roofline lenet CPU8 --forward_only --freeze_when_forward_only | --precision=int8: *not supported*

strategies TWO_CPUS --modes=horovod          | --modes=horovod: takes one or more of
strategies TWO_CPUS --num_gpus=1             | --num_gpus=1: must be at least 2
strategies TWO_CPUS --train_dir=d            | --train_dir=d: is set by the command
strategies TWO_CPUS --result_json=r          | --result_json=r: is set by the command; use --results
strategies TWO_CPUS --variable_update=replicated | --variable_update=*: is varied by the command
strategies TWO_CPUS --forward_only           | --forward_only=true: *used with strategies, which
strategies TWO_CPUS --staged_vars            | --staged_vars=true: trains differently
strategies TWO_CPUS --variable_consistency=relaxed | --variable_consistency=*: trains differently
strategies TWO_CPUS --data_dir=/none/imagenet | --data_dir=/none/imagenet:
strategies TWO_CPUS --graph_file=/proc/none/g | --graph_file=/proc/none/g: there is no folder
strategies TWO_CPUS --plot=p.gif             | --plot=p.gif: must end in .svg, .png or .pdf
strategies TWO_CPUS replicated               | stray argument 'replicated'
strategies TWO_CPUS --results=/proc/none     | --results=/proc/none: cannot be used

tune TWO_CPUS --train_dir=d                  | --train_dir=d: is set by the command
tune TWO_CPUS --eval                         | --eval=true: cannot be used with tune
tune TWO_CPUS --job_name=worker              | --job_name=worker: *--workers, --ps and --controller
tune TWO_CPUS --cluster=slurm                | --cluster=slurm: *--workers, --ps and --controller
tune TWO_CPUS --workers=2 -- --ps_hosts=a:1  | --ps_hosts=a:1: *--workers, --ps and --controller
tune TWO_CPUS --workers=2 --variable_update=replicated | --variable_update=replicated: *with launch
tune TWO_CPUS --workers=2 --list --variable_update=parameter_server | --ps=0: *parameter_server
tune TWO_CPUS --workers=2 --pairing=turns    | --pairing=turns: is impossible: a job of several
tune TWO_CPUS --allow=speed                  | --allow=speed: takes one or more of precision
tune TWO_CPUS --plot=p.gif                   | --plot=p.gif: must end in .svg, .png or .pdf
tune TWO_CPUS --space=none.yaml              | --space=none.yaml: cannot be read: No such file
tune TWO_CPUS --resume --results=binary      | --results=binary: journal.jsonl in it is not a
tune TWO_CPUS --resume --results=piped       | --results=piped: journal.jsonl in it is not a journal
tune TWO_CPUS --resume --results=damaged     | damaged/journal.jsonl: line 1 is damaged; restore
tune TWO_CPUS --resume                       | --resume=true: needs --results
tune TWO_CPUS -- --minutes=3                 | unknown flag --minutes
tune TWO_CPUS --results=/proc/none           | --results=/proc/none: cannot be used
tune TWO_CPUS fast                           | stray argument 'fast'

sweep                                        | sweep takes a suite: all_reduce, batch_size,
sweep tiny.yaml other                        | sweep takes one suite, not 2
sweep tinny                                  | there is no suite 'tinny'; choose one of all_reduce
sweep tinny.yaml                             | tinny.yaml: no such file
sweep tiny.yaml --filter=b                   | --filter=b: matches none of "a num_gpus=1"
sweep tiny.yaml '--filter=('                 | --filter=(: is not a regular expression
sweep tiny.yaml -- --variable_update=replicated --all_reduce_spec=nccl \
                                             | tiny.yaml:3: a num_gpus=2: *nccl sums only on GPUs
sweep tiny.yaml --results=tuned              | --results=tuned: journal.jsonl in it is not a journal
sweep tiny.yaml --results=damaged-sweep      | damaged-sweep/sweep.jsonl: line 2 is damaged
sweep tiny.yaml --results=tiny.yaml/x        | --results=tiny.yaml/x: cannot be used
sweep tiny.yaml -- --modle=x                 | unknown flag --modle; did you mean --model?
sweep tiny.yaml -- x                         | stray argument 'x'
sweep tiny.yaml -- --num_gpus=3              | --num_gpus=3: is what "a" varies
sweep tiny.yaml -- --result_json=x           | tiny.yaml:3: a num_gpus=1: --result_json=x
sweep typo.yaml                              | typo.yaml:3: unknown key "modle"; did you mean

launch --wrokers=2                           | did you mean --workers?
launch lenet                                 | launch takes no argument 'lenet'
launch -- --modle=lenet                      | unknown flag --modle
launch --workers=2 -- --variable_update=parameter_server | --ps=0: *needs tasks
launch --workers=2 -- --job_name=ps          | --job_name=ps: is set by launch
launch --ps=1 -- --task_index=1              | --task_index=1: is set by launch
launch --ps=1 -- --worker_hosts=a:1          | --worker_hosts=a:1: is set by launch
launch --ps=1 -- --ps_hosts=a:1              | --ps_hosts=a:1: is set by launch
launch --ps=1 -- --controller_host=a:1       | --controller_host=a:1: is set by launch
launch --ps=1 -- --cluster=mpi               | --cluster=mpi:
launch --ps=1 -- --rendezvous=a:1            | --rendezvous=a:1:
launch --ps=1 --towers=3 -- --num_gpus=2     | --num_gpus=2:
launch --workers=2 -- allreduce --sizes=x    | --sizes=x
launch --workers=2 -- allreduce --link=hdr   | unknown flag --link
allreduce --cluster=slurm                    | unknown flag --cluster
launch --ps=1 -- allreduce                   | --ps=1:
launch --workers=2 -- --variable_update=replicated | --variable*with launch use one of
launch --workers=2 --ps=1 -- --batch_size=-1 | --batch_size=-1
launch --ps=1 -- ALL_REDUCE --all_reduce_spec=ring | --ps=1: *uses no parameter servers
launch --controller -- --variable_update=collective_all_reduce | --controller=true: *no controller
launch --towers=2 --ps=1 -- --variable_update=parameter_server_strategy | --towers=2: *one device
launch --controller -- RING --data_name=cifar10 --model=ncf \
                                             | --model=ncf: is a model for ratings, not for cifar10
launch --controller -- RING --data_dir=nowhere | --data_dir=*there is no
launch --controller -- ALL_REDUCE --all_reduce_spec=xrong | --all_reduce_spec=xrong:
launch --controller -- RING --aux_head | --aux_head=true: *has no
launch --ps=1 --log_dir=/dev/null/x          | --log_dir=/dev/null/x: must be a directory
launch --ps=1 -- --result_json=/proc/none/r  | --result_json=/proc/none/r: there is no folder
launch --ps=1 -- --train_dir=/dev/null/x     | --train_dir=/dev/null/x: must be a directory
launch --ps=1 -- --train_dir=ckpt-1          | --train_dir=ckpt-1: names a single checkpoint
launch --workers=2 -- allreduce --result_csv=/proc/none/r | --result_csv=/proc/none/r: there is no
launch --ps=256 --affinity                   | CPUs cannot be divided among 257 processes
launch --ps=1 --output=x.csv                 | --output=x.csv: needs --scaling
launch --ps=1 --scaling=1,0                  | --scaling=1,0: must be from 1
launch --ps=1 --scaling=1 --workers=2        | --workers=2: cannot be used with --scaling
launch --ps=1 --scaling=1 --affinity         | --affinity=true: cannot be used with --scaling
launch --ps=1 --resume                       | --resume=true: needs --scaling
launch --workers=2 -- --num_gpus=3 --gpus_per_card=2 RING | --gpus_per_card=2: must be a divisor
launch --ps=1 --scaling=1 --plot=x.gif       | --plot=x.gif:
launch --ps=1 --scaling=1 --link=wire        | --link=wire:
launch --ps=1 --scaling=1 -- --result_json=x | --result_json=x: cannot be used by

report                                       | takes run records
report gone                                  | gone: no such file
report empty                                 | neither run records nor all-reduce measurements
report records --table=runs                  | --table=runs: needs --format=csv
report records --format=csv --table=comparison | --table=comparison: needs --baseline
report records --threshold=5                 | --threshold=5: needs --baseline
report records --output=/gone/x.html         | --output=/gone/x.html
report records --output=records/0.json       | --output=records/0.json: is a file of another kind
report records/0.json --output=records/0.json | --output=records/0.json: *is an input file
report records --fail_on=slower              | --fail_on=slower: needs --baseline, or the results
report records --baseline=gone               | --baseline=gone: no such file
report records --baseline=empty              | --baseline=empty: neither run records nor all-reduce
report records --baseline=records --allow_different=tensorflow,cpu_modle | --allow*mean cpu_model?

history                                      | takes one directory of records, not 0
history records more                         | takes one directory of records, not 2
history gone                                 | gone: no such directory
history empty                                | no run records
history records --metric=speed               | --metric=speed
history records --since=yesterday            | --since=yesterday: must be a day
history records --plot=x.jpg                 | --plot=*must end in .html, .md, .svg, .png or .pdf
history records --plot=/gone/x.svg           | --plot=/gone/x.svg
history records --output=p.svg --plot=./p.svg | --plot=./p.svg: is also the path of --output
history records --output=records/0.json --format=json | --output=*is a file of another kind
history records --git=/gone                  | --git=/gone
history records --by=typo                    | --by=typo: *no*label or fact*there are commit, day
history records --by=comit                   | --by=comit: no measurement*did you mean commit?
history records --by=                        | --by=: no measurement
history records --by=model                   | --by=model: no measurement
history records --machine=[                  | matches none of 2 runs
history records --model=lenet --since=2027-01-01 | --since=2027-01-01: matches none of 2 runs
history records --configuration=lenet --model=trivial | --model=trivial*: matches none of 2
history records --commit_url=https://x.y/{commit} | commit_url
history records --commit_url=https://x.y/{commit} --plot=h.svg | commit_url
history records --commit_url=https://x.y/ --plot=h.html | commit_url
history records --commit_url=javascript:alert({commit}) --plot=h.html | commit_url
history records '--commit_url=https://x.y/{commit}" onclick="x' --plot=h.html | commit_url
history records --commit_url=https://x.y/{commit}) --plot=h.md | commit_url

completion                                   | cnnbench completion takes one of bash, zsh, not
completion fish                              | cnnbench completion takes one of bash, zsh, not

env x                                        | stray argument 'x': put flags of a run after --
env --seconds=2                              | --seconds needs --check
env --quiet_conditions=load                  | --quiet_conditions needs --check
env --check --quiet_conditions=lod           | --quiet_conditions=lod: 'lod' is not the name of
env --check -- --num_gpus=0                  | --num_gpus=0: must be from 1 to 1024
env --check -- --model=nosuch                | --model=nosuch: unknown; models for imagenet:
"""

TIME = '"time": "2026-01-01T00:00:00+00:00"'
JOURNALS = {
    "binary": bytes(range(256)),
    "nested": b"[" * 100_000,
    "tuned": f'{{"event": "tune", {TIME}}}\n'.encode(),
    "damaged": b'{"event": "ab", "looks": [7], "crc": 1}\n',
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
    """The words of a command line and a pattern of its error, for each row of a command."""
    for line in TABLE.replace("\\\n", "").splitlines():
        if line.partition(" ")[0] == command:
            words, _, reason = line.partition(" | ")
            long = " ".join(SHORT.get(word, word) for word in words.split(" "))
            start = "cnnbench: error: " + ("" if reason.startswith("--") else "*")
            yield shlex.split(long), f"{start}{reason.strip()}*"


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
    (folder / "old.log").write_text("Model:       lenet\nno result\n")
    (folder / "images" / "left" / "0.jpg").touch()
    for name in ("reduced", "measured"):
        frozen = Path(__file__).parents[1] / "frozen" / "allreduce.json"
        (folder / f"{name}.json").write_bytes(frozen.read_bytes())
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
        (folder / name / "journal.jsonl").write_bytes(journal)
    for name in ("sweep", "bisect"):
        (folder / f"damaged-{name}").mkdir()
        damaged = f'{{"event": "{name}", "crc": 1}}\n'
        (folder / f"damaged-{name}" / f"{name}.jsonl").write_text("\n" + damaged)
    (folder / "piped").mkdir()
    os.mkfifo(folder / "piped" / "journal.jsonl")
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
    for _ in range(2):
        git(folder, "commit", "--quiet", "--allow-empty", "-m", "x")
    git(folder, "tag", "v1")
    return folder


def contents(folder):
    """All files of a folder and its sub-folders."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_use_is_one_line_and_changes_nothing(command, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    before = contents(place)
    wrong = []
    for words, pattern in rows(command):
        status = main(words)
        out, err = capsys.readouterr()
        if (status, out, err.count("\n")) != (2, "", 1) or not fnmatch.fnmatchcase(err, pattern):
            wrong.append(f"{shlex.join(words)}: exit code {status}, {out}{err}, not {pattern}")
    assert not wrong, "\n".join(wrong)
    assert contents(place) == before


def test_every_command_and_every_row_of_the_table_is_tried():
    lines = [line for line in TABLE.replace("\\\n", "").splitlines() if line.strip("# ")]
    asked = [line for line in lines if not line.startswith("#")]
    tried = [sum(1 for _ in rows(command)) for command in COMMANDS]
    assert all(tried)
    assert sum(tried) == len(asked)


def test_flag_files_are_nested_only_so_deep(tmp_path, call):
    for number in range(70):
        (tmp_path / str(number)).write_text(f"--flagfile={tmp_path}/{number + 1}\n")
    nested = call(f"--flagfile={tmp_path}/0", code=2).err
    assert "is nested deeper than 64 flag files" in nested
