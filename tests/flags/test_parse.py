import contextlib

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


@settings(deadline=None, max_examples=40)  # it is about what is said, not how fast
@given(st.lists(_ARGUMENT, max_size=4))
def test_whatever_is_typed_is_used_or_refused(argv):
    with contextlib.suppress(UsageError):
        parsed = parse_args(argv)
        assert Params.from_dict(parsed.params.as_dict()) == parsed.params


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


def test_obsolete_flags():
    # At its old default a flag is silent; otherwise one line says what to use instead.
    for spec in OBSOLETE:
        if spec.default is not None:
            parsed = parse_args([f"--{spec.name}={spec.text(spec.default)}"])
            assert (parsed.params, parsed.notices) == (Params(), ())
        string = spec.choices[-1] if spec.choices else "x"
        other = {"boolean": spec.text(not spec.default), "string": string}.get(spec.kind, "7")
        parsed = parse_args([f"--{spec.name}={other}"])
        assert (parsed.params, parsed.explicit_flags) == (Params(), (spec.name,))
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


@pytest.mark.parametrize("flag", ["--all_reduce_spec=", "--all_reduce_spec=''", '--train_dir=""'])
def test_an_empty_value_of_an_old_script_is_none(flag):
    parsed = parse_args(["--variable_update=replicated", flag])
    assert parsed.params == Params(variable_update="replicated")


def test_every_flag_can_be_given_at_its_default():
    specs = [spec for spec in FLAGS if spec.default is not None]
    for spec in specs:
        parsed = parse_args([f"--{spec.name}={spec.text(spec.default)}"])
        assert (parsed.params, parsed.explicit_flags) == (Params(), (spec.name,))


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
