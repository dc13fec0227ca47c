"""What a run says on standard error about its figures when it is over."""

from __future__ import annotations

from cnnbench.records.run import RunRecord
from cnnbench.stats.steady_state import Level, RecordSteadyState, Shape, of_record


def warm_up_warning(record: RunRecord) -> str | None:
    """That --warmup=auto has come to its limit."""
    if record.warmup_status != "limit":
        return None
    return (
        f"step times were not steady after {len(record.warmup_step_seconds)} warm-up steps, the "
        "most that --max_warmup_batches allows; timing began nevertheless"
    )


def peak_warning(record: RunRecord) -> str | None:
    """That more was computed than the devices can do, so that the peak must be wrong."""
    summary = record.summary()
    if summary.mfu is None or summary.mfu <= 1:
        return None
    source = record.measured.peak_flops_source or ""
    advice = (
        "it was measured while the machine had other work to do; measure again on a quiet machine"
        if source.startswith("measured")
        else "--peak_flops would correct it"
    )
    return f"MFU is {summary.mfu:.0%}: the peak ({source}) is too low; {advice}"


def steady_state_notice(record: RunRecord) -> tuple[str, bool] | None:
    """Where the steady state began, and whether that is a warning.

    None where the series is too short to tell.
    """
    found = of_record(record)
    if found.series.shape is Shape.TOO_SHORT or not found.timed_steps:
        return None
    if found.series.start is None:
        return _not_steady(found), True
    unsteady = found.unsteady_timed_steps
    if not unsteady:
        where = _place(found, found.series.start)
        return f"step times are steady from {where} on", False
    return _late(record, found, unsteady), True


def _not_steady(found: RecordSteadyState) -> str:
    text = "step times reached no steady state"
    if len(found.series.levels) > 1:
        before, last = found.series.levels[-2:]
        text += f": the last change, {_change(before, last)}, came at {_place(found, last.start)}"
    return f"{text}; a longer run or a quieter machine would tell more"


def _late(record: RunRecord, found: RecordSteadyState, unsteady: int) -> str:
    assert found.series.start is not None
    text = (
        f"step times are steady only from {_place(found, found.series.start)} on, after "
        f"{unsteady} of {found.timed_steps} timed steps"
    )
    earlier = [level for level in found.series.levels if level.stop <= found.series.start]
    if found.series.shape is Shape.SLOWDOWN and earlier:
        return f"{text}, and slower than before: {_change(earlier[-1], found.series.levels[-1])}"
    if record.warmup_status == "fixed":
        needed = found.warmup_steps + unsteady
        text += f"; --num_warmup_batches={needed} or --warmup=auto would leave them out"
    return text


def _place(found: RecordSteadyState, index: int) -> str:
    if index < found.warmup_steps:
        return f"warm-up step {index + 1}"
    return f"step {index - found.warmup_steps + 1}"


def _change(before: Level, after: Level) -> str:
    return f"from {before.seconds * 1e3:.3g} to {after.seconds * 1e3:.3g} ms"
