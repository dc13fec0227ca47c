"""Escapes untrusted text for each output format.

Names of models, hosts, flags and files, commands and error messages are read from records. Records
may contain any text, so it is escaped.
"""

from __future__ import annotations

import json
import re

# Matches characters that have a special meaning in Markdown, in HTML, or on GitHub.
# Underscores within a word, and colons before a space or a digit, have no special meaning.
_SPECIAL = re.compile(r"""[\\`*{}\[\]<>#|!~$&@^]|(?<![^\W_])_|_(?![^\W_])|:(?=[^\s\d])""")
# GitHub turns a text that matches this pattern into a link, even if it is written with HTML
# entities.
_REFERENCE = re.compile(r"@\w|#\d|GH-\d|://|:[a-z_+-][\w+-]*:|www\.", re.IGNORECASE)

# Matches all characters except letters, digits, and characters without a meaning in Markdown.
_UNSAFE = re.compile(r"[^\w ,;=+\-./()]|_")
# GitHub turns text that contains "www." into a link, even if it is within a word.
_LINK = re.compile(r"(?<=www)\.", re.IGNORECASE)

# CI services treat a line in a log as a command if it contains one of these prefixes: for Azure
# Pipelines and TeamCity, "##vso[...]" or "##[...]" anywhere; for GitHub, "::error::" at the
# beginning.
_COMMAND_OF_AZURE = r"#(?=#[\w.-]*\[)"
_COMMAND = re.compile(rf"{_COMMAND_OF_AZURE}|^\s*:(?=:[\w-]+( .*)?::)")
_COMMAND_IN_JSON = re.compile(_COMMAND_OF_AZURE)

# If a cell begins with one of these characters (or its full-width form), a spreadsheet reads the
# cell as a formula.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?(e[-+]?[0-9]+)?|-Infinity", re.IGNORECASE)


def to_plain_line(text: str) -> str:
    """Converts a text to one line without control characters and invisible characters. Also
    disables commands for CI services in the text.
    """
    return disable_ci_commands("".join(c if c.isprintable() else " " for c in text).strip())


def disable_ci_commands(line: str) -> str:
    """Disables commands for CI services in a line by inserting a space into each command prefix."""
    return _COMMAND.sub(r"\g<0> ", line)


def dump_json(value: object, indent: int | None = None) -> str:
    """Converts a value to strictly valid JSON text. Commands for CI services in its texts are
    disabled by an escape sequence, so a parser reads the same texts.
    """
    text = json.dumps(value, indent=indent, allow_nan=False)
    return _COMMAND_IN_JSON.sub(r"\\u0023", text)


def to_terminal_line(text: str) -> str:
    """Converts a text to one line for a terminal or a log. Undecodable bytes become escapes."""
    return to_plain_line(text.encode("utf-8", "backslashreplace").decode())


def escape_markdown(text: str) -> str:
    """Escapes a text for Markdown. Special characters become HTML entities. A text with links is
    formatted as code, because entities do not disable links.
    """
    shown = to_plain_line(text)
    escaped = _SPECIAL.sub(_numeric_entity, shown)
    if not _REFERENCE.search(shown):
        return escaped
    return f"<code>{_LINK.sub('&#46;', escaped)}</code>"


def markdown_code(text: str) -> str:
    """Formats a text as code in Markdown. Special characters become numeric HTML entities.

    In CommonMark, an entity is always text. It never ends a table cell, for example.
    """
    return f"<code>{_LINK.sub('&#46;', _UNSAFE.sub(_numeric_entity, to_plain_line(text)))}</code>"


def _numeric_entity(match: re.Match[str]) -> str:
    return f"&#{ord(match.group())};"


def escape_formula(text: str) -> str:
    """Escapes a text for a cell in a CSV file, so that spreadsheets do not interpret it as a
    formula.

    A number, even a negative one, is not a formula.
    """
    shown = to_plain_line(text)
    is_formula = shown.startswith(_FORMULA) and not _NUMBER.fullmatch(shown)
    return f"'{shown}" if is_formula else shown
