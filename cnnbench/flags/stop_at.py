"""The value of --stop_at: a metric of evaluations, and the value that ends a training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cnnbench.errors import FlagError

_FORM = "takes METRIC:VALUE, as in top_1:0.759 or loss:2.5"


@dataclass(frozen=True)
class StopAt:
    """A parsed --stop_at.

    Attributes:
      metric: a name, which the model may not have.
      value: the metric's; a finite number.
      source: the text it was parsed from.
    """

    metric: str
    value: float
    source: str = field(default="", compare=False)


def parse_stop_at(text: str) -> StopAt:
    """Reads ``METRIC:VALUE``.

    Raises:
      FlagError: the text has another form; says which part of it is wrong.
    """
    metric, colon, number = (part.strip() for part in text.rpartition(":"))
    if not (metric and colon):
        raise FlagError("stop_at", text, _FORM)
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FlagError("stop_at", text, f"{number!r} is not a finite number; {_FORM}")
    return StopAt(metric, value, text)
