"""The grammar of --all_reduce_spec, as tf_cnn_benchmarks has it.

    spec      = algorithm (":" limit ":" algorithm)*
    algorithm = name ["/" name] ["#" shards]
    limit     = integer ["K" | "M" | "G" | "T"]        powers of 1024, in bytes

`pscpu:2K:pscpu#2:64K:xring` sends tensors of up to 2 KiB through pscpu, of up to
64 KiB through pscpu with two shards, and all others around a ring. A name with a
slash has two levels: the first within a group of devices, the second between groups.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cnnbench.base.text.numbers import parse_bytes
from cnnbench.errors import FlagError

FLAG = "all_reduce_spec"
_FORM = "algorithm[:limit:algorithm]..., as in pscpu:32K:xring#2"


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm of a spec, which splits each tensor into `shards`.

    `levels` is one name, or the name within groups and the name between them.
    """

    levels: tuple[str, ...]
    shards: int = 1

    def __str__(self) -> str:
        name = "/".join(self.levels)
        return name if self.shards == 1 else f"{name}#{self.shards}"


@dataclass(frozen=True)
class SizeRange:
    """An algorithm and its largest tensor, in bytes as sent; None without a limit."""

    algorithm: AlgorithmSpec
    limit: int | None = None

    def __str__(self) -> str:
        return str(self.algorithm) + ("" if self.limit is None else f":{_short(self.limit)}")


@dataclass(frozen=True)
class AllReduceSpec:
    """A parsed spec: ranges of rising limits, the last without one.

    `parse_all_reduce_spec(str(spec)) == spec`. `source` is the text it was parsed from, not always
    the shortest form; errors point into it, and records hold it.
    """

    ranges: tuple[SizeRange, ...]
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.source:
            object.__setattr__(self, "source", str(self))

    def __str__(self) -> str:
        return ":".join(map(str, self.ranges))

    @property
    def names(self) -> frozenset[str]:
        """The algorithms in it, at all levels."""
        return frozenset(name for part in self.ranges for name in part.algorithm.levels)

    @property
    def has_two_levels(self) -> bool:
        """Whether one of its algorithms has two levels."""
        return any(len(part.algorithm.levels) > 1 for part in self.ranges)

    def error(self, index: int, reason: str) -> FlagError:
        """A usage error that points at the algorithm of range `index`."""
        # Algorithms and limits alternate.
        return _error(self.source, 2 * index, reason)

    def check_names(self, known: Collection[str]) -> None:
        """Refuses algorithms that do not exist."""
        for index, part in enumerate(self.ranges):
            for name in part.algorithm.levels:
                if name not in known:
                    raise self.error(
                        index,
                        f"there is no algorithm {name!r}; must be one of "
                        f"{', '.join(sorted(known))}",
                    )

    def running(self, groups: Sequence[Sequence[str]]) -> AllReduceSpec:
        """The spec without levels that have nothing to reduce on these groups of devices."""
        parts = (SizeRange(_running(part.algorithm, groups), part.limit) for part in self.ranges)
        return AllReduceSpec(tuple(parts))

    def range_of(self, num_bytes: int) -> int:
        """Index of the range for a tensor of `num_bytes` as sent."""
        for index, part in enumerate(self.ranges[:-1]):
            assert part.limit is not None
            if num_bytes <= part.limit:
                return index
        return len(self.ranges) - 1


def single(name: str) -> AllReduceSpec:
    """The spec of one algorithm for all sizes."""
    return AllReduceSpec((SizeRange(AlgorithmSpec((name,))),))


def parse_all_reduce_spec(text: str, known: Collection[str] | None = None) -> AllReduceSpec:
    """Parses a spec; `known` are the names that exist, None accepts any.

    Raises:
      FlagError: names the wrong piece and the character where it begins.
    """
    pieces = text.split(":")
    ranges: list[SizeRange] = []
    for number in range(0, len(pieces), 2):
        algorithm = _algorithm(text, number)
        if number + 1 == len(pieces):
            ranges.append(SizeRange(algorithm))
            continue
        limit = _limit(text, number + 1)
        if ranges and limit <= (ranges[-1].limit or 0):
            raise _error(
                text,
                number + 1,
                f"limits must rise, and the one before is {_short(ranges[-1].limit)}",
            )
        if number + 2 == len(pieces):
            raise _error(
                text, number + 1, "a limit must be followed by the algorithm for larger tensors"
            )
        ranges.append(SizeRange(algorithm, limit))
    spec = AllReduceSpec(tuple(ranges), text)
    if known is not None:
        spec.check_names(known)
    return spec


def _error(text: str, number: int, reason: str) -> FlagError:
    """An error that points at a piece between colons."""
    pieces = text.split(":")
    start = 1 + sum(len(piece) + 1 for piece in pieces[:number])
    return FlagError(FLAG, text, f"character {start}, {pieces[number]!r}: {reason}")


def _algorithm(text: str, number: int) -> AlgorithmSpec:
    match = re.fullmatch(r"(\w+)(?:/(\w+))?(?:#(.*))?", text.split(":")[number])
    if match is None:
        raise _error(text, number, f"must be an algorithm; a spec is {_FORM}")
    levels = tuple(name for name in match.group(1, 2) if name)
    shards = match.group(3)
    if shards is None:
        return AlgorithmSpec(levels)
    if not re.fullmatch(r"[0-9]{1,9}", shards) or int(shards) < 1:
        raise _error(text, number, "after # must stand the number of shards, 1 or more")
    return AlgorithmSpec(levels, int(shards))


def _running(algorithm: AlgorithmSpec, groups: Sequence[Sequence[str]]) -> AlgorithmSpec:
    if len(algorithm.levels) == 2 and len(groups) == 1:
        return AlgorithmSpec(algorithm.levels[:1])
    if len(algorithm.levels) == 2 and all(len(group) == 1 for group in groups):
        return AlgorithmSpec(algorithm.levels[1:], algorithm.shards)
    return algorithm


def _limit(text: str, number: int) -> int:
    limit = parse_bytes(text.split(":")[number])
    if not limit:
        raise _error(
            text, number, "must be a limit in bytes, 1 or more, with an optional K, M, G or T"
        )
    return limit


def _short(limit: int | None) -> str:
    """The limit with the largest unit that divides it."""
    value, unit = limit or 0, ""
    for larger in "KMGT":
        if value == 0 or value % 1024:
            break
        value, unit = value // 1024, larger
    return f"{value}{unit}"
