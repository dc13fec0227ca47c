"""Notices about the results of a run, which are printed on standard error at its end."""

from __future__ import annotations

from collections.abc import Iterator

from cnnbench.base.steady_state import SeriesShape, SteadyState, StepTimeLevel
from cnnbench.base.terminal import MessageWriter
from cnnbench.base.text import exact_number, format_interval, milliseconds, number, percent
from cnnbench.records.metric import SUMMARY
from cnnbench.records.run import LossScaling, RunRecord, find_steady_state_of_run, single_speed_text


def print_notices(record: RunRecord, messages: MessageWriter) -> None:
    """Prints notices and warnings about the results of a run that has ended."""
    for text, warning in ended_run_notices(record):
        if warning:
            messages.warning(text, warning)
        else:
            messages.notice(text)


def ended_run_notices(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yields texts about the results of a run that has ended, each with the name of its warning.

    The name is "" if a text is only a notice. For a failed run, the texts are only about its loss
    scale and its skipped records.
    """
    if record.loss_scaling is not None:
        yield from ((line, "") for line in _scaling_lines(record, record.loss_scaling))
    if record.skipped_records is not None:
        skipped = record.skipped_records
        yield from ((f"skipped {line}", "examples") for line in skipped.first)
        rest = skipped.count - len(skipped.first)
        if rest > 0:
            yield f"skipped {rest} more records, {skipped.count} in all", "examples"
    if record.status != "ok":
        return
    requested = record.batch and record.batch.requested_per_device
    if record.batch and requested:
        used = record.batch.per_device
        fits = f"{used} images per device fit" if used > 1 else "1 image per device fits"
        yield f"--find_batch_size: {fits} into memory, {requested} were requested", ""
    summary = record.summary()
    for metric in SUMMARY.values():
        line = None if metric.line is None else metric.line(summary)
        if line:
            yield line, ""
    if record.input_stages:
        rates = {stage.name: stage.examples_per_sec for stage in record.input_stages}
        *parts, (_, pipeline_rate) = rates.items()
        yield f"the input pipeline without training reads {number(pipeline_rate)} images/s", ""
        if parts:
            stages = ", ".join(f"{name} {number(rate)}" for name, rate in parts)
            yield f"images/s of the pipeline up to and including each stage: {stages}", ""
    if record.warmup_status == "limit":
        steps = record.warmup_steps
        text = f"step times were not steady after {steps} warm-up steps, the most that "
        yield text + "--max_warmup_batches allows; timing began nevertheless", "steady"
    achieved, peak = summary.achieved_flops_per_sec, summary.peak_flops_per_sec
    if achieved and peak and achieved > peak:
        source = record.measured.peak_flops_source or ""
        advice = "--peak_flops would correct it"
        if source.startswith("measured"):
            advice = "it was measured while other programs used the machine; measure again on a "
            advice += "quiet machine"
        text = f"MFU would be {percent(achieved / peak, 0)} and is left out: the peak ({source}) "
        yield f"{text}is too low; {advice}", "peak"
    if record.step_seconds:
        yield f"the speed is of {single_speed_text(record.cluster is not None)}", ""
    steady = find_steady_state_of_run(record)
    if steady.shape is not SeriesShape.TOO_SHORT and record.step_seconds:
        yield _steady_notice(record, steady)


def _scaling_lines(record: RunRecord, scaling: LossScaling) -> list[str]:
    """Returns lines about skipped steps and changes of an automatic loss scale; may be empty."""
    warmup = len(scaling.warmup_skipped_steps)
    skipped = warmup + len(scaling.skipped_steps)
    moved = f"the loss scale went from {exact_number(scaling.start)} to {exact_number(scaling.end)}"
    if not skipped:
        return [] if scaling.start == scaling.end else [moved]
    steps = record.warmup_steps + record.steps
    line = f"{skipped} of {steps} steps skipped for gradients that were not finite"
    if warmup:
        line += f" ({warmup} of them in the warm-up)"
    line += f"; {moved}"
    if scaling.end <= 1.0:
        line += ", its minimum: the range of fp16 is an unlikely cause"
    return [line]


def _steady_notice(record: RunRecord, steady: SteadyState) -> tuple[str, str]:
    """Returns a text that says which step is the first steady step, and the name of the warning
    that has this text ("" if the text is only a notice).
    """
    if steady.start is None:
        text = "step times reached no steady state"
        if len(steady.levels) > 1:
            before, last = steady.levels[-2:]
            place = _step_name(record, steady, last.start)
            text += f": the last change, {_change_text(before, last)}, came at {place}"
        return f"{text}; a longer run or a quieter machine would give a clearer result", "steady"
    if not steady.unsteady_timed_steps:
        where = _step_name(record, steady, steady.start)
        return f"step times are steady from {where} on", ""
    unsteady = steady.unsteady_timed_steps * record.steps_per_execution
    text = (
        f"step times are steady only from {_step_name(record, steady, steady.start)} on, after "
        f"{unsteady} of {record.steps} timed steps"
    )
    earlier = [level for level in steady.levels if level.stop <= steady.start]
    if steady.shape is SeriesShape.SLOWDOWN and earlier:
        text += f", and slower than before: {_change_text(earlier[-1], steady.levels[-1])}"
    elif record.warmup_status == "fixed":
        needed = record.warmup_steps + unsteady
        text += f"; --num_warmup_batches={needed} or --warmup=auto would leave them out"
    return text, "steady"


def _step_name(record: RunRecord, steady: SteadyState, index: int) -> str:
    per_execution = record.steps_per_execution
    if index < steady.warmup_steps:
        return f"warm-up step {index * per_execution + 1}"
    return f"step {(index - steady.warmup_steps) * per_execution + 1}"


def _change_text(before: StepTimeLevel, after: StepTimeLevel) -> str:
    return f"from {format_interval(before.seconds, after.seconds, milliseconds)} ms"
