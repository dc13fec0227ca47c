"""Opens the observers of a run that its flags request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cnnbench.records import files
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.describe import benchmark_log_parameters
from cnnbench.run.driver.observers.benchmark_log import BenchmarkLog
from cnnbench.run.driver.observers.checkpoint_saver import CheckpointSaver
from cnnbench.run.driver.observers.mlperf_log import MLPerfLog
from cnnbench.run.driver.observers.observer import OBSERVERS, Observer
from cnnbench.run.driver.observers.replica_check import ReplicaCheck
from cnnbench.run.driver.observers.summaries import EvaluationSummaries, TrainingSummaries
from cnnbench.run.driver.work import NetworkWork, TrainingWork


@contextmanager
def opened_observers(run: RunContext, work: NetworkWork) -> Iterator[list[Observer]]:
    """A context with the observers of a run, in the order in which they are called."""
    plan, flags = run.plan, run.plan.params
    with ExitStack() as stack:
        observers: list[Observer] = []

        def add(observer: Observer) -> None:
            observers.append(observer)
            stack.callback(observer.close)

        if isinstance(work, TrainingWork):
            for observer in _observers_of_training(run, work):
                add(observer)
        if plan.summarizes_evaluations:
            evaluates_one = not plan.work.trains and files.is_checkpoint_prefix(
                flags.train_dir or ""
            )
            add(EvaluationSummaries(flags.eval_dir, newest=not evaluates_one))
        if flags.benchmark_log_dir:
            config, facts = run.measurements.parts.config, run.measurements.parts.environment
            parameters = benchmark_log_parameters(plan, work.devices)
            folder, test_id = flags.benchmark_log_dir, flags.benchmark_test_id
            record = run.measurements.make_record("interrupted").to_dict()
            add(BenchmarkLog(folder, config, parameters, facts, test_id, record))
        if flags.ml_perf_compliance_logging and plan.work.trains:
            config = run.measurements.parts.config
            add(MLPerfLog(plan, run.output.messages.write_unprefixed, config))
        for make in OBSERVERS.values():
            if (made := make(flags)) is not None:
                add(made)
        yield observers


def _observers_of_training(run: RunContext, work: TrainingWork) -> Iterator[Observer]:
    """Yields the observers that read the variables of a training."""
    plan, flags, manager = run.plan, run.plan.params, work.manager
    if plan.checkpoint_save_folder is not None:
        yield CheckpointSaver(plan.checkpoint_save_folder, run, work.checkpoints)
    every = flags.check_replica_consistency
    if every and manager.replicas_in_sync:
        fewest = 1 if manager.workers is not None else 2
        trained = [v for v in manager.savable_variables().values() if v.primary.trainable]
        compared = tuple(v for v in (*trained, *work.slots.values()) if len(v.copies) >= fewest)
        if compared:
            yield ReplicaCheck(compared, every, run.measurements, manager.workers)
    if flags.summary_verbosity and flags.save_summaries_steps and flags.train_dir:
        yield TrainingSummaries(flags.train_dir, plan, work.step, manager)
