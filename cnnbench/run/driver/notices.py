"""Notices about the results of a run, printed on standard error at its end."""

from __future__ import annotations

from cnnbench.base.stats.steady_state import Shape, SteadyState, StepTimeLevel
from cnnbench.base.text.numbers import exact, number, percent
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.metric import SUMMARY, Summary
from cnnbench.records.run import RunRecord, run_steady_state


def steps_notice(plan: RunPlan) -> str | None:
    """The numbers of steps of a run that has very many, most of all in its silent warm-up."""
    warm_up, timed = plan.length.warm_up.most, plan.length.num_batches
    evaluated = plan.length.num_eval_batches * (len(plan.length.eval_steps) + 1) * plan.work.trains
    if warm_up <= 1000 and max(timed, evaluated) <= 1_000_000:
        return None
    return f"a long run: steps of the warm-up {warm_up}, timed {timed}, of evaluations {evaluated}"


def summary_lines(summary: Summary) -> list[str]:
    """The lines of the metrics that have one, as far as known."""
    lines = (metric.line(summary) for metric in SUMMARY.values() if metric.line is not None)
    return [*filter(None, lines)]


def input_lines(record: RunRecord) -> list[str]:
    """Throughput of the input pipeline alone, where it was measured."""
    if not record.input_stages:
        return []
    rates = {stage.name: stage.examples_per_sec for stage in record.input_stages}
    *parts, (_, whole) = rates.items()
    lines = [f"the input pipeline alone gives {number(whole)} images/s"]
    if parts:
        stages = ", ".join(f"{name} {number(rate)}" for name, rate in parts)
        lines.append(f"its stages, each with those before it, in images/s: {stages}")
    return lines


def skipped_lines(record: RunRecord) -> list[str]:
    """The first records that were skipped, and how many there are; empty without any."""
    skipped = record.skipped_records
    if skipped is None:
        return []
    rest = skipped.count - len(skipped.first)
    more = [f"skipped {rest} more records, {skipped.count} in all"] if rest > 0 else []
    return [*(f"skipped {line}" for line in skipped.first), *more]


def loss_scaling_lines(record: RunRecord) -> list[str]:
    """Skipped steps and changes of an automatic loss scale; empty without any."""
    scaling = record.loss_scaling
    if scaling is None:
        return []
    warmup = len(scaling.warmup_skipped_steps)
    skipped = warmup + len(scaling.skipped_steps)
    moved = f"the loss scale went from {exact(scaling.start)} to {exact(scaling.end)}"
    if not skipped:
        return [] if scaling.start == scaling.end else [moved]
    steps = len(record.warmup_step_seconds) + len(record.step_seconds)
    line = f"{skipped} of {steps} steps skipped for gradients that were not finite"
    if warmup:
        line += f" ({warmup} of them in the warm-up)"
    line += f"; {moved}"
    if scaling.end <= 1.0:
        line += ", its minimum: the range of fp16 is an unlikely cause"
    return [line]


def warm_up_warning(record: RunRecord) -> str | None:
    """A warning if --warmup=auto has reached its limit."""
    if record.warmup_status != "limit":
        return None
    return (
        f"step times were not steady after {len(record.warmup_step_seconds)} warm-up steps, the "
        "most that --max_warmup_batches allows; timing began nevertheless"
    )


def peak_warning(record: RunRecord) -> str | None:
    """A warning if the achieved FLOP rate exceeds the peak of the devices."""
    summary = record.summary()
    achieved, peak = summary.achieved_flops_per_sec, summary.peak_flops_per_sec
    if not achieved or not peak or achieved <= peak:
        return None
    source = record.measured.peak_flops_source or ""
    advice = (
        "it was measured while other programs used the machine; measure again on a quiet machine"
        if source.startswith("measured")
        else "--peak_flops would correct it"
    )
    share = percent(achieved / peak, 0)
    return f"MFU would be {share} and is left out: the peak ({source}) is too low; {advice}"


def steady_state_notice(record: RunRecord) -> tuple[str, bool] | None:
    """Text about the start of the steady state, and whether it is a warning.

    None where the series is too short to tell.
    """
    found = run_steady_state(record)
    if found.shape is Shape.TOO_SHORT or not record.step_seconds:
        return None
    if found.start is None:
        text = "step times reached no steady state"
        if len(found.levels) > 1:
            before, last = found.levels[-2:]
            place = _place(found, last.start)
            text += f": the last change, {_change(before, last)}, came at {place}"
        return f"{text}; a longer run or a quieter machine would give a clearer result", True
    unsteady = found.unsteady_timed_steps
    if not unsteady:
        where = _place(found, found.start)
        return f"step times are steady from {where} on", False
    return _late(record, found, unsteady), True


def _late(record: RunRecord, found: SteadyState, unsteady: int) -> str:
    assert found.start is not None
    text = (
        f"step times are steady only from {_place(found, found.start)} on, after "
        f"{unsteady} of {len(record.step_seconds)} timed steps"
    )
    earlier = [level for level in found.levels if level.stop <= found.start]
    if found.shape is Shape.SLOWDOWN and earlier:
        return f"{text}, and slower than before: {_change(earlier[-1], found.levels[-1])}"
    if record.warmup_status == "fixed":
        needed = found.warmup_steps + unsteady
        text += f"; --num_warmup_batches={needed} or --warmup=auto would leave them out"
    return text


def _place(found: SteadyState, index: int) -> str:
    if index < found.warmup_steps:
        return f"warm-up step {index + 1}"
    return f"step {index - found.warmup_steps + 1}"


def _change(before: StepTimeLevel, after: StepTimeLevel) -> str:
    return f"from {number(before.seconds * 1e3)} to {number(after.seconds * 1e3)} ms"
