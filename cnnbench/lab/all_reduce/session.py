"""One run of `cnnbench allreduce`, from its flags to its record."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from cnnbench.base.interrupts import obey, restored, uninterrupted
from cnnbench.base.text.labels import labels_of
from cnnbench.base.text.progress import Messages, Progress
from cnnbench.base.text.terminal import LineWriter
from cnnbench.errors import BenchmarkError, text_of
from cnnbench.lab.all_reduce import table
from cnnbench.lab.all_reduce.plan import UNUSED, AllReducePlan
from cnnbench.machine import facts, repository
from cnnbench.machine.checks import parse_quiet
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.machine.watch import Watch
from cnnbench.plan.rules import notices
from cnnbench.records.all_reduce import AllReduceRecord, Point
from cnnbench.records.codec import encode
from cnnbench.records.files import check_written
from cnnbench.records.parts import (
    EMULATED_GPU,
    ConditionNote,
    Conditions,
    ErrorInfo,
    RingDevices,
    recorded_device,
)
from cnnbench.records.result_files import REDUCTIONS, ResultFiles, all_reduce_row
from cnnbench.run.driver.describe import run_flags
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.runtime.loading import load_tensorflow
from cnnbench.run.runtime.native import without_info_lines
from cnnbench.variable_mgr.all_reduce.context import ReduceContext, adding_cpus, groups_of

if TYPE_CHECKING:
    from cnnbench.base.jobs.job import Job
    from cnnbench.lab.all_reduce.size_bench import SizeBench
    from cnnbench.run.driver.membership import Membership
    from cnnbench.variable_mgr.all_reduce import AllReduceSpec
    from cnnbench.variable_mgr.worker_group import WorkerGroup


class AllReduceBench:
    """Measures the cases of a plan."""

    def __init__(
        self,
        plan: AllReducePlan,
        writer: LineWriter,
        *,
        command: Sequence[str],
        explicit_flags: Sequence[str],
        messages: Messages,
        progress: Progress,
        membership: Membership,
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
            subject=repository.of_work(params.as_dict()).labelled(labels_of(config)),
        )
        self._quiet = parse_quiet(params.quiet_conditions)
        self._conditions: Callable[[], Conditions | None] = lambda: None

    def run(self) -> AllReduceRecord:
        """Measures everything, prints the table and keeps the files up to date.

        Raises:
          UsageError: a late refusal, such as too few GPUs; no file is written.
          BenchmarkError: sums were wrong or a reduction failed; the files name them.
          KeyboardInterrupt: the files hold all measurements until then.
        """
        # Its thread imports a module: a fork meanwhile would leave the lock of that import held.
        self._watch = Watch(gpus=self.params.device != "cpu")
        self._conditions = self._watch.record
        for notice in notices(UNUSED, self.plan, self._so_far.explicit_flags):
            self._messages.notice(notice)
        if self._so_far.subject is not None and self._so_far.subject.warning:
            self._messages.warning(self._so_far.subject.warning)
        continued = self._results.prepare()
        if continued is not None:
            self._messages.notice(continued)
        with self._membership.to_the_end(self._write):
            with restored():
                places = self._start()
                self._measure(places, self._specs(places))
            if self._workers is not None:
                self._workers.total(0)  # waits until the chief has measured
            failed = [point for point in self._so_far.rows if point.failed]
            if failed:
                self._writer.lines(table.footer(self._so_far))
                raise BenchmarkError(_failure(failed))
            obey()
            record = self._write("ok")  # before the others end, for which this process waits
        self._writer.lines(table.footer(record))
        check_written()
        return record

    def _write(self, status: str, error: BaseException | None = None) -> AllReduceRecord:
        record = self.record(status, None if error is None else _info(error))
        with uninterrupted():
            self._results.write(record, list)
        return record

    def lost(self, error: BenchmarkError | None) -> None:
        """Completes the record of a process that ended early; by an interrupt if None."""
        written = self._results.holds(self._so_far.run_id)
        so_far = AllReduceRecord.from_json(written) if written else self.record("interrupted")
        if so_far.status == "interrupted" and error is not None:
            so_far = dataclasses.replace(so_far, status="failed", error=_info(error))
        self._results.write(so_far, list)
        check_written(self._messages.warning)

    def record(self, status: str = "ok", error: ErrorInfo | None = None) -> AllReduceRecord:
        """The measurements so far; `status` is "ok", "failed" or "interrupted"."""
        conditions = self._conditions()
        return dataclasses.replace(self._so_far, status=status, error=error, conditions=conditions)

    def _add(self, **parts: Any) -> None:
        self._so_far = dataclasses.replace(self._so_far, **parts)

    def _start(self) -> dict[int, ReduceContext]:
        """Loads and configures TensorFlow; returns the devices by their number per worker."""
        settings = self.plan.run.machine.of_task(self.plan.job)
        self._watch.met(self._membership.meet())
        for warning in runtime.export_environment(settings):
            self._messages.warning(warning)
        with without_info_lines():
            load_tensorflow()
            devices = self._membership.join(runtime.configure(settings, self.plan.job))
            # The devices are made when the first operation runs.
            self._add(environment=facts.collect())
        for notice in devices.notices:
            self._messages.notice(notice)
        flags = run_flags(self.plan.run, devices)
        self._warn(self._watch.before(self._so_far.environment, flags))
        job = devices.job
        device = recorded_device(devices.kind, self._so_far.environment)
        if device == EMULATED_GPU:
            self._messages.notice(EMULATED_NOTICE)
        self._add(placement=RingDevices(device=device, devices=job.tower_devices))
        if job.client_per_worker and job.num_workers > 1:
            from cnnbench.variable_mgr.worker_group import WorkerGroup

            self._workers = WorkerGroup(job.cpu_devices, job.cpu_device)
        return {count: self._place(job, count) for count in self.plan.counts}

    def _place(self, job: Job, count: int) -> ReduceContext:
        def first(devices: Sequence[str]) -> tuple[str, ...]:
            each = job.towers_per_worker
            return tuple(device for i, device in enumerate(devices) if i % each < count)

        devices = first(job.tower_devices)
        cpus = job.cpu_devices if job.in_cluster else ()
        on_cpu = self.params.local_parameter_device == "cpu"
        return ReduceContext(
            devices=devices,
            cpu_devices=adding_cpus(devices, cpus, job.cpu_device),
            cpu_device=job.cpu_device if on_cpu else None,
            own=None if self._workers is None else first(job.own_tower_devices),
            network_topology=self.params.network_topology,
            share_memory=self.params.all_reduce_share_memory,
            communication_hint=self.params.communication_hint,
            shared_cards=self.params.gpus_per_card > 1,
        )

    def _warn(self, found: Iterable[ConditionNote]) -> None:
        for condition in found:
            if condition.id not in self._quiet:
                self._messages.warning(str(condition))

    def _specs(self, places: Mapping[int, ReduceContext]) -> dict[int, tuple[AllReduceSpec, ...]]:
        from cnnbench.lab.all_reduce.program import check, usable

        group_size = self.params.all_reduce_group_size
        for place in places.values():
            check(self.plan.specs, self.plan.peers, place, group_size)
        if self.plan.specs is not None:
            self._writer.lines(
                f"# {spec} is {running} on {len(place.devices)} devices: there is no other level"
                for spec in self.plan.specs
                for place in places.values()
                if (running := spec.running(groups_of(place.devices, group_size))) != spec
            )
            return dict.fromkeys(places, self.plan.specs)
        in_cluster = self.plan.job.in_cluster
        found = {count: usable(place, in_cluster) for count, place in places.items()}
        left_out: dict[tuple[str, str], list[str]] = {}
        for count, (_, reasons) in found.items():
            for name, reason in reasons.items():
                devices = str(len(places[count].devices))
                left_out.setdefault((name, reason), []).append(devices)
        for (name, reason), counts in left_out.items():
            self._writer.lines([f"# left out on {' and '.join(counts)} devices: {name}: {reason}"])
        return {count: specs for count, (specs, _) in found.items()}

    def _measure(
        self, places: Mapping[int, ReduceContext], specs: Mapping[int, tuple[AllReduceSpec, ...]]
    ) -> None:
        from cnnbench.lab.all_reduce.size_bench import SizeBench, warm_up

        cases = {count: self.plan.cases(specs[count]) for count in places}
        names = [(str(case), str(case.packing)) for each in cases.values() for case in each]
        rows = table.RowFormat(names, self.params.build_only, self.params.num_batches)
        self._writer.lines([*self._head(), "#", *rows.header()])
        with without_info_lines():
            warm_up(places[self.plan.counts[0]])
        with self._watch:
            for count, place in places.items():
                for workload in self.plan.workloads:
                    bench = SizeBench(place, workload, cases[count], self.params, self._workers)
                    try:
                        bench.run(self._progress)
                    finally:
                        with uninterrupted():
                            self._take(bench, rows)
        self._warn(self._watch.during())

    def _take(self, bench: SizeBench, rows: table.RowFormat) -> None:
        self._add(environment=facts.with_loaded_libraries(self._so_far.environment))
        copying, points = bench.copying, bench.points
        if copying is not None:
            self._add(copies=(*self._so_far.copies, copying))
            self._writer.lines([table.copy_line(copying)])
        elif bench.copy_error is not None:
            self._writer.lines([f"# memory copy: {bench.copy_error}"])
        peers = [point for point in points if point.spec in self.plan.peers]
        own = [point for point in points if point.spec not in self.plan.peers]
        self._add(points=(*self._so_far.points, *own), peers=(*self._so_far.peers, *peers))
        # Replaced by the next size, or by the end of the run.
        record = self.record("interrupted")
        verbose = self.params.verbose and not self.params.build_only
        for point in points:
            share = record.share_of_estimate(point)
            self._writer.lines(rows.lines(point, share, verbose))
            warning = table.implausible(point, share)
            if warning is not None:
                self._messages.warning(warning)
        self._results.write(record, lambda: [all_reduce_row(record, one) for one in points])

    def _head(self) -> list[str]:
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


def _failure(failed: Sequence[Point]) -> str:
    first = failed[0]
    where = f"{first.spec} on {first.devices} devices, {first.bytes} bytes"
    what = first.error or f"{first.wrong} of {first.checked} elements are wrong"
    more = f"; {len(failed) - 1} more rows failed" if len(failed) > 1 else ""
    return f"{where}: {what}{more}"


def _info(error: BaseException) -> ErrorInfo:
    return ErrorInfo(type=type(error).__name__, message=text_of(error))
