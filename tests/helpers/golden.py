"""Transcripts: files of expected text, which UPDATE_GOLDEN=1 renews (see CONTRIBUTING.md)."""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARROW = "  ->  "


def golden(path: Path, text: str) -> str:
    """Fails if the file holds another text; with UPDATE_GOLDEN=1, writes the text there first."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    held = path.read_text(encoding="utf-8") if path.exists() else ""
    if held != text:
        lines = difflib.unified_diff(held.splitlines(), text.splitlines(), "file", "now", n=1)
        _fail(path, lines)
    return held


def sentences(path: Path, told: Mapping[str, str], every: Collection[str]) -> None:
    """Fails if what cases print differs from the lines `case  ->  sentence` of a file.

    Tests of one file of cases may each call it with a part of them.

    Args:
      path: the file; with UPDATE_GOLDEN=1, the sentences are put into it first.
      told: the sentence of each case that was tried, one line.
      every: all cases; a line about another case is wrong.
    """
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # other processes of pytest write other cases
            merged = {**_lines(path), **told}
            file.truncate(0)
            file.writelines(
                f"{case}{ARROW}{merged[case]}\n" for case in sorted(merged) if case in every
            )
    held = _lines(path)
    wrong = [f"-{case}{ARROW}{held[case]}" for case in held if case not in every]
    for case, sentence in told.items():
        if held.get(case) != sentence:
            wrong += [f"-{case}{ARROW}{held[case]}"] if case in held else []
            wrong.append(f"+{case}{ARROW}{sentence}")
    if wrong:
        _fail(path, wrong)


def steady(text: str, folder: Path) -> str:
    """A text with HASH for each commit or digest, and without names of folders."""
    for path, name in ((folder, "TMP"), (folder.parent, "TMP"), (sys.executable, "PYTHON")):
        text = text.replace(str(path), name)
    return re.sub(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b", "HASH", text)


class Transcript:
    """What the commands of a test print, in sections `== TEST: CASE` of a file of its test file."""

    def __init__(self, path: Path, test: str, tests: Collection[str], folder: Path) -> None:
        """Args: the file, the test, all tests of its file, and the folder of the test."""
        self._path, self._test, self._tests, self._folder = path, test, tests, folder

    def __call__(self, case: str, text: str, numbers: bool = True) -> None:
        """Fails if a case prints another text; UPDATE_GOLDEN=1 writes the text there first.

        Args:
          case: its name in the test.
          text: lines.
          numbers: False if they are measured, so that each is written as N.
        """
        name, text = f"{self._test}: {case}", steady(text, self._folder).strip("\n")
        if not numbers:
            text = re.sub(r"(?<![A-Za-z_])[+-]?\d+(?:[.,]\d+)*", "N", text)
            text = re.sub(r" {2,}", " ", text)  # columns are as wide as their numbers
        if os.environ.get("UPDATE_GOLDEN"):
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("a+", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # other processes of pytest write other cases
                merged = {**_sections(self._path), name: text}
                kept = {key: merged[key] for key in sorted(merged) if self._known(key)}
                file.truncate(0)
                file.writelines(f"== {key}\n{text}\n" for key, text in kept.items())
        held = _sections(self._path)
        stale = [f"-== {key}" for key in held if not self._known(key)]
        lines = difflib.unified_diff(
            held.get(name, "").splitlines(), text.splitlines(), f"file: {name}", "now", n=1
        )
        if stale or held.get(name) != text:
            _fail(self._path, [*stale, *lines])

    def _known(self, name):
        return name.partition(":")[0] in self._tests


def _sections(path):
    """The texts of a file of transcripts by name."""
    text = "\n" + (path.read_text(encoding="utf-8") if path.exists() else "")
    parts = (part.partition("\n") for part in text.split("\n== ")[1:])
    return {name: text.rstrip("\n") for name, _, text in parts}


def _lines(path):
    """The sentences of a file by case."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
    return dict(line.split(ARROW, 1) for line in lines)


def _fail(path, lines):
    """Fails with the differing lines, and with the command that renews the file."""
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
    __tracebackhide__ = True
    differing = "\n".join(lines)
    pytest.fail(
        f"{path.relative_to(ROOT)} has other text. If the new text is right, run\n"
        f"  UPDATE_GOLDEN=1 scripts/test {test}\n{differing}",
        pytrace=False,
    )
