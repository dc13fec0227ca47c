"""Command lines: spellings, flag files, obsolete and renamed flags, arguments among flags, jobs.

Tests cnnbench/flags/obsolete.py and cnnbench/plan/job.py, too.
"""

import contextlib
import json
import re
from pathlib import Path

import pytest
from golden import sentences
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.base.job import Task
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import FLAGS, Params, args_from_values, parse_args, parse_command
from cnnbench.flags.obsolete import ABSL, OBSOLETE, ONLY_CHECK
from cnnbench.flags.params import SPECS
from cnnbench.flags.parse import expand_flag_files, parse_flag_texts, parse_flags
from cnnbench.plan import parse_run
from cnnbench.variable_mgr.modes import BUILT_IN

GOLDEN = Path(__file__).parent / "golden" / "parse.txt"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("--model=resnet50", {"model": "resnet50"}),
        ("-model=resnet50 -num_gpus 2", {"model": "resnet50", "num_gpus": 2}),
        *((f"--xla{yes}", {"xla": True}) for yes in ("", "=true", "=True", "=t", "=1")),
        *((f"-xla={no}", {"xla": False}) for no in ("false", "False", "F", "0")),
        ("--nowinograd_nonfused", {"winograd_nonfused": False}),
        ("-nowinograd_nonfused", {"winograd_nonfused": False}),
        ("--noallow_growth", {"allow_growth": False}),
        ("--batch_size=8 --batch_size=0x10", {"batch_size": 16}),
        ("--nocache_data", {}),
        ("--zzz=2 --nozzz --undefok=zzz,xla --xla", {"xla": True}),
        ("--device=CPU", {"device": "cpu"}),
        ("--num_epochs=2", {"num_epochs": 2.0}),
        ("--weight_decay=1e-3", {"weight_decay": 0.001}),
        (
            "--eval_during_training_at_specified_steps=5,10",
            {"eval_during_training_at_specified_steps": (5, 10)},
        ),
        ("--eval_during_training_at_specified_steps=", {}),
        ("--use_fp16", {"precision": "fp16"}),
        ("--use_fp16 --precision=fp16", {"precision": "fp16"}),
        ("--nouse_fp16 --precision=bf16", {"precision": "bf16"}),
        # Variables of old scripts that are not set, with quotes that the shell does not remove.
        *((f"--all_reduce_spec={none} --train_dir={none}", {}) for none in ("''", '""')),
        ("--all_reduce_spec=", {}),
    ],
)
def test_spellings(line, expected):
    assert parse_run(line.split(" ") if line else []).params == Params(**expected)


def test_explicit_flags_are_those_given():
    parsed = parse_run(["--xla", "--noxla", "-model", "trivial", "--num_gpus=1", "--nomkl"])
    assert parsed.explicit_flags == ("model", "num_gpus", "xla", "mkl")
    assert (parsed.params, parsed.notices) == (Params(), ())


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(min_value=0, exclude_min=True, max_value=1e30), max_size=4))
def test_numbers_survive_text(values):
    spec = SPECS["eval_during_training_at_specified_epochs"]
    assert spec.parse(spec.text(tuple(values))) == tuple(values)


_NAMES = st.sampled_from([spec.name for spec in (*FLAGS, *OBSOLETE)])
_VALUES = st.sampled_from(["", "0", "-1", "true", "nan", "1e999", "9" * 5000, "1;2;3", "0,1", "--"])
_ARGUMENT = st.one_of(
    st.builds("--{}={}".format, _NAMES, _VALUES),
    st.builds("-{}={}".format, _NAMES, st.text(max_size=5)),
    st.builds("--no{}".format, _NAMES),
    st.builds("--{}".format, _NAMES),
    _VALUES,
    st.text(max_size=5).filter(lambda text: "flagfile" not in text),
)


@settings(deadline=None, max_examples=15)  # it is about what is said, not how fast
@given(st.lists(_ARGUMENT, max_size=4))
def test_whatever_is_typed_is_used_or_refused(argv):
    with contextlib.suppress(UsageError):
        parsed = parse_run(argv)
        assert Params.from_dict(parsed.params.as_dict()) == parsed.params


