"""Runs `cnnbench allreduce`: measures all-reduces, prints the table, and writes the result files.

Each row is printed when it has been measured.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from cnnbench.base.interrupts import (
    delaying_interrupts,
    errors_as_interrupts,
    raise_if_interrupted,
)
from cnnbench.base.rules import notices_about
from cnnbench.base.terminal import LineWriter, MessageWriter, ProgressLine, silence_warnings
from cnnbench.base.values import labels_from_config
from cnnbench.errors import BenchmarkError
from cnnbench.lab.all_reduce.plan import UNUSED, AllReducePlan
from cnnbench.lab.all_reduce.table import (
    ResultRowFormatter,
    copy_line,
    failure_message,
    footer_lines,
    header_lines,
    implausible_time_warning,
)
from cnnbench.machine import facts, repository
from cnnbench.machine.checks import parse_silenced
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.machine.watch import ConditionMonitor
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import encode
from cnnbench.records.files import report_failed_writes
from cnnbench.records.result_files import REDUCTIONS, ResultFiles, all_reduce_row
from cnnbench.records.run import (
    EMULATED_GPU,
    ConditionNote,
    ErrorInfo,
    RingDevices,
    device_kind_for_record,
)
from cnnbench.run.driver.describe import machine_check_flags
from cnnbench.run.runtime.devices import configure_devices, set_environment
from cnnbench.run.runtime.loading import load_tensorflow
from cnnbench.run.runtime.native_log import without_info_lines
from cnnbench.variable_mgr.all_reduce.context import (
    ReduceContext,
    cpus_for_additions,
    group_devices,
)

if TYPE_CHECKING:
    from cnnbench.base.job import Job
    from cnnbench.lab.all_reduce.program import WorkloadBenchmark
    from cnnbench.run.driver.membership import JobMembership
    from cnnbench.variable_mgr.all_reduce import AllReduceSpec
    from cnnbench.variable_mgr.workers import WorkerGroup


def write_final_record(
    first_record: AllReduceRecord,
    results: ResultFiles,
    error: BenchmarkError | None,
    messages: MessageWriter,
) -> None:
    """Writes the final record of a process that ended early because of `error`, or because of an
    interrupt if `error` is None.

    `first_record` is the record from the start of the process, without any rows. If the process
    has written a later record, the later record is completed.
    """
    written = results.read_document_of_run(first_record.run_id)
    so_far = AllReduceRecord.from_json(written) if written else first_record
    if so_far.status == "interrupted" and error is not None:
        so_far = dataclasses.replace(so_far, status="failed", error=ErrorInfo.from_exception(error))
    results.write(so_far, list)
    report_failed_writes(messages.warning)


class AllReduceBenchmark:
    """Measures all reductions in a plan of `cnnbench allreduce`, and prints and records them."""

    def __init__(
        self,
        plan: AllReducePlan,
        writer: LineWriter,
        *,
        command: Sequence[str],
        explicit_flags: Sequence[str],
        messages: MessageWriter,
        progress: ProgressLine,
        membership: JobMembership,
    ) -> None:
        self.plan = plan
        self.params = params = plan.params
        self._membership = membership
        self._workers: WorkerGroup | None = None
        self._writer = writer
        self._messages = messages
        self._progress = progress
        self._results = ResultFiles(params.result_json, params.result_csv, REDUCTIONS)
        config = {**params.as_dict(), "sizes": [w.name for w in plan.workloads]}
        subject = repository.measured_code(params.as_dict())
        self._so_far = AllReduceRecord(
            run_id=uuid.uuid4().hex,
            started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            status="interrupted",
            command=tuple(command),
            config={name: encode(value) for name, value in config.items()},
            explicit_flags=tuple(explicit_flags),
            subject=subject.with_labels(labels_from_config(config)),
        )
        silence_warnings(parse_silenced(params.quiet_conditions))
        self._watch = ConditionMonitor()

    def run(self) -> AllReduceRecord:
        """Measures all reductions in the plan, prints the table, and updates the result files.

        Raises:
          UsageError: the run is impossible, for example because of too few GPUs. No file is
            written.
          BenchmarkError: sums were wrong or a reduction failed. The files contain the details.
          KeyboardInterrupt: the run was interrupted. The files contain all measurements so far.
        """
        # The monitor imports a module in a thread. If a process forked during that import, the
        # child would wait for the import lock forever.
        self._watch.start(gpus=self.params.device != "cpu")
        for notice in notices_about(UNUSED, self.plan, self._so_far.explicit_flags):
            self._messages.notice(notice)
        if self._so_far.subject is not None and self._so_far.subject.unknown_commit_warning:
            self._messages.warning(self._so_far.subject.unknown_commit_warning, "commit")
        continued = self._results.check_writable(inputs=self.params.plugin)
        if continued is not None:
            self._messages.notice(continued)
        with self._membership.reporting_end(self._write_record):
            with errors_as_interrupts():
                places = self._start_tensorflow()
                self._measure_cases(places, self._resolve_specs(places))
            if self._workers is not None:
                # The sum waits for all workers, and so until the chief has finished its
                # measurements.
                self._workers.sum_over_workers(0)
            failed = [point for point in self._so_far.rows if point.failed]
            if failed:
                self._writer.write_lines(footer_lines(self._so_far))
                raise BenchmarkError(failure_message(failed))
            raise_if_interrupted()
            # The record is written first, because the other processes may never answer.
            record = self._write_record("ok")
        self._writer.write_lines(footer_lines(record))
        report_failed_writes()
        return record

    def _write_record(self, status: str, error: BaseException | None = None) -> AllReduceRecord:
        record = self.make_record(
            status, None if error is None else ErrorInfo.from_exception(error)
        )
        with delaying_interrupts():
            self._results.write(record, list)
        return record

    def write_early_end_record(self, error: BenchmarkError | None) -> None:
        """Writes the final record of this process, which ends early because of `error`, or because
        of an interrupt if `error` is None.
        """
        write_final_record(self.make_record("interrupted"), self._results, error, self._messages)

    def make_record(self, status: str = "ok", error: ErrorInfo | None = None) -> AllReduceRecord:
        """Creates a record of all measurements so far. `status` is "ok", "failed" or
        "interrupted".
        """
        conditions = self._watch.observed_conditions()
        return dataclasses.replace(self._so_far, status=status, error=error, conditions=conditions)

    def _update_record(self, **parts: Any) -> None:
        self._so_far = dataclasses.replace(self._so_far, **parts)

    def _start_tensorflow(self) -> dict[int, ReduceContext]:
        """Loads and configures TensorFlow, and connects the processes of the job.

        Returns the context of reductions for each number of devices per worker.
        """
        settings = self.plan.run.process_flags
        self._watch.set_peers(self._membership.connect())
        for warning in set_environment(settings):
            self._messages.warning(warning, "variables")
        with without_info_lines():
            load_tensorflow()
            devices = self._membership.connect_tensorflow(
                configure_devices(settings, self.plan.job)
            )
            # TensorFlow creates its devices with the first operation, so one is run here.
            self._update_record(environment=facts.collect())
        for notice in devices.notices:
            self._messages.notice(notice)
        flags = machine_check_flags(self.plan.run, devices)
        self._print_warnings(self._watch.check_before_run(self._so_far.environment, flags))
        job = devices.job
        device = device_kind_for_record(devices.kind, self._so_far.environment)
        if device == EMULATED_GPU:
            self._messages.notice(EMULATED_NOTICE)
        self._update_record(placement=RingDevices(device=device, devices=job.tower_devices))
        if job.client_per_worker and job.num_workers > 1:
            from cnnbench.variable_mgr.workers import WorkerGroup

            self._workers = WorkerGroup(job.cpu_devices, job.cpu_device)
        return {count: self._reduce_context(job, count) for count in self.plan.counts}

    def _reduce_context(self, job: Job, count: int) -> ReduceContext:
        def first_devices(devices: Sequence[str]) -> tuple[str, ...]:
            per_worker = job.towers_per_worker
            return tuple(device for i, device in enumerate(devices) if i % per_worker < count)

        devices = first_devices(job.tower_devices)
        cpus = job.cpu_devices if job.in_cluster else ()
        on_cpu = self.params.local_parameter_device == "cpu"
        return ReduceContext(
            devices=devices,
            cpu_devices=cpus_for_additions(devices, cpus, job.cpu_device),
            cpu_device=job.cpu_device if on_cpu else None,
            own=None if self._workers is None else first_devices(job.own_tower_devices),
            network_topology=self.params.network_topology,
            share_memory=self.params.all_reduce_share_memory,
            communication_hint=self.params.communication_hint,
            shared_cards=self.params.gpus_per_card > 1,
        )

    def _print_warnings(self, conditions: Iterable[ConditionNote]) -> None:
        for condition in conditions:
            self._messages.warning(str(condition), condition.id)

    def _resolve_specs(
        self, places: Mapping[int, ReduceContext]
    ) -> dict[int, tuple[AllReduceSpec, ...]]:
        from cnnbench.lab.all_reduce.program import check_algorithms, usable_algorithms

        group_size = self.params.all_reduce_group_size
        for place in places.values():
            check_algorithms(self.plan.specs, self.plan.peers, place, group_size)
        if self.plan.specs is not None:
            self._writer.write_lines(
                f"# {spec} is {running} on {len(place.devices)} devices: there is no other level"
                for spec in self.plan.specs
                for place in places.values()
                for groups in [group_devices(place.devices, group_size)]
                if (running := spec.without_needless_levels(groups)) != spec
            )
            return dict.fromkeys(places, self.plan.specs)
        in_cluster = self.plan.job.in_cluster
        usable = {count: usable_algorithms(place, in_cluster) for count, place in places.items()}
        left_out: dict[tuple[str, str], list[str]] = {}
        for count, (_, reasons) in usable.items():
            for name_and_reason in reasons.items():
                left_out.setdefault(name_and_reason, []).append(str(len(places[count].devices)))
        for (name, reason), counts in left_out.items():
            line = f"# left out on {' and '.join(counts)} devices: {name}: {reason}"
            self._writer.write_lines([line])
        return {count: specs for count, (specs, _) in usable.items()}

    def _measure_cases(
        self, places: Mapping[int, ReduceContext], specs: Mapping[int, tuple[AllReduceSpec, ...]]
    ) -> None:
        from cnnbench.lab.all_reduce.program import WorkloadBenchmark, warm_up_devices

        cases = {count: self.plan.cases(specs[count]) for count in places}
        names = [
            (str(case), str(case.packing))
            for cases_of_count in cases.values()
            for case in cases_of_count
        ]
        rows = ResultRowFormatter(names, self.params.build_only, self.params.num_batches)
        self._writer.write_lines([*header_lines(self._so_far, self.params), "#", *rows.header()])
        with without_info_lines():
            warm_up_devices(places[self.plan.counts[0]])
        with self._watch:
            for count, place in places.items():
                for workload in self.plan.workloads:
                    bench = WorkloadBenchmark(
                        place, workload, cases[count], self.params, self._workers
                    )
                    try:
                        bench.run(self._progress)
                    finally:
                        with delaying_interrupts():
                            self._add_results(bench, rows)
        self._print_warnings(self._watch.check_timed_loop())

    def _add_results(self, bench: WorkloadBenchmark, rows: ResultRowFormatter) -> None:
        self._update_record(environment=facts.with_loaded_libraries(self._so_far.environment))
        copying, points = bench.memory_copy, bench.points
        if copying is not None:
            self._update_record(copies=(*self._so_far.copies, copying))
            self._writer.write_lines([copy_line(copying)])
        elif bench.copy_error is not None:
            self._writer.write_lines([f"# memory copy: {bench.copy_error}"])
        peers = [point for point in points if point.spec in self.plan.peers]
        own = [point for point in points if point.spec not in self.plan.peers]
        self._update_record(
            points=(*self._so_far.points, *own), peers=(*self._so_far.peers, *peers)
        )
        # If the run is killed during the next workload, this record, which says "interrupted",
        # remains.
        record = self.make_record("interrupted")
        verbose = self.params.verbose and not self.params.build_only
        for point in points:
            share = record.copy_time_share(point)
            self._writer.write_lines(rows.row_lines(point, share, verbose))
            warning = implausible_time_warning(point, share)
            if warning is not None:
                self._messages.warning(warning, "implausible")
        self._results.write(record, lambda: [all_reduce_row(record, point) for point in points])
