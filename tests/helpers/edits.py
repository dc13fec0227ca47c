"""What happens to the files of a campaign between two sessions: kills, broken disks and people."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cnnbench.campaigns.processes.journal import JOURNAL

_UNREADABLE = (b"", b"{", b"\xff", b"[1]", b'{"event": 1}', b'{"event": "process", "group": "x"}')


def edit(folder: Path, generator: random.Random) -> str:
    """Changes a file of a campaign in a way that the generator draws; returns what was done."""
    journals = [path for path in sorted(folder.rglob(JOURNAL)) if path.stat().st_size]
    records = [path for journal in journals for path in _named_records(journal)]
    kinds = [_tear, _make_unreadable, *([_remove, _exchange] if len(records) > 1 else [])]
    kind = generator.choice(kinds)
    path = generator.choice(records if kind in (_remove, _exchange) else journals)
    kind(path, generator, [one for one in records if one != path])
    return f"{kind.__name__} {path}"


def _named_records(journal: Path) -> list[Path]:
    """The records that the ends of processes name, if they are in place."""
    events = map(json.loads, journal.read_text().splitlines())
    paths = {journal.parent / event["record"] for event in events if "record" in event}
    return sorted(path for path in paths if path.exists())


def _tear(path: Path, generator: random.Random, _: list[Path]) -> None:
    data = path.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(data[: generator.randrange(last, len(data))])


def _make_unreadable(path: Path, generator: random.Random, _: list[Path]) -> None:
    lines = path.read_bytes().splitlines()
    lines[generator.randrange(len(lines))] = generator.choice(_UNREADABLE)
    path.write_bytes(b"\n".join([*lines, b""]))


def _remove(path: Path, *_: Any) -> None:
    path.unlink()


def _exchange(path: Path, generator: random.Random, others: list[Path]) -> None:
    path.write_bytes(generator.choice(others).read_bytes())


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes the events of a journal, as if they had been written like that."""
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{json.dumps(change(json.loads(line)))}\n" for line in lines))
