"""All commands with a line of help each, and the overview that ``cnnbench help`` prints.

The overview imports neither a command nor the flags, so that it is printed at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_SUMMARY = re.compile(r'"""``cnnbench (\w+)``: (.+?)\.?(?:""")?\n?')


def find_commands(folders: Iterable[str]) -> dict[str, str]:
    """Finds the commands in folders: the modules whose docstring begins with "``cnnbench NAME``: ".

    No module is imported, because some of them import NumPy. Returns the rest of that line by name:
    first run, which is the default, and then the other commands in alphabetical order.
    """
    found = {}
    for path in (path for folder in folders for path in Path(folder).glob("*.py")):
        with path.open(encoding="utf-8") as file:
            summary = _SUMMARY.fullmatch(file.readline())
        if summary is not None and summary[1] == path.stem:
            found[path.stem] = summary[2]
    return dict(sorted(found.items(), key=lambda command: (command[0] != "run", command[0])))


COMMANDS = find_commands([f"{Path(__file__).parent}/commands"])
"""A line of help for each command. The module cnnbench.cli.commands.<name> has main(argv) -> int
and, except for run, HELP: the arguments of cnnbench.flags.help.command_help. It may have
TAKES_RUN_FLAGS = True, if the command accepts flags of runs before --, and
argument_completions() -> words: arguments that shells propose in addition to files."""

_FLAGS = {
    "--model=NAME": "network, such as resnet50; cnnbench models lists them",
    "--batch_size=N": "images per step and device",
    "--num_gpus=N": "devices, including logical CPU devices",
    "--device=auto|cpu|gpu": "auto: GPUs if there are any, otherwise the CPU",
    "--precision=FORMAT": "fp32, fp16 or bf16",
    "--num_batches=N": "steps to time, after --num_warmup_batches=N",
    "--forward_only": "inference instead of training",
    "--data_dir=DIR": "data set; if not given, synthetic images",
    "--train_dir=DIR": "folder of checkpoints; --eval evaluates them",
    "--variable_update=MODE": "where variables are, how gradients are reduced",
    "--all_reduce_spec=SPEC": "all-reduce algorithm, such as xring#2 or nccl",
    "--xla_compile": "compile the step with XLA",
    "--result_json=FILE": "write the record of the run",
    "--result_csv=FILE": "append one row per run",
}
"""The most used flags of runs, each with a short description."""


def overview_text() -> str:
    """Returns the overview of all commands and of the most used flags. It fits on one screen."""
    width, flag_width = max(map(len, COMMANDS)), max(map(len, _FLAGS))
    return "\n".join(
        [
            "cnnbench: how fast convolutional networks train on TensorFlow",
            "",
            "Usage: cnnbench [COMMAND] [FLAGS]",
            "",
            "The command for each task: cnnbench docs commands",
            "",
            "Commands (cnnbench help COMMAND explains one):",
            *(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()),
            "",
            "Flags of run that are used most (cnnbench run --help has all of them):",
            *(f"  {name:<{flag_width}}  {text}" for name, text in _FLAGS.items()),
        ]
    )
