"""The commands of ``cnnbench``, one module each. A module is imported when its command runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

from cnnbench.base.terminal import print_result
from cnnbench.errors import FlagError
from cnnbench.flags.declare import FlagSpec, flag, redeclare_flag
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.groups.run import RunParams
from cnnbench.records.files import (
    PICTURES,
    STDOUT,
    OutputFile,
    raising_flag_errors,
    stream_descriptor,
    write_text,
)

COMMANDS: dict[str, str] = {
    "run": "measure training, evaluation or inference (may be left out)",
    "models": "list the models with their sizes",
    "data": "make and check data sets",
    "allreduce": "measure and check reductions between devices, without training",
    "compare": "judge two sets of run records: faster, slower, same or unknown",
    "ab": "measure A and B alternately, and judge how B differs from A",
    "gate": "measure a commit against its merge base, for CI systems",
    "explain": "name layers and causes that make B slower or faster than A",
    "bisect": "find the commit that made a run slower",
    "roofline": "show where the time of a step goes, layer by layer",
    "strategies": "measure and compare the modes of --variable_update",
    "tune": "find the fastest flags for a network, and prove them",
    "sweep": "run a suite of configurations, each run in its own process",
    "launch": "run all processes of a job on this machine",
    "report": "write results as one HTML page, Markdown or a table",
    "history": "follow a metric over commits and find where its level changed",
    "import": "convert results of other programs to records",
    "completion": "print the completion of this command line for bash or zsh",
    "env": "show the machine and software facts that records contain",
}
"""A line of help for each command. The module cnnbench.cli.commands.<name> has main(argv) -> int
and, except for run, HELP: the arguments of cnnbench.flags.help.command_help. It may have
argument_completions() -> words: arguments that shells propose in addition to files."""


def declare_output_flag(help: str) -> Any:
    """Declares the flag --output=FILE of a command, also written as -o FILE. The file - is standard
    output.
    """
    return flag(None, help, path="file or -", short="o")


def declare_quiet_flag() -> Any:
    """Declares the flag --quiet_conditions of a command that starts no runs."""
    help = "Names of warnings not to print, comma-separated (docs/conditions.md lists them)."
    return redeclare_flag(OutputParams, "quiet_conditions", help=help)


def describe_output_file(path: str | None, format: str, document_kind: str) -> OutputFile:
    """Describes the file in --output, to check it before the command starts.

    `document_kind` is the name of the schema for --format=json.
    """
    kind = {"table": f"table of {document_kind}", "json": document_kind}.get(format, format)
    return OutputFile("output", path, kind)


_ENDINGS = {
    ".html": "html",
    ".md": "markdown",
    ".json": "json",
    ".csv": "csv",
    ".xml": "junit",
}


def choose_format(values: dict[str, Any], specs: Iterable[FlagSpec]) -> dict[str, Any]:
    """Adds --format to the flags of a command, given as values by name: the format that the ending
    of --output names, if --format is not given and the command has this format.

    Raises FlagError for the ending .html if the command cannot write a page.
    """
    output = values.get("output")
    named = _ENDINGS.get(PurePath(output or "").suffix.lower())
    if named is None or "format" in values:
        return values
    (choices,) = (spec.choices for spec in specs if spec.name == "format")
    if named in choices:
        return {**values, "format": named}
    refuse_page_as_output(output, f"the formats are {', '.join(choices)}")
    return values


def refuse_page_as_output(output: str | None, formats: str) -> None:
    """Raises FlagError if the ending of --output is that of a page, for a command that writes none.
    `formats` says what the command writes.
    """
    if _ENDINGS.get(PurePath(output or "").suffix.lower()) == "html":
        raise FlagError("output", output, f"{formats}; cnnbench report writes pages")


def write_or_print_output(path: str | None, text: str, terminal_text: str = "") -> None:
    """Writes a result to --output and prints `terminal_text`. Without --output, or if it is
    standard output, prints the whole result.
    """
    if path is not None and stream_descriptor(path) != STDOUT:
        write_text("output", path, text)
        text = terminal_text
    if text:
        with contextlib.suppress(BrokenPipeError):  # The reader may have closed the pipe.
            print_result(text)


def write_init_files(system: str, templates: Mapping[Path, str], values: Mapping[str, str]) -> None:
    """Writes the files of `--init=system`, and prints their paths. FlagError if a file exists.

    Args:
      templates: names of templates in the package `cnnbench.cli`, by the path of the file.
      values: texts that replace marks such as @FLAGS@ in the templates.
    """
    made = {}
    for path, template in templates.items():
        if path.exists() or path.is_symlink():
            raise FlagError("init", system, f"{path} exists; remove or rename it")
        text = resources.files("cnnbench.cli").joinpath(template).read_text("utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        made[path] = text
    with raising_flag_errors("init", system, "written"):
        for path, text in made.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            print_result(str(path))


def results_folder_or_default(folder: str | None, command: str, resume: bool = False) -> str:
    """The path in --results. By default, the name consists of the command and the local time.

    Raises FlagError if --resume is given without --results.
    """
    if resume and folder is None:
        raise FlagError(
            "resume", "true", "needs --results=DIR: the folder of the interrupted campaign"
        )
    return folder or f"{command}-{datetime.now():%Y%m%d-%H%M%S}"


@dataclass(frozen=True, kw_only=True)
class PluginFlags:
    """Flags of commands that load plug-ins but start no runs."""

    plugin: tuple[str, ...] = redeclare_flag(RunParams, "plugin")
    quiet_conditions: str = declare_quiet_flag()


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Flags for the output of commands that print a table and draw a chart."""

    format: str = flag("table", "What to print.", choices=("table", "csv", "json"))
    output: str | None = declare_output_flag("Write the output to this file.")
    plot: str | None = flag(None, "Draw a chart into this .svg, .png or .pdf file.", path="file")

    def output_files(self, document_kind: str) -> list[OutputFile]:
        """Describes the files in --output and --plot, to check them before the command measures.

        For `document_kind`, see `describe_output_file`.
        """
        plot = OutputFile("plot", self.plot, suffixes=PICTURES)
        return [describe_output_file(self.output, self.format, document_kind), plot]
