"""Edits of journals, as people, editors and broken disks make them."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cnnbench.campaigns.processes.results_dir import Journal

_VALUES: tuple[Any, ...] = (None, True, -1, 2**70, 1e308, "x", [], [1], {}, {"a": 1})


def edit(path: Path, generator: random.Random) -> str:
    """Edits a journal in a way that the generator draws; returns what was done."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    at, other = (generator.randrange(len(lines)) for _ in range(2))
    kind = generator.choice(_KINDS)
    if kind == "flip":
        place = generator.randrange(len(data))
        flipped = data[place] ^ 1 << generator.randrange(8)
        lines = [data[:place], bytes([flipped]), data[place + 1 :]]
    elif kind == "cut":
        lines = [data[: generator.randrange(len(data))]]
    elif kind == "cut lines":
        lines = lines[:at]
    elif kind == "remove":
        del lines[at]
    elif kind == "repeat":
        lines.insert(other, lines[at])
    elif kind == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "strip all":
        lines = [_without_checksum(json.loads(line)) for line in lines]
    else:
        event = json.loads(lines[at])
        keys = [key for key in event if key != "crc"]
        if kind == "change":
            event[generator.choice(keys)] = generator.choice(_VALUES)
        elif kind == "drop key":
            del event[generator.choice(keys)]
        elif kind == "wrong type":
            name, value = generator.choice((("group", None), ("seconds", "x"), ("question", [1])))
            event[name] = value
        lines[at] = _without_checksum(event)
        if generator.random() < 0.3:  # as one line by itself would have it
            facts = lines[at].rstrip()[:-1]
            lines[at] = b'%s, "crc": %d}\n' % (facts, zlib.crc32(facts))
        if kind == "wrong type" and generator.random() < 0.5:
            lines = [*map(_without_checksum, map(json.loads, lines))]
    path.write_bytes(b"".join(lines))
    return f"{kind} line {at + 1} of {path}"


_KINDS = (
    *("flip", "flip", "cut", "cut lines", "remove", "repeat", "swap"),
    *("strip", "strip all", "change", "drop key", "wrong type"),
)


def _without_checksum(event: dict[str, Any]) -> bytes:
    return json.dumps({key: value for key, value in event.items() if key != "crc"}).encode() + b"\n"


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes the events of a journal, as if they had been written like that."""
    found = [change(event) for event in Journal(path).read()]
    path.unlink()
    path.with_suffix(".lines").unlink()
    journal = Journal(path)
    for event in found:
        journal.add(**{key: value for key, value in event.items() if key != "crc"})