_COMMAND_FLAGS = tuple(spec for spec in FLAGS if spec.name in ("model", "xla", "num_gpus"))


def test_flag_files(tmp_path, capfd):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(f"# comment\n// comment\n\n  --model=lenet  \r\n--flagfile={two}\n")
    two.write_text("--num_gpus=2\n")
    lenet = Params(model="lenet", num_gpus=2)
    assert parse_run([f"-flagfile={one}"]).params == lenet
    assert parse_run([f"--flagfile={one}", "--num_gpus=3"]).params == lenet.replace(num_gpus=3)
    assert parse_run([f"--flagfile={one}", "--flagfile", str(two)]).params == lenet  # no circle
    assert parse_run(["--flagfile="]).params == Params()
    after = ["--learning_rate", "0.5", "--xla", f"--flagfile={two}"]  # a renamed flag's value
    assert parse_run(after).params.num_gpus == 2
    two.write_text(f"--flagfile={one}\n")
    with pytest.raises(FlagError, match=f"^--flagfile={one}: includes itself"):
        parse_run([f"--flagfile={one}"])
    assert capfd.readouterr() == ("", "")


def test_flag_files_are_nested_at_most_64_deep(tmp_path):
    (tmp_path / "1").write_text("--num_gpus=3\n")
    for number in range(2, 66):
        (tmp_path / str(number)).write_text(f"--flagfile={tmp_path}/{number - 1}\n")
    assert parse_run([f"--flagfile={tmp_path}/64"]).params.num_gpus == 3
    with pytest.raises(FlagError, match=f"^--flagfile={tmp_path}/1: .*64"):
        parse_run([f"--flagfile={tmp_path}/65"])


@pytest.mark.parametrize(
    ("line", "given", "arguments"),
    [
        ("", {}, ""),
        ("old --model=lenet new -xla", {"model": "lenet", "xla": True}, "old new"),
        ("--num_gpus 2 old", {"num_gpus": 2}, "old"),
        ("--xla -- --model -x", {"xla": True}, "--model -x"),
        ("-- old -- new", {}, "old -- new"),
    ],
)
def test_commands_mix_flags_and_arguments(line, given, arguments):
    assert parse_command(line.split(), _COMMAND_FLAGS) == (given, tuple(arguments.split()))


@pytest.fixture
def _alone(monkeypatch):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)


TWO_WORKERS = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'
EVALUATOR = TWO_WORKERS.replace('"worker", "index": 1', '"evaluator"')


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("variable", "value", "cluster"),
    [
        ("OMPI_COMM_WORLD_SIZE", "2", "mpi"),
        ("SLURM_STEP_NUM_TASKS", "3", "slurm"),
        ("TF_CONFIG", TWO_WORKERS, "tf_config"),
        ("TF_CONFIG", EVALUATOR, "tf_config"),
        ("TF_CONFIG", "{", "tf_config"),
        ("PMI_SIZE", "two", "mpi"),
    ],
)
def test_a_task_that_runs_alone_says_so(monkeypatch, variable, value, cluster):
    flags = ("--variable_update=multi_worker_mirrored_strategy", "--batch_size=2")
    quiet = parse_run(flags)
    monkeypatch.setenv(variable, value)
    told = parse_run(flags)
    assert told.params == quiet.params
    (notice,) = set(told.notices) - set(quiet.notices)
    assert variable in notice
    # A variable that cannot be read is no reason to join a job.
    assert (f"--cluster={cluster}" in notice) == (value not in ("{", "two"))
    for joined in (("--cluster=flags",), ("--worker_hosts=a:1,b:2", "--job_name=worker")):
        assert parse_run([*flags, *joined]).notices == quiet.notices


