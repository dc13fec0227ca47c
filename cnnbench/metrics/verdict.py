"""What a comparison can end in."""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    """The outcome for one metric of one configuration.

    For metrics other than time FASTER means better and SLOWER means worse; the words to
    show for them are in `cnnbench.metrics.registry`.
    """

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"
    FAILED = "failed"

    @property
    def undecided(self) -> bool:
        """Whether nothing was found out, and nothing failed either."""
        return self in (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE, Verdict.MISSING)
