"""The commands of ``cnnbench``, one module each. A module is imported when its command runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

from cnnbench.base.terminal import print_result
from cnnbench.errors import FlagError
from cnnbench.flags import FlagSpec, flag, redeclare_flag
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.groups.run import RunParams
from cnnbench.records.files import (
    PICTURES,
    STDOUT,
    raising_flag_errors,
    stream_descriptor,
    write_text,
)


def declare_output_flag(help: str) -> Any:
    """Declares the flag --output=FILE of a command, also written as -o FILE. The file - is standard
    output.
    """
    return flag(None, help, path="file or -", short="o")


def declare_quiet_flag() -> Any:
    """Declares the flag --quiet_conditions of a command that starts no runs."""
    help = "Names of warnings not to print, comma-separated (cnnbench docs conditions)."
    return redeclare_flag(OutputParams, "quiet_conditions", help=help)


_ENDINGS = {
    ".html": "html",
    ".md": "markdown",
    ".json": "json",
    ".csv": "csv",
    ".xml": "junit",
    # No command writes its result as a picture; --plot draws charts.
    **{suffix: suffix[1:] for suffix in PICTURES},
}
_PAGES = "cnnbench report writes pages"


def choose_format(
    values: dict[str, Any], specs: Iterable[FlagSpec], pages: str = _PAGES
) -> dict[str, Any]:
    """Adds --format to the flags of a command, given as values by name: the format that the ending
    of --output names, if --format is not given.

    Raises FlagError if the command does not have this format. `pages` says how pages are written.
    """
    output = values.get("output")
    named = _format_of_ending(output)
    if named is None or "format" in values:
        return values
    (choices,) = (spec.choices for spec in specs if spec.name == "format")
    if named not in choices:
        refuse_ending(output, f"the formats are {', '.join(choices)}", pages)
    return {**values, "format": named}


def refuse_ending(output: str | None, formats: str, pages: str = _PAGES) -> None:
    """Raises FlagError if the ending of --output names a format, for a command that cannot write
    it. `formats` says what the command writes, and `pages` how pages are written.
    """
    named = _format_of_ending(output)
    if named is not None:
        hint = f"; {pages}" if named in ("html", "markdown") else ""
        raise FlagError("output", output, f"{formats}{hint}")


def _format_of_ending(output: str | None) -> str | None:
    return _ENDINGS.get(PurePath(output or "").suffix.lower())


def write_or_print_output(
    path: str | None, text: str, terminal_text: Callable[[], str] = str
) -> None:
    """Writes a result to --output and prints what `terminal_text` returns. Without --output, or if
    it is standard output, prints the whole result.
    """
    if path is not None and stream_descriptor(path) != STDOUT:
        write_text("output", path, text)
        text = terminal_text()
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


@dataclass(frozen=True, kw_only=True)
class PluginFlags:
    """Flags of commands that load plug-ins but start no runs."""

    plugin: tuple[str, ...] = redeclare_flag(RunParams, "plugin")
    quiet_conditions: str = declare_quiet_flag()
