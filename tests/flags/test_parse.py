import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import FLAGS, Params, parse_args, parse_command
from cnnbench.flags.retired import OBSOLETE


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], {}),
        (["--model=resnet50"], {"model": "resnet50"}),
        (["--model", "resnet50"], {"model": "resnet50"}),
        (["-model=resnet50", "-num_gpus", "2"], {"model": "resnet50", "num_gpus": 2}),
        (["--xla"], {"xla": True}),
        (["-xla"], {"xla": True}),
        (["--xla=true"], {"xla": True}),
        (["--xla=False"], {"xla": False}),
        (["--nowinograd_nonfused"], {"winograd_nonfused": False}),
        (["-nowinograd_nonfused"], {"winograd_nonfused": False}),
        (["--noallow_growth"], {"allow_growth": False}),
        (["--batch_size=8", "--batch_size=16"], {"batch_size": 16}),
        (["--device=CPU"], {"device": "cpu"}),
        (["--local_parameter_device=GPU"], {"local_parameter_device": "gpu"}),
        (["--num_epochs=2"], {"num_epochs": 2.0}),
        (
            ["--eval_during_training_at_specified_steps=5,10"],
            {"eval_during_training_at_specified_steps": (5, 10)},
        ),
        (["--use_fp16"], {"precision": "fp16"}),
        (["--use_fp16", "--precision=fp16"], {"precision": "fp16"}),
        (["--nouse_fp16", "--precision=bf16"], {"precision": "bf16"}),
        (["--resize_method=crop"], {"resize_method": "crop"}),
    ],
)
def test_spellings(argv, expected):
    assert parse_args(argv).params == Params(**expected)


def test_explicit_flags_are_those_given():
    parsed = parse_args(["--xla", "--noxla", "-model", "trivial", "--num_gpus=1", "--nomkl"])
    assert parsed.explicit_flags == ("model", "num_gpus", "xla", "mkl")
    assert parsed.params == Params()
    assert parsed.notices == ()


def test_flagfile(tmp_path):
    file = tmp_path / "flags"
    file.write_text("--model=lenet\n# a comment\n--num_gpus=2\n")
    parsed = parse_args([f"--flagfile={file}", "--num_gpus=3"])
    assert (parsed.params.model, parsed.params.num_gpus) == ("lenet", 3)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--xla", "True"], "stray argument 'True' after --xla: write --xla=true"),
        (
            ["--model=lenet", "-distortions", "False", "--num_gpus=2"],
            "stray argument 'False' after --distortions: write --distortions=false",
        ),
        (
            ["--xla", "maybe"],
            "stray argument 'maybe' after --xla: write --xla=true or --xla=false",
        ),
        (["resnet50"], "stray argument 'resnet50': flags are written --flag=value"),
        (["--model=lenet", "--", "x"], "stray argument 'x': flags are written --flag=value"),
        (["--batchsize=3"], "unknown flag --batchsize; did you mean --batch_size?"),
        (["--nowinograd"], "unknown flag --nowinograd; did you mean --nowinograd_nonfused?"),
        (
            ["--nonum_gpus"],
            "--nonum_gpus: only a boolean has a --no form, write --num_gpus=value",
        ),
        (["--zzzzzz"], "unknown flag --zzzzzz; cnnbench run --help lists those of runs"),
        (["--batch_size"], "--batch_size needs a value: write --batch_size=value"),
        (["--xla=maybe"], "--xla=maybe: must be true or false"),
        (["--num_gpus=two"], "--num_gpus=two: must be an integer"),
        (["--num_gpus", "-1"], "--num_gpus=-1: must be from 1 to 1024"),
        (["--optimizer=lion"], "--optimizer=lion: must be one of momentum, sgd, rmsprop, adam"),
        (
            ["--variable_update=replicate"],
            "--variable_update=replicate: must be one of parameter_server, replicated, "
            "independent, distributed_replicated, distributed_all_reduce, collective_all_reduce, "
            "mirrored_strategy, multi_worker_mirrored_strategy, central_storage_strategy, "
            "one_device_strategy, parameter_server_strategy",
        ),
        (["--precision=fp8"], "--precision=fp8: must be one of fp32, fp16, bf16, int8"),
        (
            ["--use_fp16", "--precision=fp32"],
            "--use_fp16=true: contradicts --precision=fp32; give one of the two",
        ),
        (
            ["--nouse_fp16", "--precision=fp16"],
            "--use_fp16=false: contradicts --precision=fp16; give one of the two",
        ),
    ],
)
def test_wrong_use_is_one_line(argv, message):
    with pytest.raises(UsageError) as caught:
        parse_args(argv)
    assert str(caught.value) == message


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


