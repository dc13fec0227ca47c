"""The grammar of --all_reduce_spec, which is the same as in tf_cnn_benchmarks.

    spec      = algorithm (":" limit ":" algorithm)*
    algorithm = name ["/" name] ["#" shards]
    limit     = integer ["K" | "M" | "G" | "T"]        powers of 1024, in bytes

For example, `pscpu:2K:pscpu#2:64K:xring` reduces tensors of up to 2 KiB with pscpu, tensors of up
to 64 KiB with pscpu and two shards, and larger ones with a ring. A name with a slash has two
levels: the first algorithm works within each group of devices, the second between groups.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cnnbench.base.text import unknown_name_reason
from cnnbench.base.values import parse_bytes
from cnnbench.errors import FlagError
from cnnbench.variable_mgr.all_reduce.registry import FLAG, find

_FORM = "algorithm[:limit:algorithm]..., as in pscpu:32K:xring#2"


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm of --all_reduce_spec, which splits each tensor into `shards`.

    `levels` is one name, or two names: the algorithm within groups and the algorithm between
    groups.
    """

    levels: tuple[str, ...]
    shards: int = 1

    def __str__(self) -> str:
        name = "/".join(self.levels)
        return name if self.shards == 1 else f"{name}#{self.shards}"


@dataclass(frozen=True)
class SizeRange:
    """An algorithm, and the largest size in bytes of tensors that it reduces (None: any size)."""

    algorithm: AlgorithmSpec
    limit: int | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f":{_size_text(self.limit)}"
        return f"{self.algorithm}{limit}"


@dataclass(frozen=True)
class AllReduceSpec:
    """A parsed --all_reduce_spec: size ranges with increasing limits, the last without a limit.

    `parse_all_reduce_spec(str(spec)) == spec`. `source` is the original text, which may be longer
    than the shortest text for the same spec. Error messages point to a character in `source`, and
    records contain it.
    """

    ranges: tuple[SizeRange, ...]
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.source:
            object.__setattr__(self, "source", str(self))

    def __str__(self) -> str:
        return ":".join(map(str, self.ranges))

    @property
    def algorithm_names(self) -> frozenset[str]:
        """Names of all algorithms that the spec uses, at all levels."""
        return frozenset(name for part in self.ranges for name in part.algorithm.levels)

    @property
    def names_across_steps(self) -> list[str]:
        """Sorted names of the algorithms in the spec that declare `across_steps`."""
        found = {name: find(name) for name in self.algorithm_names}
        return sorted(name for name, one in found.items() if one is not None and one.across_steps)

    @property
    def has_two_levels(self) -> bool:
        """Whether any algorithm of the spec has two levels: within and between device groups."""
        return any(len(part.algorithm.levels) > 1 for part in self.ranges)

    def reads(self, flag: str) -> bool:
        """Whether an algorithm of the spec declares that it reads a flag (`Registration.reads`)."""
        found = map(find, self.algorithm_names)
        return any(one is not None and flag in one.reads for one in found)

    def error(self, index: int, reason: str) -> FlagError:
        """Creates an error that points to the algorithm of size range `index` in the spec."""
        # The text of a spec alternates between algorithms and size limits.
        return _error(self.source, 2 * index, reason)

    def check_algorithm_names(self, known: Collection[str]) -> None:
        """Raises FlagError if the spec names an algorithm that is not in `known`."""
        for index, part in enumerate(self.ranges):
            for name in part.algorithm.levels:
                if name not in known:
                    reason = unknown_name_reason(name, sorted(known))
                    raise self.error(index, f"there is no algorithm {name!r}; {reason}")

    def without_needless_levels(self, groups: Sequence[Sequence[str]]) -> AllReduceSpec:
        """Returns the spec without levels that have nothing to do for these groups of devices."""
        parts = (SizeRange(_needed_levels(p.algorithm, groups), p.limit) for p in self.ranges)
        return AllReduceSpec(tuple(parts))

    def range_index(self, num_bytes: int) -> int:
        """Returns the index of the size range for a tensor with `num_bytes` bytes."""
        for index, part in enumerate(self.ranges[:-1]):
            assert part.limit is not None
            if num_bytes <= part.limit:
                return index
        return len(self.ranges) - 1


def single(name: str) -> AllReduceSpec:
    """Creates a spec that uses one algorithm for tensors of all sizes."""
    return AllReduceSpec((SizeRange(AlgorithmSpec((name,))),))


def parse_all_reduce_spec(text: str, known: Collection[str] | None = None) -> AllReduceSpec:
    """Parses a value of --all_reduce_spec.

    Args:
      known: names of the existing algorithms; None accepts any name.

    Raises:
      FlagError: the text is not a valid spec. The message contains the wrong piece of the text and
        the position of its first character.
    """
    pieces = text.split(":")
    ranges: list[SizeRange] = []
    for number in range(0, len(pieces), 2):
        algorithm = _parse_algorithm(text, number)
        if number + 1 == len(pieces):
            ranges.append(SizeRange(algorithm))
            continue
        limit = _parse_limit(text, number + 1)
        if ranges and limit <= (ranges[-1].limit or 0):
            previous = _size_text(ranges[-1].limit)
            reason = f"limits must increase, but the previous limit is {previous}"
            raise _error(text, number + 1, reason)
        if number + 2 == len(pieces):
            raise _error(
                text, number + 1, "a limit must be followed by the algorithm for larger tensors"
            )
        ranges.append(SizeRange(algorithm, limit))
    spec = AllReduceSpec(tuple(ranges), text)
    if known is not None:
        spec.check_algorithm_names(known)
    return spec


def _error(text: str, number: int, reason: str) -> FlagError:
    """Creates an error that points to one of the pieces that colons separate in a spec."""
    pieces = text.split(":")
    start = 1 + sum(len(piece) + 1 for piece in pieces[:number])
    return FlagError(FLAG, text, f"character {start}, {pieces[number]!r}: {reason}")


def _parse_algorithm(text: str, number: int) -> AlgorithmSpec:
    match = re.fullmatch(r"(\w+)(?:/(\w+))?(?:#(.*))?", text.split(":")[number])
    if match is None:
        raise _error(text, number, f"must be an algorithm; a spec is {_FORM}")
    levels = tuple(name for name in match.group(1, 2) if name)
    shards = match.group(3)
    if shards is None:
        return AlgorithmSpec(levels)
    if not re.fullmatch(r"[0-9]{1,9}", shards) or int(shards) < 1:
        raise _error(text, number, "after # write the number of shards, at least 1")
    return AlgorithmSpec(levels, int(shards))


def _needed_levels(algorithm: AlgorithmSpec, groups: Sequence[Sequence[str]]) -> AlgorithmSpec:
    if len(algorithm.levels) == 2 and len(groups) == 1:
        return AlgorithmSpec(algorithm.levels[:1])
    if len(algorithm.levels) == 2 and all(len(group) == 1 for group in groups):
        return AlgorithmSpec(algorithm.levels[1:], algorithm.shards)
    return algorithm


def _parse_limit(text: str, number: int) -> int:
    limit = parse_bytes(text.split(":")[number])
    if not limit:
        raise _error(
            text, number, "must be a limit in bytes, 1 or more, with an optional K, M, G or T"
        )
    return limit


def _size_text(limit: int | None) -> str:
    """Returns a limit in bytes as text with the largest unit that divides it, such as 64K."""
    value, unit = limit or 0, ""
    for larger in "KMGT":
        if value == 0 or value % 1024:
            break
        value, unit = value // 1024, larger
    return f"{value}{unit}"
