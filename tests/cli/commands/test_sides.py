"""Flags of campaigns and of the two sides, and command lines that are made of them.

Tests cnnbench/cli/commands/campaign_flags.py and cnnbench/cli/commands/command_lines.py.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from types import SimpleNamespace

import pytest

from cnnbench.cli.commands.ab_flags import AbFlags
from cnnbench.cli.commands.campaign_flags import CampaignFlags, results_folder
from cnnbench.cli.commands.command_lines import (
    command_line_with_flags,
    flag_words,
    mask_variable_value,
    printing_resume_command,
    replace_flags,
    split_command_and_run_flags,
)
from cnnbench.cli.commands.sides import SideFlags, interpreter_path
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import specs_of

SPECS = specs_of(AbFlags)
OF_CAMPAIGNS = specs_of(CampaignFlags)


def test_a_results_folder_has_the_name_of_the_command_and_the_time():
    assert results_folder("x", "ab") == results_folder("x", "ab", resume=True) == "x"
    assert re.fullmatch(r"ab-\d{8}-\d{6}", results_folder(None, "ab"))
    with pytest.raises(FlagError) as caught:
        results_folder(None, "ab", resume=True)
    assert caught.value.flag == "resume"


@pytest.mark.parametrize(
    ("flags", "stored", "seed"),
    [
        ({"seed": 5}, None, 5),
        ({"seed": 0}, 7, 0),
        ({"seed": 5, "resume": True}, 7, 5),
        ({"resume": True}, 7, 7),
        ({"resume": True}, 0, 0),
        ({"resume": True}, None, None),
        ({}, 7, None),
    ],
)
def test_a_seed_is_given_stored_or_random(flags, stored, seed):
    asked = []

    def stored_seed(*where):
        asked.append(where)
        return stored

    found = [
        CampaignFlags(**flags).resolve_seed(SimpleNamespace(stored_seed=stored_seed), "x", "s")
        for _ in range(2)
    ]
    if seed is not None:
        assert found == [seed, seed]
    else:
        assert found[0] != found[1]
        assert all(0 <= number < 2**31 for number in found)
    assert {*asked} == ({("x", "s")} if flags.get("resume") and "seed" not in flags else set())


def test_variables_of_each_side():
    flags = SideFlags(a_env=("A=1", "B=x=y", "C="), b_env=None)
    assert flags.environment_variables == {"a": {"A": "1", "B": "x=y", "C": ""}, "b": {}}
    assert SideFlags(b_env=("A=2",)).environment_variables == {"a": {}, "b": {"A": "2"}}
    for wrong in ("A", "=1", ""):
        with pytest.raises(FlagError) as caught:
            assert SideFlags(b_env=("A=1", wrong)).environment_variables
        assert (caught.value.flag, caught.value.reason) == ("b_env", "must be NAME=VALUE")


def test_a_command_line_is_split_into_flags_of_the_command_and_of_runs():
    words = ["--pairs=3", "x", "--", "run", "--model=lenet", "--", "run"]
    values, arguments, common = split_command_and_run_flags(words, SPECS, "ab ...")
    assert (values, [*arguments], common) == (
        *({"pairs": 3}, ["x"], ("--model=lenet", "--", "run")),
    )
    assert split_command_and_run_flags(["--", "--model=a"], SPECS, "ab")[2] == ("--model=a",)
    assert split_command_and_run_flags([], SPECS, "ab")[2] == ()


@pytest.mark.parametrize(
    ("words", "named", "hints"),
    [
        (["--model=lenet"], "--model is a flag of cnnbench run", [True, False]),
        (["-model", "lenet"], "--model is a flag of cnnbench run", [True, False]),
        (["--seed=1", "--noxla_compile"], "--noxla_compile is a flag", [True, False]),
        (["model", "--zzz"], "--zzz", [False, False]),
        (["--seed=x"], "--seed=x", [False, False]),
    ],
)
def test_where_a_flag_of_runs_belongs_is_said(words, named, hints):
    for specs, has_hint in zip((SPECS, OF_CAMPAIGNS), hints, strict=True):
        with pytest.raises(UsageError) as caught:
            split_command_and_run_flags(words, specs, "ab ...")
        said = str(caught.value)
        assert named in said
        assert said.endswith("into --a or --b") == has_hint
        assert ("flag of cnnbench run" in said) == (hints[0])


@pytest.mark.parametrize(
    ("text", "shown"),
    [("OMP_STACKSIZE=4M", "OMP_STACKSIZE=4M"), ("MY_TOKEN=4M", "MY_TOKEN=..."), ("MY", "MY")],
)
def test_values_of_variables_are_shown_if_records_have_them(text, shown):
    assert mask_variable_value(text) == shown
    assert flag_words({"pairs": 3, "seed": 1, "b_env": (text,)}, SPECS, ("seed",)) == [
        *(f"--b_env={shown}", "--pairs=3")
    ]


def test_flags_of_a_command_line_are_replaced():
    words = ["--pairs=3", "x", "--seed=1", "--a_env=MY_TOKEN=1", "--", "--model=lenet"]
    variable = "--a_env=MY_TOKEN=..."
    assert replace_flags(words, SPECS, ("pairs",), ["--pairs=4"]) == [
        *("x", "--seed=1", variable, "--pairs=4", "--", "--model=lenet")
    ]
    assert replace_flags(words[:2], SPECS, ()) == ["x", "--pairs=3"]
    line = command_line_with_flags("ab", words, SPECS, resume=True, pairs=5)
    assert shlex.split(line) == [
        *("cnnbench", "ab", "x", "--seed=1", variable, "--resume", "--pairs=5", "--"),
        "--model=lenet",
    ]


def test_an_interrupted_campaign_prints_its_results_and_how_it_goes_on(capsys):
    said = []
    reporter = SimpleNamespace(notice=said.append)
    with printing_resume_command(reporter, "sweep", ["--seed=1"], OF_CAMPAIGNS, lambda: "known"):
        pass
    assert (said, capsys.readouterr().out) == ([], "")
    with (
        pytest.raises(KeyboardInterrupt),
        printing_resume_command(
            reporter, "sweep", ["--seed=1"], OF_CAMPAIGNS, lambda: "known", results="x"
        ),
    ):
        raise KeyboardInterrupt
    assert capsys.readouterr().out == "known\n"
    assert said == ["to go on: cnnbench sweep --seed=1 --results=x --resume"]


def test_an_interpreter_is_a_program(tmp_path, monkeypatch):
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert interpreter_path("a_python", "./python") == str(link)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter_path("a_python", "python") == os.path.abspath(link)
    with pytest.raises(FlagError, match=r"^--b_python=gone: "):
        interpreter_path("b_python", "gone")
