"""Changes of files of a campaign between two sessions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes the events of a journal, as if they had been written like that."""
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{json.dumps(change(json.loads(line)))}\n" for line in lines))