@pytest.mark.usefixtures("_alone")
def test_horovod_joins_what_horovodrun_or_tf_config_says(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TWO_WORKERS)
    found = parse_run(["--variable_update=horovod"])
    params, job = found.params, found.place.job
    assert (params.cluster, job.task, job.num_workers) == ("tf_config", Task("worker", 1), 2)
    for name, value in {"RANK": "2", "SIZE": "3", "LOCAL_RANK": "2", "LOCAL_SIZE": "3"}.items():
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    found = parse_run(["--variable_update=horovod"])
    params, job = found.params, found.place.job
    assert (params.cluster, job.task, job.num_workers) == ("mpi", Task("worker", 2), 3)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *((mode.name, "chief") for mode in BUILT_IN),
        *(("parameter_server", name) for name in ("master", "worker")),
    ],
)
def test_the_only_task_of_tf_config_runs_alone_in_every_mode_that_can(monkeypatch, mode, name):
    cluster = {name: ["a:1"], "evaluator": ["b:1"]}
    config = {"cluster": cluster, "task": {"type": name, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    flags = ["--cluster=tf_config", f"--variable_update={mode}"]
    flags += ["--all_reduce_spec=xring"] * (mode == "distributed_all_reduce")
    if mode == "parameter_server_strategy":
        with pytest.raises(FlagError, match="parameter_server_strategy: needs processes"):
            parse_run(flags)
        return
    parsed = parse_run(flags)
    assert not parsed.place.job.in_cluster
    assert any("--cluster=tf_config" in notice for notice in parsed.notices)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("name", "value"), [("TF_CONFIG", "{"), ("TF_CONFIG", EVALUATOR), ("HOROVOD_SIZE", "two")]
)
def test_horovod_refuses_a_job_that_it_cannot_join(monkeypatch, name, value):
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"evaluator|TF_CONFIG=|HOROVOD_SIZE=two"):
        parse_run(["--variable_update=horovod"])


def test_a_ps_task_may_have_no_gpus():
    task = ("--job_name=ps", "--worker_hosts=a:1", "--ps_hosts=b:1")
    assert parse_run([*task, "--num_gpus=0"]).params == parse_run(task).params
    with pytest.raises(FlagError, match="--num_gpus=0: must be from 1 to 1024"):
        parse_run(["--job_name=worker", *task[1:], "--num_gpus=0"])


@pytest.mark.usefixtures("_alone")
def test_horovod_runs_as_collective_all_reduce(monkeypatch):
    parsed = parse_run(["--variable_update=horovod"])
    assert parsed.params == Params(variable_update="collective_all_reduce")
    assert [line for line in parsed.notices if "without Horovod" in line]
    monkeypatch.setenv("HOROVOD_TIMELINE", "/t.json")
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    uses = "--trace_file for HOROVOD_TIMELINE, --gradient_bucket_bytes for HOROVOD_FUSION_THRESHOLD"
    line = f"Horovod's variables have no effect; use {uses}"
    assert parse_run(["--variable_update=horovod"]).notices == (*parsed.notices, line)
    assert line not in parse_run(["--variable_update=replicated"]).notices
    ranks = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    for name, value in ranks.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    params = parse_run(["--variable_update=horovod"]).params
    assert (params.cluster, params.job_name, params.task_index) == ("mpi", "worker", 1)
    hosts = ("--worker_hosts=a:1,b:2", "--job_name=worker")
    assert parse_run(["--variable_update=horovod", *hosts]).params.cluster == "flags"


def test_every_flag_can_be_given_at_its_default():
    for spec in (spec for spec in (*FLAGS, *OBSOLETE) if spec.default is not None):
        parsed = parse_run([f"--{spec.name}={spec.text(spec.default)}"])
        assert (parsed.params, parsed.explicit_flags) == (Params(), (spec.name,))
        assert spec in FLAGS or not parsed.notices


