"""Measures what limits the speed of a run: its input alone, and the peak FLOP rate.

A record compares the speed of the run with these limits.
"""

from __future__ import annotations

import dataclasses
import json

from cnnbench.errors import DataError
from cnnbench.plan.setup import card_numbers
from cnnbench.records.run import InputStage
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.input_speed import combine_pipelines, time_input
from cnnbench.run.driver.work import ForwardWork, Work
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.runtime.peak_flops import peak_flops


def measure_speed_limits(run: RunContext, work: Work) -> None:
    """Measures the speed of the input pipeline without training, and the peak FLOP rate.

    The measurement follows the run, and takes some seconds on a CPU. If every worker runs its own
    step, all workers call this function, because they read their input at the same time; only the
    chief measures the peak FLOP rate.
    """
    lost = bool(run.measurements.lost_workers)
    if run.plan.params.data_dir is not None and isinstance(work, ForwardWork) and not lost:
        _measure_input_speed(run, work)
    work.close()
    # TensorFlow cannot run new functions after a process is lost.
    if work.devices.job.is_chief and not lost:
        _measure_peak_flops(run, work.devices)


def _measure_input_speed(run: RunContext, work: ForwardWork) -> None:
    """Measures how fast the input pipelines of all workers deliver batches without training."""
    in_step, group = not run.plan.place.asynchronous, work.worker_group
    try:
        own = dataclasses.asdict(time_input(work.inputs, in_step=in_step))
    except DataError as error:
        # The timing reads further records, which the run itself has not read.
        own = {"error": str(error)}
    of_workers = [own]
    if group is not None:
        of_workers = [json.loads(text) for text in group.gather_bytes(json.dumps(own).encode())]
    errors = [worker["error"] for worker in of_workers if "error" in worker]
    if errors:
        text = f"the input pipeline alone was not measured: {errors[0]}"
        run.output.messages.warning(text, "pipeline")
        return
    whole = combine_pipelines([InputStage(**worker) for worker in of_workers], in_step=True)
    run.measurements.update_record(input_stages=(whole,))


def _measure_peak_flops(run: RunContext, devices: runtime.Devices) -> None:
    """Measures the peak FLOP rate of the whole job, unless --peak_flops or a table contains it."""
    plan, job = run.plan, devices.job
    if plan.numerics.in_8_bits and plan.params.peak_flops is None:
        return  # TensorFlow has no 8-bit matrix product with which to measure the peak.
    peak = peak_flops(
        devices.kind, job.own_tower_devices, plan.numerics.dtype, plan.params.peak_flops
    )
    if peak is None:
        return
    rate, source = peak
    if devices.kind == "cpu":
        parts = job.num_machines
    else:
        parts = job.num_workers if job.client_per_worker else 1
        # Logical GPUs of the same card share the FLOP rate of the card.
        rate *= len(card_numbers(plan.params)) / plan.params.num_gpus
    run.measurements.update_record(
        "measured", peak_flops_per_sec=rate * parts, peak_flops_source=source
    )
