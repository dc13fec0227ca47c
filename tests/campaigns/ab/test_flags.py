"""Flags of a side, before anything of it is started."""

from __future__ import annotations

import json
import sys

import pytest
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN

from cnnbench.campaigns.ab.flags import check, print_answer, refuse
from cnnbench.campaigns.ab.side import Side
from cnnbench.campaigns.launch.tasks import JobLayout
from cnnbench.campaigns.processes.commands import Resolved
from cnnbench.errors import FlagError, UsageError

PLUGIN = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Ours(Model):
    name, dataset, image_size, batch_size = "ours", "imagenet", 32, 2
    learning_rate = LearningRateSpec(0.01)
    def build(self, net, images):
        return net.logits(net.flatten(images))

register_model("ours", "imagenet", Ours)
"""


@pytest.mark.parametrize(
    "flags",
    [["--train_dir=x"], ["-train_dir", "x"], ["--flagfile=ff"], ["--model", "y", "--flagfile=ff"]],
)
def test_flags_are_refused_by_name_wherever_they_are(tmp_path, flags):
    (tmp_path / "ff").write_text("--flagfile=more\n")
    (tmp_path / "more").write_text("# mine\n--train_dir=x\n")
    side = Side(flags=tuple(flags), checkout=tmp_path, python="/opt/python")
    with pytest.raises(FlagError, match=r"--train_dir=x?: no use"):
        refuse(side, ("train_dir",), "no use")
    assert "train_dir" in side.given
    refuse(side, ("result_json",), "no use")


@pytest.mark.usefixtures("quick_answers")
def test_a_flag_file_that_is_not_there_is_for_the_parser_to_tell():
    side = Side(flags=("--flagfile=/nowhere/ff", "--model=lenet"))
    assert side.given.keys() == {"flagfile", "model"}
    with pytest.raises(UsageError, match="/nowhere/ff"):
        check(side)


def test_a_side_may_have_a_mode_of_a_plug_in(capsys):
    own = (f"--variable_mgr_plugin={LOCAL_SGD_PLUGIN}", f"--variable_update={LOCAL_SGD}")
    print_answer("null", "--model=lenet", "--num_gpus=2", *own)
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (answer["error"], answer["resolved"]["config"]["variable_update"]) == (None, LOCAL_SGD)


@pytest.mark.usefixtures("quick_answers")
def test_flags_of_a_job_are_checked_for_all_of_its_processes():
    flags = ("--model=lenet", "--device=cpu", "--num_gpus=2", "--batch_size=3")
    found = check(Side(flags=flags, layout=JobLayout(workers=2, ps=1)))
    assert len(found.config["worker_hosts"].split(",")) == 2
    assert found.no_turns == "a job of several processes keeps all of them at work"
    with pytest.raises(UsageError, match="--ps=0: "):
        check(Side(flags=flags, layout=JobLayout(workers=2)))
    with pytest.raises(UsageError, match="--worker_hosts=a:1: is set by launch"):
        check(Side(flags=(*flags, "--worker_hosts=a:1"), layout=JobLayout(workers=2, ps=1)))


@pytest.mark.usefixtures("quick_answers")
def test_of_another_cnnbench_nothing_is_known():
    assert check(Side(flags=("--flag_of_another=1",), python="/opt/python")) == Resolved()
    known = check(Side(flags=("--model=lenet",), python="/opt/python"))
    assert (known.config["model"], known.explicit_flags[0]) == ("lenet", "model")


@pytest.mark.usefixtures("quick_answers")
def test_notices_are_those_of_a_run_that_keeps_a_record():
    (notice,) = check(Side(flags=("--single_l2_loss_op=true", "--peak_flops=1e12"))).notices
    assert notice.startswith("--single_l2_loss_op")


def test_paths_and_variables_are_the_sides_own(tmp_path):
    # Two checkouts have a plug-in of the same name, which imports what a variable points to.
    for name in ("one", "other"):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "src" / "helper_of_ours.py").touch()
        (tmp_path / name / "net.py").write_text("import helper_of_ours\n" + PLUGIN)
        flags = ("--model_plugin=net.py", "--model=ours")
        side = Side(flags=flags, checkout=tmp_path / name, variables={"PYTHONPATH": "src"})
        assert check(side).notices == ()
    with pytest.raises(UsageError, match="helper_of_ours"):
        check(Side(flags=flags, checkout=tmp_path / name))
    assert "helper_of_ours" not in sys.modules


def test_a_plug_in_that_spoils_the_answer_is_left_to_the_run(tmp_path):
    (tmp_path / "net.py").write_text("import os\nos._exit(3)\n")
    assert check(Side(flags=("--model_plugin=net.py",), checkout=tmp_path)) == Resolved()
    (tmp_path / "net.py").write_text("print('{}')\n" + PLUGIN)
    flags = ("--model_plugin=net.py", "--model=ourz")
    with pytest.raises(UsageError, match="--model=ourz: unknown; did you mean ours"):
        check(Side(flags=flags, checkout=tmp_path))