def test_obsolete_flags_change_nothing_and_say_what_to_use_instead():
    for spec in OBSOLETE:
        if spec.name == ONLY_CHECK:
            continue
        values = {"boolean": not spec.default, "integer": 3, "number": 1, "string": "FP16"}
        text = spec.text(values[spec.kind.name])
        parsed = parse_run([f"--{spec.name}={text}"])
        assert (parsed.params, parsed.explicit_flags) == (Params(), (spec.name,))
        reason = "has no effect." if spec in ABSL else "has no meaning in TensorFlow 2."
        told = f"--{spec.name}={text} {reason} {spec.help}"
        assert parsed.notices == (told,)
        with pytest.warns(UserWarning, match="has no ") as caught:
            params = Params(**{spec.name: values[spec.kind.name]}, num_gpus=2)
        assert [str(one.message) for one in caught] == [told]
        assert caught[0].filename == __file__
        assert params == Params(num_gpus=2)
        assert params == Params(**{spec.name: spec.default}, num_gpus=2)  # without a warning
    for name, value in (("trt_mode", "FP64"), ("gpu_memory_frac_for_testing", -1)):
        with pytest.raises(FlagError, match=rf"^--{name}={value}"):
            Params(**{name: value})


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("learning_rate", "init_learning_rate", 0.5),
        ("checkpoint_directory", "train_dir", "d"),
        ("cache_data", "datasets_repeat_cached_sample", True),
    ],
)
def test_old_names_are_the_new_flags(old, new, value, tmp_path):
    params, notice = Params(**{new: value}), f"--{old} was renamed to --{new}"
    parsed = parse_run([f"--{old}={value}"])
    assert (parsed.params, parsed.explicit_flags) == (params, (new,))
    assert notice in parsed.notices
    (tmp_path / "flags").write_text(f"--{old}={value}\n")
    assert parse_run([f"--flagfile={tmp_path}/flags"]) == parsed
    with pytest.warns(UserWarning, match=f"^{notice}$") as caught:
        assert Params(**{old: value}).replace(num_gpus=2) == params.replace(num_gpus=2)
    assert len(caught) == 1
    with pytest.raises(FlagError, match=f"(?i)--{old}={value}: was renamed to --{new}; give one"):
        Params(**{old: value, new: value})


def test_every_text_of_a_repeated_flag_is_parsed():
    assert parse_run(["--batch_size=2", "--batch_size=3"]).params.batch_size == 3
    with pytest.raises(UsageError, match=r"^--batch_size=x: must be an integer$"):
        parse_run(["--batch_size=x", "--batch_size=3"])


@pytest.mark.parametrize(
    "word",
    [
        *("--data_dir=", "--data_name=", "--train_dir=", "--checkpoint_directory="),
        *("--all_reduce_spec=", "--piecewise_learning_rate_schedule="),
        *("--partitioned_graph_file_prefix=", "--controller_host=", "--stop_at_top_1_accuracy=0"),
        *("--eval_during_training_every_n_steps=0", "--eval_during_training_every_n_epochs=0.0"),
    ],
)
def test_empty_values_of_tf_cnn_benchmarks_mean_not_given(word):
    parsed = parse_run([word])
    assert parsed.params == parse_run([]).params
    *_, notice = parsed.notices
    assert re.match(r"--(\w+)=0? is the same as no --\1, as in tf_cnn_benchmarks", notice)
    # Campaigns write flags for their processes.
    name = parsed.explicit_flags[0]
    text = SPECS[name].text(getattr(parsed.params, name))
    assert parse_run([f"--{name}={text}"]).params == parsed.params


def test_an_empty_flag_without_meaning_needs_no_notice():
    parsed = parse_run(["--rewriter_config=", "--tfprof_file="])
    assert (parsed.params, parsed.notices) == (parse_run([]).params, ())


NO_FLAGS = [
    *("--nonum_gpus", "--nonum_gpus=3", "--noxla=true", "-towers=2"),
    *("--num_batches  3", "--num_batch=3", "--nodistortion", "--zzzzzzzz", "--zzz zzzzz"),
    *("lenet", "--num_gpus=1|2", "--xla|TRUE", "--xla|False", "-xla|maybe", "x|--xla", "--|x"),
    *("--batch_size", "--undefok", "--flagfile", "--batch_size=-1"),
]
"""Arguments, separated by |, that are refused with the sentences of golden/parse.txt."""
OF_COMMANDS = ["--zzzzzzzz", "--batch_size=2", "old", "--num_gpus=x"]


