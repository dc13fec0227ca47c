"""`--result_csv`: one row per run in a table with fixed columns; see `CsvTable`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict

from cnnbench.records.csv import ENVIRONMENT, CsvTable
from cnnbench.records.run import SCHEMA, RunRecord

_SUMMARY = (
    "images_per_sec",
    "images_per_sec_uncertainty",
    "images_per_sec_jitter",
    "total_images_per_sec",
    "achieved_flops_per_sec",
    "mfu",
    "peak_flops_per_sec",
    "peak_flops_source",
    "input_wait_fraction",
    "peak_memory_bytes",
)
_CONFIG = (
    "data_name",
    "data_dir",
    "precision",
    "data_format",
    "optimizer",
    "forward_only",
    "eval",
    "gradient_reduction",
    "bn_stats",
    "all_reduce_spec",
    "xla",
    "xla_compile",
    "num_intra_threads",
    "num_inter_threads",
    "tf_random_seed",
)

COLUMNS = (
    "run_id",
    "started_at",
    "status",
    "model",
    "device",
    "num_towers",
    "num_workers",
    "variable_update",
    "all_reduce",
    "batch_per_device",
    "batch_global",
    "num_warmup_steps",
    "num_steps",
    *_SUMMARY,
    "last_loss",
    "eval_top_1",
    "eval_top_5",
    "startup_import_seconds",
    "startup_build_seconds",
    "startup_first_step_seconds",
    "parameters",
    "training_flops_per_image",
    *_CONFIG,
    *ENVIRONMENT,
    "error",
    "command",
    "schema",
)
"""The header, always all of it in this order; unknown values are empty cells."""

_TABLE = CsvTable("result_csv", COLUMNS, SCHEMA)


def prepare(path: str) -> None:
    """Proves before the run that a row can be appended after it.

    Raises:
      FlagError: the path cannot be written, or it is a table with other columns.
    """
    _TABLE.prepare(path)


def append(path: str, record: RunRecord) -> None:
    """Adds the row of a record, and the header before the first row.

    Raises:
      FlagError: the path can no longer be written, or has become another table.
      OSError: such as a full disk; the file is as it was.
    """
    _TABLE.append(path, [row(record)])


def row(record: RunRecord) -> dict[str, str]:
    """The cells of a record by column, unknown values empty."""
    startup = record.startup_seconds
    evaluation = record.evaluations[-1] if record.evaluations else None
    values: dict[str, object] = {
        "run_id": record.run_id,
        "started_at": record.started_at,
        "status": record.status,
        "model": record.config.get("model"),
        "num_warmup_steps": len(record.warmup_step_seconds),
        "num_steps": len(record.step_seconds),
        **asdict(record.summary()),
        "last_loss": record.losses[-1] if record.losses else None,
        "eval_top_1": None if evaluation is None else evaluation.top_1,
        "eval_top_5": None if evaluation is None else evaluation.top_5,
        "startup_import_seconds": startup.import_,
        "startup_build_seconds": startup.build,
        "startup_first_step_seconds": startup.first_step,
        **{name: record.config.get(name) for name in _CONFIG},
        **{name: record.environment.get(name) for name in ENVIRONMENT},
        **_sections(record),
        "error": f"{record.error.type}: {record.error.message}" if record.error else None,
        "command": shlex.join(record.command),
    }
    return _TABLE.cells(values)


def _sections(record: RunRecord) -> Mapping[str, object]:
    """Cells from the parts that a run has only when it got that far."""
    values: dict[str, object] = {}
    if record.model is not None:
        values |= {
            "model": record.model.name,
            "parameters": record.model.parameters,
            "training_flops_per_image": record.model.training_flops_per_image,
        }
    if record.batch is not None:
        values |= {
            "batch_per_device": record.batch.per_device,
            "batch_global": record.batch.global_,
        }
    if record.placement is not None:
        names = ("device", "num_towers", "num_workers", "variable_update", "all_reduce")
        values |= {name: getattr(record.placement, name) for name in names}
    return values
