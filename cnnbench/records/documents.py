"""Registry of JSON documents: their classes, and the commands that write them.

The JSON Schemas in docs/schemas/ follow from the classes. ``-o FILE`` replaces a document only by a
document of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from cnnbench.base import plugins
from cnnbench.records.codec import IMPLIED_KIND
from cnnbench.records.files import register_file_kind

C = TypeVar("C", bound="type[Any]")

DOCUMENTS: dict[str, tuple[type[Any], str]] = {}
"""The class of each document, and the command that writes it, by the name of the schema.
`load_documents` completes the table.
"""

# The commands are in a higher layer, so they are imported by name.
_COMMANDS = "cnnbench.cli.commands"


def json_document(written_by: str, name: str = "") -> Callable[[C], C]:
    """Decorator that registers a dataclass as a JSON document.

    Args:
      written_by: the command that writes the document; it becomes the title of the schema.
      name: name of the schema. The default is the kind of a `Document`.
    """

    def register(cls: C) -> C:
        kind = getattr(cls, "kind", "")
        DOCUMENTS[name or kind] = cls, written_by
        if kind:
            register_file_kind(kind, _beginning(kind))
        return cls

    return register


@cache
def load_documents() -> None:
    """Registers all documents of cnnbench, by importing the modules of all commands."""
    for name in plugins.submodule_names(import_module(_COMMANDS)):
        import_module(f"{_COMMANDS}.{name}")


def is_kind_of_document(kind: str) -> bool:
    """Whether cnnbench writes such documents. Loads all documents if the kind is unknown."""
    if kind not in DOCUMENTS:
        load_documents()
    return getattr(DOCUMENTS.get(kind, (None,))[0], "kind", None) == kind


def _beginning(kind: str) -> bytes:
    """Regular expression that matches the first keys, which `Document.to_dict` writes in this
    order.
    """
    named = rf',\s*"kind":\s*"{kind}"'
    if kind == IMPLIED_KIND:
        named = rf'({named}|(?!,\s*"kind":))'
    return rf'\s*\{{\s*"schema":\s*\d+\b{named}'.encode()
