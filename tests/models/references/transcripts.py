"""Transcripts and what a recogniser heard, drawn from seeds, and what jiwer makes of them.

The tests need NumPy alone. The expected values come from an environment of their own, here::

    python -m venv /tmp/reference && /tmp/reference/bin/pip install jiwer==4.0.0
    /tmp/reference/bin/python transcripts.py error_rates.json
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np

LETTERS = " abcdefghijklmnopqrstuvwxyz'"

Pair = tuple[str, str]  # what was said, and what was heard


def _said(rng: np.random.Generator, words: int) -> str:
    made = [
        "".join(LETTERS[i] for i in rng.integers(1, 6, rng.integers(1, 7))) for _ in range(words)
    ]
    return " ".join(made)


def _heard(rng: np.random.Generator, said: str, wrong: float) -> str:
    """Letters, spaces among them, left out, replaced or put in."""
    heard = ""
    for letter in said:
        draw = rng.random() / wrong if wrong else 3.0
        if draw < 1 / 3:
            continue
        heard += LETTERS[rng.integers(0, 6)] if draw < 2 / 3 else letter
        if 2 / 3 <= draw < 1:
            heard += LETTERS[rng.integers(0, 6)]
    return heard


def cases() -> dict[str, list[Pair]]:
    """Pairs by the name of what is special about them."""
    rng = np.random.default_rng(20)
    said = [_said(rng, int(words)) for words in rng.integers(1, 12, 60)]
    return {
        "no mistakes": [(one, one) for one in said[:5]],
        "few mistakes": [(one, _heard(rng, one, 0.05)) for one in said],
        "many mistakes": [(one, _heard(rng, one, 0.5)) for one in said],
        "nothing in common": list(zip(said, said[::-1], strict=True)),
        "nothing heard": [(one, "") for one in said[:5]],
        "more heard than said": [
            (one, one + " " + other) for one, other in itertools.pairwise(said)
        ],
        "some heard, some not": [(one, one if i % 2 else "") for i, one in enumerate(said)],
        "spaces at the ends and twice": [
            (one, " " + one.replace(" ", "  ") + "  ") for one in said[:20]
        ],
        "repeated words": [("a a a b", "a b"), ("a b", "a a a b"), ("ab ab", "ab ab ab")],
    }


def by_jiwer(pairs: list[Pair]) -> dict[str, float]:
    """Error rates of words and of letters, over all pairs; spaces are letters, also at the ends."""
    import jiwer

    said, heard = (list(column) for column in zip(*pairs, strict=True))
    letters = jiwer.Compose([jiwer.ReduceToListOfListOfChars()])
    return {
        "word_error_rate": jiwer.wer(said, heard),
        "letter_error_rate": jiwer.cer(said, heard, letters, letters),
    }


if __name__ == "__main__":
    from importlib.metadata import version

    document = {
        "made_by": f"transcripts.py with jiwer {version('jiwer')}",
        "error_rates": {name: by_jiwer(pairs) for name, pairs in cases().items()},
    }
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")