def refusal(parse, words):
    with pytest.raises(UsageError) as caught:
        parse(words.split("|"))
    return str(caught.value)


def test_what_is_no_flag_is_refused_with_what_to_write():
    told = {f"run {words}": refusal(parse_run, words) for words in NO_FLAGS}
    assert told == {f"run {words}": refusal(parse_args, words) for words in NO_FLAGS}
    for words in OF_COMMANDS:
        told[f"command {words}"] = refusal(lambda argv: parse_flags(argv, _COMMAND_FLAGS), words)
    sentences(GOLDEN, told, told)


def test_commands_of_their_own_flags_refuse_others():
    specs = _COMMAND_FLAGS
    assert parse_flags(["--num_gpus=2", "--xla"], specs) == {"num_gpus": 2, "xla": True}
    assert [*parse_flags(["--xla", "--num_gpus=2"], specs)] == [
        spec.name for spec in specs if spec.name != "model"
    ]
    with pytest.raises(UsageError, match=r"^an argument is empty"):
        parse_command(["old", ""], specs)
    batch = [SPECS["batch_size"]]
    with pytest.raises(FlagError, match=r"^--batch_size=-1: must be"):
        parse_command(["old", "--batch_size=-1"], batch)
    assert parse_command(["b", "--xla", "file:///a"], specs) == ({"xla": True}, ("b", "/a"))
    by_name = {spec.name: spec for spec in specs}
    assert parse_flag_texts({"xla": "t", "num_gpus": "2"}, by_name) == {"num_gpus": 2, "xla": True}
    with pytest.raises(FlagError, match=r"^--num_gpus=x: must be an integer"):
        parse_flag_texts({"num_gpus": "x"}, by_name)


def test_values_of_a_program_are_parsed_arguments():
    args = args_from_values({"precision": "fp16", "num_gpus": 2, "trt_mode": "FP16"})
    assert args.params == Params(precision="fp16", num_gpus=2)
    assert [notice.split()[0] for notice in args.notices] == ["--trt_mode=FP16"]
    more = args.including({"batch_size": 3, "num_gpus": 4})
    assert more.params == Params(precision="fp16", num_gpus=4, batch_size=3)
    assert more.notices == args.notices
    order = {name: place for place, name in enumerate((*SPECS, *(spec.name for spec in OBSOLETE)))}
    assert [*more.given] == sorted(more.given, key=order.__getitem__)
    assert {*more.given} == {"precision", "num_gpus", "trt_mode", "batch_size"}
    for precision, use_fp16, flag in (("bf16", True, "use_fp16"), ("fp16", False, "use_fp16")):
        conflict = args_from_values({"precision": precision, "use_fp16": use_fp16})
        with pytest.raises(FlagError) as caught:
            conflict.params  # noqa: B018
        assert caught.value.flag == flag
    assert args_from_values({"precision": "fp16", "use_fp16": True}).params.precision == "fp16"


def test_only_a_caller_that_checks_arguments_alone_takes_the_flag_for_it():
    assert parse_args([f"--{ONLY_CHECK}"], of_run=True).given == {ONLY_CHECK: True}
    assert parse_args([f"--no{ONLY_CHECK}"]).notices == ()
    with pytest.raises(FlagError, match=f"^--{ONLY_CHECK}=true: "):
        parse_args([f"--{ONLY_CHECK}"])


def test_flag_files_are_expanded_before_a_double_dash(tmp_path):
    file = tmp_path / "flags"
    file.write_text("#--num_gpus=1\n //x\n//--num_gpus=2\n --xla \n\n--model\nlenet\n # a\n")
    words = ["x", f"--flagfile={file}", "--", f"--flagfile={file}"]
    expanded = ["x", "//x", "--xla", "--model", "lenet", "# a", "--", f"--flagfile={file}"]
    assert expand_flag_files(words) == expanded
    assert expand_flag_files(["-flagfile", str(file), "y"]) == [*expanded[1:6], "y"]
    assert expand_flag_files(["--flagfiles=x", "--flagfile="]) == ["--flagfiles=x"]
