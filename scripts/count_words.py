"""Counts the words of each page, like wc -w, without generated tables; longest page first.

Usage: python3 scripts/count_words.py
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = re.compile(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", re.DOTALL)
GENERATED_PAGE = ROOT / "docs" / "flags.md"


def words(page: Path) -> int:
    """Number of words of a page outside of generated tables."""
    if page == GENERATED_PAGE:
        return 0
    return len(GENERATED.sub("", page.read_text(encoding="utf-8")).split())


def main() -> None:
    """Prints the number of words of each page, and their sum in docs/."""
    counts = {page: words(page) for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    for page, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:6}  {page.relative_to(ROOT)}")
    print(f"{sum(counts.values()) - counts[ROOT / 'README.md']:6}  docs/")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # The reader of output may end early.
    main()
