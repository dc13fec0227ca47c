"""cnnbench completion: what shells propose, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from cnnbench import cli
from cnnbench.campaigns.sweep.document import shipped_suites
from cnnbench.cli.commands import COMMANDS
from cnnbench.flags import FLAGS
from cnnbench.variable_mgr.all_reduce.registry import names

BREAKS = "= : @"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script of each shell, in a file."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh"):
        with pytest.MonkeyPatch.context() as patch:
            lines = []
            patch.setattr("cnnbench.cli.commands.completion.print_result", lines.append)
            assert cli.main(["completion", shell]) == 0
        (folder / shell).write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def propose(scripts, tmp_path):
    """What bash proposes for the last of some words, = being a word of its own."""

    def ask(*words):
        code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cnnbench; '
        code += 'printf "%s\\n" "${COMPREPLY[@]}"'
        command = ["bash", "--norc", "-c", code, "bash", str(scripts / "bash"), "cnnbench", *words]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.split()

    return ask


def test_commands_and_flags_are_those_that_there_are(propose):
    assert set(propose("")) == {*COMMANDS, "help"}
    assert set(propose("help", "")) == set(COMMANDS)
    proposed = set(propose("--"))
    for spec in FLAGS:
        switch = {f"--{spec.name}", f"--no{spec.name}"}
        assert (switch if spec.kind == "boolean" else {f"--{spec.name}="}) <= proposed
    assert propose("run", "-data_d") == ["--data_dir="]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "=", "resnet50_v1"], {"resnet50_v1.5"}),
        (["--model", "lene"], {"lenet"}),
        (["--variable_update=coll"], {"--variable_update=collective_all_reduce"}),
        (["--all_reduce_spec", "="], set(names())),
        (["--variable_update", "=", "distributed_r"], {"distributed_replicated"}),
        (["ab", "--pairs=8", "--", "--optimizer", "=", "mo"], {"momentum"}),
        (["compare", "a", "b", "--metrics", "=", "throughput,mem"], {"throughput,memory"}),
        (["sweep", ""], set(shipped_suites())),
        (["data", "make-i"], {"make-imagenet"}),
        (["strategies", "--model", "=", "alexn"], {"alexnet"}),
        (["completion", "z"], {"zsh"}),
        (["--xla", "--mod"], {"--model=", "--model_plugin="}),
        (["--batch_size", "=", ""], set()),
    ],
)
def test_values_are_those_that_a_flag_takes(propose, words, expected):
    assert set(propose(*words)) == expected


def test_files_and_folders_follow_where_paths_are_taken(propose, tmp_path):
    (tmp_path / "nets.py").touch()
    (tmp_path / "runs").mkdir()
    assert set(propose("--model_plugin", "=", "")) == {"nets.py", "runs"}
    assert propose("--data_dir", "=", "") == ["runs"]
    assert propose("report", "r") == ["runs"]
    assert propose("compare", "runs", "--baseline_aa", "ru") == ["runs"]


def test_the_scripts_parse(scripts):
    subprocess.run(["bash", "-n", str(scripts / "bash")], check=True)
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n", str(scripts / "zsh")], check=True)


ZSH = """
zmodload zsh/zpty
zpty box zsh -f -i
zpty -w box 'PS1=; autoload -U compinit; compinit -u -D; source "$SCRIPT"'
zpty -w box 'bindkey "^I" complete-word'
zpty -w box 'zstyle ":completion:*" list-prompt ""; LISTMAX=999; COLUMNS=80'
zpty -w box 'print REA''DY'
while zpty -r box line; do [[ $line == *READY* ]] && break; done
zpty -n -w box "$LINE"$'\\t'
zpty -n -w box $'\\C-aprint DO\\'\\'NE:\\C-e\\n'
while zpty -r box line; do if [[ $line == *DONE:* ]]; then print -r -- "$line"; break; fi; done
"""


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("cnnbench --model=resnet50_v1.", "cnnbench --model=resnet50_v1.5"),
        ("cnnbench ab -- --data_d", "cnnbench ab -- --data_dir="),
    ],
)
def test_zsh_completes_too(scripts, line, completed):
    done = subprocess.run(
        ["zsh", "-f", "-c", ZSH],
        env={"LINE": line, "SCRIPT": str(scripts / "zsh"), "TERM": "dumb", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed in done.stdout


@pytest.mark.parametrize("arguments", [(), ("fish",), ("bash", "zsh")])
def test_wrong_use(refuse, arguments):
    refuse("completion", *arguments, message="cnnbench completion takes one of bash, zsh, not")
