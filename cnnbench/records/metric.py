"""Registry of metrics. A metric is declared once, and all commands that write, compare or plot its
values use the declaration.

Modules in `cnnbench.records.metrics` and plug-ins use `register_metric`. The summary of a record,
--result_csv, the lines at the end of a run, ``compare``, ``history``, bounds of sweeps, reports,
JSON Schemas and docs/metrics.md iterate over the tables below.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Real
from typing import Any, TypeVar, cast

from cnnbench.base import interfaces, plugins
from cnnbench.base.registry import Registry
from cnnbench.base.terminal import print_warning
from cnnbench.base.text import is_share, number, percent_number, quantity, shown_unit
from cnnbench.errors import UsageError, text_of

F = TypeVar("F", bound=Callable[..., Any])

RUN = "run"
"""Kind of the measurement in a `RunRecord`. Rows of all-reduce records have other kinds."""


class Summary(dict[str, Any]):
    """Statistics of a run, which can be read by key or as attributes. A value is None if the run
    did not measure it.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Declaration of a metric: a value of a measurement, and how the value is shown and judged.

    Attributes:
      name: name in commands; letters, digits and underscores.
      unit: unit of the values; "" for a text.
      about: description of the value, in Markdown without a full stop.
      value: function from a measurement to the value; returns None if it was not measured.
      together: function from all measurements that are judged together to their values, if a value
        depends on the other measurements.
      kinds: kinds of measurements that have the metric.
      key: key in the summary of runs and column of --result_csv, "" for neither. The default is the
        name if runs have the metric.
      judged: name in --metrics, by kind of measurement. The default is the name, for runs.
      always: whether the summaries of all versions contain the metric, so that JSON Schemas
        require it.
      higher_is_better: whether a larger value is better.
      relative: whether changes are shares of the base value; otherwise they are differences.
      threshold: smallest change that matters. With None, --threshold and --alpha apply.
      least: smallest difference that matters, in the unit of the metric.
      alpha: significance level of the two-sided tests; None means the level of further metrics.
      by_default: whether compare judges the metric without --metrics.
      followed: whether history and, for runs, bounds of sweeps accept the metric.
      better, worse: words for a change for the better and for the worse, such as "faster".
      gates: whether a change for the worse is a regression (exit code 1) even without --metrics.
      step: for a speed, which time it is computed from, such as "at the median step".
      line: function from the summary to a line that is printed at the end of a run; "" for no line.
      section: key of the section of reports that shows the medians of the metric.
    """

    name: str
    unit: str
    about: str
    value: Callable[[Any], Any]
    together: Callable[[Sequence[Any]], list[float | None]] | None = None
    kinds: tuple[str, ...] = (RUN,)
    key: str
    judged: Mapping[str, str]
    always: bool = False
    higher_is_better: bool = True
    relative: bool = True
    threshold: float | None = None
    least: float = 0.0
    alpha: float | None = None
    by_default: bool = False
    followed: bool = True
    better: str = "better"
    worse: str = "worse"
    gates: bool = False
    step: str = ""
    line: Callable[[Summary], str] | None = None
    section: str = ""

    def values(self, measured: Sequence[Any]) -> list[float | None]:
        """Returns the values of the metric for measurements that are judged together, in order.
        None means not measured.
        """
        return [*map(self.value, measured)] if self.together is None else self.together(measured)

    @property
    def unit_text(self) -> str:
        """The unit that `value_text` writes: "MiB" for bytes, "%" for shares, or `unit`."""
        return shown_unit(self.unit)[0]

    @property
    def title(self) -> str:
        """Name and unit of the metric, for headings of tables and axes of charts."""
        return " ".join(filter(None, (f"{self.name}, {self.unit_text}", self.step)))

    def value_text(self, value: float | None, unit: bool = True) -> str:
        """Formats a value of the metric for people, with `unit_text` unless `unit` is False. None
        becomes `NONE`.
        """
        return quantity(value, self.unit, with_unit=unit)

    def change_text(self, change: float, signed: bool = True) -> str:
        """Formats a change: in per cent, in percentage points, or in the unit of the metric."""
        unit = self.unit
        if self.relative:
            unit = "%"
        elif is_share(unit):
            unit = "points"
        return f"{self._change_number(change, signed)} {unit}"

    def range_text(self, low: float, high: float, signed: bool = True) -> str:
        """Formats a range of changes, such as "-1.0 to +2.0 %"."""
        return f"{self._change_number(low, signed)} to {self.change_text(high, signed)}"

    def shows_change(self, change: float) -> bool:
        """Whether a change still differs from 0 after `change_text` has rounded it."""
        in_hundredths = self.relative or is_share(self.unit)
        return bool(round(100 * change, self._decimal_digits) if in_hundredths else change)

    @property
    def _decimal_digits(self) -> int:
        return 1 if self.relative else 2

    @property
    def threshold_scale(self) -> float:
        """Factor that converts a threshold from the unit of the command line: 0.01 if users give
        per cent, otherwise 1.
        """
        return 0.01 if self.relative or is_share(self.unit) else 1.0

    def _change_number(self, change: float, signed: bool) -> str:
        if self.relative or is_share(self.unit):
            return percent_number(change, self._decimal_digits, signed=signed)
        return f"{'+' if signed and change >= 0 else ''}{number(change)}"


SUMMARY: dict[str, Metric] = {}
"""Metrics in the summary of a run by key. The key is also the name of the column of --result_csv.
"""

METRICS: dict[str, Metric] = {}
"""Metrics of runs by their names in --metrics of `cnnbench compare`. For metrics of other
measurements, see `Metric.judged`.
"""

HISTORY: dict[str, Metric] = {}
"""Metrics by name in --metric of history."""

BOUNDS: dict[str, Metric] = {}
"""Metrics of runs that suites can limit with bounds."""

ALL: Registry[str, Metric] = Registry(
    "metric",
    "cnnbench.records.metric.register_metric(name, unit)",
    flag="metrics",
    group="cnnbench.metrics",
    own="cnnbench.records.metrics",
    further=(SUMMARY, METRICS, HISTORY, BOUNDS),
)
"""All metrics by name, in order of registration. Commands list them in this order."""


FASTER: Mapping[str, Any] = {"better": "faster", "worse": "slower"}
LESS: Mapping[str, Any] = {"better": "less", "worse": "more", "higher_is_better": False}
QUICKER: Mapping[str, Any] = {"better": "quicker", "worse": "longer", "higher_is_better": False}
"""Rules of `register_metric` for speeds, for amounts of which less is better, and for times."""


def register_metric(name: str, unit: str, **rules: Any) -> Callable[[F], F]:
    """Decorator that registers a metric: the decorated function computes its value from a record.

    Args:
      unit: unit of its values.
      **rules: other attributes of `Metric`. The default of `about` is the function's docstring.

    Raises:
      UsageError: the name is already registered, or cannot be the name of a column.
    """

    def register(value: F) -> F:
        if not plugins.is_defined_by_cnnbench(value):
            # cnnbench's own metrics are registered before plug-ins, which therefore cannot take
            # their names.
            ALL.load_own()
        is_run = RUN in rules.get("kinds", (RUN,))
        usual = {"key": name if is_run else "", "judged": {RUN: name} if is_run else {}}
        about = " ".join((inspect.getdoc(value) or "").split()).removesuffix(".")
        attributes = {"about": about, **usual, **rules}
        measured = interfaces.with_checked_results(
            value, (float if unit else str) | None, ("record",)
        )
        measured = _prefer_imported(name, measured) if is_run else measured
        metric = Metric(name=name, unit=unit, value=measured, **attributes)
        if not plugins.is_defined_by_cnnbench(value):
            interfaces.check_plugin_attributes(metric, Metric, f"metric {name}", "value")
        followed = name if metric.followed else ""
        further = (
            (SUMMARY, metric.key),
            (METRICS, metric.judged.get(RUN, "")),
            (HISTORY, followed),
            (BOUNDS, followed if is_run else ""),
        )
        tables = [(ALL, name), *((table, entry) for table, entry in further if entry)]
        for table, entry in tables:
            if entry in table or not entry.isidentifier() or not entry.isascii():
                reason = (
                    "is registered already" if entry in table else "cannot be the name of a column"
                )
                raise UsageError(f"metric {entry!r} {reason}; choose another name")
        for table, entry in tables:
            table[entry] = metric
        return value

    return register


def _prefer_imported(name: str, value: F) -> F:
    """Wraps the function of a metric, so that it handles imported records: for these, it returns
    the value that was read from the file of the other program.
    """

    @wraps(value)
    def imported_or_computed(record: Any) -> Any:
        imported = getattr(record, "imported", None)
        return value(record) if imported is None else imported.values.get(name)

    return cast("F", imported_or_computed)


def load_missing_metrics(names: Iterable[str], table: Mapping[str, Metric]) -> None:
    """Loads the metrics of packages if a table, such as `METRICS`, lacks one of the names."""
    if not {*names} <= table.keys():
        ALL.load_packages()


def compute_summary(record: Any) -> Summary:
    """Computes the statistics of a run. If the function of a metric raises an error, the value of
    the metric is None, and a warning is printed on stderr.
    """
    ALL.load_own()
    return Summary({key: _metric_value(metric, record) for key, metric in SUMMARY.items()})


def _metric_value(metric: Metric, record: Any) -> Any:
    try:
        number = metric.value(record)
        if not isinstance(number, Real | str | None):
            raise TypeError(f"{type(number).__name__} is not a number")
        return number
    # If a plug-in's metric raises an error, the measurements must not be lost.
    except Exception as error:
        what = text_of(error)
        if not isinstance(error, plugins.PluginInterfaceError):
            what = f"{type(error).__name__}: {what}"
        _warn(f"metric {metric.name} is left out of the summary: {what}", "metrics")
        return None


# Cached, so that each warning is printed only once even if a summary is computed several times.
_warn = cache(print_warning)
