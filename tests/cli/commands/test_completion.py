"""cnnbench completion: what is proposed, and that the shells ask for it."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from pathlib import Path

import pytest
from forked import finished

from cnnbench import cli
from cnnbench.cli.overview import COMMANDS
from cnnbench.flags import FLAGS

ROOT = Path(__file__).parents[3]
SUITES = {path.stem for path in (ROOT / "configs").glob("*.yaml")}


@pytest.fixture
def proposed(call, monkeypatch):
    """proposed(WORD...): what the last word may be completed to."""

    def proposed(*words):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join([*words, ""])))
        lines = call("completion", "--words").out.splitlines()
        return [line.partition("\t")[0] for line in lines]

    return proposed


def test_commands_and_flags_are_those_that_there_are(proposed):
    assert set(proposed("")) == {*COMMANDS, "help"}
    assert set(proposed("help", "")) == set(COMMANDS)
    flags = set(proposed("--"))
    for spec in FLAGS:
        switch = {f"--{spec.name}", f"--no{spec.name}"}
        assert (switch if spec.kind.name == "boolean" else {f"--{spec.name}="}) <= flags
    assert proposed("run", "-data_d") == ["--data_dir="]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "=", "resnet50_v1"], {"resnet50_v1.5"}),
        (["--model", "lene"], {"lenet"}),
        (["--model=lene"], {"--model=lenet"}),
        (["--variable_update=coll"], {"--variable_update=collective_all_reduce"}),
        (["--all_reduce_spec", "=", "psc"], {"pscpu"}),
        (["--variable_update", "=", "distributed_r"], {"distributed_replicated"}),
        (["ab", "--pairs=8", "--", "--optimizer", "=", "mo"], {"momentum"}),
        (["ab", "--pairs", "=", "8", "--", "--optimizer=mo"], {"--optimizer=momentum"}),
        (["compare", "a", "b", "--metrics", "=", "throughput,mem"], {"throughput,memory"}),
        (["sweep", ""], SUITES),
        (["data", "make-i"], {"make-imagenet"}),
        (["tune", "--model", "=", "alexn"], {"alexnet"}),
        (["roofline", "--model=alexn"], {"--model=alexnet"}),
        (["completion", "z"], {"zsh"}),
        (["--xla", "--mod"], {"--model="}),
        (["--noxla", "--mod"], {"--model="}),
        (["--batch_size", "=", ""], set()),
        (["--batch_size", ""], set()),
        (["--no_such_flag", "--mod"], set()),
        (["no_such_command", "--mod"], set()),
        (["--plugin", "=", "ne"], {":file"}),
        (["--data_dir="], {":folder"}),
        (["report", "r"], {":file"}),
        (["ab", "-o", "r"], {":file"}),
        (["bisect", "--repository", "ru"], {":folder"}),
        (["run", ""], set()),
    ],
)
def test_values_are_those_that_a_flag_takes(proposed, words, expected):
    found, begun = set(proposed(*words)), words[-1]
    # Other names may begin alike.
    similar = {word for word in found - expected if word.startswith(begun)}
    assert found - (similar if begun and expected else set()) == expected


def test_words_are_read_from_stdin_and_have_a_line_of_help():
    command = [sys.executable, "-m", "cnnbench", "completion", "--words"]
    done = finished(command, input="hist\n")
    assert done.stdout == f"history\t{COMMANDS['history']}\n"


def test_completing_loads_nothing_heavy():
    code = (
        "import sys; from cnnbench.cli.overview import COMMANDS;"
        "from cnnbench.cli.commands.completion import complete_last_word;"
        "named = [name for name in COMMANDS if name != 'docs'];"  # which has no flags
        "assert all(list(complete_last_word([name, '--'])) for name in named);"
        "assert list(complete_last_word(['docs', '']));"
        "assert list(complete_last_word(['--model=']));"
        "assert not {'tensorflow', 'pandas', 'matplotlib', 'jinja2'} & set(sys.modules)"
    )
    finished([sys.executable, "-c", code])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A folder for PATH with the command and the scripts of both shells."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh"):
        with open(folder / shell, "w") as script, contextlib.redirect_stdout(script):
            assert cli.main(["completion", shell]) == 0
    command = folder / "bin" / "cnnbench"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m cnnbench "$@"\n')
    command.chmod(0o755)
    return folder


def environment(path):
    return {"PATH": f"{path / 'bin'}:{os.environ['PATH']}"}


@pytest.fixture
def ask(path, tmp_path):
    """What bash proposes for the last of some words, = being a word of its own."""

    def ask(*words):
        code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cnnbench; '
        code += 'printf "%s\\n" "${COMPREPLY[@]}"'
        command = ["bash", "--norc", "-c", code, "bash", path / "bash", "cnnbench", *words]
        return finished(command, cwd=tmp_path, environment=environment(path)).stdout.splitlines()

    return ask


def test_bash_completes_words(ask):
    assert ask("--model", "=", "resnet50_v1") == ["resnet50_v1.5"]
    assert set(ask("help", "")) == set(COMMANDS)
    assert ask("--no_such=") == [""]


@pytest.mark.slow
def test_bash_completes_files_and_folders(ask, tmp_path):
    (tmp_path / "nets a.py").touch()
    (tmp_path / "runs").mkdir()
    assert set(ask("--plugin", "=", "")) == {"nets a.py", "runs"}
    assert ask("--plugin=ne") == ["--plugin=nets a.py"]
    assert ask("--data_dir", "=") == ["runs"]
    assert ask("report", "r") == ["runs"]


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
def test_zsh_completes_too(path, line, completed):
    box = {**environment(path), "LINE": line, "SCRIPT": str(path / "zsh"), "TERM": "dumb"}
    assert completed in finished(["zsh", "-f", "-c", ZSH], None, environment=box).stdout
