"""Text of unknown origin made inert, for each language that we write.

Names of models, hosts, flags and files, commands and messages of errors come out of records,
and a record may hold anything.
"""

from __future__ import annotations

import html
import re

# Signs of Markdown and HTML, and what GitHub makes something of within a word. Intraword
# underscores and colons before a space or a digit mean nothing.
_SIGN = re.compile(r"""[\\`*{}\[\]<>#|!~$&@^]|(?<![^\W_])_|_(?![^\W_])|:(?=[^\s\d])""")
# GitHub looks for these in the finished text too, where entities no longer tell.
_REFERENCE = re.compile(r"@\w|#\d|GH-\d|://|:[a-z_+-][\w+-]*:|www\.", re.IGNORECASE)

# Signs without a meaning within a line, given that brackets and colons have none either.
_PLAIN = frozenset(" ,;=+-./()")
# GitHub makes a link of it wherever it stands.
_LINK = re.compile(r"(?<=www)\.", re.IGNORECASE)

# What a spreadsheet takes for the beginning of a formula, full-width forms included.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def plain(text: str) -> str:
    """The text as one line without control signs, direction marks and other invisible ones."""
    return "".join(sign if sign.isprintable() else " " for sign in text).strip()


def one_line(text: str) -> str:
    """For a terminal or the log of a build: `plain`, of names that are no text the bytes told."""
    return plain(text.encode("utf-8", "backslashreplace").decode())


def markup(text: str) -> str:
    """For HTML and SVG: content of elements, or of attributes in double quotes."""
    return html.escape(plain(text), quote=True)


def markdown(text: str) -> str:
    """For Markdown: signs with a meaning as entities, which never make structure.

    What GitHub would make links or names of goes out as code besides.
    """
    shown = plain(text)
    inert = _SIGN.sub(lambda sign: f"&#{ord(sign.group())};", shown)
    if not _REFERENCE.search(shown):
        return inert
    return f"<code>{_LINK.sub('&#46;', inert)}</code>"


def code(text: str) -> str:
    """For Markdown, as code: all signs that may have a meaning as numeric entities.

    Entities stand for themselves in CommonMark, never for structure, not even for the
    border of a cell.
    """
    return f"<code>{_LINK.sub('&#46;', ''.join(map(_entity, text)))}</code>"


def _entity(character: str) -> str:
    if character.isalnum() or character in _PLAIN:
        return character
    return f"&#{ord(character)};" if character.isprintable() else " "


def spreadsheet(text: str) -> str:
    """For a cell of a CSV file: text, never a formula (OWASP, "CSV injection")."""
    shown = plain(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
