"""Lists of nodes and of their tasks in Slurm's variables."""

from __future__ import annotations

import itertools
import math
import re

from cnnbench.base.environ import NUMBER, Environment, invalid, required
from cnnbench.base.job import HOST, LARGEST_PORT


def expand_node_list(environ: Environment, name: str) -> list[str]:
    """Expands a Slurm node list in a variable: "n[001-002],gpu1" becomes n001, n002, gpu1."""
    text = required(environ, name)
    nodes: list[str] = []
    if not re.fullmatch(rf"(?:{HOST}|\[[^\[\]\s]+\]|,(?!$))+", text) or text.startswith(","):
        raise invalid(environ, name, "is not a list of nodes such as n[01-04],m7")
    # Commas within brackets do not separate nodes.
    for part in re.findall(r"(?:[^\[\],]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        choices = [
            _expand_numbers(piece, environ, name) if i % 2 else [piece]
            for i, piece in enumerate(pieces)
        ]
        if math.prod(map(len, choices)) + len(nodes) > LARGEST_PORT:
            raise invalid(environ, name, f"has more than {LARGEST_PORT} nodes")
        nodes += ("".join(words) for words in itertools.product(*choices))
    return nodes


def _expand_numbers(text: str, environ: Environment, name: str) -> list[str]:
    """Expands the numbers in a Slurm node list: "1-3,07" becomes "1", "2", "3", "07"."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(f"{NUMBER}(?:-{NUMBER})?", part)
        low, high = match.groups(match[1]) if match else ("1", "0")
        if not 0 <= int(high) - int(low) < LARGEST_PORT:
            raise invalid(environ, name, f"[{text}] is not a list of numbers such as 01-04,7")
        numbers += (f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1))
    return numbers


def tasks_per_node(environ: Environment, name: str) -> list[int]:
    """Expands Slurm's number of tasks on each node: "2(x3),1" becomes 2, 2, 2, 1."""
    text = required(environ, name)
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", part)
        if match is None:
            raise invalid(environ, name, "is not a list of numbers such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
