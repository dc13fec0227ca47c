"""Runs the work of a run from its first to its last step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from cnnbench.records.run import InputStage, LossScaling
from cnnbench.run.driver.checkpoint_evaluations import (
    evaluate_checkpoints,
    evaluate_with_the_chief,
)
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.host_metrics import EvaluationPublisher
from cnnbench.run.driver.input_speed import DEVICE_STAGE, time_stages
from cnnbench.run.driver.membership import SharedInterrupts
from cnnbench.run.driver.observers.evaluations import TrainingEvaluations
from cnnbench.run.driver.observers.observer import Observer
from cnnbench.run.driver.observers.open import opened_observers
from cnnbench.run.driver.restore import begin
from cnnbench.run.driver.saved_model import export_weights
from cnnbench.run.driver.training import Training
from cnnbench.run.driver.work import (
    EvaluatedTrainingWork,
    EvaluationWork,
    ForwardWork,
    InputWork,
    Work,
)
from cnnbench.run.observe.graphs import write_graph
from cnnbench.run.runtime.turns import TimeSlices
from cnnbench.run.step.loss_scale import LossScale


def run_work(run: RunContext, work: Work) -> float | None:
    """Runs the work of a run.

    Returns:
      The speed that the run prints last, in images/sec; None for runs without a total.
    """
    if isinstance(work, InputWork):
        return measure_input(run, work)
    if isinstance(work, EvaluationWork):
        return run_evaluation(run, work)
    return train(run, work)


def measure_input(run: RunContext, work: InputWork) -> float | None:
    """Times the whole input pipeline and its stages without a network, and closes the pipeline.

    Returns:
      Images/sec of the whole pipeline.
    """
    length, measurements, inputs = run.plan.length, run.measurements, work.inputs
    turns = run.membership.turns
    # This process is not interleaved with other processes: it keeps its time slice until the end.
    run.membership.turns = TimeSlices()
    training = Training(run, work, SharedInterrupts(work.worker_group))
    try:
        total = training.run(length.batches)
    finally:
        run.membership.turns = turns
    # Without a network, the loop only waits for input, so the waiting time is no separate result.
    measurements.update_record("measured", input_wait_seconds=None)
    inputs.close()
    examples = len(measurements.timed.seconds) * length.global_batch
    whole = InputStage(name=DEVICE_STAGE, examples=examples, seconds=training.loop_seconds)
    measurements.update_record(input_stages=(*time_stages(inputs, examples), whole))
    if length.epochs < 1 and inputs.examples_per_epoch <= inputs.spec.shuffle_buffer:
        run.output.messages.notice(
            "the whole data set fits into the shuffle buffer, so its files are read only once "
            "per epoch; to measure this, too, use --num_epochs=1 or more"
        )
    return total


def train(run: RunContext, work: ForwardWork) -> float | None:
    """Runs a training or the forward passes of a network.

    Returns:
      Images/sec in the total; None for runs without a total.
    """
    flags, interrupts = run.plan.params, SharedInterrupts(work.worker_group)
    with (
        opened_observers(run, work) as others,
        _with_evaluations(run, work, interrupts, others) as observers,
    ):
        if flags.graph_file:
            write_graph("graph_file", flags.graph_file, work.step.graph.as_graph_def())
        start = begin(run, work)
        probes = [] if run.profiler is None else [*run.profiler.probes(work.step.graph)]
        files_of_probes = flags.trace_file, flags.tfprof_file, flags.profile_layers
        if any((*files_of_probes, flags.partitioned_graph_file_prefix)):
            # The late import saves most runs the time to load readers of profiles.
            from cnnbench.run.driver.observers.profiles import make_warm_up_profilers

            probes += make_warm_up_profilers(run.plan, work.step.graph, run.output.messages)
        training = Training(
            run,
            work,
            interrupts,
            global_step=start.global_step,
            probes=probes,
            observers=observers,
        )
        with _recording_changes(run, work.step.loss_scale):
            total = training.run(start.steps)
        export_weights(work.exporters, run.output.messages)
        return total


@contextmanager
def _with_evaluations(
    run: RunContext, work: ForwardWork, interrupts: SharedInterrupts, others: Sequence[Observer]
) -> Iterator[Sequence[Observer]]:
    """A context with the other observers and, after them, the evaluations of a training."""
    if not isinstance(work, EvaluatedTrainingWork):
        yield others
        return
    with _opened_results(run, work.evaluator, others) as results:
        yield [*others, TrainingEvaluations(run, work, results, interrupts, others)]


@contextmanager
def _recording_changes(run: RunContext, scale: LossScale) -> Iterator[None]:
    """A context around the steps, which records how they change an automatic loss scale."""
    start = scale.value
    try:
        yield
    finally:
        end = scale.value
        if start is not None and end is not None:
            run.measurements.update_record(loss_scaling=LossScaling(start=start, end=end))


def run_evaluation(run: RunContext, work: EvaluationWork) -> float | None:
    """Evaluates the newest checkpoint or, with --eval_interval_secs, every new checkpoint.

    Returns:
      Examples/sec of the last evaluation.
    """
    evaluate = evaluate_checkpoints if run.plan.place.job.is_chief else evaluate_with_the_chief
    with (
        opened_observers(run, work) as observers,
        _opened_results(run, work.evaluator, observers) as results,
    ):
        return evaluate(run, work, results)


def _opened_results(
    run: RunContext, evaluator: Evaluator, observers: Sequence[Observer]
) -> closing[EvaluationPublisher]:
    """A context with the results of the evaluations, which are published at its end at last."""
    output = run.output
    return closing(
        EvaluationPublisher(
            evaluator.host, output.console, run.measurements, observers, output.messages.warning
        )
    )
