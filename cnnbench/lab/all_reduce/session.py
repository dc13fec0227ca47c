"""Runs `cnnbench allreduce`: measures all-reduces, prints the table, and writes the result files.

docs/all_reduce_benchmark.md defines the columns. A GB is 10**9 bytes. Each row is printed when it
has been measured. Scripts read the rows, so widths are fixed and numbers have no separators.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

from cnnbench.base.interrupts import (
    converting_errors_to_interrupts,
    delaying_interrupts,
    raise_if_interrupted,
)
from cnnbench.base.rules import notices_about
from cnnbench.base.stats import FEWEST_FOR_P99
from cnnbench.base.terminal import LineWriter, MessageWriter, ProgressLine, silence_warnings
from cnnbench.base.text import NONE, labels_from_config
from cnnbench.errors import BenchmarkError
from cnnbench.lab.all_reduce.plan import UNUSED, AllReducePlan
from cnnbench.machine import facts, repository
from cnnbench.machine.checks import parse_silenced_conditions
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.machine.watch import ConditionMonitor
from cnnbench.records.all_reduce import AllReduceRecord, Copying, Point
from cnnbench.records.codec import encode
from cnnbench.records.files import report_failed_writes
from cnnbench.records.result_files import REDUCTIONS, ResultFiles, all_reduce_row
from cnnbench.records.run import (
    EMULATED_GPU,
    ConditionNote,
    Conditions,
    ErrorInfo,
    RingDevices,
    device_kind_for_record,
)
from cnnbench.run.driver.describe import machine_check_flags
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.runtime.loading import load_tensorflow, without_info_lines
from cnnbench.variable_mgr.all_reduce.spec import ReduceContext, cpus_for_additions, group_devices

if TYPE_CHECKING:
    from cnnbench.base.job import Job
    from cnnbench.lab.all_reduce.program import WorkloadBenchmark
    from cnnbench.run.driver.membership import JobMembership
    from cnnbench.variable_mgr.all_reduce import AllReduceSpec
    from cnnbench.variable_mgr.base import WorkerGroup


# The output has the format of nccl-tests: rows of a table, and comments that begin with ``#``.

# A reduction 20 times as fast as the memory-copy estimate is impossible on any known machine.
IMPLAUSIBLE_SHARE = 20.0

_GIGA = 1e9
_MICRO = 1e-6


Column: TypeAlias = tuple[str, str, str, Callable[[Point, "float | None"], object]]
"""Title, unit, format (alignment and width), and function from a row and its share to the cell.
"""


class ResultRowFormatter:
    """Formats the rows of the table that a run of `cnnbench allreduce` prints.

    Args:
      cases: texts of all specs and packings, which determine the widths of columns.
      build_only: whether rows show the build time instead of the time of a reduction.
      calls: number of timed calls per row. If it is too small for a 99th percentile, the column is
        "max".
    """

    def __init__(
        self,
        cases: Sequence[tuple[str, str]],
        build_only: bool = False,
        calls: int = FEWEST_FOR_P99,
    ) -> None:
        specs = max((len(spec) for spec, _ in cases), default=4)
        packings = max((len(packing) for _, packing in cases), default=7)
        self._columns: tuple[Column, ...] = (
            ("size", "(B)", ">12", lambda p, s: p.bytes),
            ("count", "(elements)", ">12", lambda p, s: p.elements),
            ("tensors", "", ">7", lambda p, s: p.tensors),
            ("dtype", "", ">8", lambda p, s: p.dtype),
            ("devices", "", ">7", lambda p, s: p.devices),
            ("spec", "", f"<{max(specs, 4)}", lambda p, s: p.spec),
            ("packing", "", f"<{max(packings, 7)}", lambda p, s: p.packing),
            *(_BUILD if build_only else _measurement_columns(calls)),
        )

    def header(self) -> list[str]:
        """Formats the two lines of the table head: the titles and the units of the columns."""
        return [
            self._format_line("#", [title for title, *_ in self._columns]),
            self._format_line("#", [unit for _, unit, *_ in self._columns]),
        ]

    def row_lines(self, point: Point, share: float | None, verbose: bool = False) -> list[str]:
        """Formats a row as a line. Adds a line with the error if the reduction failed, and with
        `verbose` a line with the build time.

        `share` is the estimate from the memory copy divided by the median time; None if unknown.
        """
        case = f"{point.spec} {point.packing}:"
        lines = [self._format_line(" ", [str(cell(point, share)) for *_, cell in self._columns])]
        if point.error is not None:
            lines.append(f"# {case} {point.error}")
        if verbose:
            lines.append(
                f"# build: {case} traced in {_fixed_point_text(point.trace_seconds, 3)} s, "
                f"built in {_fixed_point_text(point.build_seconds, 3)} s, {point.operations or 0} "
                "operations"
            )
        return lines

    def _format_line(self, mark: str, cells: Sequence[str]) -> str:
        pairs = zip(self._columns, cells, strict=True)
        texts = (format(cell, alignment) for (*_, alignment, _), cell in pairs)
        return f"{mark} {'  '.join(texts)}".rstrip()


def copy_line(copy: Copying) -> str:
    """Formats the result of the memory copy, from which the time of reductions of the same size is
    estimated.
    """
    return (
        f"# memory copy: {copy.devices} devices at once write "
        f"{copy.bytes_per_sec / _GIGA:.2f} GB/s ({copy.bytes} B each); estimate "
        f"{copy.equivalent_copy_seconds(copy.bytes, copy.devices) / _MICRO:.1f} us"
    )


def footer_lines(record: AllReduceRecord) -> list[str]:
    """Formats the lines below the table: the fastest algorithm for each size, the number of wrong
    values, and an explanation of the last column.
    """
    wrong, checked = (sum(getattr(p, n) for p in record.rows) for n in ("wrong", "checked"))
    errors = sum(p.error is not None for p in record.rows)
    lines = fastest_spec_lines(record)
    if checked:
        lines.append(f"# Wrong values: {wrong} of {checked} {'FAILED' if wrong else 'OK'}")
    if errors:
        lines.append(f"# Rows with errors: {errors} FAILED")
    if record.copies:
        lines += [
            "# of copy estimate: the time in which all devices at once copy 2(n-1)/n x size each,",
            "#   as measured in the same run, over the median time. It is no bound: devices that",
            "#   share a memory may pass 1, as they can add and hand out sums with less traffic.",
        ]
    return lines


def fastest_spec_lines(record: AllReduceRecord) -> list[str]:
    """Formats a line with the fastest algorithm for each size and number of devices for which
    several algorithms were measured.
    """
    lines = []
    for first, other in record.fastest_points():
        if other is None or not first.median_seconds or not other.median_seconds:
            continue
        lines.append(
            f"# Fastest of {first.bytes} B on {first.devices} devices: {_case_text(first)}, "
            f"{_fixed_point_text(first.bus_bandwidth, 2, _GIGA)} GB/s busbw, "
            f"{other.median_seconds / first.median_seconds:.2f} times as fast as the next, "
            f"{_case_text(other)}"
        )
    return lines


def _case_text(point: Point) -> str:
    packing = str(point.packing)
    return point.spec if packing == NONE else f"{point.spec} {packing}"


def implausible_time_warning(point: Point, share: float | None) -> str | None:
    """Returns a warning if the measured time is too short for a reduction, or None if the time is
    plausible.
    """
    if share is None or share <= IMPLAUSIBLE_SHARE:
        return None
    return (
        f"{point.spec} {point.packing} on {point.bytes} bytes and {point.devices} devices: "
        f"{share:.0f} times as fast as the memory-copy estimate; probably an error"
    )


def _fixed_point_text(value: float | None, digits: int, unit: float = 1.0) -> str:
    return NONE if value is None else f"{value / unit:.{digits}f}"


def _wrong_elements_cell(point: Point) -> object:
    if point.error is not None:
        return "error"
    return point.wrong if point.checked else NONE


def _tensors_on_all_devices(point: Point) -> int:
    return point.devices * point.tensors


def _measurement_columns(calls: int) -> tuple[Column, ...]:
    return (
        ("time", "(us)", ">11", lambda p, s: _fixed_point_text(p.median_seconds, 1, _MICRO)),
        (
            ("p99", "(us)", ">11", lambda p, s: _fixed_point_text(p.p99_seconds, 1, _MICRO))
            if calls >= FEWEST_FOR_P99
            else (
                "max",
                "(us)",
                ">11",
                lambda p, s: _fixed_point_text(p.longest_seconds, 1, _MICRO),
            )
        ),
        ("algbw", "(GB/s)", ">7", lambda p, s: _fixed_point_text(p.algorithm_bandwidth, 2, _GIGA)),
        ("busbw", "(GB/s)", ">7", lambda p, s: _fixed_point_text(p.bus_bandwidth, 2, _GIGA)),
        ("#wrong", "", ">6", lambda p, s: _wrong_elements_cell(p)),
        ("of copy", "estimate", ">8", lambda p, s: _fixed_point_text(s, 3)),
    )


_BUILD: tuple[Column, ...] = (
    ("pieces", "(devices x tensors)", ">19", lambda p, s: _tensors_on_all_devices(p)),
    ("operations", "", ">10", lambda p, s: NONE if p.operations is None else p.operations),
    ("trace", "(s)", ">8", lambda p, s: _fixed_point_text(p.trace_seconds, 3)),
    ("build", "(s)", ">8", lambda p, s: _fixed_point_text(p.build_seconds, 3)),
    (
        "build/piece",
        "(us)",
        ">11",
        lambda p, s: _fixed_point_text(p.build_seconds, 1, _tensors_on_all_devices(p) * _MICRO),
    ),
)


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


# The following class executes one run of `cnnbench allreduce`, from flags to record.


class AllReduceBenchmark:
    """Executes a run of `cnnbench allreduce`: measures all reductions in a plan, and prints and
    records the results.
    """

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
        self._results = ResultFiles(
            params.result_json, params.result_csv, REDUCTIONS, AllReduceRecord.kind
        )
        config = {**params.as_dict(), "sizes": [w.name for w in plan.workloads]}
        self._so_far = AllReduceRecord(
            run_id=uuid.uuid4().hex,
            started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            status="interrupted",
            command=tuple(command),
            config={name: encode(value) for name, value in config.items()},
            explicit_flags=tuple(explicit_flags),
            subject=repository.measured_code(params.as_dict()).with_labels(
                labels_from_config(config)
            ),
        )
        silence_warnings(parse_silenced_conditions(params.quiet_conditions))
        self._conditions: Callable[[], Conditions | None] = lambda: None

    def run(self) -> AllReduceRecord:
        """Measures all reductions in the plan, prints the table, and updates the result files.

        Raises:
          UsageError: the run is impossible, for example because of too few GPUs. No file is
            written.
          BenchmarkError: sums were wrong or a reduction failed. The files contain the details.
          KeyboardInterrupt: the run was interrupted. The files contain all measurements so far.
        """
        # The monitor imports a module in a thread. A fork during an import copies a locked import
        # lock.
        self._watch = ConditionMonitor(gpus=self.params.device != "cpu")
        self._conditions = self._watch.observed_conditions
        for notice in notices_about(UNUSED, self.plan, self._so_far.explicit_flags):
            self._messages.notice(notice)
        if self._so_far.subject is not None and self._so_far.subject.unknown_commit_warning:
            self._messages.warning(self._so_far.subject.unknown_commit_warning, "commit")
        continued = self._results.check_writable()
        if continued is not None:
            self._messages.notice(continued)
        with self._membership.reporting_end(self._write_record):
            with converting_errors_to_interrupts():
                places = self._start_tensorflow()
                self._measure_cases(places, self._usable_specs(places))
            if self._workers is not None:
                # This sum over all workers waits until the chief has finished its measurements.
                self._workers.sum_over_workers(0)
            failed = [point for point in self._so_far.rows if point.failed]
            if failed:
                self._writer.write_lines(footer_lines(self._so_far))
                raise BenchmarkError(_failure_message(failed))
            raise_if_interrupted()
            # The record is written before this process waits for the other processes.
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
        conditions = self._conditions()
        return dataclasses.replace(self._so_far, status=status, error=error, conditions=conditions)

    def _update_record(self, **parts: Any) -> None:
        self._so_far = dataclasses.replace(self._so_far, **parts)

    def _start_tensorflow(self) -> dict[int, ReduceContext]:
        """Loads and configures TensorFlow, and connects the processes of the job.

        Returns the context of reductions for each number of devices per worker.
        """
        settings = self.plan.run.process_flags
        self._watch.add_peer_processes(self._membership.connect_and_get_local_pids())
        for warning in runtime.set_tensorflow_environment(settings):
            self._messages.warning(warning, "variables")
        with without_info_lines():
            load_tensorflow()
            devices = self._membership.connect_tensorflow(
                runtime.configure_devices(settings, self.plan.job)
            )
            # TensorFlow creates the devices when the first operation runs.
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
            from cnnbench.variable_mgr.base import WorkerGroup

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

    def _usable_specs(
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
        usable_specs = {
            count: usable_algorithms(place, in_cluster) for count, place in places.items()
        }
        left_out: dict[tuple[str, str], list[str]] = {}
        for count, (_, reasons) in usable_specs.items():
            for name, reason in reasons.items():
                devices = str(len(places[count].devices))
                left_out.setdefault((name, reason), []).append(devices)
        for (name, reason), counts in left_out.items():
            self._writer.write_lines(
                [f"# left out on {' and '.join(counts)} devices: {name}: {reason}"]
            )
        return {count: specs for count, (specs, _) in usable_specs.items()}

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
        self._writer.write_lines([*self._header_lines(), "#", *rows.header()])
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
                            self._add_and_print_results(bench, rows)
        self._print_warnings(self._watch.check_timed_loop())

    def _add_and_print_results(self, bench: WorkloadBenchmark, rows: ResultRowFormatter) -> None:
        self._update_record(environment=facts.with_loaded_libraries(self._so_far.environment))
        copying, points = bench.copy_result, bench.points
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
        # Until the next workload has been measured, this record shows the run as interrupted.
        record = self.make_record("interrupted")
        verbose = self.params.verbose and not self.params.build_only
        for point in points:
            share = record.copy_to_reduction_time_ratio(point)
            self._writer.write_lines(rows.row_lines(point, share, verbose))
            warning = implausible_time_warning(point, share)
            if warning is not None:
                self._messages.warning(warning, "implausible")
        self._results.write(record, lambda: [all_reduce_row(record, point) for point in points])

    def _header_lines(self) -> list[str]:
        version = self._so_far.environment.get("tensorflow_version", "unknown")
        assert self._so_far.placement is not None
        params = self.params
        how = (
            f"{params.iters_per_step} reductions per call"
            if params.build_only
            else f"{params.num_batches} calls of {params.iters_per_step} chained reductions after "
            f"{params.num_warmup_batches} warm-up calls, all rows of a size interleaved"
        )
        return [
            f"# cnnbench allreduce, TensorFlow {version}, {self._so_far.started_at}",
            f"# Devices: {' '.join(self._so_far.placement.devices)}",
            f"# {how}",
        ]


def _failure_message(failed: Sequence[Point]) -> str:
    first = failed[0]
    where = f"{first.spec} on {first.devices} devices, {first.bytes} bytes"
    what = first.error or f"{first.wrong} of {first.checked} elements are wrong"
    more = f"; {len(failed) - 1} more rows failed" if len(failed) > 1 else ""
    return f"{where}: {what}{more}"
