"""Suite files as trees whose nodes have line numbers.

Scalars keep their text: a flag's value is the text in the file, not what YAML 1.1 makes of it
(``1e-3`` a string, ``012`` ten, ``1:30`` ninety, ``on`` true).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from importlib import resources

import yaml

from cnnbench.base.reading import read_file
from cnnbench.errors import UsageError

_MOST_MIB = 1  # which takes seconds to parse
# Deeper than any suite; a list that contains itself has no end.
_MAX_DEPTH = 12
_MAX_SCANNED_DEPTH = 50  # PyYAML's time grows with the square of the depth, or more

_TAGS = {
    "tag:yaml.org,2002:bool": "boolean",
    "tag:yaml.org,2002:null": "null",
    "tag:yaml.org,2002:int": "integer",
    "tag:yaml.org,2002:float": "number",
    "tag:yaml.org,2002:str": "string",
    "tag:yaml.org,2002:timestamp": "string",
    "tag:yaml.org,2002:merge": "string",
    "tag:yaml.org,2002:value": "string",
}
_TRUE = ("y", "yes", "true", "on")


@dataclass(frozen=True)
class Node:
    """A value and its position in the file.

    `kind` is mapping, list, or a scalar kind: boolean, integer, number, string, null. Scalars have
    their `text` as written; the fields of mappings are key, its line, value.
    """

    file: str
    line: int
    kind: str
    text: str = ""
    items: tuple[Node, ...] = ()
    fields: tuple[tuple[str, int, Node], ...] = field(default=(), repr=False)

    @property
    def is_true(self) -> bool:
        """The value as a boolean of YAML 1.1."""
        return self.text.lower() in _TRUE

    def error(self, message: str, line: int | None = None) -> UsageError:
        """A usage error about this node, or another line: ``file:line: message``."""
        return UsageError(f"{self.file}:{self.line if line is None else line}: {message}")


def shipped_suites() -> tuple[str, ...]:
    """Names of the shipped suites, sorted."""
    files = resources.files("cnnbench.configs").iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


def find_suite(text: str) -> str:
    """The path of a suite: that of a file, or the name of a shipped suite."""
    if os.path.isfile(text):
        return text
    if text in shipped_suites():
        path = str(resources.files("cnnbench.configs").joinpath(f"{text}.yaml"))
        with contextlib.suppress(OSError):  # the working directory may be gone
            relative = os.path.relpath(path)
            return path if relative.startswith("..") else relative
        return path
    shipped = ", ".join(shipped_suites())
    if text.endswith((".yaml", ".yml")) or os.sep in text:
        raise UsageError(f"{text}: no such file; shipped suites are {shipped}")
    raise UsageError(f"no suite {text!r}; there are {shipped}, or name a YAML file")


class _Loader(yaml.SafeLoader):
    """Refuses deeply nested documents while it scans them."""

    def fetch_more_tokens(self) -> None:
        """Reads on; RecursionError beyond `_MAX_SCANNED_DEPTH`."""
        if self.flow_level + len(self.indents) > _MAX_SCANNED_DEPTH:
            raise RecursionError
        super().fetch_more_tokens()


def load(path: str, flag: str = "") -> Node:
    """The root of the one document in a file, which messages name as given.

    UsageError, with file and line, also for keys given twice and for unknown tags.
    """
    data = read_file(path, _MOST_MIB, flag)  # bytes: the loader finds out the encoding
    try:
        root = yaml.compose(data, Loader=_Loader)
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise UsageError(f"{path}:{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if root is None:
        raise UsageError(f"{path}: is empty")
    return _node(path, root, {})


def _node(file: str, node: yaml.Node, done: dict[int, Node], depth: int = 0) -> Node:
    """A node, converted once: an alias is the node itself once more, and costs nothing."""
    line = int(node.start_mark.line) + 1
    if depth > _MAX_DEPTH:
        raise UsageError(f"{file}:{line}: nested too deeply")
    if id(node) in done:
        return done[id(node)]
    if isinstance(node, yaml.ScalarNode):
        kind = _TAGS.get(node.tag)
        if kind is None:
            raise UsageError(f"{file}:{line}: the tag {node.tag} is not known")
        found = Node(file, line, kind, text=str(node.value))
    elif isinstance(node, yaml.SequenceNode):
        items = tuple(_node(file, item, done, depth + 1) for item in node.value)
        found = Node(file, line, "list", items=items)
    else:
        fields: list[tuple[str, int, Node]] = []
        for key, value in node.value:
            at = int(key.start_mark.line) + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UsageError(f"{file}:{at}: a key must be a word")
            if any(key.value == name for name, _, _ in fields):
                raise UsageError(f'{file}:{at}: the key "{key.value}" is there twice')
            fields.append((key.value, at, _node(file, value, done, depth + 1)))
        found = Node(file, line, "mapping", fields=tuple(fields))
    done[id(node)] = found
    return found
