"""The driver: from parameters to a run record.

`BenchmarkCNN(Params(model="resnet50", num_gpus=2)).run()` builds variables, input
and the traced step, runs the scenario the parameters ask for, and returns the
record. All policy lives in what it puts together: the plan (plan.py), the
variable manager (variable_mgr/), the step (train_step.py), the timed loop
(training.py) and the evaluation (evaluation.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cnnbench import environment, memory, peak_flops, result_csv, result_json, runtime
from cnnbench.console import Console, HeaderInfo, Phase
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.learning_rate import make_schedule
from cnnbench.measurements import Measurements
from cnnbench.native_log import without_chatter
from cnnbench.params import Params, validate
from cnnbench.plan import Plan, make_plan
from cnnbench.progress import Messages, Progress, summary_lines
from cnnbench.record import Batch, ModelInfo, Placement, RunRecord
from cnnbench.variable_mgr.spec import VariableMgrSpec

if TYPE_CHECKING:
    from cnnbench.checkpoints import Checkpoints
    from cnnbench.data.source import InputSource
    from cnnbench.evaluation import Evaluator
    from cnnbench.train_step import TrainStep
    from cnnbench.variable_mgr.base import VariableMgr

COMPUTE_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
DEFAULT_FP16_LOSS_SCALE = 128.0


@dataclass(frozen=True)
class BuiltRun:
    """Everything of a run that lives in TensorFlow.

    Attributes:
      devices: where the towers are.
      manager: holds the variables.
      step: the traced training (or forward-only) step; None when only evaluating.
      inputs: training input; None when only evaluating.
      evaluator: None unless something is to be evaluated.
      evaluation_inputs: likewise.
      checkpoints: None without --train_dir.
    """

    devices: runtime.Devices
    manager: VariableMgr
    step: TrainStep | None
    inputs: InputSource | None
    evaluator: Evaluator | None
    evaluation_inputs: InputSource | None
    checkpoints: Checkpoints | None

    def close(self) -> None:
        """Ends input threads; a second call does nothing."""
        for source in (self.inputs, self.evaluation_inputs):
            if source is not None:
                source.close()


class BenchmarkCNN:
    """One run.

    Args:
      params: what to run.
      command: argv for the record.
      explicit_flags: names of the parameters that were given, for the record.
      console: where the report goes; silent by default.
      messages: where notices go; silent by default.
      progress: live progress; none by default.

    Raises:
      FlagError: a parameter that cannot be used.
    """

    def __init__(
        self,
        params: Params,
        *,
        command: Sequence[str] = (),
        explicit_flags: Sequence[str] = (),
        console: Console | None = None,
        messages: Messages | None = None,
        progress: Progress | None = None,
    ) -> None:
        validate(params)
        self.params = params
        self.plan: Plan = make_plan(params)
        self._console = console or Console.silent()
        self._messages = messages or Messages.silent()
        self._progress = progress or Progress.silent()
        self._measurements = Measurements(
            command=command, config=self._resolved(), explicit_flags=explicit_flags
        )
        self.record: RunRecord | None = None

    def run(self) -> RunRecord:
        """Runs to the end and writes the result files that were asked for.

        Returns:
          The record; also in `self.record`, there even when this raises.

        Raises:
          UsageError: found only now, such as too few GPUs; no record is written.
          BenchmarkError: the run failed; the record holds what was measured.
          KeyboardInterrupt: likewise.
        """
        self._prepare_outputs()
        try:
            self._run()
        except UsageError:
            raise
        except KeyboardInterrupt:
            self._end("interrupted")
            raise
        except BenchmarkError as error:
            self._end("failed", error)
            raise
        except Exception as error:
            self._end("failed", error)
            failure = _as_benchmark_error(error)
            if failure is None:
                raise
            raise failure from error
        record = self._end("ok")
        for line in summary_lines(record.summary()):
            self._messages.notice(line)
        return record

    def build(self) -> BuiltRun:
        """Loads TensorFlow, creates variables and input, and traces the step.

        Raises:
          FlagError: devices or data that are not there.
        """
        start = time.perf_counter()
        runtime.export_environment(self.params)
        with without_chatter():
            import tensorflow as tf

            self._measurements.import_seconds = time.perf_counter() - start
            devices = runtime.configure(self.params)
        for notice in devices.notices:
            self._messages.notice(notice)
        tf.random.set_seed(self.params.tf_random_seed)
        self._describe(devices)
        memory.reset(devices.kind)
        self._console.header(self._header(devices))
        start = time.perf_counter()
        built = self._build(devices)
        self._measurements.build_seconds = time.perf_counter() - start
        return built

    def _build(self, devices: runtime.Devices) -> BuiltRun:
        from cnnbench.checkpoints import Checkpoints
        from cnnbench.evaluation import Evaluator
        from cnnbench.optimizers import make_optimizer
        from cnnbench.train_step import TrainStep
        from cnnbench.variable_mgr import registry

        plan, params = self.plan, self.params
        self._console.phase(
            Phase.GENERATING_EVALUATION if params.eval else Phase.GENERATING_TRAINING
        )
        manager = registry.create(self._manager_spec(devices), plan.spec.variables)
        manager.create_variables()
        optimizer = None
        step: TrainStep | None = None
        inputs: InputSource | None = None
        if plan.trains:
            optimizer = make_optimizer(params)
            # One group of variables per tower, or one that all towers share.
            groups = len(devices.towers) if manager.each_tower_has_variables() else 1
            for tower in range(groups):
                optimizer.create_slots(manager.trainable_variables_on_device(tower))
        if not params.eval:
            inputs = self._inputs(devices, "train", plan.batch_per_device)
            step = TrainStep(
                plan.model, plan.spec, manager, optimizer, inputs, self._step_config(devices)
            )
            step.build()
        evaluator: Evaluator | None = None
        evaluation_inputs: InputSource | None = None
        if plan.num_eval_batches:
            evaluation_inputs = self._inputs(devices, "validation", plan.eval_batch_per_device)
            evaluator = Evaluator(
                plan.model,
                plan.spec,
                manager,
                evaluation_inputs,
                runtime.data_format(params, devices.kind),
                COMPUTE_DTYPES[params.precision],
                params.display_every,
            )
        checkpoints = None
        if params.train_dir is not None:
            slots = {} if optimizer is None else manager.savable_slots(optimizer)
            checkpoints = Checkpoints(manager, slots, params.max_ckpts_to_keep)
        return BuiltRun(devices, manager, step, inputs, evaluator, evaluation_inputs, checkpoints)

    def _run(self) -> None:
        built = self.build()
        try:
            if self.params.eval:
                self._evaluate(built)
            else:
                self._train(built)
            self._measure_limits(built)
        finally:
            built.close()

    def _train(self, built: BuiltRun) -> None:
        from cnnbench import checkpoints
        from cnnbench.training import Training, TrainingConfig

        assert built.step is not None
        assert built.inputs is not None
        params, plan = self.params, self.plan
        self._console.phase(Phase.INITIALIZING)
        built.manager.after_initialization()
        global_step = 0
        if built.checkpoints is not None and params.train_dir is not None:
            path = checkpoints.latest(params.train_dir)
            if path is not None:
                global_step = built.checkpoints.restore(path)
                self._messages.notice(f"resuming from {path} at global step {global_step}")
        # As in tf_cnn_benchmarks, --num_batches counts from the first run on.
        steps = plan.num_batches - global_step
        if steps < 1:
            raise FlagError(
                "num_batches",
                plan.num_batches,
                f"the checkpoint in --train_dir={params.train_dir} is at step {global_step} "
                "already; ask for more batches or for another directory",
            )
        config = TrainingConfig(
            display_every=params.display_every,
            ewma=params.display_perf_ewma,
            with_accuracy=params.print_training_accuracy or params.forward_only,
            loss_name=params.loss_type_to_report,
            allow_nonfinite=params.allow_nonfinite,
            save_directory=params.train_dir,
            save_steps=params.save_model_steps,
            save_seconds=params.save_model_secs,
            stop_at_top_1=params.stop_at_top_1_accuracy,
            lag=1 if built.devices.kind == "gpu" else 0,
        )
        training = Training(
            plan,
            config,
            built.step,
            built.inputs,
            make_schedule(params, plan.model.learning_rate, plan.global_batch, plan.train_examples),
            self._console,
            self._progress,
            self._measurements,
            built.checkpoints,
            built.evaluator,
            global_step,
        )
        training.run(steps)

    def _evaluate(self, built: BuiltRun) -> None:
        from cnnbench import checkpoints

        assert built.evaluator is not None
        assert built.checkpoints is not None
        train_dir = self.params.train_dir
        assert train_dir is not None  # validated
        while True:
            path = checkpoints.latest(train_dir)
            if path is None:
                self._console.checkpoint_not_found(train_dir)
                if not self.params.eval_interval_secs:
                    raise BenchmarkError(f"no checkpoint in --train_dir={train_dir}")
            else:
                global_step = built.checkpoints.restore(path)
                self._console.checkpoint_loaded(path)
                result = built.evaluator.run(self.plan.num_eval_batches, global_step, self._console)
                self._measurements.add_evaluation(result)
                self._console.footer(result.images_per_sec)
            if not self.params.eval_interval_secs:
                return
            time.sleep(self.params.eval_interval_secs)

    def _manager_spec(self, devices: runtime.Devices) -> VariableMgrSpec:
        params = self.params
        return VariableMgrSpec(
            variable_update=params.variable_update,
            devices=devices.towers,
            parameter_device="cpu" if params.local_parameter_device == "cpu" else "towers",
            cpu_device=devices.cpu,
            reduction=params.gradient_reduction,
            all_reduce_spec=params.all_reduce_spec,
            seed=params.tf_random_seed,
        )

    def _step_config(self, devices: runtime.Devices) -> Any:
        from cnnbench.train_step import StepConfig

        params = self.params
        scale = 1.0
        if params.precision == "fp16":
            scale = params.fp16_loss_scale or DEFAULT_FP16_LOSS_SCALE
        return StepConfig(
            data_format=runtime.data_format(params, devices.kind),
            compute_dtype=COMPUTE_DTYPES[params.precision],
            weight_decay=params.weight_decay,
            gradient_clip=params.gradient_clip,
            gradient_reduction=params.gradient_reduction,
            bn_stats=params.bn_stats,
            loss_scale=scale,
            report_total_loss=params.loss_type_to_report == "total_loss",
            accuracy=params.print_training_accuracy or params.forward_only,
            forward_only=params.forward_only,
            xla_compile=params.xla_compile,
            seed=params.tf_random_seed,
        )

    def _inputs(self, devices: runtime.Devices, subset: str, batch: int) -> InputSource:
        from cnnbench.data import InputSpec, make_input

        spec = InputSpec.from_flags(
            self.params,
            dataset=self.plan.dataset,
            data_dir=self.params.data_dir,
            subset=subset,
            batch_per_device=batch,
            num_devices=len(devices.towers),
            image_size=self.plan.model.image_size,
            channels=self.plan.model.channels,
            seed=self.params.tf_random_seed,
            dtype=COMPUTE_DTYPES[self.params.precision],
            datasets_num_private_threads=runtime.input_threads(self.params, devices.kind),
        )
        return make_input(spec, devices.towers)

    def _resolved(self) -> dict[str, Any]:
        """The parameters with what the plan has worked out in place of "the default"."""
        plan = self.plan
        return {
            **self.params.as_dict(),
            "data_name": plan.dataset.name,
            "batch_size": plan.batch_per_device,
            "eval_batch_size": plan.eval_batch_per_device,
            "num_batches": plan.num_batches,
            "num_epochs": plan.num_epochs,
            "num_warmup_batches": plan.warmup,
        }

    def _describe(self, devices: runtime.Devices) -> None:
        plan, measurements = self.plan, self._measurements
        measurements.model = ModelInfo(
            name=plan.model.name,
            parameters=plan.spec.parameters,
            trainable_parameters=plan.spec.trainable_parameters,
            forward_flops_per_image=plan.spec.forward_flops_per_image,
            training_flops_per_image=plan.spec.training_flops_per_image,
        )
        measurements.placement = Placement(
            device=devices.kind,
            devices=devices.towers,
            num_towers=len(devices.towers),
            num_workers=1,
            variable_update=self.params.variable_update,
        )
        measurements.update_config(
            device=devices.kind, data_format=runtime.data_format(self.params, devices.kind)
        )
        measurements.batch = Batch(per_device=plan.batch_per_device, global_=plan.global_batch)

    def _header(self, devices: runtime.Devices) -> HeaderInfo:
        import tensorflow as tf

        params, plan = self.params, self.plan
        return HeaderInfo(
            tensorflow_version=tf.__version__,
            model=plan.model.name,
            dataset=plan.dataset.name,
            synthetic=params.data_dir is None,
            mode=plan.mode,
            global_batch=plan.global_batch,
            per_device_batch=plan.batch_per_device,
            num_batches=plan.num_batches,
            num_epochs=plan.num_epochs,
            devices=devices.labels,
            data_format=runtime.data_format(params, devices.kind),
            optimizer=params.optimizer,
            variable_update=params.variable_update,
            all_reduce_spec=params.all_reduce_spec,
        )

    def _measure_limits(self, built: BuiltRun) -> None:
        """What the run is compared with; costs seconds on a CPU, so only for a record."""
        measurements, params = self._measurements, self.params
        measurements.peak_memory_bytes = memory.peak_bytes(built.devices.kind)
        if params.result_json is None and params.result_csv is None:
            return
        peak = peak_flops.peak(
            built.devices.kind,
            built.devices.towers,
            COMPUTE_DTYPES[params.precision],
            params.peak_flops,
        )
        if peak is not None:
            measurements.peak_flops_per_sec = peak.flops_per_sec
            measurements.peak_flops_source = peak.source

    def _prepare_outputs(self) -> None:
        if self.params.result_json is not None:
            result_json.prepare(self.params.result_json)
        if self.params.result_csv is not None:
            result_csv.prepare(self.params.result_csv)

    def _end(self, status: str, error: BaseException | None = None) -> RunRecord:
        self._measurements.environment = environment.collect()
        record = self.record = self._measurements.record(status, error)
        if self.params.result_json is not None:
            result_json.write(self.params.result_json, record)
        if self.params.result_csv is not None:
            result_csv.append(self.params.result_csv, record)
        return record


def _as_benchmark_error(error: Exception) -> BenchmarkError | None:
    """One line for the failures of TensorFlow itself; None for a defect of ours."""
    import tensorflow as tf

    if isinstance(error, tf.errors.ResourceExhaustedError):
        return BenchmarkError(
            f"out of memory: lower --batch_size (it counts per device); {_first_line(error)}"
        )
    if isinstance(error, tf.errors.OpError):
        return BenchmarkError(f"TensorFlow: {type(error).__name__}: {_first_line(error)}")
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
