"""Suggests known names for misspelled ones."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


def nearest_word(word: str, known: Iterable[str]) -> str:
    """Finds the known word that is most similar to a misspelled word; "" if no word is similar.

    Upper and lower case are not distinguished. A known word is similar if it begins with the word,
    or if three quarters of both words agree (three fifths for at most three characters).
    """
    word, by_lower = word.lower(), {name.lower(): name for name in sorted(known)}
    longer = [name for name in by_lower if len(word) > 2 and name.startswith(word)]
    cutoff = 0.75 if len(word) > 3 else 0.6
    close = difflib.get_close_matches(word, by_lower, 1, cutoff) or longer
    return by_lower[close[0]] if close else ""


def suggestion(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Asks whether the most similar known word was meant: "did you mean WORD?". Returns `otherwise`
    if no word is similar.
    """
    close = nearest_word(word, known)
    return f"did you mean {close}?" if close else otherwise


def unknown_name_reason(name: str, known: Collection[str], listed: str = "must be one of") -> str:
    """Reason to refuse an unknown name. It suggests the most similar known name, and lists all
    names after the words `listed`.
    """
    names = ", ".join(other or "''" for other in known) or "none"
    return f"{suggestion(name, known)} {listed} {names}".lstrip()


def unknown_key_message(key: str, known: Iterable[str]) -> str:
    """Message for an unknown key: the most similar known key, or all keys if they are few."""
    names = tuple(known)
    close = nearest_word(key, names)
    if close:
        return f'unknown key "{key}"; did you mean "{close}"?'
    few = f"; there are {', '.join(names)}" if len(names) <= 20 else ""
    return f'unknown key "{key}"{few}'
