"""Escaping of untrusted text for each output format.

Names of models, hosts, flags and files, commands and error messages come from records, which may
contain anything.
"""

from __future__ import annotations

import re

# Characters with a meaning in Markdown and HTML, and what GitHub interprets within a word.
# Intraword underscores, and colons before a space or a digit, have none.
_SPECIAL = re.compile(r"""[\\`*{}\[\]<>#|!~$&@^]|(?<![^\W_])_|_(?![^\W_])|:(?=[^\s\d])""")
# GitHub also searches the rendered text for these, where entities no longer protect it.
_REFERENCE = re.compile(r"@\w|#\d|GH-\d|://|:[a-z_+-][\w+-]*:|www\.", re.IGNORECASE)

# All but letters, digits, and characters without a meaning within a line, given that brackets and
# colons are escaped.
_UNSAFE = re.compile(r"[^\w ,;=+\-./()]|_")
# GitHub links it wherever it stands.
_LINK = re.compile(r"(?<=www)\.", re.IGNORECASE)

# Prefixes that CI services read as commands in a log: Azure Pipelines and TeamCity ("##vso[...]",
# "##[...]") anywhere in a line, GitHub ("::error::") at its beginning.
_COMMAND = re.compile(r"#(?=#[\w.-]*\[)|^\s*:(?=:[\w-]+( .*)?::)")

# What a spreadsheet takes for the beginning of a formula, full-width forms included.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?(e[-+]?[0-9]+)?|-Infinity", re.IGNORECASE)


def plain(text: str) -> str:
    """One `inert` line without control characters, direction marks and other invisible ones."""
    return inert("".join(c if c.isprintable() else " " for c in text).strip())


def inert(line: str) -> str:
    """A line with a space within each prefix that a CI service would read as a command."""
    return _COMMAND.sub(r"\g<0> ", line)


def one_line(text: str) -> str:
    """Text for a terminal or a build log: `plain`, with undecodable bytes as escapes."""
    return plain(text.encode("utf-8", "backslashreplace").decode())


def markdown(text: str) -> str:
    """Text for Markdown: special characters as entities, links and mentions of GitHub as code."""
    shown = plain(text)
    escaped = _SPECIAL.sub(_entity, shown)
    if not _REFERENCE.search(shown):
        return escaped
    return f"<code>{_LINK.sub('&#46;', escaped)}</code>"


def code(text: str) -> str:
    """Text for Markdown, as code: special characters as numeric entities.

    In CommonMark entities are never structure, not even the border of a table cell.
    """
    return f"<code>{_LINK.sub('&#46;', _UNSAFE.sub(_entity, plain(text)))}</code>"


def _entity(found: re.Match[str]) -> str:
    return f"&#{ord(found.group())};"


def spreadsheet(text: str) -> str:
    """Text for a cell of a CSV file, never a formula (OWASP, "CSV injection").

    A number is none, negative or not.
    """
    shown = plain(text)
    is_formula = shown.startswith(_FORMULA) and not _NUMBER.fullmatch(shown)
    return f"'{shown}" if is_formula else shown
