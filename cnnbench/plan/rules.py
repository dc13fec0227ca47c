"""Rules of flags: which flags, when, why, and whether they are refused or have no effect.

Tables of rules are evaluated on what is resolved so far, such as a `Setup`. The first rule of a
table that applies to a flag counts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from cnnbench.errors import FlagError
from cnnbench.flags.params import SPECS


class _Resolved(Protocol):
    @property
    def params(self) -> Any: ...


P = TypeVar("P", bound=_Resolved)
Condition: TypeAlias = "Callable[[P], object]"
Reason: TypeAlias = "str | Callable[[P], str | None]"


class RuleKind(enum.Enum):
    """What a rule that applies does."""

    REFUSED = "the first of its flags that differs from its default is refused"
    NEEDED = "its flag is refused whatever its value, such as one that must be given"
    NOTICE = "a line tells that those of its flags that are given change nothing"


@dataclass(frozen=True)
class Rule(Generic[P]):
    """A row of a table.

    Attributes:
      when: whether the rule applies, by its truth value.
      why: the end of a message, after "--flag=value: " or "--flag has no effect "; may depend on
        what is resolved. A function that finds nothing wrong returns "" or None, and one that
        checks several values may raise the FlagError itself.
      says: text of a notice in place of "has no effect".
    """

    flags: tuple[str, ...]
    when: Condition[P]
    why: Reason[P]
    kind: RuleKind
    says: str = ""

    def reason(self, resolved: P) -> str:
        """The end of the message, or "" where the rule does not apply."""
        if not self.when(resolved):
            return ""
        return self.why if isinstance(self.why, str) else self.why(resolved) or ""


def refused(flags: str | Sequence[str], when: Condition[P], why: Reason[P]) -> Rule[P]:
    """A rule of flags that are refused if they differ from their defaults."""
    return Rule(_names(flags), when, why, RuleKind.REFUSED)


def needed(flag: str, when: Condition[P], why: Reason[P]) -> Rule[P]:
    """A rule of a flag that is refused whatever its value."""
    return Rule((flag,), when, why, RuleKind.NEEDED)


def excluded(settings: str, why: str, other: str = "") -> Rule[P]:
    """A rule of settings that cannot go together (see `on`); refuses the flag of the last one.

    `why` follows "cannot go with --" and `other`, which is the first setting if not given.
    """
    first, last = settings.split(",")[0], settings.split(",")[-1]
    return needed(last.partition("=")[0], on(settings), f"cannot go with --{other or first}{why}")


def idle(flags: str | Sequence[str], when: Condition[P], why: Reason[P], says: str = "") -> Rule[P]:
    """A rule of flags without effect."""
    return Rule(_names(flags), when, why, RuleKind.NOTICE, says)


def _names(flags: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(flags.split(",")) if isinstance(flags, str) else tuple(flags)


def on(settings: str) -> Callable[[Any], bool]:
    """The condition that all of the comma-separated settings hold.

    A setting is a flag, which is on, or ``flag=value``.
    """
    return lambda resolved: all(_holds(resolved.params, one) for one in settings.split(","))


def off(settings: str) -> Callable[[Any], bool]:
    """The condition that none of the settings holds."""
    return lambda resolved: not any(_holds(resolved.params, one) for one in settings.split(","))


def always(resolved: object) -> bool:
    """The condition of rules whose reasons are functions that check, and of flags never used."""
    return True


def _holds(params: Any, setting: str) -> bool:
    name, equals, value = setting.partition("=")
    found = getattr(params, name)
    return SPECS[name].text(found) == value if equals else bool(found)


def refuse(rules: Iterable[Rule[P]], resolved: P) -> None:
    """Raises FlagError for the first rule that applies, if there is one."""
    for rule in rules:
        values = {name: getattr(resolved.params, name) for name in rule.flags}
        if rule.kind is RuleKind.REFUSED:
            values = {n: value for n, value in values.items() if value != SPECS[n].default}
        if values and (reason := rule.reason(resolved)):
            name, value = next(iter(values.items()))
            raise FlagError(name, SPECS[name].text(value), reason)


def notices(rules: Iterable[Rule[P]], resolved: P, given: Sequence[str]) -> tuple[str, ...]:
    """A line per rule that applies to given flags; for each flag only the first such rule."""
    lines = []
    for rule in rules:
        names = [name for name in given if name in rule.flags]
        if names and (reason := rule.reason(resolved)):
            given = [name for name in given if name not in names]
            *others, last = (f"--{name}" for name in names)
            subject = f"{', '.join(others)} and {last}" if others else last
            says = rule.says or ("have no effect" if others else "has no effect")
            lines.append(f"{subject} {says} {reason}")
    return tuple(lines)
