"""Rules about flags: which flags are refused or have no effect, under which condition, and why.

A rule looks at the facts of a plan, such as a `RunPlan`. If several rules of a table apply to a
flag, the first rule gives the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from cnnbench.base.text import enumeration
from cnnbench.errors import FlagError


class HasFlags(Protocol):
    """The attributes that every plan has. Rules of owners in lower layers use only these facts."""

    @property
    def params(self) -> Any:
        """The values of the flags, such as `cnnbench.Params`, as attributes."""


F = TypeVar("F", contravariant=True)
R = TypeVar("R", bound=HasFlags)
Reason: TypeAlias = "str | Callable[[F], str | None]"
Names: TypeAlias = "str | Sequence[str]"
"""The name of a flag, or the names of several flags."""


class Severity(enum.Enum):
    """What happens if a rule applies."""

    REFUSAL = "the flag is refused, and the command ends with exit code 2"
    NOTICE = "a line on standard error says that the flag has no effect"


@dataclass(frozen=True)
class FlagRule(Generic[F]):
    """A rule: flags, a test, and the reason why the flags are refused or have no effect.

    Attributes:
      test: whether the rule applies to the given flag, which is one of `flags`.
      reason: the end of the message, after "--flag=value: " or "--flag has no effect "; or a
        function that returns it. The function returns "" or None if nothing is wrong, and may raise
        the FlagError itself.
      says: text of a notice in place of "has no effect".
    """

    flags: tuple[str, ...]
    test: Callable[[F, str], object]
    severity: Severity
    reason: Reason[F]
    says: str = ""

    def explain(self, facts: F) -> str:
        """Returns why the flags are refused or have no effect; "" if nothing is wrong."""
        return self.reason if isinstance(self.reason, str) else self.reason(facts) or ""


def refuse(flags: Names, when: Callable[[R], object], reason: Reason[R]) -> FlagRule[R]:
    """Makes a rule that refuses a flag with any value but its default."""
    return FlagRule(
        _names(flags),
        lambda facts, flag: facts.params.changed(flag) and when(facts),
        Severity.REFUSAL,
        reason,
    )


def refuse_any_value(flag: str, when: Callable[[R], object], reason: Reason[R]) -> FlagRule[R]:
    """Makes a rule that refuses a flag with any value, even its default."""
    return FlagRule((flag,), lambda facts, _: when(facts), Severity.REFUSAL, reason)


def refuse_with(flags: Names, other: str, why: str) -> FlagRule[HasFlags]:
    """Makes a rule that refuses a flag if another flag is set. `why` follows "cannot be used
    with".
    """
    return refuse(flags, is_set(other), f"cannot be used with --{other}{why}")


def refuse_both(flag: str, other: str) -> FlagRule[HasFlags]:
    """Makes a rule that refuses the first flag if the other flag is set, too."""
    return refuse_with(flag, other, "; give one of the two")


def no_effect(
    flags: Names, when: Callable[[F], object], reason: Reason[F], says: str = ""
) -> FlagRule[F]:
    """Makes a rule for the notice that given flags have no effect."""
    return FlagRule(_names(flags), lambda facts, _: when(facts), Severity.NOTICE, reason, says)


def no_effect_with(flags: Names, other: str, why: str) -> FlagRule[HasFlags]:
    """Makes a rule for the notice that given flags have no effect because another flag is set."""
    return no_effect(flags, is_set(other), f"with --{other}{why}")


def no_effect_without(flags: Names, other: str) -> FlagRule[HasFlags]:
    """Makes a rule for the notice that given flags have no effect because another flag is not
    set.
    """
    return no_effect(flags, lambda facts: not is_set(other)(facts), f"without --{other}")


def is_set(flag: str) -> Callable[[HasFlags], bool]:
    """Returns a condition for a rule: whether a flag has a value other than false, 0, None or
    nothing.
    """
    return lambda facts: bool(getattr(facts.params, flag))


def always(facts: object) -> bool:
    """A condition that is always true, for rules whose reason is a function that checks."""
    del facts
    return True


def _names(flags: Names) -> tuple[str, ...]:
    return (flags,) if isinstance(flags, str) else tuple(flags)


def raise_first_refusal(rules: Iterable[FlagRule[R]], facts: R) -> None:
    """Raises FlagError for the first rule that refuses a flag. Ignores rules for notices."""
    for rule in rules:
        if rule.severity is not Severity.REFUSAL:
            continue
        refused = next((flag for flag in rule.flags if rule.test(facts, flag)), None)
        if refused is not None and (reason := rule.explain(facts)):
            raise FlagError(refused, facts.params.text(refused), reason)


def notices_about(rules: Iterable[FlagRule[F]], facts: F, given: Sequence[str]) -> tuple[str, ...]:
    """Returns lines about given flags to which rules for notices apply.

    For each flag, the first rule that applies gives the reason. Flags with the same reason share a
    line. The lines are in the order of the flags.
    """
    notices = [rule for rule in rules if rule.severity is Severity.NOTICE]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for name in given:
        applying = (rule for rule in notices if name in rule.flags and rule.test(facts, name))
        found = ((rule.says, rule.explain(facts)) for rule in applying)
        if said := next((pair for pair in found if pair[1]), None):
            by_reason.setdefault(said, []).append(name)
    lines = []
    for (says, reason), names in by_reason.items():
        says = says or ("have no effect" if names[1:] else "has no effect")
        subject = enumeration((f"--{name}" for name in names), "and")
        lines.append(f"{subject} {says} {reason}")
    return tuple(lines)
