"""docs/extending.md says how many files a new part touches; here they are counted in the sources.

A file counts if it names a part of that kind that is there, outside docstrings.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from tokenize import generate_tokens

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def files_naming(*words):
    """The source files with one of these words as a name or a text; a docstring is one text."""
    found = set()
    for top in ("cnnbench", "models", "variable_mgr"):
        for file in (ROOT / top).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if any(word in text for word in words):
                tokens = generate_tokens(io.StringIO(text).readline)
                if any(token.string.strip("\"'") in words for token in tokens):
                    found.add(str(file.relative_to(ROOT)))
    return found


def touched(recipe):
    """How many files a recipe says that it touches."""
    section = TEXT.partition(f"\n## {recipe}\n")[2].partition("\n## ")[0]
    found = re.search(r"Touches\s+(\d+)\s+files?", section)
    assert found is not None, recipe
    return int(found[1])


# Where a recipe sends what not every new part has.
OPTIONAL = {
    "cnnbench/plan/refusals.py",
    "cnnbench/plan/notices.py",
    "cnnbench/judge/metrics/comparable_facts.py",
}


@pytest.mark.parametrize(
    ("recipe", "words", "optional"),
    [
        ("A variable manager", ("distributed_replicated",), set()),
        ("A variable manager", ("central_storage_strategy",), set()),
        ("A flag", ("allow_nonfinite",), OPTIONAL),
        ("An optimizer", ("lion", "lion_beta1"), set()),
    ],
)
def test_a_recipe_counts_its_files(recipe, words, optional):
    files = files_naming(*words) - optional
    assert len(files) == touched(recipe), sorted(files)
