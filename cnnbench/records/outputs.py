"""Checks output files before the work; replaces only files whose content is of the same kind."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cnnbench.errors import FlagError
from cnnbench.records.codec import IMPLIED_KIND
from cnnbench.records.files import real_path, resolve_output, write_bytes

if TYPE_CHECKING:
    from cnnbench.base.charts import Chart

PICTURES = (".svg", ".png", ".pdf")
"""Suffixes of drawn files."""

_GZIP = b"\x1f\x8b"
_ENDS = 1 << 16  # bytes that are read at both ends of a file


class Output(NamedTuple):
    """A file that a flag (without dashes) names; path is None or "" if it was not given.

    Attributes:
      kind: key of `KINDS`; "" to infer it from the suffix.
      suffixes: allowed ones, in lower case; any if empty.
      appended: whether the file is extended, not replaced.
    """

    flag: str
    path: str | None
    kind: str = ""
    suffixes: Sequence[str] = ()
    appended: bool = False


def check_outputs(outputs: Iterable[Output], inputs: Iterable[str | None] = ()) -> None:
    """Checks that every file can be written and that none replaces something else.

    FlagError if a path cannot become a regular file, names an input (a file, folder or pattern that
    the command reads; None and "" are ignored) or another output, or holds a file of another kind.
    """
    read = [path for path in inputs if path]
    for flag, path, kind, suffixes, appended in (wanted := [one for one in outputs if one.path]):
        assert path is not None
        target = resolve_output(flag, path, suffixes)
        if any(are_one(path, other) for other in read):
            raise FlagError(flag, path, "is a file that this command reads; name another")
        if not appended and not is_replaceable(target, KINDS[kind or target.suffix.lower()]):
            raise FlagError(flag, path, "is a file of another kind, not to be overwritten")
    refuse_shared((one.flag, one.path or "") for one in wanted)


def write_plot(path: str, charts: Sequence[Chart], title: str) -> None:
    """Draws charts, one below the other, into the file of --plot."""
    from cnnbench.base.charts.draw import render  # late: most commands draw nothing

    write_bytes("plot", path, render(charts, Path(path).suffix.lower()[1:], title))


def refuse_shared(files: Iterable[tuple[str, str]]) -> None:
    """Raises a FlagError if two of the (flag, path) name one file."""
    seen: list[tuple[str, str]] = []
    for flag, path in files:
        for other, taken in seen:
            if other != flag and are_one(path, taken):
                raise FlagError(flag, path, f"is the file of --{other} too; name another")
        real_path(flag, path)
        seen.append((flag, path))


def are_one(path: str, other: str) -> bool:
    """Whether two paths name the same file, also through links."""
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):
        pass  # one of them does not exist
    try:
        return os.path.realpath(path) == os.path.realpath(other)
    except (OSError, ValueError):
        return False


def is_replaceable(target: Path, is_ours: Callable[[bytes], bool]) -> bool:
    """Whether a file is absent, empty, or by both its ends a result of cnnbench."""
    try:
        if not target.exists():
            return True
        with target.open("rb") as file:
            content = file.read(_ENDS)
            rest = os.fstat(file.fileno()).st_size - len(content)
            if content.startswith(_GZIP):
                content = zlib.decompressobj(wbits=31).decompress(content, _ENDS)
            elif rest > 0:
                file.seek(-min(rest, _ENDS), os.SEEK_END)
                content += file.read(_ENDS)
    except (OSError, zlib.error):
        return False
    return (rest <= 0 and not content.strip()) or is_ours(content)


def _begins(pattern: bytes) -> Callable[[bytes], bool]:
    compiled = re.compile(pattern, re.DOTALL | re.IGNORECASE)
    return lambda content: compiled.match(content) is not None


def _document(kind: str) -> Callable[[bytes], bool]:
    # As `Document.to_dict` orders the keys.
    named = rf',\s*"kind":\s*"{kind}"'
    if kind == IMPLIED_KIND:
        named = rf'({named}|(?!,\s*"kind":))'
    return _begins(rf'\s*\{{\s*"schema":\s*\d+\b{named}'.encode())


_ANY_CSV = _begins(rb'(\xef\xbb\xbf)?(candidate|configuration|run_id|mode|workers|layer),|""\s')
_PAGE = rb"# [^\n]*\n\nMeasured with cnnbench"

KINDS: dict[str, Callable[[bytes], bool]] = {
    **{
        name: _document(name)
        for name in (
            *(IMPLIED_KIND, "allreduce", "allreduce_prediction", "comparison", "history"),
            *("roofline", "strategies", "step_profile", "explanation"),
        )
    },
    "json of tune": _document("tune"),
    "table of tune": _begins(rb"cnnbench (--|run|launch)[^\n]*\n\n"),
    "table of space": _begins(rb"[^\n]*: \d+ candidates?\n"),
    "flag file": _begins(rb"# cnnbench tune: "),
    ".html": _begins(rb"\s*<!doctype html.*cnnbench"),
    ".md": _begins(_PAGE),
    ".csv": _ANY_CSV,
    ".txt": _begins(rb"layers of warm-up step "),
    ".svg": _begins(rb'<\?xml[^>]*>\s*<svg [^>]*class="chart"'),
    ".png": _begins(rb"\x89PNG\r\n.*Matplotlib"),
    ".pdf": _begins(rb"%PDF-.*Matplotlib"),
    "html": _begins(rb"\s*<!doctype html.*cnnbench"),
    "markdown": _begins(rb"### cnnbench: |" + _PAGE),
    "csv": _ANY_CSV,
    "junit": _begins(rb'<\?xml[^>]*>\s*<testsuites name="cnnbench'),
    "github": _begins(rb"::(error|warning|notice) title="),
    "bencher": _begins(rb'\{(\s*"[^\n]*": \{\s*"[^\n]*": \{\s*"value": |\}\s*$)'),
    "github-action-benchmark": _begins(rb'\[(\s*\{\s*"name": |\]\s*$)'),
    "mlflow": _begins(rb'\{\s*"runs": \['),
    "openmetrics": _begins(rb"# (TYPE cnnbench_|EOF)"),
    "table of comparison": _begins(rb"(([^\n]+\n){1,99}\n)?BASE [^\n]*\nNEW "),
    "table of explanation": _begins(rb"(A step takes |Nothing stands out )"),
    "table of history": _begins(rb"[^\n]*; (higher|lower) is better\n"),
    "table of strategies": _begins(rb"([^\n]{0,200}\n){0,3}mode +all-reduce +"),
    "table of operations": _begins(rb"operations of warm-up step "),
    "trace": _begins(rb'\{"displayTimeUnit": '),
    "graph": _begins(rb"\n[\x80-\xff]{0,4}[\x00-\x7f]\n[\x00-\x7f]"),
    "graph as text": _begins(rb"node \{"),
}
"""Checks whether content was written by cnnbench, by format or suffix, or by "format of command"
where commands write different content in one format."""
