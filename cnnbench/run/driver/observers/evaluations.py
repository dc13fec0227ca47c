"""Evaluates the network during a training and at its end. A result may end the training
(--stop_at).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cnnbench.errors import BenchmarkError
from cnnbench.records.run import Target
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.evaluation import EvaluationPublisher, PendingEvaluation
from cnnbench.run.driver.observers.observer import Observer, SuspendingObserver, TrainingState
from cnnbench.run.driver.shared_interrupts import SharedInterrupts
from cnnbench.run.driver.step_loop import LoopTimer
from cnnbench.run.driver.work import EvaluatedTrainingWork
from cnnbench.run.runtime.progress import ProcessActivity


class TrainingEvaluations(SuspendingObserver):
    """Evaluates a training, and compares the metrics with the target of --stop_at.

    Args:
      results: receives the evaluations, and publishes them when their metrics are complete.
      interrupts: interrupts of the workers that evaluate together.
      observers: the other observers, which are called before each evaluation, and when the training
        continues.
    """

    def __init__(
        self,
        run: RunContext,
        work: EvaluatedTrainingWork,
        results: EvaluationPublisher,
        interrupts: SharedInterrupts,
        observers: Sequence[Observer],
    ) -> None:
        self._run = run
        self._evaluator, self._group = work.evaluator, work.worker_group
        self._results = results
        self._interrupts = interrupts
        self._observers = observers
        self._unjudged: PendingEvaluation | None = None
        self._reached_target = False

    def needs_pause_after(self, global_step: int) -> bool:
        """Returns whether the metrics of an earlier evaluation have been computed."""
        return self._results.is_next_ready

    def training_paused(self, state: TrainingState) -> None:
        """Publishes earlier evaluations."""
        self._results.publish()

    def needs_suspension_after(self, global_step: int) -> bool:
        """Returns whether an evaluation follows this step."""
        return global_step in self._run.plan.length.eval_steps

    def training_suspended(
        self, global_step: int, loop_seconds: float | None, timer: LoopTimer
    ) -> bool:
        """Evaluates the current weights. Returns whether the target of --stop_at was reached."""
        self._reached_target = self._evaluate_for_target(global_step, loop_seconds, timer)
        if not self._reached_target:
            self._run.console.lines("Resuming training")
            for observer in self._observers:
                observer.training_resumes_after_evaluation(global_step)
        return self._reached_target

    def steps_ended(self, global_step: int, loop_seconds: float, timer: LoopTimer) -> None:
        """Evaluates the last weights, unless the target was reached with them."""
        console = self._run.console
        console.lines("Done with training")
        if not self._reached_target:
            console.lines(f"Running final evaluation at global_step {global_step}")
            self._evaluate(global_step, loop_seconds, timer)

    def training_stopped(self, global_step: int) -> None:
        """Waits for the metrics of all evaluations, and publishes them."""
        self._results.publish_all()

    def _evaluate_for_target(
        self, global_step: int, loop_seconds: float | None, timer: LoopTimer
    ) -> bool:
        """Evaluates, and returns whether the target of --stop_at was reached.

        Metrics from a child process are compared with the target at the next evaluation, which
        waits for the metrics: the number of steps does not depend on the speed of the child
        process. If they reach the target, there is no further evaluation.
        """
        plan, console = self._run.plan, self._run.console
        model, target = plan.network.model, plan.length.target
        before, self._unjudged = self._unjudged, None
        if before is None or target is None or not self._chief_reaches(target, before.metrics):
            console.lines(f"Running evaluation at global_step {global_step}")
            evaluated = self._evaluate(global_step, loop_seconds, timer)
            if target is None:
                return False
            metrics: Mapping[str, float | None] = {
                "loss": evaluated.evaluation.loss,
                **evaluated.means,
            }
            if target.metric not in metrics:
                if plan.metrics_in_child:
                    self._unjudged = evaluated
                    return False
                metrics = evaluated.metrics
            if not self._chief_reaches(target, metrics):
                return False
        called = "accuracy" if target.metric == model.top_1_accuracy else target.metric
        bound = "at most" if target.lower_is_better else "at least"
        console.lines(f"Stopping, as eval {called} {bound} {target.value} was reached")
        self._run.measurements.update_record(ended_by="stop_at")
        return True

    def _chief_reaches(self, target: Target, metrics: Mapping[str, float | None]) -> bool:
        """Returns whether the chief's metrics reach the target. All workers get the same answer."""
        reached = target.is_reached_by(metrics.get(target.metric))
        return reached if self._group is None else self._group.broadcast_chief_bool(reached)

    def _evaluate(
        self, global_step: int, loop_seconds: float | None, timer: LoopTimer
    ) -> PendingEvaluation:
        """Evaluates the current weights, and passes the result to console, record and observers."""
        run, job = self._run, self._run.plan.place.job
        for observer in self._observers:
            observer.evaluation_begins(global_step)
        with run.membership.marking_activity(ProcessActivity.EVALUATION):
            first = job.workers[0]
            if str(first) in (*run.measurements.lost_workers, *run.membership.lost_tasks()):
                # After the loss of a worker, TensorFlow would wait for it forever, so the run fails
                # here.
                raise BenchmarkError(f"lost {job.named(first)}, which runs the evaluations")
            evaluated = self._evaluator.run(global_step, run.console, self._interrupts)
        wall_seconds = None if loop_seconds is None else timer.elapsed_seconds
        self._results.add(evaluated, loop_seconds=loop_seconds, wall_seconds=wall_seconds)
        return evaluated
