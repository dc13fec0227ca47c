"""The place of a process in the experiment or sweep that started it, as keys of its record."""

from __future__ import annotations

from dataclasses import dataclass, field

from cnnbench.records.codec import ABSENT, one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LostProcess:
    """A process that did not end by itself: a signal or a time-out ended it.

    Attributes:
      side: "a" or "b".
      how: completes "the process was", such as "killed by SIGKILL".
    """

    side: str = field(metadata=one_of(("a", "b")))
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbPlace:
    """A process of `cnnbench ab`.

    Attributes:
      side: "a" or "b".
      seed: of the experiment.
      pair: number of its pair, from 1; absent for burn-in.
      position: in the pair, 1 or 2; absent for burn-in.
      lost: processes of earlier attempts at this pair, because of which it was measured again;
        absent if it was measured once.
    """

    side: str = field(metadata=one_of(("a", "b")))
    seed: int
    pair: int | None = field(default=None, metadata=ABSENT)
    position: int | None = field(default=None, metadata=ABSENT)
    lost: tuple[LostProcess, ...] | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlace:
    """A process of `cnnbench sweep`.

    Attributes:
      suite: its name.
      case: name of the configuration.
      key: of the case, 12 hexadecimal digits.
      repeat: counted from 1.
      seed: of the order of the runs.
      requested_batch_size: of a case whose batch was searched for; absent for others.
      command: argv of the sweep; absent in records of before.
    """

    suite: str
    case: str
    key: str
    repeat: int
    seed: int
    requested_batch_size: int | None = field(default=None, metadata=ABSENT)
    command: tuple[str, ...] | None = field(default=None, metadata=ABSENT)
