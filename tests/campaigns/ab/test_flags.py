"""Flags of a side, before anything of it is started.

Tests cnnbench/campaigns/ab/asking.py and cnnbench/campaigns/ab/opening.py.
"""

from __future__ import annotations

import sys

import pytest

from cnnbench.campaigns.ab.asking import resolve_flags
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.errors import UsageError

PLUGIN = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Ours(Model):
    name, dataset, image_size, batch_size = "ours", "imagenet", 32, 2
    learning_rate = LearningRateSpec(0.01)
    def build(self, net, images):
        return net.logits(net.flatten(images))

register_model("ours", "imagenet", Ours)
"""


@pytest.mark.usefixtures("quick_answers")
def test_of_another_cnnbench_nothing_is_known():
    unknown = resolve_flags(AbSide(flags=("--flag_of_another=1",), python="/opt/python"))
    assert unknown.resolved == ResolvedRun()
    known = resolve_flags(AbSide(flags=("--model=lenet",), python="/opt/python")).resolved
    assert (known.config["model"], known.explicit_flags[0]) == ("lenet", "model")


@pytest.mark.usefixtures("quick_answers")
def test_notices_are_those_of_a_run_that_keeps_a_record():
    side = AbSide(flags=("--single_l2_loss_op=true", "--peak_flops=1e12"))
    (notice,) = resolve_flags(side).resolved.notices
    assert notice.startswith("--single_l2_loss_op")


def test_paths_and_variables_are_the_sides_own(tmp_path):
    # Two checkouts have a plug-in of the same name, which imports what a variable points to.
    for name in ("one", "other"):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "src" / "helper_of_ours.py").touch()
        (tmp_path / name / "net.py").write_text("import helper_of_ours\n" + PLUGIN)
        flags = ("--plugin=net.py", "--model=ours")
        side = AbSide(flags=flags, checkout=tmp_path / name, variables={"PYTHONPATH": "src"})
        assert resolve_flags(side).resolved.notices == ()
    with pytest.raises(UsageError, match="helper_of_ours"):
        resolve_flags(AbSide(flags=flags, checkout=tmp_path / name))
    assert "helper_of_ours" not in sys.modules


@pytest.mark.slow
def test_a_plug_in_that_spoils_the_answer_is_left_to_the_run(tmp_path):
    (tmp_path / "net.py").write_text("import os\nos._exit(3)\n")
    side = AbSide(flags=("--plugin=net.py",), checkout=tmp_path)
    assert resolve_flags(side).resolved == ResolvedRun()
    (tmp_path / "net.py").write_text("print('{}')\n" + PLUGIN)
    flags = ("--plugin=net.py", "--model=ourz")
    with pytest.raises(UsageError, match="--model=ourz: unknown; did you mean ours"):
        resolve_flags(AbSide(flags=flags, checkout=tmp_path))