@settings(deadline=None)  # it is about what is said, not how fast
@given(st.lists(_ARGUMENT, max_size=4))
def test_whatever_is_typed_is_used_or_refused(argv):
    with contextlib.suppress(UsageError):
        parsed = parse_args(argv)
        assert Params.from_dict(parsed.params.as_dict()) == parsed.params


def test_missing_flagfile_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        parse_args([f"--flagfile={tmp_path}/nowhere"])


def test_a_flag_file_that_leads_back_to_itself_is_refused(tmp_path, capfd):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(f"--model=lenet\n--flagfile={two}\n")
    two.write_text(f"--flagfile={one}\n")
    with pytest.raises(FlagError, match=f"^--flagfile={one}: leads back to itself"):
        parse_args([f"--flagfile={one}"])
    two.write_text("--num_gpus=2\n")
    parsed = parse_args([f"--flagfile={one}", "--flagfile", str(two)])  # twice is no circle
    assert (parsed.params.model, parsed.params.num_gpus) == ("lenet", 2)
    assert capfd.readouterr() == ("", "")


def test_deeply_nested_flag_files_are_refused(tmp_path):
    for number in range(3000):
        (tmp_path / str(number)).write_text(f"--flagfile={tmp_path}/{number + 1}\n")
    with pytest.raises(FlagError, match="is nested deeper than 64 flag files"):
        parse_args([f"--flagfile={tmp_path}/0"])


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/proc/self/mem", "cannot be read: Input/output error"),
        ("/dev/zero", "cannot be read: is a device"),
        ("{}/pipe", "cannot be read: is a pipe that nobody writes to"),
        ("{}/loop", "cannot be read: Too many levels"),
        ("{}/latin", "cannot be read: it is no text in UTF-8"),
        ("{}", "cannot be read: Is a directory"),
    ],
)
def test_flag_files_that_cannot_be_read(path, reason, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "latin").write_bytes(b"--model=caf\xe9\n")
    path = path.format(tmp_path)
    with pytest.raises(FlagError) as caught:
        parse_args([f"--flagfile={path}"])
    assert str(caught.value).startswith(f"--flagfile={path}: {reason}")


def test_where_flag_files_are_looked_for(tmp_path):
    file = tmp_path / "flags"
    file.write_text("# comment\n// comment\n\n  --model=lenet  \r\n")
    assert parse_args([f"-flagfile={file}"]).params.model == "lenet"
    assert parse_args(["--flagfile="]).params == Params()
    after = ["--learning_rate", "0.5", "--num_gpus", "2", f"--flagfile={file}"]  # one renamed
    assert parse_args(after).params.model == "lenet"
    with pytest.raises(UsageError, match="--flagfile needs a value"):
        parse_args(["--flagfile"])
    arguments = ["--", f"--flagfile={file}"]
    assert parse_command(arguments, _COMMAND_FLAGS) == ({}, (f"--flagfile={file}",))


