"""Finds suite files, and reads YAML files as trees of nodes with line numbers for error messages.

Flag values are taken literally from a file. YAML 1.1 would interpret them: ``1e-3`` as a string,
``012`` as ten, ``1:30`` as ninety, ``on`` as true.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from importlib import resources

import yaml

from cnnbench.base.files import read_file
from cnnbench.base.text import unknown_name_reason
from cnnbench.errors import UsageError

_MOST_MIB = 1  # PyYAML would need seconds to parse a larger file.
# A YAML list can contain itself, so the depth of a suite file is limited.
_MAX_DEPTH = 12
_MAX_SCANNED_DEPTH = 50  # The time that PyYAML needs is at least quadratic in the depth.

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
class YamlNode:
    """A value in a YAML file, with the file's name and the line number.

    `kind` is mapping, list, boolean, integer, number, string or null. `text` is a scalar as written
    in the file. `items` contains the values of a list. `fields` contains the fields of a mapping:
    key, line of the key, and value.
    """

    file: str
    line: int
    kind: str
    text: str = ""
    items: tuple[YamlNode, ...] = ()
    fields: tuple[tuple[str, int, YamlNode], ...] = field(default=(), repr=False)

    @property
    def is_true(self) -> bool:
        """Whether the text of this value is a spelling of true in YAML 1.1, such as "on"."""
        return self.text.lower() in _TRUE

    @property
    def shown(self) -> str:
        """This value in a message, such as "a list"."""
        words = {
            "mapping": "a mapping",
            "list": "a list",
            "boolean": "true" if self.is_true else "false",
            "null": "nothing",
        }
        return words.get(self.kind, repr(self.text))

    def error(self, message: str, line: int | None = None) -> UsageError:
        """Creates a UsageError about this node or the given line: ``file:line: message``."""
        return UsageError(f"{self.file}:{self.line if line is None else line}: {message}")


def shipped_suites() -> tuple[str, ...]:
    """Sorted names of the suites that are shipped with cnnbench."""
    files = resources.files("cnnbench.configs").iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


def find_suite(text: str) -> str:
    """The path of a suite file. `text` is this path or the name of a shipped suite."""
    if os.path.isfile(text):
        return text
    if text in shipped_suites():
        path = str(resources.files("cnnbench.configs").joinpath(f"{text}.yaml"))
        with contextlib.suppress(OSError):  # The working directory may have been deleted.
            relative = os.path.relpath(path)
            return path if relative.startswith("..") else relative
        return path
    shipped = shipped_suites()
    if text.endswith((".yaml", ".yml")) or os.sep in text:
        raise UsageError(f"{text}: no such file; shipped suites are {', '.join(shipped)}")
    known = unknown_name_reason(text, shipped, "choose one of")
    raise UsageError(f"there is no suite {text!r}; {known}, or name a YAML file")


class _Loader(yaml.SafeLoader):
    """A YAML loader that raises RecursionError while it scans a deeply nested document."""

    def fetch_more_tokens(self) -> None:
        """Scans more tokens. Raises RecursionError if they are too deeply nested."""
        if self.flow_level + len(self.indents) > _MAX_SCANNED_DEPTH:
            raise RecursionError
        super().fetch_more_tokens()


def load_yaml_file(path: str) -> YamlNode:
    """Reads the only YAML document in a file, and returns its root. Messages contain `path`.

    Raises UsageError, with file and line, for invalid YAML, duplicate keys and unknown tags.
    """
    data = read_file(path, _MOST_MIB)  # PyYAML detects the encoding of the bytes.
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
    return _convert_node(path, root, {})


def _convert_node(
    file: str, node: yaml.Node, done: dict[int, YamlNode], depth: int = 0
) -> YamlNode:
    """Converts a PyYAML node, with its children, to a `YamlNode`. An alias becomes the same
    object.
    """
    line = int(node.start_mark.line) + 1
    if depth > _MAX_DEPTH:
        raise UsageError(f"{file}:{line}: nested too deeply")
    if id(node) in done:
        return done[id(node)]
    if isinstance(node, yaml.ScalarNode):
        kind = _TAGS.get(node.tag)
        if kind is None:
            raise UsageError(f"{file}:{line}: the tag {node.tag} is not known")
        parsed = YamlNode(file, line, kind, text=str(node.value))
    elif isinstance(node, yaml.SequenceNode):
        items = tuple(_convert_node(file, item, done, depth + 1) for item in node.value)
        parsed = YamlNode(file, line, "list", items=items)
    else:
        fields: list[tuple[str, int, YamlNode]] = []
        for key, value in node.value:
            at = int(key.start_mark.line) + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UsageError(f"{file}:{at}: a key must be a word")
            if any(key.value == name for name, _, _ in fields):
                raise UsageError(f'{file}:{at}: duplicate key "{key.value}"')
            fields.append((key.value, at, _convert_node(file, value, done, depth + 1)))
        parsed = YamlNode(file, line, "mapping", fields=tuple(fields))
    done[id(node)] = parsed
    return parsed