def test_horovod_runs_as_collective_all_reduce(monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    parsed = parse_args(["--variable_update=horovod"])
    assert (parsed.params.variable_update, parsed.params.cluster) == (
        *("collective_all_reduce", "flags"),
    )
    assert [line for line in parsed.notices if "without Horovod" in line]
    ranks = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    for name, value in ranks.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    params = parse_args(["--variable_update=horovod"]).params
    assert (params.cluster, params.job_name, params.task_index) == ("mpi", "worker", 1)
    hosts = ("--worker_hosts=a:1,b:2", "--job_name=worker")
    assert parse_args(["--variable_update=horovod", *hosts]).params.cluster == "flags"


@pytest.mark.parametrize("spec", OBSOLETE, ids=lambda spec: spec.name)
def test_obsolete_flag(spec):
    # At its old default a flag is silent; otherwise one line says what to use instead.
    if spec.default is not None:
        parsed = parse_args([f"--{spec.name}={spec.text(spec.default)}"])
        assert (parsed.params, parsed.notices) == (Params(), ())
    string = spec.choices[-1] if spec.choices else "x"
    other = {"boolean": spec.text(not spec.default), "string": string}.get(spec.kind, "7")
    parsed = parse_args([f"--{spec.name}={other}"])
    assert parsed.params == Params()
    assert parsed.explicit_flags == (spec.name,)
    (notice,) = parsed.notices
    assert notice.startswith(f"--{spec.name}={other} has no meaning in TensorFlow 2. ")
    assert notice.endswith(spec.help)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("--learning_rate=0.5", "init_learning_rate", 0.5),
        ("--checkpoint_directory=d", "train_dir", "d"),
        ("--nocache_data", "datasets_repeat_cached_sample", False),
    ],
)
def test_old_names_are_the_new_flags(old, new, value, tmp_path):
    parsed = parse_args([old])
    assert parsed.explicit_flags == (new,)
    assert getattr(parsed.params, new) == value
    name = old.removeprefix("--").removeprefix("no").partition("=")[0]
    assert f"--{name} is --{new} now" in parsed.notices
    file = tmp_path / "flags"
    file.write_text(old)
    assert parse_args([f"--flagfile={file}"]) == parsed


def test_an_empty_all_reduce_spec_is_none():
    parsed = parse_args(["--variable_update=replicated", "--all_reduce_spec="])
    assert parsed.params == Params(variable_update="replicated")


@pytest.mark.parametrize("spec", FLAGS, ids=lambda spec: spec.name)
def test_every_flag_can_be_given_at_its_default(spec):
    if spec.default is not None:
        parsed = parse_args([f"--{spec.name}={spec.text(spec.default)}"])
        assert parsed.params == Params()
        assert parsed.explicit_flags == (spec.name,)


_COMMAND_FLAGS = tuple(spec for spec in FLAGS if spec.name in ("model", "xla", "num_gpus"))


@pytest.mark.parametrize(
    ("argv", "given", "arguments"),
    [
        ([], {}, ()),
        (["old", "new"], {}, ("old", "new")),
        (["old", "--model=lenet", "new", "-xla"], {"model": "lenet", "xla": True}, ("old", "new")),
        (["--num_gpus", "2", "old"], {"num_gpus": 2}, ("old",)),
        (["--xla", "--", "--model", "-x"], {"xla": True}, ("--model", "-x")),
        (["--", "old", "--", "new"], {}, ("old", "--", "new")),
    ],
)
def test_commands_mix_flags_and_arguments(argv, given, arguments):
    assert parse_command(argv, _COMMAND_FLAGS) == (given, arguments)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["old", "--modle=lenet"], "unknown flag --modle; did you mean --model?"),
        (["old", "new", "--model"], "--model needs a value: write --model=value"),
        (["old", "--num_gpus=0"], "--num_gpus=0: must be from 1 to 1024"),
    ],
)
def test_commands_refuse_flags_after_arguments_too(argv, message):
    with pytest.raises(UsageError) as caught:
        parse_command(argv, _COMMAND_FLAGS)
    assert str(caught.value) == message


def test_arguments_of_commands_may_come_from_a_flagfile(tmp_path):
    file = tmp_path / "flags"
    file.write_text("--model=lenet\n")
    assert parse_command(["old", f"--flagfile={file}", "new"], _COMMAND_FLAGS) == (
        {"model": "lenet"},
        ("old", "new"),
    )
